"""What surrounds the linear layers of a decode step, as lean as a serving engine has it.

transformers' own decode step copies every key and value head four times and runs its
norms, rotations and activations as many small kernels; at batch 16 that takes longer
than the weights do. `use_lean_stack` puts one attention kernel for grouped queries and
compiled element-wise code in their place, for dense and compressed models alike.
"""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.models.llama import modeling_llama

from snug.torch.linear import FusedLinear, FusedPart
from snug.torch.model import SIDE_BY_SIDE

SPLITS = 8  # parts of the keys that are looked at side by side
BLOCK = 64
MIN_DOT_ROWS = 16


@triton.jit
def _attend_part(q_ptr, k_ptr, v_ptr, last_ptr, out_ptr, max_ptr, sum_ptr, scale, cache_len,
                 GROUP: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr,
                 SPLITS: tl.constexpr):
    """The queries of one key head against one part of its keys: unscaled sums, and their scale."""
    head, split = tl.program_id(0), tl.program_id(1)
    length = tl.load(last_ptr) + 1
    part = tl.cdiv(tl.cdiv(length, SPLITS), BLOCK) * BLOCK
    first, end = split * part, tl.minimum((split + 1) * part, length)

    row, dim, col = tl.arange(0, ROWS), tl.arange(0, DIM), tl.arange(0, BLOCK)
    real = row < GROUP
    q = tl.load(q_ptr + (head * GROUP + row)[:, None] * DIM + dim[None, :], mask=real[:, None], other=0.0)
    top = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, DIM], tl.float32)
    cache = head.to(tl.int64) * cache_len * DIM
    for start in range(first, end, BLOCK):
        inside = start + col < end
        at = cache + (start + col)[:, None] * DIM + dim[None, :]
        k = tl.load(k_ptr + at, mask=inside[:, None], other=0.0)
        v = tl.load(v_ptr + at, mask=inside[:, None], other=0.0)
        scores = tl.where(inside[None, :], tl.dot(q, tl.trans(k)) * scale, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        shrink, p = tl.exp(top - new_top), tl.exp(scores - new_top[:, None])
        total = total * shrink + tl.sum(p, 1)
        sums = sums * shrink[:, None] + tl.dot(p.to(v.dtype), v)
        top = new_top
    slot = (head * GROUP + row) * SPLITS + split
    tl.store(out_ptr + slot[:, None] * DIM + dim[None, :], sums, mask=real[:, None])
    tl.store(max_ptr + slot, top, mask=real)
    tl.store(sum_ptr + slot, total, mask=real)


@triton.jit
def _join_parts(part_ptr, max_ptr, sum_ptr, out_ptr, DIM: tl.constexpr, SPLITS: tl.constexpr):
    head = tl.program_id(0)
    split, dim = tl.arange(0, SPLITS), tl.arange(0, DIM)
    tops = tl.load(max_ptr + head * SPLITS + split)
    weight = tl.exp(tops - tl.max(tops, 0))
    total = tl.sum(weight * tl.load(sum_ptr + head * SPLITS + split), 0)
    parts = tl.load(part_ptr + (head * SPLITS + split)[:, None] * DIM + dim[None, :])
    out = tl.sum(parts * weight[:, None], 0) / total
    tl.store(out_ptr + head * DIM + dim, out.to(out_ptr.dtype.element_ty))


def attend(q, k, v, last, scale):
    """q[b][heads][1][d] against a static cache k, v[b][kv heads][len][d] up to position `last`."""
    batch, heads, _, dim = q.shape
    kv_heads, cache_len = k.shape[1], k.shape[2]
    q = q.contiguous()
    parts = torch.empty((batch, heads, SPLITS, dim), dtype=torch.float32, device=q.device)
    tops, sums = torch.empty((2, batch, heads, SPLITS), dtype=torch.float32, device=q.device)
    out = torch.empty((batch, 1, heads, dim), dtype=q.dtype, device=q.device)
    _attend_part[(batch * kv_heads, SPLITS)](
        q, k, v, last, parts, tops, sums, scale, cache_len, GROUP=heads // kv_heads,
        ROWS=max(heads // kv_heads, MIN_DOT_ROWS), DIM=dim, BLOCK=BLOCK, SPLITS=SPLITS, num_warps=4)
    _join_parts[(batch * heads,)](parts, tops, sums, out, DIM=dim, SPLITS=SPLITS, num_warps=1)
    return out


def check_attention():
    """Raises unless `attend` agrees with torch's attention."""
    q, k, v = (torch.randn(3, heads, length, 128, device="cuda", dtype=torch.bfloat16)
               for heads, length in ((32, 1), (8, 600), (8, 600)))
    for last in (0, 63, 64, 500, 599):
        got = attend(q, k, v, torch.tensor([last], device="cuda"), 128**-0.5).transpose(1, 2)
        keys, values = (t[:, :, :last + 1].repeat_interleave(4, 1) for t in (k, v))
        torch.testing.assert_close(got, F.scaled_dot_product_attention(q, keys, values), rtol=0.02, atol=0.02)


class DenseFused(FusedLinear):
    """Side by side layers as one dense matrix; hands out columns as the packed one does."""

    def __init__(self, linears):
        torch.nn.Module.__init__(self)
        self.dense = torch.nn.Parameter(torch.cat([linear.weight.detach() for linear in linears]), False)
        self.num_parts, self._last, self._num_partial = len(linears), None, 0

    @property
    def packed(self):  # what columns() looks at for new weights
        return self.dense

    def forward(self, x):
        return F.linear(x, self.dense)


def fuse_dense(model):
    """Joins what compress_model joins, without compressing it."""
    for parent in list(model.modules()):
        for group in SIDE_BY_SIDE:
            linears = [getattr(parent, name, None) for name in group]
            if None in linears:
                continue
            fused, first = DenseFused(linears), 0
            for i, (name, linear) in enumerate(zip(group, linears)):
                setattr(parent, name, FusedPart(fused, first, linear.out_features, is_owner=i == 0))
                first += linear.out_features
    return model


def use_lean_stack(model, position):
    """`position`: a tensor of one number, the place in the cache of a decode step's token."""

    def attention(module, query, key, value, mask, scaling=None, **kwargs):
        if query.shape[2] > 1:
            return sdpa_attention_forward(module, query, key, value, mask, scaling=scaling, **kwargs)
        return attend(query, key, value, position, scaling), None

    AttentionInterface.register("lean", attention)
    AttentionMaskInterface.register("lean", sdpa_mask)
    model.config._attn_implementation = "lean"


def compile_elementwise():
    """Norms, rotations and activations as one kernel each. Once for a process."""

    @torch.compile(dynamic=True)
    def gated(gate, up):
        return F.silu(gate) * up

    def mlp(self, x):
        return self.down_proj(gated(self.gate_proj(x), self.up_proj(x)))

    modeling_llama.LlamaMLP.forward = mlp
    modeling_llama.LlamaRMSNorm.forward = torch.compile(modeling_llama.LlamaRMSNorm.forward,
                                                        dynamic=True)
    modeling_llama.apply_rotary_pos_emb = torch.compile(modeling_llama.apply_rotary_pos_emb,
                                                        dynamic=True)
