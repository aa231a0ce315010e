"""Linear layers on packed weights, and whole models of them."""

from collections import Counter
from contextlib import contextmanager
from ctypes import byref
from typing import NamedTuple

import torch
from torch import nn

from .._library import GemmChoice, SnugError, Status, check, library, whole
from .deltas import apply_delta, apply_to_packed
from .expert_modules import compress_experts, is_patched
from .experts import CompressedExperts
from .matrix import (FIXED, POLICIES, RAW, multiply, pack, read_header, strip_sums, verify,
                     version_of)
from .on_gpu import stream_of

# Layers that read the same input, by the names models give them.
SIDE_BY_SIDE = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class CompressedLinear(nn.Module):
    """nn.Linear from packed BF16 weights: lossless, in a quarter less memory.

    The packed matrix is the buffer `packed`, its checksums are the buffer `sums`: state_dict saves
    both, and load_state_dict takes others of the same shape and verifies them.
    """

    def __init__(self, packed, bias=None, header=None, sums=None):
        super().__init__()
        self.header = header or read_header(packed)
        if sums is None:
            sums = strip_sums(packed, self.header)
        else:
            verify(packed, self.header, sums)
        self.register_buffer("packed", packed)
        self.register_buffer("sums", sums.to(packed.device))
        self.bias = None if bias is None else nn.Parameter(bias.detach(), bias.requires_grad)

    @classmethod
    def from_linear(cls, linear, kind=FIXED):
        """None if the weights would not be smaller."""
        made = pack(linear.weight, kind)
        return None if made is None else cls(made[0], linear.bias, made[1])

    @property
    def in_features(self):
        return self.header.k

    @property
    def out_features(self):
        return self.header.n

    @property
    def num_bytes(self):
        return self.packed.numel() + 8 * self.sums.numel()

    def verify(self):
        """Checks that the packed weights are intact; raises SnugError that names damaged rows."""
        verify(self.packed, self.header, self.sums)

    def forward(self, x):
        if x.dtype != torch.bfloat16 or x.shape[-1] != self.header.k:
            raise TypeError(f"expected BF16 with {self.header.k} features, "
                            f"got {x.dtype} of shape {tuple(x.shape)}")
        if x.device != self.packed.device:
            raise ValueError(f"x is on {x.device}, the weights are on {self.packed.device}")
        return multiply(x, self.packed, self.bias, self.header)

    def dense_weight(self):
        """The exact weight matrix, restored."""
        return torch.ops.snug.unpack(self.packed, *self.header)

    @property
    def weight(self):
        """The same, for code that reads a layer's weights. Restores them on every access."""
        return self.dense_weight()

    def decompress(self):
        """The exact nn.Linear."""
        return _dense_linear(self.dense_weight(), self.bias)

    def apply_delta(self, delta):
        """Updates the weights to the new version, or raises and leaves them unchanged.

        `delta` is of the dense weight matrix: snug.torch.delta(old, new).
        """
        if self.packed.is_cuda:
            packed, header = apply_to_packed(self.packed, self.header, delta)
        else:
            made = pack(apply_delta(self.dense_weight(), delta), self.header.kind)
            if made is None:
                raise ValueError("the new weights do not compress; make a dense layer of them")
            packed, header = made
        self.packed, self.header, self.sums = packed, header, strip_sums(packed, header)

    def extra_repr(self):
        bits = 8 * self.num_bytes / (self.header.n * self.header.k)
        return (f"in_features={self.header.k}, out_features={self.header.n}, "
                f"bias={self.bias is not None}, {bits:.2f} bits per weight")

    def _load_from_state_dict(self, state_dict, prefix, *args):
        packed = state_dict.get(prefix + "packed")
        if packed is not None:
            header = read_header(packed)  # packed sizes differ; n and k must not
            if (header.n, header.k) != (self.header.n, self.header.k):
                args[-1].append(f"{prefix}packed holds {header.n} x {header.k} weights, "
                                f"this layer has {self.header.n} x {self.header.k}")
                return
            before = self.packed, self.sums, self.header
            self.packed = torch.empty_like(packed, device=self.packed.device)
            self.header = header
        super()._load_from_state_dict(state_dict, prefix, *args)
        if packed is None or self.packed.is_meta:
            return
        if prefix + "sums" not in state_dict:  # which is an error unless strict=False
            self.sums = strip_sums(self.packed, self.header)
        try:
            with _errors_name(prefix + "packed"):
                self.verify()  # where the weights are used, after the last copy
        except (SnugError, TypeError):  # damaged, or checksums of another kind
            self.packed, self.sums, self.header = before
            raise


