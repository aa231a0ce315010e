"""Snug for torch: exact, smaller tensors, and models that run from compressed weights.

    import snug.torch
    report = snug.torch.compress_model(model)      # every linear layer, in place
    print(report)                                  # sizes, and what was left dense and why
    model.generate(...)                            # as before

Weights keep their exact bits: `decompress_model(model)` gives the old layers back.
"""

from .deltas import apply_delta, delta
from .linear import CompressedLinear, compress_model, decompress_model, load_compressed
from .matrix import explain
from .tensors import compress, decompress

__all__ = ["CompressedLinear", "apply_delta", "compress", "compress_model", "decompress",
           "decompress_model", "delta", "explain", "load_compressed"]
