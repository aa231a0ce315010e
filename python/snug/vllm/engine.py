"""Every interface of vLLM that Snug uses to serve packed weights. Weight transfer has its own, in
weight_engine.py, weight_transfer.py and trainer_engine.py; so do KV caches, in kv_*.py.

Names are looked up when the module is imported; `missing()` lists those that this vLLM lacks, so
that one sentence can say so.
"""

import functools
import importlib

from .._names import missing_parameters
from .expert_limits import Traits

TESTED = ("0.24.0", "0.32.0")

_NAMES = {
    "vllm.config": ["get_current_vllm_config"],
    "vllm.distributed": ["get_tensor_model_parallel_world_size"],
    "vllm.logger": ["init_logger"],
    "vllm.model_executor.custom_op": ["PluggableLayer"],
    "vllm.model_executor.layers.linear": ["LinearBase", "LinearMethodBase",
                                          "UnquantizedLinearMethod"],
    "vllm.model_executor.layers.quantization": ["register_quantization_config"],
    "vllm.model_executor.layers.quantization.base_config": ["QuantizationConfig",
                                                            "QuantizeMethodBase"],
    "vllm.model_executor.layers.vocab_parallel_embedding": ["ParallelLMHead",
                                                            "UnquantizedEmbeddingMethod"],
    "vllm.model_executor.layers.fused_moe": ["FusedMoEMethodBase", "RoutedExperts"],
    "vllm.model_executor.model_loader.default_loader": ["DefaultModelLoader"],
    "vllm.model_executor.model_loader.reload.layerwise": ["get_layerwise_info",
                                                          "initialize_online_processing"],
    "vllm.model_executor.parameter": ["ModelWeightParameter"],
    "vllm.model_executor.utils": ["set_weight_attrs"],
    "vllm.platforms": ["current_platform"],
}
# Methods that are overridden or called, and the parameters that they must have.
_CALLS = {
    ("LinearMethodBase", "create_weights"): ["layer", "input_size_per_partition",
                                             "output_partition_sizes", "params_dtype"],
    ("LinearMethodBase", "apply"): ["layer", "x", "bias"],
    ("FusedMoEMethodBase", "create_weights"): ["layer", "num_experts", "hidden_size",
                                               "intermediate_size_per_partition", "params_dtype"],
    ("FusedMoEMethodBase", "apply"): ["layer", "x", "topk_weights", "topk_ids", "shared_experts",
                                      "shared_experts_input"],
    ("QuantizeMethodBase", "process_weights_after_loading"): ["layer"],
    ("DefaultModelLoader", "load_weights"): ["model", "model_config"],
    ("DefaultModelLoader", "track_weights_loading"): ["model", "loaded_weights"],
    ("QuantizationConfig", "get_quant_method"): ["layer", "prefix"],
    ("UnquantizedEmbeddingMethod", "tie_weights"): ["layer", "embed_tokens"],
    ("ParallelLMHead", "__init__"): ["quant_config", "prefix"],
    ("PluggableLayer", "register_oot"): ["name"],
}
# Functions that yield (name, tensor) of files, their first argument. The first must be there.
_LOADERS = "vllm.model_executor.model_loader."
_ITERATORS = [("default_loader", "safetensors_weights_iterator"),
              ("default_loader", "multi_thread_safetensors_weights_iterator"),
              ("default_loader", "fastsafetensors_weights_iterator"),
              ("default_loader", "instanttensor_weights_iterator"),
              ("runai_streamer_loader", "runai_safetensors_weights_iterator")]

_missing = []


def _look_up():
    found = {}
    for module_name, names in _NAMES.items():
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name == "vllm":
                raise ImportError("snug.vllm needs vLLM: pip install vllm") from None
            if not (error.name or "").startswith("vllm."):
                raise
            module = None
        for name in names:
            if hasattr(module, name):
                found[name] = getattr(module, name)
            else:
                _missing.append(f"{module_name}.{name}")
    for (owner, method), parameters in _CALLS.items():
        function = getattr(found.get(owner), method, None)
        if owner in found and (function is None or missing_parameters(function, parameters)):
            _missing.append(f"{owner}.{method}({', '.join(parameters)})")
    if not _iterators():
        _missing.append(f"{_LOADERS}{'.'.join(_ITERATORS[0])}")
    return found


