"""Mixtures of experts from packed banks: bytes in uint8 tensors, an operator, a module.

`snug::experts` computes a whole layer: the gate and up projections of each row's experts, SwiGLU,
the down projection and the weighted sum. It has a fake implementation for torch.compile and runs
under CUDA graphs. On a CPU it restores the experts that it needs.
"""

import ctypes
import functools
import warnings
from ctypes import POINTER, byref, c_int, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from .._library import CudaResult, SnugError, Status, check, has_cuda, library
from .matrix import FIXED, RAW, _operators
from .on_gpu import require_cuda, stream_of

_DST_TOO_SMALL = 6  # enum snug_code


class _Shape(ctypes.Structure):
    _fields_ = [("experts", c_uint64), ("n", c_uint64), ("k", c_uint64), ("parts", c_uint32),
                ("kind", c_int32)]


class _Args(ctypes.Structure):
    _fields_ = [("x", c_void_p), ("ldx", c_uint64), ("m", c_uint64), ("ids", c_void_p),
                ("weights", c_void_p), ("y", c_void_p), ("ldy", c_uint64), ("result", c_void_p),
                ("top_k", c_uint32), ("reserved", c_uint32)]


def _declare():
    pointer, size, shape, status = c_void_p, c_size_t, POINTER(_Shape), POINTER(Status)
    functions = {
        "snug_experts_bank_bytes": (size, [shape]),
        "snug_experts_pack_host": (c_int, [pointer, shape, pointer, size, status]),
        "snug_experts_unpack_host": (c_int, [pointer, size, shape, c_uint64, pointer, size,
                                             status]),
        "snug_experts_inspect_host": (c_int, [pointer, size, shape, status]),
    }
    if has_cuda:
        functions |= {
            "snug_experts_pack_workspace_bytes": (size, [shape, c_uint64]),
            "snug_experts_pack": (c_int, [pointer, shape, c_uint64, c_uint64, pointer, size,
                                          pointer, size, pointer, pointer, status]),
            "snug_experts_unpack": (c_int, [pointer, shape, c_uint64, pointer, pointer, status]),
            "snug_experts_workspace_bytes": (size, [shape, shape, c_uint32, c_uint64]),
            "snug_experts_layer": (c_int, [pointer, shape, pointer, shape, POINTER(_Args), pointer,
                                           size, pointer, pointer, status]),
        }
    for name, (result, arguments) in functions.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    for name, struct in (("snug_experts_shape", _Shape), ("snug_experts_args", _Args)):
        if library.snug_struct_bytes(name.encode()) != ctypes.sizeof(struct):
            raise ImportError(f"{name} differs between snug.torch and the library: install both "
                              "from one build")


_declare()


class BankShape(NamedTuple):
    """What a bank holds: `experts` matrices of n x k; parts 2: n / 2 rows of gate, then of up."""
    experts: int
    n: int
    k: int
    parts: int
    kind: int

    def struct(self):
        return _Shape(*self)

    @functools.lru_cache(maxsize=None)
    def num_bytes(self):
        """0 if it is out of range."""
        return library.snug_experts_bank_bytes(byref(self.struct()))


def pack_bank(weight, parts=1, kind=FIXED):
    """Packs weight[experts][n][k]; returns its bytes and BankShape.

    An expert whose values do not compress makes the whole bank raw, with a warning.
    """
    if weight.dtype != torch.bfloat16 or weight.dim() != 3:
        raise TypeError(f"only BF16 banks of three dimensions can be packed, not {weight.dtype} of "
                        f"shape {tuple(weight.shape)}")
    weight = weight.detach().contiguous()
    shape = BankShape(*weight.shape, parts, kind)
    if shape.num_bytes() == 0:
        raise ValueError(f"a bank of shape {tuple(weight.shape)} in {parts} parts is out of range")
    bank = torch.empty(shape.num_bytes(), dtype=torch.uint8, device=weight.device)
    expert = (_pack_on_gpu if weight.is_cuda else _pack_on_cpu)(weight, shape, bank)
    if expert is None:
        return bank, shape
    warnings.warn(f"the values of expert {expert} do not compress: its bank of shape "
                  f"{tuple(weight.shape)} stays uncompressed", RuntimeWarning, stacklevel=2)
    return pack_bank(weight, parts, RAW)


