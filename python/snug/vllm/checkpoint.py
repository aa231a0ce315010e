"""Compressed files as vLLM's loader sees them.

vLLM has no place where a quantization method says how files are read, so `register` replaces the
functions that read safetensors files by ones that do as before for all files but Snug's.
"""

import functools

import torch

from .. import _library
from ..checkpoint import is_compressed
from ..torch import engine_files
from . import engine


def register():
    engine.wrap_file_iterators(_reading_frames)


def _reading_frames(iterator):
    if hasattr(iterator, "reads_frames"):
        return iterator

    @functools.wraps(iterator)
    def read(hf_weights_files, *args, **kwargs):  # named as vLLM's: callers may name it
        files = list(hf_weights_files)  # it may be a generator
        if any(map(is_compressed, files)):
            return engine_files.tensors_of(files, _device(), engine.num_ranks() > 1)
        return iterator(files, *args, **kwargs)

    read.reads_frames = True
    return read


def _device():
    if engine.has_nvidia_gpu() and _library.has_cuda:
        return f"cuda:{torch.cuda.current_device()}"
    return "cpu"
