"""The quantization method "snug": BF16 layers that multiply from packed weights."""

import torch

from .. import _library
from .._library import SnugError, library
from ..torch import matrix as packing
from ..torch import tuning
from ..torch.choice import is_faster_packed
from . import engine, operator
from .engine import (LinearBase, LinearMethodBase, ModelWeightParameter, ParallelLMHead,
                     QuantizationConfig, RoutedExperts, UnquantizedEmbeddingMethod,
                     UnquantizedLinearMethod)
from .expert_limits import why_dense
from .experts import PackedExperts
from .options import Options, is_on
from .report import Layer, Report
from .room import Arena, room_bytes

_log = engine.init_logger("vllm.plugins.snug")


def register():
    engine.register_quantization_config("snug")(SnugConfig)
    engine.require_all_weights("snug")


class SnugConfig(QuantizationConfig):
    """`quantization_config` of a compressed folder, or `--quantization snug`.

    vLLM sends it to its workers with pickle, so it holds options only until layers are made.
    """

    def __init__(self, options=None):
        super().__init__()
        self.options = options or Options.read({})
        self._report = self._arena = None

    def get_name(self):
        return "snug"

    @classmethod
    def from_config(cls, config):
        return cls(Options.read(config))

    @staticmethod
    def get_config_filenames():
        return []

    @classmethod
    def get_min_capability(cls):
        return 80

    def get_supported_act_dtypes(self):
        return [torch.bfloat16, torch.float16, torch.float32]  # other than BF16 stays dense

    def get_quant_method(self, layer, prefix):
        if isinstance(layer, RoutedExperts):
            return self._expert_method(layer, prefix)
        is_head = isinstance(layer, ParallelLMHead)
        if not is_head and not isinstance(layer, LinearBase):
            return None
        dense = UnquantizedEmbeddingMethod if is_head else UnquantizedLinearMethod
        if not self._runs() or self.options.skips(prefix):
            return dense()
        if is_head and engine.why_dense_head():
            _log.info_once(f"Snug: the LM head stays dense, because {engine.why_dense_head()}")
            return dense()
        method = PackedHead if is_head else PackedLinear
        return method(prefix, self.options, *self._model())

    def _expert_method(self, layer, prefix):
        """None: vLLM's own method, from dense weights."""
        if not self._runs() or self.options.skips(prefix):
            return None
        reason = "SNUG_VLLM_EXPERTS=1 packs them, which has not been tried on a GPU yet"
        if is_on("EXPERTS"):
            reason = why_dense(engine.expert_traits(layer))
        if reason:
            _log.info_once(f"Snug: experts of mixture-of-experts layers stay dense: {reason}")
            return None
        return PackedExperts(layer, prefix, self.options, *self._model())

    def _model(self):
        """What the layers of a model share."""
        if self._report is None:
            self._report, self._arena = Report(_log, self.options.policy), Arena()
            self._report.settings = engine.compile_settings("snug")
            if engine.has_nvidia_gpu() and tuning.default_tuning_file().exists():
                tuning.load_tuning(tuning.default_tuning_file())
        return self._report, self._arena

    def _runs(self):
        mode = self.options.mode
        if mode == "auto":
            mode = "run" if engine.has_nvidia_gpu() else "load"
            if mode == "load":
                _log.info_once("Snug: no NVIDIA GPU here, so the weights are BF16 in memory, as "
                               "without Snug")
        if mode == "run" and engine.has_nvidia_gpu() and not _library.has_cuda:
            raise RuntimeError(f"Snug cannot multiply on this GPU: {_library.no_cuda}. Install a "
                               "wheel of snug-llm with GPU part, or set SNUG_VLLM_MODE=load to "
                               "serve from BF16 weights")
        return mode == "run"


