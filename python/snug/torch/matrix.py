"""Packed matrices: bytes in a uint8 tensor, and the torch operators on them.

`snug::linear` and `snug::unpack` are ordinary operators: they have fake
implementations for torch.compile, run under CUDA graphs and have gradients for
their input (the weights are constants). On a CPU they restore the matrix first.
"""

import ctypes
from ctypes import byref
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch.utils.weak import WeakIdKeyDictionary

from .._library import (CORRUPT, DST_TOO_SMALL, GemmMatrix, SnugError, Status, check, library,
                        whole)
from .choice import is_faster_packed, workspace_bytes
from .on_gpu import bytes_of, require_cuda, run, stream_of

RAW, FIXED = 0, 1  # enum snug_gemm_kind
_HEADER_BYTES = 256
_STRIP_ROWS = 16


class Packed(NamedTuple):
    """The header of a packed matrix, checked once when the matrix is packed or loaded."""
    n: int
    k: int
    kind: int
    num_escaped: int


def pack(weight, kind=FIXED):
    """Packs weight[n][k]. Returns its bytes and Packed, or None if it would not be smaller.

    RAW keeps 16 bits per weight in the same layout, for the same kernels.
    """
    if weight.dtype != torch.bfloat16 or weight.dim() != 2:
        raise TypeError(f"only BF16 matrices can be packed, not {weight.dtype} of shape "
                        f"{tuple(weight.shape)}")
    kind = whole(kind, "kind", RAW, FIXED)
    weight = weight.detach()
    if weight.stride(1) != 1 or weight.stride(0) < weight.shape[1]:
        weight = weight.contiguous()
    n, k = weight.shape
    bound = library.snug_gemm_packed_bound_bytes(n, k, kind)
    if bound == 0:
        return None
    packed = torch.empty(bound, dtype=torch.uint8, device=weight.device)
    try:
        used = (_pack_on_gpu if weight.is_cuda else _pack_on_cpu)(weight, kind, packed)
    except SnugError as error:
        if error.code == DST_TOO_SMALL:
            return None
        raise
    if used >= 2 * n * k and kind != RAW:
        return None
    packed = packed[:used].clone()  # frees the slack
    return packed, read_header(packed)


def _pack_on_cpu(weight, kind, packed):
    n, k = weight.shape
    used, status = ctypes.c_size_t(), Status()
    check(library.snug_gemm_pack_host(weight.data_ptr(), weight.stride(0), n, k, kind,
                                      packed.data_ptr(), packed.numel(), byref(used),
                                      byref(status)), status)
    return used.value


def _pack_on_gpu(weight, kind, packed):
    require_cuda()
    n, k = weight.shape
    return run(weight.device, library.snug_gemm_pack_workspace_bytes(n, k),
               lambda workspace, num_bytes, result, stream, status: library.snug_gemm_pack(
                   weight.data_ptr(), weight.stride(0), n, k, kind, packed.data_ptr(),
                   packed.numel(), workspace, num_bytes, result, stream, status))


def read_header(packed):
    """Checks that a uint8 tensor is a packed matrix; raises SnugError."""
    if packed.dtype != torch.uint8 or packed.dim() != 1 or not packed.is_contiguous():
        raise TypeError(f"a packed matrix is a row of bytes, not {packed.dtype} of shape "
                        f"{tuple(packed.shape)}")
    header = bytes_of(packed[:_HEADER_BYTES])
    matrix, status = GemmMatrix(), Status()
    check(library.snug_gemm_inspect(header, len(header), packed.numel(), byref(matrix),
                                    byref(status)), status)
    if packed.is_cuda:  # as the kernels will see it
        with torch.cuda.device(packed.device):
            check(library.snug_gemm_open(packed.data_ptr(), packed.numel(), _stream(),
                                         byref(matrix), byref(status)), status)
    return Packed(matrix.n, matrix.k, matrix.kind, matrix.num_escaped)


def strip_sums(packed, header):
    """Checksums of a packed matrix, one int64 for every 16 rows, on its device."""
    sums = torch.empty(library.snug_gemm_num_strips(header.n), dtype=torch.int64,
                       device=packed.device)
    status = Status()
    if packed.is_cuda:
        require_cuda()
        with torch.cuda.device(packed.device):
            check(library.snug_gemm_strip_sums(byref(matrix_of(packed, *header)), sums.data_ptr(),
                                               _stream(), byref(status)), status)
    else:
        check(library.snug_gemm_strip_sums_host(packed.data_ptr(), packed.numel(),
                                                sums.data_ptr(), sums.numel(), byref(status)),
              status)
    return sums


