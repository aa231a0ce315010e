"""Mixtures of experts from packed banks: bytes in uint8 tensors, an operator, a module.

`snug::experts` computes a whole layer: the gate and up projections of each row's experts, SwiGLU,
the down projection and the weighted sum. It has a fake implementation for torch.compile, runs
under CUDA graphs and has gradients for x and the routing weights (the experts are constants). On
a CPU and for gradients it restores the experts that it needs, one at a time.
"""

from ctypes import byref

import torch
import torch.nn.functional as F
from torch import nn

from .._library import ExpertsArgs, Status, check, library
from .banks import (BankShape, bank_sums, check_bank, pack_experts, replace_expert, slot_sums,
                    unpack_bank, unpack_expert, verify_bank)
from .deltas import apply_delta
from .linear import errors_name
from .matrix import FIXED, _operators, as_under_autocast, multiply_dense
from .on_gpu import require_cuda, stream_of

_operators.define("experts(Tensor x, Tensor gate_up, Tensor down, Tensor ids, Tensor weights, "
                  "int experts, int n, int k, int kind) -> Tensor")
_operators.define("experts_backward(Tensor grad, Tensor x, Tensor gate_up, Tensor down, "
                  "Tensor ids, Tensor weights, int experts, int n, int k, int kind) "
                  "-> (Tensor, Tensor)")


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
    check_bank(gate_up, shapes[0])
    check_bank(down, shapes[1])


@torch.library.impl(_operators, "experts", "CUDA")
def _experts_on_gpu(x, gate_up, down, ids, weights, experts, n, k, kind):
    require_cuda()
    shapes = _shapes(experts, n, k, kind)
    _check_layer(x, gate_up, down, ids, weights, shapes)
    if x.stride(1) != 1 or x.stride(0) < k:
        x = x.contiguous()
    if ids.dtype == torch.int64:  # an id beyond 32 bits must not become one of an expert
        ids = ids.clamp(-1, experts).to(torch.int32)
    ids, weights = ids.contiguous(), weights.float().contiguous()
    y = torch.empty((x.shape[0], k), dtype=torch.bfloat16, device=x.device)
    structs = [shape.struct() for shape in shapes]
    m, top_k, status = x.shape[0], ids.shape[1], Status()
    with torch.cuda.device(x.device):
        size = library.snug_experts_workspace_bytes(byref(structs[0]), byref(structs[1]), top_k, m)
        workspace = torch.empty(size, dtype=torch.uint8, device=x.device)
        args = ExpertsArgs(x.data_ptr(), x.stride(0), m, ids.data_ptr(), weights.data_ptr(),
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
    for rows, places, w13, w2 in _used_experts(ids, gate_up, down, shapes):
        part = one_expert(x[rows], w13, w2).float() * weights[rows, places, None].float()
        y.index_add_(0, rows, part.to(torch.bfloat16).float())
    return y.to(torch.bfloat16)


def _used_experts(ids, gate_up, down, shapes):
    """For each expert that has rows: these, the places of its ids in them, and its weights."""
    for expert in ids.unique().tolist():
        if 0 <= expert < shapes[0].experts:
            yield (*(ids == expert).nonzero(as_tuple=True),
                   unpack_expert(gate_up, shapes[0], expert),
                   unpack_expert(down, shapes[1], expert))


def one_expert(x, gate_up, down):
    gate, up = multiply_dense(x, gate_up).chunk(2, dim=-1)
    return multiply_dense(F.silu(gate) * up, down)


@torch.library.register_fake("snug::experts")
def _experts_fake(x, gate_up, down, ids, weights, experts, n, k, kind):
    return x.new_empty((x.shape[0], k))


def _gradients(grad, x, gate_up, down, ids, weights, experts, n, k, kind):
    """Of x and of the routing weights."""
    shapes = _shapes(experts, n, k, kind)
    grad_x, grad_weights = torch.zeros_like(x, dtype=torch.float32), torch.zeros_like(weights)
    for rows, places, w13, w2 in _used_experts(ids, gate_up, down, shapes):
        gate, up = multiply_dense(x[rows], w13).float().chunk(2, dim=-1)
        share, silu = torch.sigmoid(gate), F.silu(gate)
        part = multiply_dense((silu * up).to(x.dtype), w2).float()
        grad_weights[rows, places] = (grad[rows].float() * part).sum(-1).to(weights.dtype)
        grad_part = (grad[rows] * weights[rows, places, None]).to(x.dtype)
        grad_h = multiply_dense(grad_part, w2.T).float()
        grad_gate = grad_h * up * share * (1 + gate * (1 - share))
        both = torch.cat([grad_gate, grad_h * silu], dim=-1).to(x.dtype)
        grad_x.index_add_(0, rows, multiply_dense(both, w13.T).float())
    return grad_x.to(x.dtype), grad_weights


for _device in ("CPU", "CUDA"):
    _operators.impl("experts_backward", _gradients, _device)


@torch.library.register_fake("snug::experts_backward")
def _gradients_fake(grad, x, gate_up, down, ids, weights, experts, n, k, kind):
    return torch.empty_like(x), torch.empty_like(weights)


def _remember(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:5])
    ctx.shape = inputs[5:]


