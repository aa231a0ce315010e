"""BF16 LM heads of models that another method quantizes, such as FP8: SNUG_VLLM_HEAD=1 packs them.

vLLM asks the model's own method about every layer. It lets plugins replace whole classes of layers,
though, and the one for LM heads asks Snug where that method leaves the head as it is.
"""

import inspect

from . import engine
from .engine import ParallelLMHead, PluggableLayer, UnquantizedEmbeddingMethod
from .method import SnugConfig
from .options import is_on

_log = engine.init_logger("vllm.plugins.snug")
_registered = []


def register():
    if _registered or not is_on("HEAD"):
        return
    try:
        PluggableLayer.register_oot(name="ParallelLMHead")(OtherHead)
    except AssertionError:
        _log.warning("Snug: SNUG_VLLM_HEAD=1 has no effect: another plugin replaces LM heads")
        return
    _registered.append(OtherHead)


class OtherHead(ParallelLMHead):
    def __init__(self, *args, **kwargs):
        bound = inspect.signature(ParallelLMHead.__init__).bind(self, *args, **kwargs)
        config = bound.arguments.get("quant_config")
        if config is not None and config.get_name() != "snug":
            bound.arguments["quant_config"] = _Asking(config)
        super().__init__(*bound.args[1:], **bound.kwargs)
        self.quant_config = config


class _Asking:
    """The model's own method, but for layers that it does not quantize."""

    def __init__(self, config):
        self._config = config

    def __getattr__(self, name):
        return getattr(self._config, name)

    def get_quant_method(self, layer, prefix):
        method = self._config.get_quant_method(layer, prefix)
        if method is None or type(method) is UnquantizedEmbeddingMethod:
            return SnugConfig().get_quant_method(layer, prefix)
        return method