class FusedPart(nn.Module):
    """One of several layers that share their input and one packed matrix.

    The first part to see an input multiplies for all; the others return their
    columns of that result.
    """

    def __init__(self, fused, first, count, is_owner):
        super().__init__()
        self.first, self.count = first, count
        if is_owner:
            self.fused = fused  # a submodule of the first part only: saved once
        else:
            object.__setattr__(self, "fused", fused)

    @property
    def in_features(self):
        return self.fused.header.k

    @property
    def out_features(self):
        return self.count

    @property
    def weight(self):
        """The exact weights of this part, restored on every access."""
        return self.fused.dense_weight()[self.first:self.first + self.count].clone()

    @property
    def bias(self):
        bias = self.fused.bias
        return None if bias is None else bias[self.first:self.first + self.count]

    def forward(self, x):
        return self.fused.columns(x, self.first, self.count)

    def decompress(self):
        """The exact nn.Linear."""
        return _dense_linear(self.weight, self.bias)


class FusedLinear(CompressedLinear):
    """The packed matrix behind FusedParts."""

    def __init__(self, packed, bias, header, num_parts):
        super().__init__(packed, bias, header)
        self.num_parts = num_parts
        self._last = None  # input of the last product, its key, the product, parts that took it

    def columns(self, x, first, count):
        if torch.compiler.is_compiling():
            # The compiler merges the equal calls of the parts.
            return self(x)[..., first:first + count]
        stream = stream_of(x.device.index) if x.is_cuda else 0
        made_for = (version_of(x), stream, torch.is_grad_enabled())
        last = self._last  # threads that share a model may replace it at any time
        if last is None or last[0] is not x or last[1] != made_for or first in last[3]:
            last = self._last = (x, made_for, self(x), set())
        _, _, y, taken = last
        taken.add(first)
        if len(taken) == self.num_parts and self._last is last:
            self._last = None
        return y[..., first:first + count]


class Layer(NamedTuple):
    name: str
    n: int
    k: int
    dense_bytes: int
    num_bytes: int
    kept_dense: str  # why, or ""


class Report:
    """What compress_model did."""

    def __init__(self):
        self.layers = []

    @property
    def dense_bytes(self):
        return sum(layer.dense_bytes for layer in self.layers)

    @property
    def num_bytes(self):
        return sum(layer.num_bytes for layer in self.layers)

    def __str__(self):
        packed = [layer for layer in self.layers if not layer.kept_dense]
        saved = 1 - self.num_bytes / self.dense_bytes if self.dense_bytes else 0
        lines = [f"{len(packed)} of {len(self.layers)} layers compressed: "
                 f"{self.dense_bytes / 1e9:.3f} GB -> {self.num_bytes / 1e9:.3f} GB "
                 f"({100 * saved:.1f} % less)"]
        lines += [f"  {layer.name} ({layer.n} x {layer.k}) stays dense: {layer.kept_dense}"
                  for layer in self.layers if layer.kept_dense]
        return "\n".join(lines)


def compress_model(model, policy="memory", batch=1, fuse=True, skip=()):
    """Replaces the BF16 linear layers and experts of a model by compressed ones, in place.

    policy  "memory": every layer that gets smaller. "speed": of these, only layers
            that were measured to be faster compressed on this GPU. "twin": same
            kernels, 16-bit weights, to check that compression changes no result.
    batch   rows (sequences times tokens of a step) that "speed" assumes.
    fuse    multiply q/k/v and gate/up as one matrix each.
    skip    names of layers to leave alone, with everything below them.
    """
    if policy not in (*POLICIES, "twin"):
        raise ValueError(f"unknown policy {policy!r}; one of: {', '.join(POLICIES)}, twin")
    batch = whole(batch, "batch, the rows of a step,", 1, (1 << 40) - 1)
    report = Report()
    if type(model) is nn.Linear:
        reason = "it is the model itself; use CompressedLinear.from_linear"
        report.layers.append(_kept("", model, reason))
    for name, bank, made in compress_experts(model, _kind(policy), skip):
        report.layers.append(_bank_layer(name, bank, made))
    tied, places = _tied_weights(model), _places(model)
    replaced = {}  # id of a layer -> the layer and its replacement; one may be used in many places
    for parent_name, parent in list(model.named_modules()):
        for group in SIDE_BY_SIDE if fuse else ():
            linears = [getattr(parent, name, None) for name in group]
            names = [_join(parent_name, name) for name in group]
            if (_can_fuse(linears) and all(places[id(linear)] == 1 for linear in linears)
                    and not any(_reason(n, m, tied, skip) for n, m in zip(names, linears))):
                _fuse(parent, group, names, linears, policy, batch, report)
        for name, child in list(parent._modules.items()):
            if type(child) is not nn.Linear:  # a subclass may compute something else
                continue
            if id(child) not in replaced:
                made = _compress(child, _join(parent_name, name), tied, skip, policy, batch, report)
                replaced[id(child)] = (child, made.train(child.training))
            setattr(parent, name, replaced[id(child)][1])
    return report


