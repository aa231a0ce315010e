"""One projection of a bank of experts for rows that each have an expert: `snug::grouped`."""

from ctypes import byref

import torch

from .._library import GroupedArgs, Status, check, library
from .banks import BankShape, check_bank, unpack_expert
from .matrix import _operators, multiply_dense
from .on_gpu import require_cuda, stream_of

_operators.define("grouped(Tensor x, Tensor bank, Tensor groups, bool masked, int experts, int n, "
                  "int k, int parts, int kind) -> Tensor")


def grouped(x, bank, shape, *, ids=None, counts=None):
    """y[i] = W[e] x[i], where e is the expert of row i; a row without one gets zeros.

    ids[rows]: the expert of each row of x[rows][k], in any order, -1 for none. Or counts[experts]:
    x is [experts][rows][k], and the first counts[e] rows of each expert are multiplied.
    """
    if (ids is None) == (counts is None):
        raise TypeError("give either ids or counts")
    masked = ids is None
    return torch.ops.snug.grouped(x, bank, counts if masked else ids, masked, *shape)


def _check(x, bank, groups, masked, shape):
    check_bank(bank, shape)
    dims = 3 if masked else 2
    if x.dtype != torch.bfloat16 or x.dim() != dims or x.shape[-1] != shape.k:
        raise TypeError(f"expected BF16 rows of {shape.k} features in {dims} dimensions, got "
                        f"{x.dtype} of shape {tuple(x.shape)}")
    if groups.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"ids or counts are int32 or int64, not {groups.dtype}")
    if tuple(groups.shape) != (x.shape[0],) or (masked and x.shape[0] != shape.experts):
        raise TypeError(f"ids or counts of shape {tuple(groups.shape)} do not fit x of shape "
                        f"{tuple(x.shape)} and {shape.experts} experts")
    if {bank.device, groups.device} != {x.device}:
        raise ValueError(f"x is on {x.device}, the bank on {bank.device}, ids or counts on "
                         f"{groups.device}: move all to one device")


@torch.library.impl(_operators, "grouped", "CUDA")
def _grouped_on_gpu(x, bank, groups, masked, experts, n, k, parts, kind):
    require_cuda()
    shape = BankShape(experts, n, k, parts, kind)
    _check(x, bank, groups, masked, shape)
    x = x.contiguous()
    y = torch.zeros((*x.shape[:-1], n), dtype=torch.bfloat16, device=x.device)
    rows, struct, status = x.numel() // k, shape.struct(), Status()
    if groups.dtype == torch.int64:  # a number beyond 32 bits must not become a small one
        groups = groups.clamp(-1, max(rows, experts) + 1)
    groups = groups.to(torch.int32).contiguous()
    with torch.cuda.device(x.device):
        size = library.snug_grouped_workspace_bytes(byref(struct), rows)
        workspace = torch.empty(size, dtype=torch.uint8, device=x.device)
        ids, counts = (None, groups.data_ptr()) if masked else (groups.data_ptr(), None)
        args = GroupedArgs(x.data_ptr(), k, rows, y.data_ptr(), n, ids, counts, None)
        check(library.snug_grouped(bank.data_ptr(), byref(struct), byref(args),
                                   workspace.data_ptr(), size, None, stream_of(x.device.index),
                                   byref(status)), status)
    return y


@torch.library.impl(_operators, "grouped", "CPU")
def _grouped_on_cpu(x, bank, groups, masked, experts, n, k, parts, kind):
    shape = BankShape(experts, n, k, parts, kind)
    _check(x, bank, groups, masked, shape)
    y = torch.zeros((*x.shape[:-1], n), dtype=torch.bfloat16)
    for expert in range(experts):
        if masked:
            count = int(groups[expert])
            rows = slice(0, count if 0 <= count <= x.shape[1] else 0)
            at, rows_of = (expert, rows), x[expert, rows]
        else:
            at = (groups == expert).nonzero(as_tuple=True)
            rows_of = x[at]
        if len(rows_of):
            y[at] = multiply_dense(rows_of, unpack_expert(bank, shape, expert))
    return y


@torch.library.register_fake("snug::grouped")
def _grouped_fake(x, bank, groups, masked, experts, n, k, parts, kind):
    return x.new_empty((*x.shape[:-1], n))


def _backward(ctx, grad):
    raise NotImplementedError("products by groups have no gradients; use them under "
                              "torch.no_grad(), or multiply with banks.unpack_expert() instead")


torch.library.register_autograd("snug::grouped", _backward)
