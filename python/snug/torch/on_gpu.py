"""Calls of the library that run on a GPU: their stream, scratch memory and outcome."""

import ctypes
from ctypes import byref

import torch

from .._library import CudaResult, SnugError, Status, check, has_cuda, library


def require_cuda():
    if not has_cuda:
        raise SnugError(11, "libsnug_c was built without CUDA; move the tensors to the CPU first")


def stream_of(device_index):
    """The current stream's handle; torch.cuda.current_stream makes an object of it, in 10 us."""
    return torch._C._cuda_getCurrentRawStream(device_index)


def run_codec(device, workspace_bytes, call):
    """Waits for `call(workspace, its size, result, stream)`; the size of what it wrote."""
    def checked(*arguments):
        code = call(*arguments)
        if code != 0:
            raise SnugError(code, library.snug_code_name(code).decode())

    outcome = _run(device, workspace_bytes, checked)
    if outcome.code != 0:
        raise SnugError(outcome.code, library.snug_cuda_reason(byref(outcome)).decode())
    return outcome.num_bytes


def run_pack(device, workspace_bytes, call):
    """The same for calls that pack a matrix; these take a status as their last argument."""
    status = Status()
    outcome = _run(device, workspace_bytes,
                   lambda *arguments: check(call(*arguments, byref(status)), status))
    check(library.snug_gemm_pack_status(byref(outcome), byref(status)), status)
    return outcome.num_bytes


def _run(device, workspace_bytes, call):
    require_cuda()
    with torch.cuda.device(device):
        workspace = torch.empty(workspace_bytes, dtype=torch.uint8, device=device)
        result = torch.zeros(ctypes.sizeof(CudaResult), dtype=torch.uint8, device=device)
        call(workspace.data_ptr(), workspace_bytes, result.data_ptr(), stream_of(device.index))
        return CudaResult.from_buffer_copy(result.cpu().numpy().tobytes())