def verify(packed, header, sums):
    """Compares a packed matrix with its checksums; raises SnugError that names damaged rows."""
    strips = library.snug_gemm_num_strips(header.n)
    if sums.dtype != torch.int64 or sums.shape != (strips,):
        raise TypeError(f"a matrix of {header.n} rows has {strips} checksums of int64, not "
                        f"{sums.dtype} of shape {tuple(sums.shape)}")
    sums = sums.to(packed.device)
    found = strip_sums(packed, header)
    if torch.equal(found, sums):
        return
    first = _STRIP_ROWS * int((found != sums).nonzero()[0])
    last = min(first + _STRIP_ROWS, header.n) - 1
    raise SnugError(CORRUPT, f"corrupt: rows {first} to {last} of the packed matrix do not match "
                             "their checksum; load it again from a copy that is intact")


def as_under_autocast(x):
    """x, or in BF16 where autocast casts the inputs of linear layers."""
    is_cast = x.dtype in (torch.float32, torch.float16)
    return x.bfloat16() if is_cast and torch.is_autocast_enabled(x.device.type) else x


def multiply_dense(x, dense, bias=None):
    """The product in BF16, also where autocast would take another type for it."""
    if not torch.is_autocast_enabled(x.device.type):
        return F.linear(x, dense, bias)
    with torch.autocast(x.device.type, enabled=False):
        return F.linear(x, dense, bias)


def _stream():
    return stream_of(torch.cuda.current_device())


def matrix_of(packed, n, k, kind, num_escaped):
    return GemmMatrix(packed.data_ptr(), packed.numel(), n, k, num_escaped, kind, 0)


class _Workspaces:
    """Workspaces for `linear`: one per stream, and one per stream of a graph capture.

    Calls on one stream run one after the other and share a workspace. The streams of a capture
    become branches that run in parallel. A captured graph has its own workspaces, in the graph's
    memory pool, and initialises them on every replay.
    """

    def __init__(self):
        self._of_stream = {}
        self._of_capture = {}  # device -> (capture id, stream -> workspaces)

    def get(self, device, stream, num_bytes):
        capture = library.snug_cuda_capture_id(stream)
        if capture:
            number, of_stream = self._of_capture.get(device, (0, {}))
            if number != capture:
                of_stream = {}
                self._of_capture[device] = (capture, of_stream)
            pieces = of_stream.setdefault(stream, [])
        else:
            pieces = self._of_stream.setdefault((device, stream), [])
        # A capture keeps its smaller workspaces: recorded calls still use them.
        if not pieces or pieces[-1].numel() < num_bytes:
            piece = torch.empty(num_bytes, dtype=torch.uint8, device=device)
            status = Status()
            check(library.snug_gemm_init_workspace(piece.data_ptr(), num_bytes, stream,
                                                   byref(status)), status)
            if not capture:
                pieces.clear()
            pieces.append(piece)
        return pieces[-1]


workspaces = _Workspaces()
_known_matrices = WeakIdKeyDictionary()  # packed tensor -> its version and address, its struct


def version_of(tensor):
    """Changes when a tensor is written to. Tensors of inference mode have no version: always 0."""
    return 0 if tensor.is_inference() else tensor._version


def _device_matrix(packed, header, stream):
    """The C struct, cached until the tensor is written to.

    Kernels prefetch weights before earlier work on the stream has ended, so weights that were just
    loaded or copied must be complete first. A captured graph is replayed after that anyway.
    """
    written = (version_of(packed), packed.data_ptr())
    known = _known_matrices.get(packed)
    if known is not None and known[0] == written:
        return known[1]
    matrix = matrix_of(packed, *header)
    if library.snug_cuda_capture_id(stream) == 0:
        torch.cuda.current_stream().synchronize()
        _known_matrices[packed] = (written, matrix)
    return matrix


_operators = torch.library.Library("snug", "DEF")
# `dense`: the same weights, for numbers of rows that are faster from them.
_operators.define("linear(Tensor x, Tensor packed, Tensor? bias, int n, int k, int kind, "
                  "int num_escaped, Tensor? dense=None) -> Tensor")
_operators.define("unpack(Tensor packed, int n, int k, int kind, int num_escaped) -> Tensor")


def multiply(x, packed, bias, header, dense=None):
    """`snug::linear`, bypassing torch's dispatcher where nothing there is needed.

    At small batches the dispatcher takes longer than the product.
    """
    if (x.is_cuda and type(x) is torch.Tensor and not torch.compiler.is_compiling()
            and not torch.jit.is_tracing()
            and not (torch.is_grad_enabled() and (x.requires_grad or bias is not None))
            and torch._C._len_torch_dispatch_stack() == 0
            and torch._C._functorch.peek_interpreter_stack() is None):
        return _linear_on_gpu(x, packed, bias, *header, dense)
    return torch.ops.snug.linear(x, packed, bias, *header, dense)


