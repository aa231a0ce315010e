"""Measured plans for compressed layers, kept in a file from one process to the next."""

import ctypes
import os
import re
import tempfile
from ctypes import byref
from pathlib import Path

import torch

from .._library import GemmChoice, SnugError, Status, check, library, whole
from .choice import forget_plans
from .linear import CompressedLinear
from .matrix import matrix_of
from .on_gpu import require_cuda, stream_of

# The largest m of each bucket of the tuning table that a serving engine meets often.
DEFAULT_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
_LARGEST_BUCKET = 8192
_KEY = re.compile(r"n=(\d+) k=(\d+) m=(\d+) .*device=(.*)")


def default_tuning_file():
    """Where tune() keeps what it measured: SNUG_TUNING, or a file in the user's cache folder."""
    named = os.environ.get("SNUG_TUNING")
    if named:
        return Path(named)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "snug" / "tuning.txt"


def tune(model, rows=DEFAULT_ROWS, file=None):
    """Measures the plans of every compressed layer of a model, and keeps the best in a file.

    rows  numbers of rows of x (sequences times tokens of a step) to measure. Each is rounded
          up to a power of two.
    file  where the results are kept; default_tuning_file() if None. What it has already for
          this GPU is taken from there and not measured again.

    Waits for the GPU, for some 50 ms a shape and number of rows. Returns how many were measured.
    """
    layers = [layer for layer in model.modules()
              if isinstance(layer, CompressedLinear) and layer.packed.is_cuda]
    if not layers:
        raise ValueError("no compressed layers on a GPU; move the model there and call "
                         "compress_model first")
    file = default_tuning_file() if file is None else Path(file)
    known = load_tuning(file) if file.exists() else set()
    buckets = sorted({_bucket(whole(m, "rows", 1, (1 << 40) - 1)) for m in rows})
    measured = set()
    try:
        for layer in layers:
            device = torch.cuda.get_device_name(layer.packed.device)
            for m in buckets:
                key = (layer.header.n, layer.header.k, m, device)
                if key not in known and key not in measured:
                    _measure(layer.packed, layer.header, m)
                    measured.add(key)
    finally:  # also if the GPU has no memory for the next one
        if measured:
            _save(file)
    return len(measured)


def load_tuning(file):
    """Uses the plans in a file that tune() wrote. Returns their keys: (n, k, m, device)."""
    require_cuda()
    text, status = Path(file).read_text(errors="replace"), Status()
    try:
        check(library.snug_gemm_load_tuning(text.encode(), byref(status)), status)
    except SnugError as error:
        raise SnugError(error.code, f"{file}: {error}; delete the file to measure again") from None
    forget_plans()
    return _keys(text)


def _keys(text):
    found = (_KEY.match(line) for line in text.splitlines())
    return {(int(key[1]), int(key[2]), int(key[3]), key[4]) for key in found if key}


def _bucket(m):
    """As in the library: the power of two that stands for m."""
    return min(1 << (m - 1).bit_length(), _LARGEST_BUCKET)


def _measure(packed, header, m):
    n, k = header.n, header.k
    device = packed.device
    with torch.cuda.device(device):
        stream = stream_of(device.index)
        x = torch.randn((m, k), device=device).to(torch.bfloat16)
        y = torch.empty((m, n), dtype=torch.bfloat16, device=device)
        # Room for the dense matrix too, which is measured beside the plans; writing to it
        # between runs drives the weights out of the cache.
        dense_bytes = 2 * n * k + (64 << 20)
        num_bytes = library.snug_gemm_linear_workspace_bytes(n, k, m) + dense_bytes
        workspace = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        status, choice = Status(), GemmChoice()
        check(library.snug_gemm_init_workspace(workspace.data_ptr(), num_bytes, stream,
                                               byref(status)), status)
        check(library.snug_gemm_tune(byref(matrix_of(packed, *header)), x.data_ptr(), k, m,
                                     y.data_ptr(), n, workspace.data_ptr(), num_bytes, stream,
                                     byref(choice), byref(status)), status)
    forget_plans()


def _save(file):
    """Writes the whole table in one step: readers see the old file or the new one."""
    needed = library.snug_gemm_tuning_text(None, 0)
    text = ctypes.create_string_buffer(needed + 1)
    library.snug_gemm_tuning_text(text, len(text))
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".snug-", dir=file.parent) as scratch:
        part = Path(scratch) / file.name
        part.write_bytes(b"# Plans that snug.torch.tune measured; later lines override earlier "
                         b"ones.\n" + text.value)
        os.replace(part, file)
