"""Snug for torch: lossless compression of tensors, and models that run from compressed weights.

    import snug.torch
    report = snug.torch.compress_model(model)      # every linear layer, in place
    print(report)                                  # sizes; which layers stay dense, and why
    model.generate(...)                            # as before

Compression is lossless, not quantisation: `decompress_model(model)` restores the exact layers.
"""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError("snug.torch needs torch: pip install 'snug-llm[torch]'") from None

from .checkpoints import load_file, save_file
from .choice import explain
from .deltas import apply_delta, delta, tensor_hash
from .experts import CompressedExperts
from .linear import CompressedLinear
from .model import compress_model, decompress_model, load_compressed, verify_model
from .tensors import compress, decompress
from .tuning import load_tuning, tune

__all__ = ["CompressedExperts", "CompressedLinear", "apply_delta", "compress", "compress_model",
           "decompress", "decompress_model", "delta", "explain", "load_compressed", "load_file",
           "load_tuning", "save_file", "tensor_hash", "tune", "verify_model"]
