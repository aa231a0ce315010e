"""Whole tensors of a checkpoint straight to a GPU, which decodes them."""

import threading
import weakref
from ctypes import byref, c_void_p

import torch

from .._handle import Handle
from .._library import Status, TensorMemory, check, library, threads_of
from .on_gpu import stream_of


class GpuLoader(Handle):
    """Reads files on several threads into pinned memory, which it keeps until it is closed."""

    def __init__(self, device, threads=0, piece_bytes=0):
        self._device = torch.device(device)
        if self._device.index is None:
            self._device = torch.device("cuda", torch.cuda.current_device())
        pointer, status = c_void_p(), Status()
        with torch.cuda.device(self._device):
            check(library.snug_cuda_loader_open(threads_of(threads), piece_bytes, byref(pointer),
                                                byref(status)), status)
        super().__init__(pointer, library.snug_cuda_loader_free,
                         scope=torch.cuda.device(self._device))

    def load(self, reader, tensors):
        """Fills tensors of bytes, given by name, that are on the device."""
        for name, tensor in tensors.items():
            if tensor.device != self._device:
                raise ValueError(f"{name} is on {tensor.device}, the loader on {self._device}")
        status = Status()
        # The library would set the thread's own device again, which begins to use it: half a
        # gigabyte of a GPU that the program may not want to touch. torch does not.
        with torch.cuda.device(self._device), self._use() as pointer, reader._use() as file, \
                reader.targets(tensors, TensorMemory) as targets:
            check(library.snug_cuda_loader_load(pointer, file, targets, len(targets),
                                                stream_of(self._device.index), byref(status)),
                  status)


_lock, _shared = threading.Lock(), weakref.WeakValueDictionary()


def shared_loader(device):
    """One loader for all files that are open for a device: its memory counts once."""
    with _lock:
        loader = _shared.get(device)
        if loader is None:
            loader = _shared[device] = GpuLoader(device)
        return loader
