"""Whole models: their linear layers and experts are replaced by compressed ones, and back."""

import re
from collections import Counter, defaultdict
from typing import NamedTuple

import torch
from torch import nn

from .._library import has_memory, whole
from .._names import is_below
from .._units import change
from .choice import POLICIES, choose
from .expert_modules import compress_experts, is_patched
from .experts import CompressedExperts
from .linear import CompressedLinear, FusedLinear, FusedPart, errors_name
from .matrix import FIXED, RAW, pack, read_header

# Layers that read the same input, by the names models give them.
SIDE_BY_SIDE = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
# Modules whose k_proj and v_proj read another input than q_proj, and not at every step.
_CROSS_ATTENTION = re.compile("cross_?att|encoder_attn|perceiver_?att")
_COMPRESSED = CompressedLinear, FusedPart, CompressedExperts


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
        lines = [f"{len(packed)} of {len(self.layers)} layers compressed: "
                 f"{self.dense_bytes / 1e9:.3f} GB -> {self.num_bytes / 1e9:.3f} GB "
                 f"({change(self.dense_bytes, self.num_bytes)})"]
        lines += [f"  {layer.name} ({layer.n} x {layer.k}) stays dense: {layer.kept_dense}"
                  for layer in self.layers if layer.kept_dense]
        return "\n".join(lines)


def compress_model(model, policy="memory", batch=1, fuse=True, skip=()):
    """Replaces the BF16 linear layers and experts of a model by compressed ones, in place.

    policy  "memory": every layer that gets smaller. "speed": of these, only layers that are
            surely faster compressed at `batch` rows; they keep their dense weights, too, for
            numbers of rows that are faster from them. That needs 1.75 times the memory of the
            dense layers. "twin": same kernels, 16-bit weights, to check that compression changes
            no result. Experts keep no dense copy: "speed" packs them as "memory" does.
    batch   rows (sequences times tokens of a step) that "speed" assumes.
    fuse    multiply q/k/v and gate/up as one matrix each, but for q/k/v of cross-attention.
    skip    names of layers to leave alone, with everything below them.
    """
    if policy not in (*POLICIES, "twin"):
        raise ValueError(f"unknown policy {policy!r}; one of: {', '.join(POLICIES)}, twin")
    batch = whole(batch, "batch, the rows of a step,", 1, (1 << 40) - 1)
    if isinstance(skip, str):
        raise TypeError(f"skip is a list of names: [{skip!r}]")
    report = Report()
    if type(model) is nn.Linear:
        reason = "it is the model itself; use CompressedLinear.from_linear"
        report.layers.append(_kept("", model, reason))
    for name, bank, made in compress_experts(model, _kind(policy), skip):
        report.layers.append(_bank_layer(name, bank, made))
    tied, places = _tied_weights(model), _places(model)
    # id of a layer -> the layer and its replacement. Only of layers in several places: others are
    # freed at once, so that a model needs little more memory than before.
    replaced = {}
    for parent_name, parent in _parents(model):
        may_fuse = fuse and not is_cross_attention(parent_name, parent)
        for group in SIDE_BY_SIDE if may_fuse else ():
            linears = [getattr(parent, name, None) for name in group]
            names = [_join(parent_name, name) for name in group]
            if (_can_fuse(linears) and all(places[id(linear)] == 1 for linear in linears)
                    and not any(_reason(n, m, tied, skip) for n, m in zip(names, linears))):
                _fuse(parent, group, names, linears, policy, batch, report)
        for name in list(parent._modules):
            child = parent._modules[name]
            if type(child) is not nn.Linear:  # a subclass may compute something else
                continue
            made = replaced.get(id(child), (child, None))[1]
            if made is None:
                made = _compress(child, _join(parent_name, name), tied, skip, policy, batch, report)
                made.train(child.training)
                if places[id(child)] > 1:
                    replaced[id(child)] = (child, made)
            setattr(parent, name, made)
    return report


def decompress_model(model):
    """Replaces every compressed layer by its exact nn.Linear, in place."""
    replaced, places = {}, _places(model)
    for _, parent in _parents(model):
        for name in list(parent._modules):
            child = parent._modules[name]
            if isinstance(child, _COMPRESSED):
                made = replaced.get(id(child), (child, None))[1]
                if made is None:
                    made = child.decompress().train(child.training)
                    if places[id(child)] > 1:
                        replaced[id(child)] = (child, made)
                setattr(parent, name, made)
    return model


def verify_model(model):
    """Checks that the weights of all compressed layers are intact, at the speed of memory.

    Raises SnugError that names the layer and the rows, or the expert, that are damaged.
    """
    for name, module in model.named_modules():
        if isinstance(module, (CompressedLinear, CompressedExperts)):
            with errors_name(name):
                module.verify()


def has_compressed(model):
    return any(isinstance(module, _COMPRESSED) for module in model.modules())


