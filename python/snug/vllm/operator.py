"""The operator that vLLM's graphs call: a linear layer from a packed matrix.

Unlike `snug::linear` it takes nothing that belongs to one version of the weights: vLLM stores
compiled graphs on the disk, and uses them for other weights of the same model.
"""

from ctypes import byref

import torch

from .._library import GemmMatrix, Status, check, library
from ..torch import matrix as packing
from ..torch.choice import is_faster_packed, workspace_bytes
from ..torch.on_gpu import stream_of

_operators = torch.library.Library("snug", "FRAGMENT")
_operators.define("packed_linear(Tensor x, Tensor packed, Tensor? bias, int n, "
                  "Tensor? dense=None) -> Tensor")

# Address of a packed matrix -> (its bytes, n, k), reference to its C struct. A graph passes other
# tensor objects than the layer has, but the address stays.
_known = {}
# (device, stream) -> workspaces, the last is the largest. None is freed: graphs use them, too. An
# engine replays its graphs one after the other, so those recorded on one stream can share one; a
# workspace of its own in each graph would be set up anew in each replay.
_workspaces = {}


def remember(packed, header):
    """Has `packed_linear` use a matrix that is complete: no kernel that writes it still runs."""
    struct = GemmMatrix(packed.data_ptr(), packed.numel(), header.n, header.k, 0, header.kind, 0)
    _known[packed.data_ptr()] = ((packed.numel(), header.n, header.k), byref(struct))
    return _known[packed.data_ptr()]


def _open(packed, n, k):
    if library.snug_cuda_capture_id(stream_of(packed.device.index)) != 0:
        raise RuntimeError("a CUDA graph is recorded with packed weights that were never used: "
                           "let one step run before")
    torch.cuda.current_stream().synchronize()
    header = packing.read_header(packed)
    if (header.n, header.k) != (n, k):
        raise ValueError(f"the packed matrix is {header.n} x {header.k}, not {n} x {k}")
    return remember(packed, header)


def _new_workspace(device, stream, num_bytes):
    if library.snug_cuda_capture_id(stream) != 0:  # memory of a graph is of no use to others
        return packing.workspaces.get(device, stream, num_bytes)
    workspace = torch.empty(num_bytes, dtype=torch.uint8, device=device)
    status = Status()
    check(library.snug_gemm_init_workspace(workspace.data_ptr(), num_bytes, stream, byref(status)),
          status)
    _workspaces.setdefault((device.index, stream), []).append(workspace)
    return workspace


@torch.library.impl(_operators, "packed_linear", "CUDA")
def _on_gpu(x, packed, bias, n, dense=None):
    k = x.shape[-1]
    if x.dtype != torch.bfloat16 or (bias is not None and bias.dtype != torch.bfloat16):
        raise TypeError(f"packed weights multiply BF16, not {x.dtype}: serve with --dtype bfloat16")
    if dense is not None and not is_faster_packed(x.device.index, n, k, x.numel() // k):
        return packing.multiply_dense(x, dense, bias)
    known = _known.get(packed.data_ptr())
    if known is None or known[0] != (packed.numel(), n, k):
        known = _open(packed, n, k)
    rows = x if x.dim() == 2 else x.reshape(-1, k)
    if rows.stride(1) != 1 or rows.stride(0) < k:
        rows = rows.contiguous()
    y = torch.empty((*x.shape[:-1], n), dtype=torch.bfloat16, device=x.device)
    m = rows.shape[0]
    if m == 0:
        return y
    device = x.device.index
    stream = stream_of(device)
    num_bytes = workspace_bytes(device, n, k, 1 << (m - 1).bit_length())
    pieces = _workspaces.get((device, stream))
    if pieces is None or pieces[-1].numel() < num_bytes:
        workspace = _new_workspace(x.device, stream, num_bytes)
    else:
        workspace = pieces[-1]
    status = Status()
    code = library.snug_gemm_linear(
        known[1], rows.data_ptr(), rows.stride(0), m, None if bias is None else bias.data_ptr(),
        y.data_ptr(), n, workspace.data_ptr(), workspace.numel(), None, stream, byref(status))
    if code:
        check(code, status)
    return y


@torch.library.impl(_operators, "packed_linear", "CPU")
def _on_cpu(x, packed, bias, n, dense=None):
    header = packing.read_header(packed)
    return torch.ops.snug.linear(x, packed, bias, *header, dense)


@torch.library.register_fake("snug::packed_linear")
def _fake(x, packed, bias, n, dense=None):
    return x.new_empty((*x.shape[:-1], n))
