"""What the tests of checkpoints share: files to read, and how to compare tensors."""

import ctypes
import importlib
import json
import os
import random
import struct
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from snug._library import Status, check, library

SIZES = {"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
         "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "BOOL": 8,
         "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
         "C64": 64}


def module(name):
    """A package that the tests can do without, or None. Before 0.8, safetensors lacks dtypes."""
    try:
        found = importlib.import_module(name)
    except ImportError:
        return None
    is_old = name == "safetensors" and tuple(map(int, found.__version__.split(".")[:2])) < (0, 8)
    return None if is_old else found


def needs(*names):
    missing = [name for name in names if module(name) is None]
    return unittest.skipIf(missing, f"no {', '.join(missing)}")


def mock_numpy():
    """numpy, or what is enough of it to open a file."""
    return mock.patch.dict(sys.modules, {} if module("numpy") else {"numpy": mock.MagicMock()})


def bf16(rng, count):
    return b"".join(struct.pack("<f", rng.gauss(0, 0.02))[2:] for _ in range(count))


def random_index(rng, shape, framework):
    """What both libraries understand: in range for numpy, where safetensors is strict."""
    index = []
    for n in shape:
        kind = rng.choice(["all", "number", "range", "range", "step"])
        first = rng.randrange(n)
        last = rng.randint(first, n)
        if framework == "pt" and rng.random() < 0.2:
            first, last = rng.randint(-2 * n, 2 * n), rng.randint(-2 * n, 2 * n)
        index.append({"all": slice(None), "number": rng.randrange(-n, n),
                      "range": slice(first, last),
                      "step": slice(first, last, rng.randint(1, n))}[kind])
    if rng.random() < 0.3:
        at = rng.randint(0, len(index))
        index[at:rng.randint(at, len(index))] = [Ellipsis]
    else:
        del index[rng.randint(0, len(index)):]
    if framework == "pt" and rng.random() < 0.2:
        index.insert(rng.randint(0, len(index)), None)
    return index[0] if len(index) == 1 and rng.random() < 0.5 else tuple(index)


def every_dtype(rng):
    """Tensors of every dtype of the format, as (dtype, shape, bytes)."""
    tensors = {}
    for dtype, bits in SIZES.items():
        raw = rng.randbytes(6 * 4 * 8 * bits // 8)
        tensors["of." + dtype] = dtype, [6, 4, 8], bytes(b & 1 for b in raw) \
            if dtype == "BOOL" else raw
    return tensors


def write_plain(path, tensors, metadata=None):
    header, data = {} if metadata is None else {"__metadata__": metadata}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


def compress(plain, compressed):
    status = Status()
    check(library.snug_compress_file(os.fsencode(plain), os.fsencode(compressed), 3, 1, 0, None,
                                     ctypes.byref(status)), status)


class Folder:
    """A model folder: two files with an index, plain and compressed."""

    def __init__(self):
        rng = random.Random(7)
        self._folder = tempfile.TemporaryDirectory()
        self.root = Path(self._folder.name)
        self.files = {
            "model-1.safetensors": {
                "weights": ("BF16", [300, 128], bf16(rng, 300 * 128)),
                "bank": ("BF16", [3, 40, 64], bf16(rng, 3 * 40 * 64)),
                "größe": ("F32", [5], struct.pack("<5f", *range(5))),
                "one number": ("I64", [], struct.pack("<q", -7)),
                "nothing": ("F16", [0, 4], b"")},
            "model-2.safetensors": every_dtype(rng)}
        names = {name: file for file, tensors in self.files.items() for name in tensors}
        for kind in ("plain", "compressed"):
            (self.root / kind).mkdir()
            (self.root / kind / "model.safetensors.index.json").write_text(
                json.dumps({"metadata": {}, "weight_map": names}))
        for file, tensors in self.files.items():
            metadata = {"format": "pt", "file": file}
            write_plain(self.root / "plain" / file, tensors, metadata)
            compress(self.root / "plain" / file, self.root / "compressed" / file)

    def close(self):
        self._folder.cleanup()


def raw_of(tensor):
    """dtype, shape and bytes of an array or tensor."""
    if hasattr(tensor, "data_ptr"):
        import torch
        flat = tensor.contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8)
        return str(tensor.dtype), tuple(tensor.shape), flat.numpy().tobytes()
    return str(tensor.dtype), tuple(tensor.shape), tensor.tobytes()
