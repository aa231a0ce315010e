"""Writes compressed checkpoints from tensors in memory."""

import contextlib
import ctypes
import json
import os
import struct
import tempfile
import threading
from ctypes import byref, c_int
from typing import Callable, NamedTuple, Tuple

from ._arrays import DTYPES, FILE_DTYPES, is_packed
from ._library import (CODECS, Status, check, check_memory, has_store, library, number_of,
                       threads_of)

_MAX_IN_MEMORY = 1 << 30
_RANKS = {dtype: i for i, dtype in enumerate(DTYPES)}


class _Item(NamedTuple):
    """A tensor to be written."""
    dtype: str
    shape: Tuple[int, ...]
    num_bytes: int
    write: Callable  # to a file


def save_file(tensors, filename, metadata=None, codec="entropy", threads=0):
    """Writes numpy arrays or torch tensors, given by name, to a compressed checkpoint.

    `snug decompress` restores from it the file that safetensors' save_file writes. Arrays need not
    be contiguous. Tensors of torch that share memory are refused; NumPy arrays are written for each
    name, as safetensors does. An existing file is replaced at the end.
    """
    if not has_store:
        raise ValueError("libsnug_c was built without the checkpoint store (SNUG_STORE=OFF)")
    if not isinstance(tensors, dict):
        raise ValueError(f"expected a dict of names and tensors, not {type(tensors).__name__}")
    options = number_of(CODECS, codec, "codec"), threads_of(threads)
    target = os.fsencode(filename)
    if b"\0" in target:
        raise ValueError("a path has no NUL")
    if os.path.isdir(target):
        raise IsADirectoryError(f"{os.fsdecode(target)} is a folder: give the name of a file")
    items = {name: _item(name, tensor) for name, tensor in tensors.items()}
    _refuse_shared_memory(tensors)
    order = sorted(items, key=lambda name: (_RANKS[items[name].dtype], name))
    header = _header([(name, items[name]) for name in order], metadata)
    num_bytes = len(header) + sum(item.num_bytes for item in items.values())
    with _anonymous_file(num_bytes, os.path.dirname(target) or b".") as file:
        file.write(header)
        for name in order:
            items[name].write(file)
        file.flush()
        compress_path(b"/proc/self/fd/%d" % file.fileno(), target, *options)


def _item(name, tensor):
    if not isinstance(name, str):
        raise TypeError(f"the name of a tensor is a str, not {name!r}")
    if name == "__metadata__" or name.startswith("__snug__."):
        raise ValueError(f"the name {name} is reserved: give the tensor another one")
    if hasattr(tensor, "data_ptr"):
        return _torch_item(name, tensor)
    if hasattr(tensor, "__array_interface__") and hasattr(tensor, "dtype"):
        return _numpy_item(name, tensor)
    raise ValueError(f"{name}: expected a numpy array or a torch tensor, not "
                     f"{type(tensor).__name__}")


def _file_dtype(name, dtype):
    if dtype not in FILE_DTYPES:
        raise ValueError(f"{name}: safetensors files have no dtype {dtype}; they have "
                         f"{', '.join(FILE_DTYPES)}")
    return FILE_DTYPES[dtype]


def _numpy_item(name, array):
    import numpy

    def write(file):
        dense = numpy.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        file.write(dense.reshape(-1).view(numpy.uint8))

    array = numpy.asarray(array)
    return _Item(_file_dtype(name, array.dtype.name), array.shape, array.nbytes, write)


def _torch_item(name, tensor):
    import torch
    if tensor.layout != torch.strided:
        raise ValueError(f"{name} is sparse: save tensor.to_dense()")
    if tensor.device.type == "meta":
        raise ValueError(f"{name} is on the device meta: it has no data to save")
    check_memory(tensor, name)
    dtype = _file_dtype(name, str(tensor.dtype).replace("torch.", ""))
    shape, num_bytes = tuple(tensor.shape), tensor.numel() * tensor.element_size()
    if is_packed(dtype):
        if not shape:
            raise ValueError(f"{name}: {tensor.dtype} without dimensions cannot be saved")
        shape = shape[:-1] + (2 * shape[-1],)

    def write(file):
        dense = tensor.detach().resolve_conj().resolve_neg()
        # torch copies bytes, but not yet packed elements.
        dense = (dense.view(torch.uint8) if is_packed(dtype) else dense).cpu().contiguous()
        if num_bytes:
            file.write((ctypes.c_char * num_bytes).from_address(dense.data_ptr()))

    return _Item(dtype, shape, num_bytes, write)


def _refuse_shared_memory(tensors):
    """For torch, as safetensors does: weights that are tied would come back as two."""
    areas = {}
    for name, tensor in tensors.items():
        if hasattr(tensor, "data_ptr") and tensor.numel():
            last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride()))
            start = tensor.data_ptr()
            areas.setdefault(str(tensor.device), []).append(
                (start, start + (last + 1) * tensor.element_size(), name))
    for places in areas.values():
        places.sort()
        end, owner = 0, ""
        for start, stop, name in places:
            if start < end:
                raise RuntimeError(f"{owner} and {name} share memory: leave out one of them if "
                                   "they are tied, or save tensor.clone()")
            end, owner = stop, name


def _header(items, metadata):
    """The JSON as safetensors writes it; metadata sorted, which safetensors has in any order."""
    header, start = {}, 0
    if metadata is not None:
        if not isinstance(metadata, dict) or not all(
                isinstance(text, str) for entry in metadata.items() for text in entry):
            raise TypeError("metadata is a dict of str to str")
        if any(key.startswith("snug.") for key in metadata):
            raise ValueError("keys of metadata that start with snug. are reserved")
        header["__metadata__"] = dict(sorted(metadata.items()))
    for name, item in items:
        header[name] = {"dtype": item.dtype, "shape": list(item.shape),
                        "data_offsets": [start, start + item.num_bytes]}
        start += item.num_bytes
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


@contextlib.contextmanager
def _anonymous_file(num_bytes, folder):
    """A file without a name: it is gone when it is closed, however the process ends. In memory, or
    in the folder if it is large."""
    if num_bytes <= _MAX_IN_MEMORY and hasattr(os, "memfd_create"):
        file = os.fdopen(os.memfd_create("snug.save_file"), "w+b")
    else:
        file = tempfile.TemporaryFile(dir=folder)
    with file:
        os.fchmod(file.fileno(), 0o666 & ~_umask())  # the compressed file gets the same
        yield file


def _umask():
    """Of this process; os.umask would change it for all threads meanwhile."""
    with open("/proc/self/status") as file:
        return next((int(line[6:], 8) for line in file if line.startswith("Umask:")), 0o022)


def compress_path(source, target, codec, threads):
    """Compresses a file or a model folder, both named by bytes. On another thread, since this one
    sees Ctrl-C only while it is in Python."""
    stop, status, codes, done = c_int(0), Status(), [], threading.Event()

    def run():
        codes.append(library.snug_compress_file(source, target, codec, threads, 1, byref(stop),
                                                byref(status)))
        done.set()

    worker = threading.Thread(target=run, name="snug.save_file", daemon=True)
    try:
        worker.start()
        done.wait()
    except BaseException:
        stop.value = 1
        done.wait(None if worker.ident else 1)  # it still reads the file, or never started
        raise
    check(codes[0], status)