def decompress_model(model):
    """Replaces every compressed layer by its exact nn.Linear, in place."""
    replaced = {}
    for parent in list(model.modules()):
        if isinstance(parent, FusedPart):
            continue
        for name, child in list(parent._modules.items()):
            if isinstance(child, (CompressedLinear, FusedPart, CompressedExperts)):
                if id(child) not in replaced:
                    replaced[id(child)] = (child, child.decompress().train(child.training))
                setattr(parent, name, replaced[id(child)][1])
    return model


def verify_model(model):
    """Checks that the weights of all compressed layers are intact, at the speed of memory.

    Raises SnugError that names the layer and the rows that are damaged.
    """
    for name, module in model.named_modules():
        if isinstance(module, CompressedLinear):
            with _errors_name(name):
                module.verify()


def dense_state_dict(model):
    """The state_dict of the dense model: compressed layers are restored, in CPU memory."""
    state = model.state_dict()
    for name, module in model.named_modules():
        if isinstance(module, CompressedExperts):
            for key, weight, old in zip(("gate_up_proj", "down_proj"), module.weights(),
                                        ("gate_up", "down")):
                del state[f"{name}.{old}"]
                state[f"{name}.{key}"] = weight.cpu()
            continue
        if isinstance(module, FusedLinear) or not isinstance(module, (CompressedLinear, FusedPart)):
            continue
        for key in module.state_dict():
            del state[f"{name}.{key}"]
        state[f"{name}.weight"] = module.weight.cpu()
        if module.bias is not None:
            state[f"{name}.bias"] = module.bias.detach().cpu().clone()
    return state


def load_compressed(model, state_dict):
    """Loads the state_dict of a model compressed with fuse=False into a dense model.

    If the two do not fit, the model stays unchanged.
    """
    layers = []
    for name, module in list(model.named_modules()):
        packed = state_dict.get(name + ".packed")
        if packed is None or not isinstance(module, nn.Linear):
            continue
        header, sums = read_header(packed), state_dict.get(name + ".sums")
        if (header.n, header.k) != (module.out_features, module.in_features):
            raise ValueError(f"{name}: the file has {header.n} x {header.k} weights, the model "
                             f"{module.out_features} x {module.in_features}")
        bias = None if module.bias is None else module.bias.to(torch.bfloat16)
        with _errors_name(name):
            compressed = CompressedLinear(packed.to(module.weight.device), bias, header, sums)
        parent_name, _, child = name.rpartition(".")
        layers.append((model.get_submodule(parent_name), child, module, compressed))
    for parent, name, module, compressed in layers:
        setattr(parent, name, compressed.train(module.training))
    names = model.state_dict().keys()
    # States that older versions saved have no checksums.
    no_sums = {name for name in names - state_dict.keys() if name.endswith(".sums")
               and name[:-len("sums")] + "packed" in state_dict}
    different = (names ^ state_dict.keys()) - no_sums
    if different:
        for parent, name, module, _ in layers:
            setattr(parent, name, module)
        raise KeyError(f"not in both the model and the file: {', '.join(sorted(different)[:5])}")
    return model.load_state_dict(state_dict, strict=not no_sums)


@contextmanager
def _errors_name(layer):
    try:
        yield
    except SnugError as error:
        raise SnugError(error.code, f"{layer}: {error}") from None