class PackedLinear(LinearMethodBase):
    """Packs the weights of one layer as soon as all of them are loaded."""

    uses_meta_device = True  # no memory is reserved for dense weights

    def __init__(self, name, options, report, arena):
        self._name, self._options, self._report, self._arena = name, options, report, arena
        self._kind = packing.RAW if options.policy == "twin" else packing.FIXED
        self._is_dummy = engine.is_dummy_load()
        self._room = None  # bytes, once the first weights are packed; 0: dense
        report.expect()

    def create_weights(self, layer, input_size_per_partition, output_partition_sizes, input_size,
                       output_size, params_dtype, **extra_weight_attrs):
        shape = sum(output_partition_sizes), input_size_per_partition
        loader = extra_weight_attrs.pop("weight_loader")
        self._register(layer, torch.empty(shape, dtype=params_dtype, device="meta"), loader)
        engine.set_weight_attrs(layer.weight, extra_weight_attrs)
        engine.initialize_online_processing(layer)
        self._arena.expect(self._expected_bytes(layer.weight))

    def _expected_bytes(self, weight):
        """Of its packed form; 0 if it will stay dense."""
        n, k = weight.shape
        if weight.dtype != torch.bfloat16 or self._is_slow(n, k):
            return 0
        if self._kind == packing.RAW:
            return library.snug_gemm_packed_bound_bytes(n, k, packing.RAW)
        return room_bytes(n, k) if room_bytes(n, k) < 2 * n * k else 0

    def _register(self, layer, weight, loader):
        parameter = ModelWeightParameter(data=weight, input_dim=1, output_dim=0,
                                         weight_loader=loader)
        layer.register_parameter("weight", parameter)

    def process_weights_after_loading(self, layer):
        if getattr(layer, "_already_called_process_weights_after_loading", False):
            return
        layer._already_called_process_weights_after_loading = True
        weight = layer.weight
        self._check_complete(layer, weight)
        n, k = weight.shape
        made, reason = self._pack(weight)
        if made is None:
            if self._room:
                raise ValueError(f"{self._name}: {reason}: the new weights cannot take the place "
                                 "of packed ones; restart the engine with them")
            self._room = 0
            self._dense().process_weights_after_loading(layer)
            self._report.add(Layer(self._name, n, k, weight.numel() * weight.element_size(),
                                   reason))
            return
        packed, header = made
        # Its name is one that vLLM's LoRA layers know.
        layer.weight_packed = torch.nn.Parameter(self._place(packed, n, k), requires_grad=False)
        layer.snug_rows = n
        num_bytes = self._room
        if self._options.policy == "speed":
            layer.weight_dense = torch.nn.Parameter(weight.data, requires_grad=False)
            num_bytes += weight.numel() * weight.element_size()
        del layer.weight
        if packed.is_cuda:
            torch.cuda.current_stream().synchronize()
            operator.remember(layer.weight_packed, header)
        self._report.add(Layer(self._name, n, k, num_bytes, ""))

    def _check_complete(self, layer, weight):
        if weight.is_meta:
            raise ValueError(f"{self._name}: its weights were not loaded: this --load-format does "
                             "not work with --quantization snug; use auto")
        info = engine.get_layerwise_info(layer)
        fewest = self._fewest_elements(weight, info)
        if not self._is_dummy and info.load_numel < fewest:
            raise ValueError(f"{self._name}: the checkpoint has {info.load_numel} of its {fewest} "
                             "weights: a file or tensor is missing; download the model again")

    def _fewest_elements(self, weight, info):
        return max(weight.numel(), info.load_numel_total or 0)  # the latter counts a bias, too

    def _pack(self, weight):
        """The packed matrix and its header, or None; and why the layer stays dense."""
        n, k = weight.shape
        if self._room == 0:
            return None, "its first weights were"
        if weight.dtype != torch.bfloat16:
            return None, (f"its weights are {weight.dtype}, and Snug packs bfloat16; serve with "
                          "--dtype bfloat16")
        if self._is_slow(n, k):
            return None, f"not surely faster packed at {self._options.batch} rows"
        try:
            made = packing.pack(weight, self._kind)
        except SnugError as error:
            raise ValueError(f"{self._name}: cannot be packed: {error}; set SNUG_VLLM_SKIP="
                             f"{self._name} to leave it dense") from None
        return made, "" if made else "its values do not compress"

    def _is_slow(self, n, k):
        if self._options.policy != "speed" or not engine.has_nvidia_gpu():
            return False
        device = torch.cuda.current_device()
        return not is_faster_packed(device, n, k, self._options.batch)

    def _place(self, packed, n, k):
        """The packed bytes in a buffer whose size new weights will have, too."""
        used = packed.numel()
        if self._room is None:
            self._room = used if self._kind == packing.RAW else max(room_bytes(n, k), used)
            place = self._arena.take(self._room, packed)
        elif used > self._room:
            raise ValueError(f"{self._name}: the new weights need {used} bytes in packed form, and "
                             f"there is room for {self._room}; restart the engine with them")
        else:
            place = packed.new_zeros(self._room)
        place[:used] = packed
        return place

    def _dense(self):
        return UnquantizedLinearMethod()

    def apply(self, layer, x, bias=None):
        if self._room == 0:
            return self._dense().apply(layer, x, bias)
        return torch.ops.snug.packed_linear(x, layer.weight_packed, bias, layer.snug_rows,
                                            getattr(layer, "weight_dense", None))


class PackedHead(PackedLinear):
    """The LM head. If it is tied, it uses the dense weights of the embedding, as without Snug:
    these follow every update, and a packed copy would need more memory."""

    def _register(self, layer, weight, loader):
        layer.register_parameter("weight", torch.nn.Parameter(weight, requires_grad=False))
        engine.set_weight_attrs(layer.weight, {"input_dim": 1, "output_dim": 0,
                                               "weight_loader": loader})

    def _fewest_elements(self, weight, info):
        return 1  # the vocabulary is padded, and vLLM fills the rest with zeros

    def tie_weights(self, layer, embed_tokens):
        engine.get_layerwise_info(layer).reset()
        self._arena.forget(self._expected_bytes(layer.weight))
        layer.quant_method = TiedHead()
        self._report.forget()
        return layer.quant_method.tie_weights(layer, embed_tokens)

    def _dense(self):
        return UnquantizedEmbeddingMethod()


class TiedHead(UnquantizedEmbeddingMethod):
    """Multiplies with the embedding's weights and keeps nothing that is derived from them: vLLM
    updates these in place, and does not tell the head."""

    def process_weights_after_loading(self, layer):
        pass

    def apply(self, layer, x, bias=None):
        if engine.has_nvidia_gpu():
            return super().apply(layer, x, bias)
        return torch.nn.functional.linear(x, layer.weight, bias)
