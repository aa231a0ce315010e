"""Tensors of a safetensors file, plain or compressed by `snug compress`."""

import contextlib
import ctypes
import math
import os
from ctypes import byref, c_void_p
from typing import NamedTuple, Tuple

from ._handle import Handle
from ._library import (LoadTarget, MetadataInfo, ReaderInfo, Status, TensorInfo, check, has_store,
                       library, threads_of, whole, writable_memory)


class Tensor(NamedTuple):
    """One tensor of a file."""
    dtype: str  # as the file spells it: "BF16", "F8_E4M3", ...
    shape: Tuple[int, ...]
    raw_bytes: int
    stored_bytes: int  # raw_bytes in a plain file


class Reader(Handle):
    """Opens a file, checks its header, and restores tensors or some of their rows.

        with snug.Reader("model.snug.safetensors") as reader:
            for name in reader.keys():
                data = reader.read(name)

    One reader serves many threads. A forked child may use it too.
    """

    def __init__(self, path):
        if not has_store:
            raise ValueError("libsnug_c was built without the checkpoint store (SNUG_STORE=OFF)")
        path = os.fsencode(path)
        if b"\0" in path:
            raise ValueError("a path has no NUL")
        pointer, status = c_void_p(), Status()
        check(library.snug_reader_open(path, byref(pointer), byref(status)), status)
        super().__init__(pointer, library.snug_reader_free, survives_fork=True)
        info = ReaderInfo()
        check(library.snug_reader_inspect(pointer, byref(info), byref(status)), status)
        self.compressed = bool(info.compressed)
        self.raw_bytes, self.stored_bytes = info.raw_bytes, info.stored_bytes
        self.metadata = dict(self._metadata(i) for i in range(info.num_metadata))
        self._tensors = dict(self._tensor(i) for i in range(info.num_tensors))

    def keys(self):
        """Names of all tensors, in the order of their data."""
        return list(self._tensors)

    def __contains__(self, name):
        return name in self._tensors

    def info(self, name):
        """The Tensor of this name; KeyError if there is none."""
        return self._tensors[name][1]

    def read(self, name, into=None, threads=0):
        """The bytes of a tensor. `into` is writable memory to fill instead: a buffer or a tensor
        in CPU memory."""
        idx, info = self._tensors[name]
        return self._read(library.snug_reader_read, [idx], info.raw_bytes, into, threads)

    def rows(self, name, first, last, into=None, threads=0):
        """Rows [first, last) along dimension 0. Reads only the blocks that hold them."""
        idx, info = self._tensors[name]
        num_rows = info.shape[0] if info.shape else 1
        first, last = (whole(row, "a row", -math.inf, math.inf) for row in (first, last))
        if not 0 <= first <= last <= num_rows:
            raise ValueError(f"{name} has {num_rows} rows; [{first}, {last}) is not among them")
        num_bytes = info.raw_bytes // num_rows * (last - first) if num_rows else 0
        return self._read(library.snug_reader_read_rows, [idx, first, last], num_bytes, into,
                          threads)

    def bytes(self, name, first, last, into=None, threads=0):
        """Bytes [first, last) of a tensor. Reads only the blocks that hold them."""
        idx, info = self._tensors[name]
        first, last = (whole(byte, "a byte", -math.inf, math.inf) for byte in (first, last))
        if not 0 <= first <= last <= info.raw_bytes:
            raise ValueError(f"{name} has {info.raw_bytes} bytes; [{first}, {last}) is not among "
                             "them")

        def function(pointer, address, num_bytes, threads, _, status):
            return library.snug_reader_read_bytes(pointer, idx, first, address, num_bytes, threads,
                                                  status)

        return self._read(function, [], last - first, into, threads)

    def load(self, tensors, threads=0):
        """Fills writable memory with whole tensors, side by side. `tensors` has memory as `read`
        takes it, by the names of the tensors."""
        with self._use() as pointer, self.targets(tensors, writable_memory) as targets:
            status = Status()
            check(library.snug_reader_load(pointer, targets, len(targets), threads_of(threads),
                                           byref(status)), status)

    @contextlib.contextmanager
    def targets(self, tensors, memory_of):
        """What snug_reader_load takes, valid until the end of the block."""
        memories = {name: memory_of(memory) for name, memory in tensors.items()}
        for name, memory in memories.items():
            if memory.num_bytes != self.info(name).raw_bytes:
                raise ValueError(f"{name} has {self.info(name).raw_bytes} bytes, its memory has "
                                 f"{memory.num_bytes}")
        yield (LoadTarget * len(memories))(
            *(LoadTarget(self._tensors[name][0], memory.address, memory.num_bytes)
              for name, memory in memories.items()))

    def _read(self, function, place, num_bytes, into, threads):
        threads = threads_of(threads)
        data = bytearray(num_bytes) if into is None else into
        memory, status = writable_memory(data), Status()
        if memory.num_bytes != num_bytes:
            raise ValueError(f"`into` has {memory.num_bytes} bytes, the data has {num_bytes}")
        with self._use() as pointer:
            check(function(pointer, *place, memory.address, num_bytes, threads, None,
                           byref(status)), status)
        return bytes(data) if into is None else into

    def _tensor(self, idx):
        info, status = TensorInfo(), Status()
        check(library.snug_reader_tensor(self._pointer, idx, byref(info), byref(status)), status)
        tensor = Tensor(info.dtype_name.decode(), tuple(info.shape[:info.num_dims]),
                        info.raw_bytes, info.stored_bytes)
        return _text(ctypes.string_at(info.name, info.name_bytes)), (idx, tensor)

    def _metadata(self, idx):
        info, status = MetadataInfo(), Status()
        check(library.snug_reader_metadata(self._pointer, idx, byref(info), byref(status)), status)
        return (_text(ctypes.string_at(info.key, info.key_bytes)),
                _text(ctypes.string_at(info.value, info.value_bytes)))


def _text(utf8):
    return utf8.decode(errors="surrogateescape")  # no two names become one