def _pack_on_cpu(weight, shape, bank):
    """None, or the number of an expert that does not fit."""
    status = Status()
    code = library.snug_experts_pack_host(weight.data_ptr(), byref(shape.struct()),
                                          bank.data_ptr(), bank.numel(), byref(status))
    if code == _DST_TOO_SMALL:
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
        outcomes = results.cpu()
    for expert in range(shape.experts):
        outcome = CudaResult.from_buffer_copy(outcomes[expert].numpy().tobytes())
        code = library.snug_cuda_status(byref(outcome), byref(status))
        if code == _DST_TOO_SMALL:
            return expert
        check(code, status)
    return None


def unpack_expert(bank, shape, expert):
    """The exact n x k matrix of one expert."""
    _check_bank(bank, shape)
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


def inspect_bank(bank, shape):
    """Checks the headers of all experts in the bytes of a bank."""
    _check_bank(bank, shape)
    bank, status = bank.cpu(), Status()
    check(library.snug_experts_inspect_host(bank.data_ptr(), bank.numel(), byref(shape.struct()),
                                            byref(status)), status)


def _check_bank(bank, shape):
    if (bank.dtype != torch.uint8 or bank.numel() != shape.num_bytes()
            or not bank.is_contiguous()):
        raise TypeError(f"expected the {shape.num_bytes()} bytes of {shape}, got {bank.dtype} of "
                        f"shape {tuple(bank.shape)}")


_operators.define("experts(Tensor x, Tensor gate_up, Tensor down, Tensor ids, Tensor weights, "
                  "int experts, int n, int k, int kind) -> Tensor")


def _shapes(experts, n, k, kind):
    return BankShape(experts, 2 * n, k, 2, kind), BankShape(experts, k, n, 1, kind)


def _check_layer(x, gate_up, down, ids, weights, shapes):
    k = shapes[0].k
    if x.dtype != torch.bfloat16 or x.dim() != 2 or x.shape[1] != k:
        raise TypeError(f"expected rows of {k} BF16 features, got {x.dtype} of shape "
                        f"{tuple(x.shape)}")
    if ids.shape != weights.shape or ids.dim() != 2 or ids.shape[0] != x.shape[0]:
        raise TypeError(f"expected ids and weights of {x.shape[0]} rows, got {tuple(ids.shape)} "
                        f"and {tuple(weights.shape)}")
    if ids.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"ids are int32 or int64, not {ids.dtype}")
    others = {tensor.device for tensor in (gate_up, down, ids, weights)} - {x.device}
    if others:
        raise ValueError(f"x is on {x.device}, banks, ids or weights on {others.pop()}: move all "
                         "to one device")
    _check_bank(gate_up, shapes[0])
    _check_bank(down, shapes[1])


@torch.library.impl(_operators, "experts", "CUDA")
def _experts_on_gpu(x, gate_up, down, ids, weights, experts, n, k, kind):
    require_cuda()
    shapes = _shapes(experts, n, k, kind)
    _check_layer(x, gate_up, down, ids, weights, shapes)
    if x.stride(1) != 1 or x.stride(0) < k:
        x = x.contiguous()
    ids, weights = ids.to(torch.int32).contiguous(), weights.float().contiguous()
    y = torch.empty((x.shape[0], k), dtype=torch.bfloat16, device=x.device)
    structs = [shape.struct() for shape in shapes]
    m, top_k, status = x.shape[0], ids.shape[1], Status()
    with torch.cuda.device(x.device):
        size = library.snug_experts_workspace_bytes(byref(structs[0]), byref(structs[1]), top_k, m)
        workspace = torch.empty(size, dtype=torch.uint8, device=x.device)
        args = _Args(x.data_ptr(), x.stride(0), m, ids.data_ptr(), weights.data_ptr(),
                     y.data_ptr(), k, None, top_k, 0)
        check(library.snug_experts_layer(
            gate_up.data_ptr(), byref(structs[0]), down.data_ptr(), byref(structs[1]), byref(args),
            workspace.data_ptr(), size, None, stream_of(x.device.index), byref(status)), status)
    return y


