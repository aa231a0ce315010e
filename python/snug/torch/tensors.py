"""Single tensors to Snug frames and back, on the device they are on."""

import ctypes
from ctypes import byref

import torch

from .. import inspect
from .._library import (CODECS, DTYPES, TORCH_DTYPES, CudaOptions, EncodeOptions, Status, check,
                        check_memory, library, number_of)
from .on_gpu import bytes_of, require_cuda, run

DTYPE_NAMES = {getattr(torch, name): ours for name, ours in TORCH_DTYPES.items()}
_HEADER_BYTES = 64


def compress(tensor, codec="entropy"):
    """Returns a uint8 tensor on the same device: one self-contained frame of the values.

    Shape is not recorded; `decompress` takes it. CPU and GPU write the same frames.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"only tensors can be compressed here, not {type(tensor).__name__}")
    if tensor.is_meta:
        raise ValueError("the tensor is not loaded (it is on the meta device)")
    tensor = flat_of(tensor)
    dtype = DTYPE_NAMES.get(tensor.dtype)
    if dtype is None:
        raise TypeError(f"no compression for {tensor.dtype}")
    raw_bytes = tensor.numel() * tensor.element_size()
    number, codec = number_of(DTYPES, dtype, "dtype"), number_of(CODECS, codec, "codec")
    bound = library.snug_encode_bound_bytes(raw_bytes, byref(EncodeOptions(number, codec, 12, 0)))
    frame = torch.empty(bound, dtype=torch.uint8, device=tensor.device)
    if tensor.is_cuda:
        num_bytes = _run_on_gpu("encode", tensor, raw_bytes, frame, CudaOptions(number, codec))
    else:
        num_bytes, status = ctypes.c_size_t(), Status()
        check(library.snug_encode(tensor.data_ptr(), raw_bytes, frame.data_ptr(), bound,
                                  byref(EncodeOptions(number, codec, 0, 0)), byref(num_bytes),
                                  byref(status)), status)
        num_bytes = num_bytes.value
    return frame[:num_bytes].clone()


def flat_of(tensor):
    """The elements of a tensor side by side, as they are in memory."""
    check_memory(tensor)
    return tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)


def decompress(frame, shape=None):
    """Restores the values of a frame made by `compress`, on the frame's device."""
    if frame.dtype != torch.uint8 or frame.dim() != 1:
        raise TypeError(f"a frame is a row of bytes, not {frame.dtype} of shape "
                        f"{tuple(frame.shape)}")
    frame = frame.contiguous()
    info = inspect(bytes_of(frame[:_HEADER_BYTES]))
    dtype = next((known for known, name in DTYPE_NAMES.items() if name == info.dtype), None)
    if dtype is None:
        raise TypeError(f"torch has no dtype for frames of {info.dtype}")
    if info.num_elems * dtype.itemsize != info.raw_bytes:
        raise ValueError("the frame ends within an element")
    values = torch.empty(info.num_elems, dtype=dtype, device=frame.device)
    if frame.is_cuda:
        _run_on_gpu("decode", frame, frame.numel(), values, CudaOptions(DTYPES[info.dtype], 3))
    else:
        status = Status()
        check(library.snug_decode(frame.data_ptr(), frame.numel(), values.data_ptr(),
                                  info.raw_bytes, 0, None, byref(status)), status)
    return values if shape is None else values.view(shape)


def _run_on_gpu(what, source, source_bytes, target, options):
    """Encodes or decodes on the current stream, waits, and returns the size of the result."""
    require_cuda()
    target_bytes = target.numel() * target.element_size()
    workspace_bytes = getattr(library, f"snug_cuda_{what}_workspace_bytes")(
        source_bytes if what == "encode" else target_bytes, byref(options))
    function = getattr(library, f"snug_cuda_{what}")
    return run(source.device, workspace_bytes,
               lambda workspace, num_bytes, result, stream, status: function(
                   source.data_ptr(), source_bytes, target.data_ptr(), target_bytes, workspace,
                   num_bytes, result, byref(options), stream, status))