def dense_state_dict(model):
    """The state_dict of the dense model: compressed layers are restored, in CPU memory."""
    state, keys_of, restored = model.state_dict(), defaultdict(list), {}
    for key in state:
        keys_of[key.rpartition(".")[0]].append(key)
    for name, module in model.named_modules(remove_duplicate=False):
        if not isinstance(module, _COMPRESSED):
            continue
        for key in keys_of[name]:
            del state[key]
        if isinstance(module, FusedLinear):
            continue
        if id(module) not in restored:  # in all its places, a layer has the same tensors
            restored[id(module)] = _restored(module)
        state.update((_join(name, key), tensor) for key, tensor in restored[id(module)].items())
    return state


def _restored(layer):
    """The state of the dense layer, in CPU memory."""
    if isinstance(layer, CompressedExperts):
        return dict(zip(("gate_up_proj", "down_proj"), layer.weights("cpu")))
    state = {"weight": layer.weight.cpu()}
    if layer.bias is not None:
        state["bias"] = layer.bias.detach().cpu().clone()
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
        with errors_name(name):
            compressed = CompressedLinear(packed.to(module.weight.device), bias, header, sums)
        parent_name, _, child = name.rpartition(".")
        layers.append((model.get_submodule(parent_name), child, module, compressed))
    try:
        for parent, name, module, compressed in layers:
            setattr(parent, name, compressed.train(module.training))
        own = model.state_dict()
        # States that older versions saved have no checksums.
        no_sums = {name for name in own.keys() - state_dict.keys() if name.endswith(".sums")
                   and name[:-len("sums")] + "packed" in state_dict}
        _check_fits(own, state_dict, no_sums)
        return model.load_state_dict(state_dict, strict=not no_sums)
    except BaseException:
        for parent, name, module, _ in layers:
            setattr(parent, name, module)
        raise


def _check_fits(own, state_dict, may_lack):
    """Names and shapes: load_state_dict would write what fits before it refuses the rest."""
    different = (own.keys() ^ state_dict.keys()) - may_lack
    if different:
        raise KeyError(f"not in both the model and the file: {', '.join(sorted(different)[:5])}")
    for name in own.keys() & state_dict.keys():
        if name.rpartition(".")[2] == "_extra_state":  # any object, which its module checks
            continue
        here, there = own[name].shape, state_dict[name].shape
        if here != there:
            raise ValueError(f"{name}: the file has the shape {tuple(there)}, the model "
                             f"{tuple(here)}")


def is_cross_attention(name, module):
    """By the names that transformers gives such modules or their classes."""
    names = f"{name.rpartition('.')[2]} {type(module).__name__}"
    return _CROSS_ATTENTION.search(names.lower()) is not None


def _compress(linear, name, tied, skip, policy, batch, report):
    """The compressed layer, or the layer itself if it stays dense."""
    n, k = linear.out_features, linear.in_features
    reason = _reason(name, linear, tied, skip) or _slower(n, k, policy, batch, linear)
    compressed = None
    if not reason:
        compressed = CompressedLinear.from_linear(linear, _kind(policy), policy == "speed")
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
    weight = torch.cat([linear.weight.detach() for linear in linears])
    made = pack(weight, _kind(policy))
    if made is None:
        return
    bias = None
    if linears[0].bias is not None:
        bias = torch.cat([linear.bias.detach() for linear in linears])
    fused = FusedLinear(made[0], bias, made[1], len(group), weight if policy == "speed" else None)
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
    if is_below(name, skip):
        return "asked to skip it"
    if linear.weight.dtype != torch.bfloat16:
        return f"weights are {linear.weight.dtype}, not bfloat16"
    if linear.weight.is_meta or (linear.bias is not None and linear.bias.is_meta):
        return "weights are not loaded"
    if not has_memory(linear.weight):
        return f"weights are a {type(linear.weight).__name__} without memory of its own"
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
    choice = choose(linear.weight.device, n, k, batch)
    if choice.packed:
        return ""
    speed = f"{choice.gain:.2f}x of dense" if choice.gain else "no estimate for this GPU"
    return f"not surely faster compressed at batch {batch} ({speed})"


def _parents(model):
    """Names and modules that hold others. The list must not keep what is replaced alive."""
    return [(name, module) for name, module in model.named_modules()
            if module._modules and not isinstance(module, FusedPart)]


def _places(model):
    """In how many places of the model each module is used."""
    return Counter(id(child) for parent in model.modules() for child in parent._modules.values())


def _tied_weights(model):
    """Addresses of weights that several modules share, such as embeddings and LM heads."""
    holders = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            if not parameter.is_meta and parameter.data_ptr() != 0:
                holders.setdefault(parameter.data_ptr(), set()).add(id(module))
    return {address for address, modules in holders.items() if len(modules) > 1}


def _join(parent, name):
    return f"{parent}.{name}" if parent else name