def _backward(ctx, grad):
    grad_x, grad_weights = torch.ops.snug.experts_backward(grad, *ctx.saved_tensors, *ctx.shape)
    return (grad_x, None, None, None, grad_weights) + (None,) * 4


torch.library.register_autograd("snug::experts", _backward, setup_context=_remember)


class CompressedExperts(nn.Module):
    """The experts of a layer from packed BF16 weights: lossless, in a quarter less memory.

    `forward(x, ids, weights)`: rows of x, for each the numbers of its experts and their weights.
    An id of -1 or of `num_experts` adds nothing. The banks are the buffers `gate_up` and `down`,
    their checksums `gate_up_sums` and `down_sums`, which are compared when a state is loaded.
    """

    def __init__(self, gate_up, down, shape):
        super().__init__()
        self._dense = ()  # the module that this one replaced, without its weights
        self.num_experts, self.n, self.k, self.kind = shape
        self.register_buffer("gate_up", gate_up)
        self.register_buffer("down", down)
        for name, shape in self._banks():
            self.register_buffer(name + "_sums", bank_sums(getattr(self, name), shape))

    @classmethod
    def from_weights(cls, w13, w2, kind=FIXED):
        """From w13[experts][2 N][K], gate over up, and w2[experts][K][N]."""
        return cls(*pack_experts(w13, w2, kind))

    @property
    def num_bytes(self):
        return sum(buffer.numel() * buffer.element_size() for buffer in self.buffers())

    def verify(self):
        """Checks that the weights are intact; raises SnugError that names a damaged expert."""
        for name, shape in self._banks():
            with errors_name(name):
                verify_bank(getattr(self, name), shape, getattr(self, name + "_sums"))

    def forward(self, hidden_states, top_k_index, top_k_weights):
        return torch.ops.snug.experts(as_under_autocast(hidden_states), self.gate_up, self.down,
                                      top_k_index, top_k_weights, self.num_experts, self.n,
                                      self.k, self.kind)

    def weights(self, device=None):
        """The exact w13 and w2, on the device of the layer or another."""
        return tuple(unpack_bank(getattr(self, name), shape, device)
                     for name, shape in self._banks())

    def apply_delta(self, expert, *, gate_up=None, down=None):
        """Changes the weights of one expert by deltas of its w13 and w2 (`snug.torch.delta`).

        Nothing changes if a delta was made from other weights, or if new ones do not compress.
        """
        if gate_up is None and down is None:
            raise TypeError("give a delta: gate_up, down or both")
        deltas = {"gate_up": gate_up, "down": down}
        shapes = dict(self._banks())
        new = {name: apply_delta(unpack_expert(getattr(self, name), shapes[name], expert), change)
               for name, change in deltas.items() if change is not None}
        before = [(part, part.clone()) for name in new for part in self._parts(name, expert)]
        try:
            for name, weight in new.items():
                replace_expert(getattr(self, name), shapes[name], expert, weight)
                slot, sums = self._parts(name, expert)
                sums.copy_(slot_sums(slot, shapes[name], expert))
        except Exception:  # also if there is no memory to pack the second one
            for part, old in before:
                part.copy_(old)
            raise

    def decompress(self):
        """The module that compress_experts replaced, with its exact weights."""
        if not self._dense:
            raise ValueError("these experts replaced no module; weights() restores them")
        dense = self._dense[0]
        for name, weight in zip(("gate_up_proj", "down_proj"), self.weights()):
            setattr(dense, name, nn.Parameter(weight, requires_grad=False))
        return dense

    def _banks(self):
        """For each bank its name and BankShape."""
        return zip(("gate_up", "down"), _shapes(self.num_experts, self.n, self.k, self.kind))

    def _parts(self, name, expert):
        """Of one expert: its slot in a bank, and its checksums."""
        bank = getattr(self, name)
        return bank.view(self.num_experts, -1)[expert], getattr(self, name + "_sums")[expert]

    def _load_from_state_dict(self, state_dict, prefix, *args):
        sums_of_older = {}  # versions saved no checksums
        for name, shape in self._banks():
            bank, sums = (state_dict.get(f"{prefix}{name}{end}") for end in ("", "_sums"))
            if bank is None or bank.is_meta or bank.shape != (shape.num_bytes(),):
                continue  # torch says what is wrong
            with errors_name(prefix + name):
                if sums is None:
                    sums_of_older[f"{prefix}{name}_sums"] = bank_sums(bank, shape)
                else:
                    verify_bank(bank, shape, sums)
        super()._load_from_state_dict({**state_dict, **sums_of_older}, prefix, *args)

    def extra_repr(self):
        return f"{self.num_experts} experts of {self.n} x {self.k}, {self.num_bytes / 1e6:.1f} MB"