@torch.library.impl(_operators, "linear", "CUDA")
def _linear_on_gpu(x, packed, bias, n, k, kind, num_escaped, dense=None):
    if x.dtype != torch.bfloat16 or x.shape[-1] != k:
        raise TypeError(f"expected BF16 with {k} features, got {x.dtype} of shape {tuple(x.shape)}")
    if bias is not None and (bias.dtype != torch.bfloat16 or bias.shape != (n,)
                             or bias.device != x.device or not bias.is_contiguous()):
        raise TypeError(f"expected {n} BF16 biases side by side on {x.device}, "
                        f"got {bias.dtype} of shape {tuple(bias.shape)} on {bias.device}")
    if dense is not None and not is_faster_packed(x.device.index, n, k, x.numel() // k):
        return multiply_dense(x, dense, bias)
    header = n, k, kind, num_escaped
    rows = x.reshape(-1, k)
    if rows.stride(1) != 1 or rows.stride(0) < k:
        rows = rows.contiguous()
    y = torch.empty((*x.shape[:-1], n), dtype=torch.bfloat16, device=x.device)
    if rows.shape[0] == 0:
        return y
    if torch.cuda.current_device() == x.device.index:
        _launch_linear(rows, packed, bias, y, header)
    else:
        with torch.cuda.device(x.device):
            _launch_linear(rows, packed, bias, y, header)
    return y


def _launch_linear(rows, packed, bias, y, header):
    n, k = header[:2]
    m = rows.shape[0]
    stream = stream_of(rows.device.index)
    matrix = _device_matrix(packed, header, stream)
    workspace = workspaces.get(rows.device, stream, workspace_bytes(rows.device.index, n, k, m))
    status = Status()
    check(library.snug_gemm_linear(
        byref(matrix), rows.data_ptr(), rows.stride(0), m,
        None if bias is None else bias.data_ptr(), y.data_ptr(), n, workspace.data_ptr(),
        workspace.numel(), None, stream, byref(status)), status)


@torch.library.impl(_operators, "unpack", "CUDA")
def _unpack_on_gpu(packed, n, k, kind, num_escaped):
    weight = torch.empty((n, k), dtype=torch.bfloat16, device=packed.device)
    status = Status()
    with torch.cuda.device(packed.device):
        check(library.snug_gemm_unpack(byref(matrix_of(packed, n, k, kind, num_escaped)),
                                       weight.data_ptr(), k, _stream(), byref(status)), status)
    return weight


@torch.library.impl(_operators, "unpack", "CPU")
def _unpack_on_cpu(packed, n, k, kind, num_escaped):
    found = read_header(packed)
    if (found.n, found.k) != (n, k):
        raise ValueError(f"the packed matrix is {found.n} x {found.k}, not {n} x {k}")
    weight = torch.empty((n, k), dtype=torch.bfloat16)
    status = Status()
    check(library.snug_gemm_unpack_host(packed.data_ptr(), packed.numel(), weight.data_ptr(),
                                        2 * weight.numel(), k, byref(status)), status)
    return weight


@torch.library.impl(_operators, "linear", "CPU")
def _linear_on_cpu(x, packed, bias, n, k, kind, num_escaped, dense=None):
    if dense is None:
        dense = _unpack_on_cpu(packed, n, k, kind, num_escaped)
    return multiply_dense(x, dense, bias)


@torch.library.register_fake("snug::linear")
def _linear_fake(x, packed, bias, n, k, kind, num_escaped, dense=None):
    return x.new_empty((*x.shape[:-1], n))


@torch.library.register_fake("snug::unpack")
def _unpack_fake(packed, n, k, kind, num_escaped):
    return packed.new_empty((n, k), dtype=torch.bfloat16)


def _remember(ctx, inputs, output):
    _, packed, bias, *header, dense = inputs
    ctx.save_for_backward(packed, dense)
    ctx.header, ctx.has_bias = header, bias is not None


def _backward(ctx, grad):
    packed, dense = ctx.saved_tensors
    grad_x = grad_bias = None
    if ctx.needs_input_grad[0]:
        weight = torch.ops.snug.unpack(packed, *ctx.header) if dense is None else dense
        grad_x = multiply_dense(grad, weight.T)
    if ctx.has_bias and ctx.needs_input_grad[2]:
        grad_bias = grad.reshape(-1, grad.shape[-1]).sum(0)
    return grad_x, None, grad_bias, None, None, None, None, None


torch.library.register_autograd("snug::linear", _backward, setup_context=_remember)