@torch.library.impl(_operators, "experts", "CPU")
def _experts_on_cpu(x, gate_up, down, ids, weights, experts, n, k, kind):
    shapes = _shapes(experts, n, k, kind)
    _check_layer(x, gate_up, down, ids, weights, shapes)
    y = torch.zeros((x.shape[0], k), dtype=torch.float32)
    for expert in ids.unique().tolist():
        if 0 <= expert < experts:
            rows, places = (ids == expert).nonzero(as_tuple=True)
            part = one_expert(x[rows], unpack_expert(gate_up, shapes[0], expert),
                               unpack_expert(down, shapes[1], expert))
            part = part.float() * weights[rows, places, None].float()
            y.index_add_(0, rows, part.to(torch.bfloat16).float())
    return y.to(torch.bfloat16)


def one_expert(x, gate_up, down):
    gate, up = F.linear(x, gate_up).chunk(2, dim=-1)
    return F.linear(F.silu(gate) * up, down)


@torch.library.register_fake("snug::experts")
def _experts_fake(x, gate_up, down, ids, weights, experts, n, k, kind):
    return x.new_empty((x.shape[0], k))


class CompressedExperts(nn.Module):
    """The experts of a layer from packed BF16 weights: lossless, in a quarter less memory.

    `forward(x, ids, weights)`: rows of x, for each the numbers of its experts and their weights.
    An id of -1 or of `num_experts` adds nothing. The banks are the buffers `gate_up` and `down`.
    """

    def __init__(self, gate_up, down, shape):
        super().__init__()
        self._dense = ()  # the module that this one replaced, without its weights
        self.num_experts, self.n, self.k, self.kind = shape
        self.register_buffer("gate_up", gate_up)
        self.register_buffer("down", down)

    @classmethod
    def from_weights(cls, w13, w2, kind=FIXED):
        """From w13[experts][2 N][K], gate over up, and w2[experts][K][N]."""
        if w2.dim() != 3:
            raise TypeError(f"down has three dimensions, not the shape {tuple(w2.shape)}")
        experts, k, n = w2.shape
        if tuple(w13.shape) != (experts, 2 * n, k):
            raise ValueError(f"gate and up of shape {tuple(w13.shape)} do not match down of shape "
                             f"{tuple(w2.shape)}")
        (gate_up, first), (down, second) = pack_bank(w13, 2, kind), pack_bank(w2, 1, kind)
        if first.kind != second.kind:  # both banks of a layer are of one kind
            (gate_up, first), (down, second) = pack_bank(w13, 2, RAW), pack_bank(w2, 1, RAW)
        return cls(gate_up, down, (experts, n, k, first.kind))

    @property
    def num_bytes(self):
        return self.gate_up.numel() + self.down.numel()

    def forward(self, hidden_states, top_k_index, top_k_weights):
        return torch.ops.snug.experts(hidden_states, self.gate_up, self.down, top_k_index,
                                      top_k_weights, self.num_experts, self.n, self.k, self.kind)

    def weights(self):
        """The exact w13 and w2."""
        shapes = _shapes(self.num_experts, self.n, self.k, self.kind)
        return tuple(torch.stack([unpack_expert(bank, shape, e) for e in range(self.num_experts)])
                     for bank, shape in zip((self.gate_up, self.down), shapes))

    def decompress(self):
        """The module that compress_experts replaced, with its exact weights."""
        if not self._dense:
            raise ValueError("these experts replaced no module; weights() restores them")
        dense = self._dense[0]
        for name, weight in zip(("gate_up_proj", "down_proj"), self.weights()):
            setattr(dense, name, nn.Parameter(weight, requires_grad=False))
        return dense

    def _load_from_state_dict(self, state_dict, prefix, *args):
        shapes = _shapes(self.num_experts, self.n, self.k, self.kind)
        for name, shape in zip(("gate_up", "down"), shapes):
            bank = state_dict.get(prefix + name)
            if bank is None or bank.is_meta or bank.shape != (shape.num_bytes(),):
                continue  # torch says what is wrong
            try:
                inspect_bank(bank, shape)
            except SnugError as error:
                raise SnugError(error.code, f"{prefix}{name}: {error}") from None
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self):
        return f"{self.num_experts} experts of {self.n} x {self.k}, {self.num_bytes / 1e6:.1f} MB"