def _compress(linear, name, tied, skip, policy, batch, report):
    """The compressed layer, or the layer itself if it stays dense."""
    n, k = linear.out_features, linear.in_features
    reason = _reason(name, linear, tied, skip) or _slower(n, k, policy, batch, linear)
    compressed = None if reason else CompressedLinear.from_linear(linear, _kind(policy))
    if compressed is None:
        report.layers.append(_kept(name, linear, reason or "its values do not compress"))
        return linear
    report.layers.append(Layer(name, n, k, 2 * n * k, compressed.num_bytes, ""))
    return compressed


def _kept(name, linear, reason):
    num_bytes = linear.weight.numel() * linear.weight.element_size()
    return Layer(name, linear.out_features, linear.in_features, num_bytes, num_bytes, reason)


def _bank_layer(name, bank, made):
    """`made`: what replaced a bank of experts, or why it stays dense."""
    weights = bank.gate_up_proj, bank.down_proj
    count = sum(weight.numel() for weight in weights)
    dense_bytes = sum(weight.numel() * weight.element_size() for weight in weights)
    k = weights[0].shape[-1]
    if isinstance(made, str):
        return Layer(name, count // k, k, dense_bytes, dense_bytes, made)
    return Layer(name, count // k, k, dense_bytes, made.num_bytes, "")


def _fuse(parent, group, names, linears, policy, batch, report):
    counts = [linear.out_features for linear in linears]
    n, k = sum(counts), linears[0].in_features
    if _slower(n, k, policy, batch, linears[0]):
        return
    made = pack(torch.cat([linear.weight.detach() for linear in linears]), _kind(policy))
    if made is None:
        return
    bias = None
    if linears[0].bias is not None:
        bias = torch.cat([linear.bias.detach() for linear in linears])
    fused = FusedLinear(made[0], bias, made[1], len(group))
    first = 0
    for i, (name, count) in enumerate(zip(group, counts)):
        part = FusedPart(fused, first, count, is_owner=i == 0)
        setattr(parent, name, part.train(linears[i].training))
        first += count
    report.layers.append(Layer("+".join(names), n, k, 2 * n * k, fused.num_bytes, ""))


def _kind(policy):
    return RAW if policy == "twin" else FIXED


def _can_fuse(linears):
    if any(type(linear) is not nn.Linear for linear in linears):
        return False
    first = linears[0]
    return all(linear.in_features == first.in_features
               and linear.weight.device == first.weight.device
               and (linear.bias is None) == (first.bias is None) for linear in linears)


def _reason(name, linear, tied, skip):
    """Why a layer cannot be compressed; "" if it can."""
    if any(name == other or name.startswith(other + ".") for other in skip):
        return "asked to skip it"
    if linear.weight.dtype != torch.bfloat16:
        return f"weights are {linear.weight.dtype}, not bfloat16"
    if linear.weight.is_meta or (linear.bias is not None and linear.bias.is_meta):
        return "weights are not loaded"
    if linear.weight.data_ptr() in tied:
        return "shares its weights with another layer"
    if is_patched(linear):
        return "has hooks or a forward of its own"
    if linear.bias is not None and linear.bias.dtype != torch.bfloat16:
        return f"bias is {linear.bias.dtype}, not bfloat16"
    return ""


def _slower(n, k, policy, batch, linear):
    if policy != "speed" or not linear.weight.is_cuda:
        return ""
    choice, status = GemmChoice(), Status()
    with torch.cuda.device(linear.weight.device):
        check(library.snug_gemm_choose(n, k, batch, POLICIES[policy], byref(choice),
                                       byref(status)), status)
    return "" if choice.packed else f"faster dense (compressed {choice.gain:.2f}x at batch {batch})"


def _places(model):
    """In how many places of the model each module is used."""
    return Counter(id(child) for parent in model.modules() for child in parent._modules.values())


def _tied_weights(model):
    """Addresses of weights that several modules share, such as embeddings and LM heads."""
    holders = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            if not parameter.is_meta and parameter.numel():
                holders.setdefault(parameter.data_ptr(), set()).add(id(module))
    return {address for address, modules in holders.items() if len(modules) > 1}


def _dense_linear(weight, bias):
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias.detach().clone(), bias.requires_grad)
    return linear


def _join(parent, name):
    return f"{parent}.{name}" if parent else name
