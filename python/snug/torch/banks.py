"""Banks of experts: packed matrices of one projection, as bytes in uint8 tensors."""

import ctypes
import functools
import warnings
from ctypes import byref
from typing import NamedTuple

import torch

from .._library import (CORRUPT, DST_TOO_SMALL, CudaResult, ExpertsShape, SnugError, Status, check,
                        library, whole)
from .matrix import FIXED, RAW, read_header, strip_sums
from .on_gpu import bytes_of, require_cuda, stream_of


class BankShape(NamedTuple):
    """What a bank holds: `experts` matrices of n x k; parts 2: n / 2 rows of gate, then of up."""
    experts: int
    n: int
    k: int
    parts: int
    kind: int

    def struct(self):
        return ExpertsShape(*self)

    def packed_rows(self):
        """Those of a matrix as it is packed: each part has whole strips of 16."""
        return self.n if self.parts == 1 else self.parts * 16 * -(-self.n // (self.parts * 16))

    @functools.lru_cache(maxsize=None)
    def num_bytes(self):
        """0 if it is out of range."""
        return library.snug_experts_bank_bytes(byref(self.struct()))


def pack_bank(weight, parts=1, kind=FIXED):
    """Packs weight[experts][n][k]; returns its bytes and BankShape.

    An expert whose values do not compress makes the whole bank raw, with a warning.
    """
    bank, shape, expert = try_pack_bank(weight, parts, kind)
    if expert is None:
        return bank, shape
    warnings.warn(f"the values of expert {expert} do not compress: its bank of shape "
                  f"{tuple(weight.shape)} stays uncompressed", RuntimeWarning, stacklevel=2)
    return try_pack_bank(weight, parts, RAW)[:2]


def pack_experts(w13, w2, kind=FIXED):
    """Both banks of a layer, and (experts, n, k, kind): they are of one kind."""
    if w2.dim() != 3:
        raise TypeError(f"down has three dimensions, not the shape {tuple(w2.shape)}")
    experts, k, n = w2.shape
    if tuple(w13.shape) != (experts, 2 * n, k):
        raise ValueError(f"gate and up of shape {tuple(w13.shape)} do not match down of shape "
                         f"{tuple(w2.shape)}")
    (gate_up, first), (down, second) = pack_bank(w13, 2, kind), pack_bank(w2, 1, kind)
    if first.kind != second.kind:
        (gate_up, first), (down, second) = pack_bank(w13, 2, RAW), pack_bank(w2, 1, RAW)
    return gate_up, down, (experts, n, k, first.kind)


def try_pack_bank(weight, parts, kind):
    """The same, and None or the number of an expert that does not compress."""
    if weight.dtype != torch.bfloat16 or weight.dim() != 3:
        raise TypeError(f"only BF16 banks of three dimensions can be packed, not {weight.dtype} of "
                        f"shape {tuple(weight.shape)}")
    weight = weight.detach().contiguous()
    shape = BankShape(*weight.shape, parts, kind)
    if shape.num_bytes() == 0:
        raise ValueError(f"a bank of shape {tuple(weight.shape)} in {parts} parts is out of range")
    bank = torch.empty(shape.num_bytes(), dtype=torch.uint8, device=weight.device)
    return bank, shape, (_pack_on_gpu if weight.is_cuda else _pack_on_cpu)(weight, shape, bank)


def _pack_on_cpu(weight, shape, bank):
    """None, or the number of an expert that does not fit."""
    status = Status()
    code = library.snug_experts_pack_host(weight.data_ptr(), byref(shape.struct()),
                                          bank.data_ptr(), bank.numel(), byref(status))
    if code == DST_TOO_SMALL:
        return status.block
    check(code, status)
    return None


def _pack_on_gpu(weight, shape, bank):
    require_cuda()
    status, struct = Status(), shape.struct()
    with torch.cuda.device(weight.device):
        size = library.snug_experts_pack_workspace_bytes(byref(struct), shape.experts)
        workspace = torch.empty(size, dtype=torch.uint8, device=weight.device)
        results = torch.zeros((shape.experts, ctypes.sizeof(CudaResult)), dtype=torch.uint8,
                              device=weight.device)
        check(library.snug_experts_pack(
            weight.data_ptr(), byref(struct), 0, shape.experts, bank.data_ptr(), bank.numel(),
            workspace.data_ptr(), size, results.data_ptr(), stream_of(weight.device.index),
            byref(status)), status)
    for expert, result in enumerate(results.cpu()):
        outcome = CudaResult.from_buffer_copy(bytes_of(result))
        code = library.snug_cuda_status(byref(outcome), byref(status))
        if code == DST_TOO_SMALL:
            return expert
        check(code, status)
    return None


def unpack_expert(bank, shape, expert):
    """The exact n x k matrix of one expert."""
    check_bank(bank, shape)
    expert = whole(expert, "the number of an expert", 0, shape.experts - 1)
    weight = torch.empty((shape.n, shape.k), dtype=torch.bfloat16, device=bank.device)
    status = Status()
    if bank.is_cuda:
        with torch.cuda.device(bank.device):
            check(library.snug_experts_unpack(
                bank.data_ptr(), byref(shape.struct()), expert, weight.data_ptr(),
                stream_of(bank.device.index), byref(status)), status)
    else:
        check(library.snug_experts_unpack_host(
            bank.data_ptr(), bank.numel(), byref(shape.struct()), expert, weight.data_ptr(),
            2 * weight.numel(), byref(status)), status)
    return weight


def unpack_bank(bank, shape, device=None):
    """Those of all experts, on the device of the bank or another; restored one after the other."""
    weight = torch.empty((shape.experts, shape.n, shape.k), dtype=torch.bfloat16,
                         device=device or bank.device)
    for expert in range(shape.experts):
        weight[expert].copy_(unpack_expert(bank, shape, expert))
    return weight


def replace_expert(bank, shape, expert, weight):
    """Packs weight[n][k] into the slot of one expert. A bank that a CUDA graph reads may change so.

    ValueError if its values do not compress well enough for a slot; the bank then stays as it is.
    """
    check_bank(bank, shape)
    expert = whole(expert, "the number of an expert", 0, shape.experts - 1)
    if weight.dtype != torch.bfloat16 or tuple(weight.shape) != (shape.n, shape.k):
        raise TypeError(f"an expert of {shape} is BF16 of shape {(shape.n, shape.k)}, not "
                        f"{weight.dtype} of shape {tuple(weight.shape)}")
    one = shape._replace(experts=1)
    slot = torch.empty(one.num_bytes(), dtype=torch.uint8, device=bank.device)
    weight = weight.detach().to(bank.device).contiguous()[None]
    pack_on = _pack_on_gpu if bank.is_cuda else _pack_on_cpu
    if pack_on(weight, one, slot) is not None:
        raise ValueError(f"the new values of expert {expert} do not compress: pack the whole bank "
                         "again, uncompressed")
    bank.view(shape.experts, -1)[expert].copy_(slot)


def slot_sums(slot, shape, expert):
    """Checksums of one expert in the bytes of its slot: int64, one for every 16 packed rows."""
    try:
        header = read_header(slot)
    except SnugError as error:
        raise SnugError(error.code, f"expert {expert}: {error}") from None
    if header[:3] != (shape.packed_rows(), shape.k, shape.kind):
        raise SnugError(CORRUPT, f"corrupt: expert {expert} has another shape than its bank")
    return strip_sums(slot, header)


def bank_sums(bank, shape):
    """The same of all experts, on the device of their bank."""
    check_bank(bank, shape)
    return torch.stack([slot_sums(slot, shape, expert)
                        for expert, slot in enumerate(bank.view(shape.experts, -1))])


def verify_bank(bank, shape, sums):
    """Compares a bank with its checksums; raises SnugError that names a damaged expert."""
    found = bank_sums(bank, shape)
    if sums.dtype != torch.int64 or sums.shape != found.shape:
        raise TypeError(f"a bank of {shape.experts} experts has checksums of int64 and shape "
                        f"{tuple(found.shape)}, not {sums.dtype} of shape {tuple(sums.shape)}")
    damaged = (found != sums.to(found.device)).any(dim=1)
    if damaged.any():
        raise SnugError(CORRUPT, f"corrupt: expert {int(damaged.nonzero()[0])} does not match its "
                                 "checksums; load it again from a copy that is intact")


def check_bank(bank, shape):
    if (bank.dtype != torch.uint8 or bank.numel() != shape.num_bytes()
            or not bank.is_contiguous()):
        raise TypeError(f"expected the {shape.num_bytes()} bytes of {shape}, got {bank.dtype} of "
                        f"shape {tuple(bank.shape)}")
