"""vLLM's weight transfer engine: the part of an update that runs in vLLM's workers.

Fits vLLM 0.24, which calls receive_weights only, and 0.32, which hands an engine the whole cycle.
"""

import logging
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

from .. import wire
from ..torch import matrix as packing
from . import operator, weight_plan
from .method import PackedLinear
from .weight_store import Weights
from .weight_update import PROTOCOL, Refused, Stage, receive, recv_text, send_text, version_of

_log = logging.getLogger("vllm.plugins.snug")


@dataclass
class InitInfo(WeightTransferInitInfo):
    address: str = ""      # where the trainer listens
    protocol: int = 0
    seconds: float = 300   # how long to wait for the trainer's next message
    insecure: bool = False


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    step: str = ""         # "stage", then "commit"
    update: str = ""       # which one


class SnugWeightTransferEngine(WeightTransferEngine):
    """Stages an update, verifies all of it, and commits it when every worker has done so."""

    init_info_cls, update_info_cls = InitInfo, UpdateInfo
    supports_draft_weight_update = False

    def __init__(self, config, *rest):
        super().__init__(config, *rest)  # 0.24: parallel_config, model; 0.32: vllm_config, device
        self._connection = self._weights = self._staged = None
        self._seconds = 300

    def init_transfer_engine(self, init_info):
        self._forget()
        if init_info.protocol != PROTOCOL:
            raise ValueError("the trainer speaks another protocol: install the same Snug on both "
                             "sides")
        self._seconds = init_info.seconds
        self._connection = wire.connect(init_info.address, insecure=init_info.insecure)
        try:
            send_text(self._connection, {"hello": PROTOCOL})
            tensors = [(name, getattr(torch, dtype), shape)
                       for name, dtype, shape in recv_text(self._connection, self._seconds)]
            if self._weights is None or self._tensors != tensors:
                self._tensors, self._weights = tensors, self._planned(tensors)
            weights = self._weights
            weights.read_hashes()  # somebody else may have loaded other weights
            send_text(self._connection, {"taken": weights.taken, "pieces": [
                [piece.tensor, *piece.source, str(piece.dtype).removeprefix("torch."), known]
                for piece, known in zip(weights.pieces, weights.hashes)]})
            if recv_text(self._connection, self._seconds) != "ok":
                raise RuntimeError("the trainer ended the handshake")
        except BaseException:
            self._forget()
            raise
        _log.info("Snug weight transfer: %d pieces, version %s", len(weights.pieces),
                  version_of(weights.hashes))

    def start_weight_update(self):
        self._staged = None

    def finish_weight_update(self):
        if self._staged is not None:
            self._staged = None
            raise RuntimeError("a weight update was staged and never committed: the trainer calls "
                               "update_weights with step=commit first")

    def update_weights(self, update_info):
        # The method of 0.32 ends with torch.accelerator.synchronize(), which a CPU lacks.
        self.receive_weights(self.parse_update_info(update_info))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info, load_weights=None):
        try:
            if update_info.step == "stage":
                self._stage(update_info.update)
            elif update_info.step == "commit":
                self._commit(update_info.update)
            else:
                raise ValueError(f"unknown step {update_info.step!r} of a weight update")
        except BaseException:
            self._forget()  # the trainer notices, and connects again
            raise

    def _stage(self, update):
        if self._connection is None:
            raise RuntimeError("no trainer is connected: call init_weight_transfer_engine first")
        self._staged = None
        weights = self._weights
        stage = Stage(weights.raw_bytes, weights.hashes)
        is_gpu = weights.device.type == "cuda"
        received = receive(
            self._connection, stage,
            lambda num_bytes: torch.empty(num_bytes, dtype=torch.uint8, device="cpu",
                                          pin_memory=is_gpu), self._seconds)
        weights.verify(received)
        self._staged = received, stage.new_hashes(), update

    def _commit(self, update):
        if self._staged is None or self._staged[2] != update:
            raise Refused("an update is to be committed that is not staged: its trainer lost the "
                          "connection; the weights are unchanged")
        received, hashes, _ = self._staged
        self._staged = None
        self._weights.commit(received, hashes)

    def _forget(self):
        self._staged = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _planned(self, tensors):
        layers = _Layers(self.model)
        device = next(self.model.parameters()).device
        return Weights(layers.pieces(tensors), layers, device)

    def shutdown(self):
        self._forget()

    @staticmethod
    def trainer_send_weights(iterator, trainer_args):
        raise NotImplementedError("call send_weights of snug.vllm.trainer.Trainer instead")


class _Layers:
    """What vLLM's layers can do for Weights."""

    def __init__(self, model):
        self._model = model
        if any(type(module).__name__ == "MLAAttention" for module in model.modules()):
            raise ValueError("models with latent attention (MLA) derive matrices from their "
                             "weights that Snug cannot update in place; use one of vLLM's own "
                             "weight transfer engines")

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
        if name == "weight" and hasattr(module, "weight_packed"):
            return "packed"  # by snug.vllm.method
        unchanged = (UnquantizedLinearMethod, UnquantizedEmbeddingMethod, PackedLinear)
        return "direct" if method is None or isinstance(method, unchanged) else "derived"

    def dense(self, module):
        """The weights of a packed layer, restored."""
        place = module.weight_packed.data
        return torch.ops.snug.unpack(place, *packing.read_header(place))

    def check(self, module, dense):
        self._packed(module, dense)

    def write(self, module, dense):
        """Packs into the layer's own memory."""
        packed, header = self._packed(module, dense)
        place, used = module.weight_packed.data, packed.numel()
        place[:used].copy_(packed)
        place[used:].zero_()
        if place.is_cuda:
            torch.cuda.current_stream().synchronize()  # kernels prefetch weights
            operator.remember(module.weight_packed, header)

    def _packed(self, module, dense):
        room = module.weight_packed.numel()
        made = packing.pack(dense, packing.read_header(module.weight_packed.data).kind)
        if made is None or made[0].numel() > room:
            raise Refused(f"the new weights of a {type(module).__name__} of {dense.shape[0]} x "
                          f"{dense.shape[1]} do not fit into the {room} bytes of its packed form; "
                          "start the engine again with them")
        return made

    def process(self, module):
        """Makes again what vLLM derived from weights that were changed in place."""
        method = getattr(module, "quant_method", None)
        if method is not None:
            method.process_weights_after_loading(module)

    def process_tied(self, written):
        """Other modules that hold a changed parameter too, such as a tied head."""
        changed = {id(parameter.tensor()) for parameter in written}
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
