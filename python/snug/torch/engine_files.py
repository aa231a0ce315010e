"""Compressed files as the loaders of serving engines see them: names and decoded tensors."""

import contextlib
import glob
import json
import os

import torch

from .. import _library
from .._library import SnugError
from ..checkpoint import safe_open
from .gpu_loader import shared_loader
from .lazy import Rows
from .model import SIDE_BY_SIDE

_LAZY_BYTES = 1 << 16  # smaller tensors are read whole


def tensors_of(files, device, is_divided):
    """(name, tensor) of all tensors. On a GPU they are decoded there, whole. is_divided: this
    process takes parts of the model, so that the CPU decodes what is used, when it is used."""
    check_shards(files)
    if device != "cpu" and _library.has_loader:
        # Held here so that all files share one: to pin its memory takes time.
        loader = shared_loader(torch.device(device))  # noqa: F841
    for path in sorted(files):
        with safe_open(path, framework="pt", device=device) as file:
            with _remedy():
                if device == "cpu" and is_divided:
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
    """The names, those of matrices that engines join to one side by side: vLLM packs a layer when
    all of it is there, and warns where it has to wait for several."""
    groups = {}
    for name in names:
        *parent, leaf, _ = ["", "", *name.split(".")]
        joined = next((group for group in SIDE_BY_SIDE if leaf in group), None)
        groups.setdefault((*parent, joined) if joined else name, []).append(name)
    return [name for group in groups.values() for name in group]


def _rows(part):
    """A tensor that decodes the rows that the engine takes of it for this process."""
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
