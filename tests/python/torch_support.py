"""What the tests of snug.torch share. Without torch they are skipped."""

import sys

try:
    import torch
    from torch import nn
except ImportError:
    print("skipped: torch is not installed")
    sys.exit(77)

from snug._library import has_cuda

DEVICES = ["cpu"] + (["cuda"] if has_cuda and torch.cuda.is_available() else [])


def bf16(*shape, device="cpu", scale=0.02, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator) * scale).to(torch.bfloat16).to(device)


def same_bits(a, b):
    a, b = (tensor.contiguous().view(torch.int16).cpu() for tensor in (a, b))
    return torch.equal(a, b)


class Attention(nn.Module):
    def __init__(self, width=256, device="cpu"):
        super().__init__()
        options = dict(bias=False, dtype=torch.bfloat16, device=device)
        self.q_proj = nn.Linear(width, width, **options)
        self.k_proj = nn.Linear(width, 64, **options)
        self.v_proj = nn.Linear(width, 64, **options)
        self.o_proj = nn.Linear(width, width, **options)

    def forward(self, x):
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        return self.o_proj(q + torch.cat([k, v, k, v], -1))
