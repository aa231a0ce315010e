"""Folders that `snug compress` wrote, as SGLang sees them: as the plain ones.

SGLang lets plugins hook its functions. One reads config.json: of compressed folders, the mark is
taken out, so that SGLang chooses all that it chooses for the plain model. Others read safetensors
files: of Snug's files they get the names and the decoded tensors, here and for weight updates.
"""

import importlib
import logging

from .. import _library
from .._mark import FORMAT, check_format, is_marked
from ..checkpoint import is_compressed
from .plugin import TESTED

_CONFIG = "sglang.srt.utils.hf_transformers.config", "get_config"
# Functions that yield (name, tensor) of files, their first argument.
_READERS = [("sglang.srt.model_loader.weight_utils", name)
            for name in ("safetensors_weights_iterator",
                         "buffered_multi_thread_safetensors_weights_iterator",
                         "fastsafetensors_weights_iterator", "instanttensor_weights_iterator",
                         "runai_safetensors_weights_iterator")]
_REGISTRY = "sglang.srt.plugins.hook_registry", "HookRegistry"

_log = logging.getLogger("sglang.srt.plugins.snug")


def register():
    """Both hooks or none: with one alone, SGLang would take compressed bytes for weights."""
    missing = [".".join(place) for place in (_REGISTRY, _CONFIG, *_READERS) if not _find(*place)]
    if missing:
        version = getattr(importlib.import_module("sglang"), "__version__", "of unknown version")
        raise ImportError(f"SGLang {version} (tested: {TESTED}) lacks {', '.join(missing)}: "
                          "install a newer snug-llm")
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    for place in _READERS:
        HookRegistry.register(".".join(place), _read, HookType.AROUND)
    HookRegistry.register(".".join(_CONFIG), _as_plain, HookType.AFTER)


def _find(module, name):
    try:
        return getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        if error.name == "sglang" or not module.startswith(str(error.name)):
            raise
        return None


def _as_plain(config, *args, **kwargs):
    """Called with the result of `get_config`, which SGLang keeps and gives to every caller."""
    if is_marked(config):
        check_format(config.quantization_config.get("format", FORMAT))
        del config.quantization_config
    return config


def _read(original, hf_weights_files, *args, **kwargs):  # named as SGLang's: callers may name it
    files = list(hf_weights_files)  # it may be a generator
    if not any(map(is_compressed, files)):
        return original(files, *args, **kwargs)
    import torch

    from ..torch.engine_files import tensors_of
    device = "cpu"
    # Engines on GPUs have a current one by now, those on a CPU do not touch any.
    if _library.has_cuda and torch.version.cuda and torch.cuda.is_initialized():
        device = f"cuda:{torch.cuda.current_device()}"
    is_divided = torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1
    _log.info("Snug: restoring the weights of %d compressed files (%s)", len(files), device)
    return tensors_of(files, device, is_divided)
