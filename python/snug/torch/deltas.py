"""What changed between two versions of a tensor, exactly; on the device they are on.

    update = snug.torch.delta(old, new)            # 1 to 3 % of the bytes after a training step
    weights = snug.torch.apply_delta(old, update)  # the bits of `new`
    layer.apply_delta(update)                      # a CompressedLinear, without restoring it

A delta applies only to the version it was made from. CPU and GPU write the same deltas.
"""

import ctypes
from ctypes import byref

import torch

from .._library import DTYPES, CudaDeltaOptions, DeltaInfo, DeltaOptions, Status, check, library
from .matrix import matrix_of, read_header
from .on_gpu import bytes_of, require_cuda, run, stream_of
from .tensors import DTYPE_NAMES, flat_of

_LOG2_BLOCK = 13  # what GPUs read
_HEADER_BYTES = 64


def delta(base, new):
    """A uint8 tensor that turns `base` into `new`."""
    if base.dtype != new.dtype or base.shape != new.shape or base.device != new.device:
        raise TypeError(f"versions of one tensor have one dtype, shape and device, not "
                        f"{base.dtype} {tuple(base.shape)} on {base.device} and "
                        f"{new.dtype} {tuple(new.shape)} on {new.device}")
    base, new = _flat(base), _flat(new)
    dtype, raw_bytes = _number_of(base), base.numel() * base.element_size()
    options = DeltaOptions(dtype, _LOG2_BLOCK, 0, 0)
    out = torch.empty(library.snug_delta_bound_bytes(raw_bytes, byref(options)), dtype=torch.uint8,
                      device=base.device)
    if base.is_cuda:
        num_bytes = _run_on_gpu("delta_encode", raw_bytes, dtype,
                                [base.data_ptr(), new.data_ptr(), raw_bytes, out.data_ptr(),
                                 out.numel()], base.device)
    else:
        used, status = ctypes.c_size_t(), Status()
        check(library.snug_delta_encode(base.data_ptr(), new.data_ptr(), raw_bytes, out.data_ptr(),
                                        out.numel(), byref(options), byref(used), byref(status)),
              status)
        num_bytes = used.value
    return out[:num_bytes].clone()


def apply_delta(base, delta):
    """The new version as a new tensor. SnugError if `delta` was made from another base."""
    delta, flat = _bytes_on(delta, base.device), _flat(base)
    dtype, raw_bytes = _number_of(flat), flat.numel() * flat.element_size()
    info, status = delta_info(delta), Status()
    if info.raw_bytes != raw_bytes or info.dtype != dtype:
        raise ValueError(f"the delta is for a tensor of {info.raw_bytes} bytes, this one has "
                         f"{raw_bytes}" if info.raw_bytes != raw_bytes else
                         "the delta is for another dtype")
    target = torch.empty(flat.shape, dtype=flat.dtype, device=flat.device)
    if flat.is_cuda:
        _run_on_gpu("delta_apply", raw_bytes, dtype,
                    [delta.data_ptr(), delta.numel(), flat.data_ptr(), target.data_ptr(),
                     raw_bytes], flat.device, function="delta_apply_to")
    else:
        check(library.snug_delta_apply(delta.data_ptr(), delta.numel(), flat.data_ptr(), raw_bytes,
                                       target.data_ptr(), raw_bytes, 0, None, byref(status)),
              status)
    return target.view(base.shape)


def delta_info(delta):
    """What the header of a delta claims, a DeltaInfo. SnugError if it is damaged."""
    header, info, status = bytes_of(delta[:_HEADER_BYTES]), DeltaInfo(), Status()
    check(library.snug_delta_inspect(header, len(header), byref(info), byref(status)), status)
    return info


def tensor_hash(tensor):
    """The 64-bit number by which deltas name a version of a tensor; equal on CPU and GPU."""
    flat = flat_of(tensor)
    num_bytes = flat.numel() * flat.element_size()
    if not flat.is_cuda:
        return library.snug_tensor_hash(flat.data_ptr(), num_bytes, 0)
    require_cuda()
    flat, status = _aligned(flat), Status()
    options = CudaDeltaOptions(DTYPES["bf16"], _LOG2_BLOCK)
    workspace_bytes = library.snug_cuda_delta_apply_workspace_bytes(num_bytes, byref(options))
    with torch.cuda.device(flat.device):
        workspace = torch.empty(workspace_bytes, dtype=torch.uint8, device=flat.device)
        result = torch.zeros(1, dtype=torch.int64, device=flat.device)
        check(library.snug_cuda_tensor_hash(
            flat.data_ptr(), num_bytes, result.data_ptr(), workspace.data_ptr(), workspace_bytes,
            stream_of(flat.device.index), byref(status)), status)
        return result.item() & 0xFFFFFFFFFFFFFFFF


def apply_to_packed(packed, header, delta):
    """The packed matrix of the new version and its Packed; CUDA only."""
    require_cuda()
    delta = _bytes_on(delta, packed.device)
    n, k = header.n, header.k
    new = torch.empty(library.snug_gemm_packed_bound_bytes(n, k, header.kind), dtype=torch.uint8,
                      device=packed.device)
    matrix = matrix_of(packed, *header)
    used = run(packed.device, library.snug_gemm_apply_delta_workspace_bytes(n, k),
               lambda workspace, num_bytes, result, stream, status: library.snug_gemm_apply_delta(
                   byref(matrix), delta.data_ptr(), delta.numel(), header.kind, new.data_ptr(),
                   new.numel(), workspace, num_bytes, result, None, stream, status))
    new = new[:used].clone()  # frees the slack
    return new, read_header(new)


def _run_on_gpu(what, raw_bytes, dtype, arguments, device, function=None):
    """Waits for snug_cuda_<what> on the current stream; returns the size of the result."""
    require_cuda()
    options = CudaDeltaOptions(dtype, _LOG2_BLOCK)
    workspace_bytes = getattr(library, f"snug_cuda_{what}_workspace_bytes")(raw_bytes,
                                                                            byref(options))
    function = getattr(library, f"snug_cuda_{function or what}")
    return run(device, workspace_bytes,
               lambda workspace, num_bytes, result, stream, status: function(
                   *arguments, workspace, num_bytes, result, byref(options), stream, status))


def _flat(tensor):
    return _aligned(flat_of(tensor))


def _aligned(tensor):
    """GPUs read deltas and tensors at addresses that are multiples of 16."""
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone()


def _number_of(tensor):
    name = DTYPE_NAMES.get(tensor.dtype)
    if name is None:
        raise TypeError(f"no deltas for {tensor.dtype}")
    if tensor.is_cuda and tensor.element_size() > 2:
        raise TypeError(f"deltas on a GPU are for elements of one or two bytes, not "
                        f"{tensor.dtype}; move the tensors to the CPU")
    return DTYPES[name]


def _bytes_on(delta, device):
    if delta.dtype != torch.uint8 or delta.dim() != 1:
        raise TypeError(f"a delta is a row of bytes, not {delta.dtype} of shape "
                        f"{tuple(delta.shape)}")
    return _aligned(delta.to(device).contiguous())
