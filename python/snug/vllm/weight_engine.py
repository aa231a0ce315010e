"""vLLM's weight transfer engine: the part of an update that runs in vLLM's workers.

Fits vLLM 0.24, which calls receive_weights only, and 0.32, which hands an engine the whole cycle.
"""

from dataclasses import dataclass

import torch
from vllm.distributed.weight_transfer.base import (WeightTransferEngine, WeightTransferInitInfo,
                                                   WeightTransferUpdateInfo)
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
from vllm.model_executor.model_loader.reload.layerwise import (_layerwise_process,
                                                               get_layerwise_info)
from vllm.model_executor.model_loader.reload.meta import materialize_layer, restore_layer_on_meta
from vllm.model_executor.model_loader.reload.utils import get_layer_params_buffers

from ..torch import matrix as packing
from . import operator, weight_plan
from .experts import PLACES, PackedExperts
from .method import PackedLinear
from .weight_receiver import Receiver
from .weight_store import Weights
from .weight_update import Refused


_PACKED = {"weight": "weight_packed", **PLACES}  # where a packed layer keeps a parameter


@dataclass
class InitInfo(WeightTransferInitInfo):
    address: str = ""      # where the trainer listens
    protocol: int = 0
    seconds: float = 300   # how long to wait for the trainer's next message
    insecure: bool = False


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    commit: str = ""       # number of the update that all workers have staged


class SnugWeightTransferEngine(WeightTransferEngine):
    """Commits updates that Receiver has staged and verified while the engine served."""

    init_info_cls, update_info_cls = InitInfo, UpdateInfo
    supports_draft_weight_update = False

    def __init__(self, config, *rest):
        super().__init__(config, *rest)  # 0.24: parallel_config, model; 0.32: vllm_config, device
        self._receiver = Receiver(self._weights)

    def _weights(self, tensors):
        layers = _Layers(self.model)
        return Weights(layers.pieces(tensors), layers, next(self.model.parameters()).device)

    def init_transfer_engine(self, init_info):
        self._receiver.connect(**vars(init_info))

    def start_weight_update(self):
        pass

    def finish_weight_update(self):
        pass

    def update_weights(self, update_info):
        # The method of 0.32 ends with torch.accelerator.synchronize(), which a CPU lacks.
        self.receive_weights(self.parse_update_info(update_info))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info, load_weights=None):
        self._receiver.commit(update_info.commit)

    def shutdown(self):
        self._receiver.forget()

    @staticmethod
    def trainer_send_weights(iterator, trainer_args):
        raise NotImplementedError("call send_weights of snug.vllm.trainer.Trainer instead")


class _Layers:
    """What vLLM's layers can do for Weights."""

    def __init__(self, model):
        self._model = model
        places = {tensor.data_ptr() for tensor in model.parameters()}
        for name, module in model.named_modules():
            sinks = getattr(getattr(module, "impl", None), "sinks", None)
            if type(module).__name__ == "MLAAttention":
                what = "latent attention (MLA)"
            elif sinks is not None and sinks.data_ptr() not in places:
                what = "this attention backend and sinks"
            else:
                continue
            raise ValueError(f"{name}: with {what}, vLLM computes with values that it derived from "
                             "the weights, and that Snug cannot update in place; use one of vLLM's "
                             "own weight transfer engines")

    def pieces(self, tensors):
        before = []
        try:
            for module in self._model.modules():
                before.append(_Tensors(module))
                restore_layer_on_meta(module, get_layerwise_info(module))
                _unwrap_loaders(module)
            return weight_plan.record(self._model, tensors, self._model.load_weights)
        finally:
            for tensors_of_module in before:
                tensors_of_module.put_back()

    def kind(self, module, name):
        method = getattr(module, "quant_method", None)
        if hasattr(module, _PACKED.get(name, "")):
            return "packed"  # by snug.vllm.method
        unchanged = (UnquantizedLinearMethod, UnquantizedEmbeddingMethod, PackedLinear,
                     PackedExperts)
        return "direct" if method is None or isinstance(method, unchanged) else "derived"

    def dense(self, module, name):
        """The weights of a packed layer, restored."""
        if name != "weight":
            return module.quant_method.unpacked(module, name)
        place = module.weight_packed.data
        return torch.ops.snug.unpack(place, *packing.read_header(place))

    def check(self, module, name, dense):
        self._packed(module, name, dense)

    def write(self, module, name, dense):
        """Packs into the layer's own memory."""
        packed, header = self._packed(module, name, dense)
        parameter = getattr(module, _PACKED[name])
        place, used = parameter.data, packed.numel()
        place[:used].copy_(packed)
        place[used:].zero_()
        if name == "weight" and hasattr(module, "weight_dense"):  # policy "speed"
            module.weight_dense.data.copy_(dense)
        if place.is_cuda:
            torch.cuda.current_stream().synchronize()  # kernels prefetch weights
            if header is not None:
                operator.remember(parameter, header)

    def _packed(self, module, name, dense):
        """The packed bytes, and the header of a matrix."""
        place = getattr(module, _PACKED[name]).data
        if name == "weight":
            made = packing.pack(dense, packing.read_header(place).kind)
        else:
            made = module.quant_method.packed(name, dense), None
        if made is None or made[0] is None or made[0].numel() > place.numel():
            layer = getattr(module, "prefix", "") or getattr(module, "layer_name", "")
            raise Refused(f"{layer or type(module).__name__}: the new weights do not fit into the "
                          f"{place.numel()} bytes of its packed form; start the engine again with "
                          "them")
        return made

    def process(self, module):
        """Makes again what vLLM derived from weights that were changed in place."""
        method = getattr(module, "quant_method", None)
        if method is not None:
            method.process_weights_after_loading(module)

    def process_tied(self, written):
        """Other modules that hold a changed parameter too, such as a tied head."""
        # Packed layers have no tensor under the name, and layers without a bias have None there.
        changed = {id(parameter.tensor()) for parameter in written} - {id(None)}
        owners = {id(parameter.module) for parameter in written}
        for module in self._model.modules():
            if id(module) not in owners and any(id(tensor) in changed for tensor
                                                in module._parameters.values()):
                self.process(module)

    def reload(self, module, tensors):
        """Has vLLM process a layer as if `tensors` had just been loaded; addresses stay."""
        info, before = get_layerwise_info(module), _Tensors(module)
        info.kernel_tensors = get_layer_params_buffers(module)
        info.kernel_non_persistent_buffers = set(module._non_persistent_buffers_set)
        info.load_numel = sum(tensor.numel() for tensor in tensors.values())
        try:
            restore_layer_on_meta(module, info)
            materialize_layer(module, info)
            for name, tensor in tensors.items():
                getattr(module, name).data.copy_(tensor)
            _layerwise_process(module, info)
        except BaseException:
            before.put_back()
            info.reset()
            raise


def _unwrap_loaders(module):
    """Has weights loaded at once: vLLM collects those of layers that are packed online."""
    for tensor in (*module._parameters.values(), *module._buffers.values()):
        loader = getattr(tensor, "weight_loader", None)
        while getattr(loader, "__name__", "") == "online_process_loader":
            loader = loader.__wrapped__
            tensor.weight_loader = loader


class _Tensors:
    """What a module holds now."""

    def __init__(self, module):
        self._now = module._parameters, module._buffers, module._non_persistent_buffers_set
        self._before = [own.copy() for own in self._now]

    def put_back(self):
        for own, before in zip(self._now, self._before):
            own.clear()
            own.update(before)