def _iterators():
    """Modules and names of those that there are; none if the first is missing."""
    found = []
    for module_name, name in _ITERATORS:
        module = importlib.import_module(_LOADERS + module_name)
        if hasattr(module, name):
            found.append((module, name))
        elif not found:
            break
    return found


def missing():
    return list(_missing)


def version():
    return getattr(importlib.import_module("vllm"), "__version__", "of unknown version")


def has_nvidia_gpu():
    return current_platform.is_cuda()  # noqa: F821


def is_dummy_load():
    """Whether layers get random weights for measurements."""
    return get_current_vllm_config().load_config.load_format == "dummy"  # noqa: F821


def has_adapters():
    """Whether the engine serves LoRA adapters."""
    return get_current_vllm_config().lora_config is not None  # noqa: F821


def why_dense_head():
    """Why vLLM needs the weights of the LM head as they are; "" if it does not."""
    if has_adapters():
        return "vLLM's LoRA reads its weights"
    model = get_current_vllm_config().model_config  # noqa: F821
    dtype = getattr(model, "head_dtype", None)  # older versions of vLLM have none
    if dtype is not None and dtype != model.dtype:
        return f"vLLM multiplies it in {dtype} (head_dtype)"
    return ""


def expert_traits(layer):
    """What Snug has to know of a RoutedExperts."""
    moe, parallel = layer.moe_config, layer.moe_config.moe_parallel_config
    return Traits(
        num_experts=moe.num_local_experts, top_k=moe.experts_per_token,
        activation=moe.activation.value, dtype=str(layer.params_dtype).removeprefix("torch."),
        has_bias=moe.has_bias, weights_on_input=layer.apply_router_weight_on_input,
        has_swiglu_limits=any(value is not None for value in (
            layer.swiglu_limit, layer.swiglu_alpha, layer.swiglu_beta)),
        is_spread=(parallel.use_ep or parallel.dp_size > 1 or parallel.pcp_size > 1
                   or parallel.enable_eplb or parallel.is_sequence_parallel),
        has_adapters=has_adapters(),
        sm_major=(current_platform.get_device_capability().major  # noqa: F821
                  if has_nvidia_gpu() else 0))


def compile_settings(name):
    """A dict that becomes part of the name of vLLM's cache of compiled graphs."""
    settings = getattr(get_current_vllm_config(), "additional_config", None)  # noqa: F821
    return settings.setdefault(name, {}) if isinstance(settings, dict) else {}


def wrap_file_iterators(wrap):
    """Replaces each function that reads safetensors files by `wrap` of it."""
    for module, name in _iterators():
        setattr(module, name, wrap(getattr(module, name)))


def require_all_weights(quantization):
    """Has vLLM refuse checkpoints that lack tensors, as it does without a quantization method. With
    one it would serve such models, with whatever the memory of those parameters holds."""
    load = DefaultModelLoader.load_weights  # noqa: F821
    if hasattr(load, "requires_all"):
        return

    @functools.wraps(load)
    def load_weights(self, model, model_config):
        if model_config.quantization == quantization and self.enable_weights_track is None:
            check = self.track_weights_loading
            self.enable_weights_track = True
            # Without its argument `quantized`, the rules are those for other models.
            self.track_weights_loading = lambda model, loaded, **_: check(model, loaded)
        return load(self, model, model_config)

    load_weights.requires_all = True
    DefaultModelLoader.load_weights = load_weights  # noqa: F821


def num_ranks():
    """How many processes share each layer of the model."""
    return get_tensor_model_parallel_world_size()  # noqa: F821


globals().update(_look_up())
