"""Frames from files to a GPU, decoded there."""

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import torch

from .._arrays import DTYPES, stored_shape
from .._library import SnugError
from ..reader import Reader
from ..torch import decompress

_PIECE_BYTES = 16 << 20
_NUM_PIECES = 8  # in pinned memory: being read, or being copied to the GPU
_NUM_THREADS = 4


class Uploader:
    """Reads files through pinned memory, which the GPU copies from while the next is read."""

    def __init__(self, device):
        self._device = device
        self._pieces = deque(torch.empty(_PIECE_BYTES, dtype=torch.uint8, device="cpu",
                                         pin_memory=True)
                             for _ in range(_NUM_PIECES))
        self._copied = {id(piece): torch.cuda.Event() for piece in self._pieces}
        self._threads = ThreadPoolExecutor(_NUM_THREADS)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._threads.shutdown(cancel_futures=True)

    def tensors(self, path):
        """(name, tensor) of a file, on the GPU."""
        from .checkpoint import damaged
        with Reader(path) as reader, open(path, "rb") as file:
            for name in reader.keys():
                try:
                    yield name, self._tensor(reader, file.fileno(), name)
                except SnugError as error:
                    raise damaged(path, name, error) from None

    def _tensor(self, reader, descriptor, name):
        info = reader.info(name)
        dtype = getattr(torch, DTYPES[info.dtype])
        shape = stored_shape(info.dtype, info.shape)
        if not reader.compressed or info.stored_bytes == info.raw_bytes or info.raw_bytes == 0:
            values = torch.empty(info.raw_bytes, dtype=torch.uint8, device="cpu")
            if info.raw_bytes:
                reader.read(name, into=values)
            return values.view(dtype).view(shape).to(self._device)
        reader.bytes(name, 0, 1)  # checks that the frame is the one of this name and shape
        frame = self._copy(descriptor, info.file_offset, info.stored_bytes)
        return decompress(frame).view(torch.uint8).view(dtype).view(shape)

    def _copy(self, descriptor, offset, num_bytes):
        frame = torch.empty(num_bytes, dtype=torch.uint8, device=self._device)
        reads = deque()
        for first in range(0, num_bytes, _PIECE_BYTES):
            if not self._pieces:
                self._to_gpu(frame, *reads.popleft())
            piece = self._pieces.popleft()
            self._copied[id(piece)].synchronize()
            size = min(_PIECE_BYTES, num_bytes - first)
            reads.append((first, piece, size, self._threads.submit(
                _read, descriptor, memoryview(piece.numpy())[:size], offset + first)))
        while reads:
            self._to_gpu(frame, *reads.popleft())
        return frame

    def _to_gpu(self, frame, first, piece, size, read):
        read.result()
        frame[first:first + size].copy_(piece[:size], non_blocking=True)
        self._copied[id(piece)].record()
        self._pieces.append(piece)


def _read(descriptor, memory, offset):
    while memory:
        count = os.preadv(descriptor, [memory], offset)
        if count == 0:
            raise EOFError("the file ended while it was read")
        memory, offset = memory[count:], offset + count
