"""Experts of mixture-of-experts layers in vLLM, from packed banks (docs/experts.md)."""

import torch

from ..torch.banks import BankShape, pack_experts, try_pack_bank, unpack_bank
from ..torch.matrix import FIXED, RAW
from . import engine
from .engine import FusedMoEMethodBase
from .report import Layer


PLACES = {"w13_weight": "w13_packed", "w2_weight": "w2_packed"}
_PARTS = {"w13_weight": 2, "w2_weight": 1}  # gate and up share a bank


class PackedExperts(FusedMoEMethodBase):
    """Packs the experts of one layer as soon as all of them are loaded."""

    uses_meta_device = True  # no memory is reserved for dense weights

    def __init__(self, layer, name, options, report, arena):
        super().__init__(layer.moe_config)
        self._name, self._report, self._arena = name, report, arena
        self._kind = RAW if options.policy == "twin" else FIXED
        self._is_dummy = engine.is_dummy_load()
        self._shape = None  # experts, n, k, kind: known once the first weights are packed
        report.expect()

    def create_weights(self, layer, num_experts, hidden_size, intermediate_size_per_partition,
                       params_dtype, **extra_weight_attrs):
        n, k = intermediate_size_per_partition, hidden_size
        shapes = {"w13_weight": (num_experts, 2 * n, k), "w2_weight": (num_experts, k, n)}
        for name, shape in shapes.items():
            weight = torch.nn.Parameter(torch.empty(shape, dtype=params_dtype, device="meta"),
                                        requires_grad=False)
            layer.register_parameter(name, weight)
            engine.set_weight_attrs(weight, extra_weight_attrs)
            self._arena.expect(BankShape(*shape, _PARTS[name], self._kind).num_bytes())
        engine.initialize_online_processing(layer)

    def process_weights_after_loading(self, layer):
        if getattr(layer, "_already_called_process_weights_after_loading", False):
            return
        layer._already_called_process_weights_after_loading = True
        self._check_complete(layer)
        *banks, shape = pack_experts(layer.w13_weight, layer.w2_weight, self._kind)
        del layer.w13_weight, layer.w2_weight
        is_first, self._shape = self._shape is None, self._shape or shape
        if shape != self._shape:
            raise ValueError(f"{self._name}: the values of its new weights do not compress, so "
                             "they cannot take the place of packed ones; restart the engine with "
                             "them")
        for name, bank in zip(PLACES.values(), banks):
            place = bank
            if is_first:
                place = self._arena.take(bank.numel(), bank)
                place.copy_(bank)
            setattr(layer, name, torch.nn.Parameter(place, requires_grad=False))
        if banks[0].is_cuda:
            torch.cuda.current_stream().synchronize()  # kernels prefetch weights
        experts, n, k, kind = shape
        reason = "" if kind == self._kind else "its values do not compress"
        self._kind = kind
        num_bytes = sum(bank.numel() for bank in banks)
        self._report.add(Layer(self._name, 3 * experts * n, k, num_bytes, reason))

    def _check_complete(self, layer):
        if layer.w13_weight.is_meta or layer.w2_weight.is_meta:
            raise ValueError(f"{self._name}: its weights were not loaded: this --load-format does "
                             "not work with --quantization snug; use auto")
        found = engine.get_layerwise_info(layer).load_numel
        wanted = layer.w13_weight.numel() + layer.w2_weight.numel()
        if not self._is_dummy and found < wanted:
            raise ValueError(f"{self._name}: the checkpoint has {found} of its {wanted} weights: a "
                             "file or tensor is missing; download the model again")

    def unpacked(self, layer, name):
        """The weights that the bank of `name` was packed from."""
        experts, n, k, kind = self._shape
        rows, columns = (2 * n, k) if name == "w13_weight" else (k, n)
        shape = BankShape(experts, rows, columns, _PARTS[name], kind)
        return unpack_bank(getattr(layer, PLACES[name]).data, shape)

    def packed(self, name, weight):
        """The bytes of a bank; None if the values do not compress."""
        bank, _, bad_expert = try_pack_bank(weight, _PARTS[name], self._kind)
        return bank if bad_expert is None else None

    def get_fused_moe_quant_config(self, layer):
        return None

    def apply(self, layer, x, topk_weights, topk_ids, shared_experts=None,
              shared_experts_input=None):
        return torch.ops.snug.experts(x, layer.w13_packed, layer.w2_packed, topk_ids, topk_weights,
                                      *self._shape)
