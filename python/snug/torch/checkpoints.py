"""Checkpoints as torch tensors, like safetensors.torch."""

import torch

from .. import checkpoint, saving


def load_file(filename, device="cpu"):
    """All tensors of a file or model folder, plain or compressed, by name."""
    return checkpoint.load_file(filename, "pt", device)


def save_file(tensors, filename, metadata=None, codec="entropy", threads=0):
    """Writes tensors, given by name, to a compressed checkpoint: see snug.save_file."""
    if isinstance(tensors, dict):  # else snug.save_file says so
        for name, tensor in tensors.items():
            if not isinstance(tensor, torch.Tensor):
                raise ValueError(f"{name}: expected a torch tensor, not {type(tensor).__name__}")
    saving.save_file(tensors, filename, metadata, codec, threads)
