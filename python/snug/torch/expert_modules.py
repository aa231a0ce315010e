"""Finds the experts of a model, as transformers has them, and replaces them by compressed ones."""

import inspect

import torch
from torch import nn

from .._names import is_below
from .banks import BankShape
from .experts import CompressedExperts, one_expert
from .matrix import FIXED, RAW

_LARGE = 1 << 20

# Registered by others on a module; a replacement would lose them.
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def is_patched(module):
    """Whether others changed what calling the module does."""
    return "forward" in vars(module) or any(getattr(module, hooks) for hooks in _HOOKS)


def is_bank(module):
    """Whether a module has all experts of a layer in `gate_up_proj` and `down_proj`."""
    weights = (getattr(module, name, None) for name in ("gate_up_proj", "down_proj"))
    return all(isinstance(w, nn.Parameter) and w.dim() == 3 for w in weights)


def why_not_experts(module):
    """None if CompressedExperts can replace a bank; else why not.

    It can if the bank takes rows, ids and weights, and computes SwiGLU, which is found by letting
    it compute a few rows.
    """
    w13, w2 = module.gate_up_proj, module.down_proj
    names = list(inspect.signature(type(module).forward).parameters)[1:4]
    if names != ["hidden_states", "top_k_index", "top_k_weights"]:
        return "its forward takes other arguments"
    if is_patched(module):
        return "has hooks or a forward of its own"
    if w13.dtype != torch.bfloat16 or w2.dtype != torch.bfloat16:
        return f"weights are {w13.dtype} and {w2.dtype}, not bfloat16"
    if w13.is_meta or w2.is_meta:
        return "weights are not loaded"
    if {name for name, _ in (*module.named_parameters(), *module.named_buffers())} != {
            "gate_up_proj", "down_proj"}:
        return "it has other weights, too"
    experts, k, n = w2.shape
    if tuple(w13.shape) != (experts, 2 * n, k):
        return f"shapes {tuple(w13.shape)} and {tuple(w2.shape)} are not gate over up, and down"
    if w13.device != w2.device:
        return f"its weights are on {w13.device} and {w2.device}"
    if BankShape(experts, 2 * n, k, 2, FIXED).num_bytes() == 0:
        return f"{experts} experts of {n} x {k} are more than a bank takes (docs/experts.md)"
    if w2.is_cuda and torch.cuda.get_device_capability(w2.device) != (9, 0):
        return "compressed experts need a Hopper GPU"
    return None if _computes_swiglu(module) else "it computes something else than SwiGLU"


@torch.no_grad()
def _computes_swiglu(module):
    w13, w2 = module.gate_up_proj, module.down_proj
    experts, k, _ = w2.shape
    generator = torch.Generator(device="cpu").manual_seed(1)
    # Small rows tell activations apart; large ones show limits, such as clamp(gate, max=7).
    x = torch.randn((4, k), generator=generator, dtype=torch.float32, device="cpu")
    x[2:] *= _LARGE
    x, chosen = x.to(w2), [0, experts - 1] * 2
    ids = torch.tensor(chosen, device=w2.device)[:, None]
    weights = torch.tensor([[1.0], [0.5], [1.0], [0.5]], device=w2.device)
    want = torch.cat([one_expert(x[i:i + 1], w13[e], w2[e]) for i, e in enumerate(chosen)])
    want = weights * want.double()  # squares of large rows do not fit into FP32
    got = module(x, ids, weights.to(w2.dtype)).double()
    return bool(((got - want).norm(dim=1) <= 0.02 * want.norm(dim=1)).all())  # BF16 rounds to 0.4 %


def compress_experts(model, kind=FIXED, skip=()):
    """Replaces the experts of a model by compressed ones, in place.

    Returns for each bank its name, the module that it was, and its replacement or why it has none.
    """
    done, replaced = [], {}  # id of a bank -> its replacement; one may be used in many places
    for parent_name, parent in list(model.named_modules()):
        for name, child in list(parent._modules.items()):
            if child is None or not is_bank(child):
                continue
            if id(child) not in replaced:
                full = f"{parent_name}.{name}" if parent_name else name
                made = _compress(child, full, kind, skip)
                replaced[id(child)] = child if isinstance(made, str) else made
                done.append((full, child, made))
            setattr(parent, name, replaced[id(child)])
    return done


def _compress(module, name, kind, skip):
    """The replacement of a bank, or why it has none."""
    if is_below(name, skip):
        return "asked to skip it"
    reason = why_not_experts(module)
    if reason is not None:
        return reason
    weights = module.gate_up_proj, module.down_proj
    packed = CompressedExperts.from_weights(*weights, kind)
    if kind != RAW and packed.num_bytes >= 2 * sum(weight.numel() for weight in weights):
        return "its values do not compress"
    for key, weight in zip(("gate_up_proj", "down_proj"), weights):  # frees them
        empty = torch.empty_like(weight, device="meta")
        setattr(module, key, nn.Parameter(empty, requires_grad=False))
    packed._dense = (module,)
    return packed.train(module.training)
