"""Calls of the library that run on a GPU: their stream, workspace and result."""

import ctypes
from ctypes import byref

import torch

from .._library import (NO_DEVICE, CudaResult, SnugError, Status, check, has_cuda, library,
                        no_cuda)


def require_cuda():
    if not has_cuda:
        raise SnugError(NO_DEVICE, f"{no_cuda}; move the tensors to the CPU first")


def stream_of(device_index):
    """The current stream's handle. torch.cuda.current_stream would take 10 us to wrap it."""
    return torch._C._cuda_getCurrentRawStream(device_index)


def bytes_of(tensor):
    """The bytes of a small tensor. tensor.numpy() would need numpy, and nothing else here does."""
    return bytes(tensor.tolist())


def run(device, workspace_bytes, call):
    """Waits for `call(workspace, its size, result, stream, status)`; the size of its output."""
    require_cuda()
    status = Status()
    with torch.cuda.device(device):
        workspace = torch.empty(workspace_bytes, dtype=torch.uint8, device=device)
        result = torch.zeros(ctypes.sizeof(CudaResult), dtype=torch.uint8, device=device)
        check(call(workspace.data_ptr(), workspace_bytes, result.data_ptr(),
                   stream_of(device.index), byref(status)), status)
        outcome = CudaResult.from_buffer_copy(bytes_of(result))
    check(library.snug_cuda_status(byref(outcome), byref(status)), status)
    return outcome.num_bytes
