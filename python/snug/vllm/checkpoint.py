"""Compressed files as vLLM's loader sees them: names and decoded tensors.

vLLM has no place where a quantization method says how files are read, so `register` replaces the
functions that read safetensors files by ones that do as before for all files but Snug's.
"""

import contextlib
import functools
import glob
import json
import os

import torch

from .. import _library
from .._library import SnugError
from ..checkpoint import is_compressed, safe_open
from ..torch.gpu_loader import shared_loader
from ..torch.model import SIDE_BY_SIDE
from . import engine
from .lazy import Rows

_LAZY_BYTES = 1 << 16  # smaller tensors are read whole


def register():
    engine.wrap_file_iterators(_reading_frames)


def _reading_frames(iterator):
    if hasattr(iterator, "reads_frames"):
        return iterator

    @functools.wraps(iterator)
    def read(files, *args, **kwargs):
        if any(map(is_compressed, files)):
            return tensors_of(files)
        return iterator(files, *args, **kwargs)

    read.reads_frames = True
    return read


def tensors_of(files):
    """(name, tensor) of all tensors. On a GPU they are decoded there, whole."""
    check_shards(files)
    device = "cpu"
    if engine.has_nvidia_gpu() and _library.has_cuda:
        device = f"cuda:{torch.cuda.current_device()}"
        if _library.has_loader:
            # Held here so that all files share one: to pin its memory takes time.
            loader = shared_loader(torch.device(device))  # noqa: F841
    for path in sorted(files):
        with safe_open(path, framework="pt", device=device) as file:
            with _remedy():
                if device == "cpu" and engine.num_ranks() > 1:
                    yield from ((name, _rows(file.get_slice(name))) for name in file.offset_keys())
                else:
                    yield from file.tensors_in_turn(_by_layer(file.offset_keys()))


@contextlib.contextmanager
def _remedy():
    try:
        yield
    except SnugError as error:
        text = f"{error}; copy the file again, `snug verify` checks it"
        raise SnugError(error.code, text) from None


def _by_layer(names):
    """The names, those of matrices that vLLM joins to one side by side: it packs a layer when all
    of it is there, and warns where it has to wait for several."""
    groups = {}
    for name in names:
        *parent, leaf, _ = ["", "", *name.split(".")]
        joined = next((group for group in SIDE_BY_SIDE if leaf in group), None)
        groups.setdefault((*parent, joined) if joined else name, []).append(name)
    return [name for group in groups.values() for name in group]


def _rows(part):
    """A tensor that decodes the rows that vLLM takes of it for this rank."""
    shape, dtype = part.get_shape(), part.get_dtype()
    if len(shape) < 2 or dtype != "BF16" or 2 * torch.Size(shape).numel() < _LAZY_BYTES:
        return part[...]

    def read(first, last):
        with _remedy():
            return part[first:last]

    return Rows(read, shape, torch.bfloat16)


def check_shards(files):
    """Raises if an index beside the files names one that is not there: vLLM would leave its layers
    without weights."""
    for folder in {os.path.dirname(path) for path in files}:
        for index in glob.glob(os.path.join(glob.escape(folder), "*.safetensors.index.json")):
            with open(index, encoding="utf-8") as file:
                named = set(json.load(file)["weight_map"].values())
            missing = sorted(name for name in named
                             if not os.path.exists(os.path.join(folder, name)))
            if missing and not missing == sorted(named):  # else it is the index of other files
                raise FileNotFoundError(f"{os.path.join(folder, missing[0])} is missing, and "
                                        f"{index} names it: copy it there")
