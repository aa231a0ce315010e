"""Which experts of vLLM can run from packed banks. Needs neither torch nor vLLM."""

from typing import NamedTuple

MAX_EXPERTS, MAX_TOP_K = 512, 16  # docs/experts.md, "Limits"


class Traits(NamedTuple):
    """What matters of a layer of experts, as `engine.expert_traits` reads it."""
    num_experts: int
    top_k: int
    activation: str
    dtype: str
    has_bias: bool = False
    has_swiglu_limits: bool = False     # clamps, or other constants than those of SiLU
    weights_on_input: bool = False      # routing weights multiply x, not the result
    is_spread: bool = False             # whole experts on other ranks, or tokens of other ranks
    has_adapters: bool = False
    sm_major: int = 9                   # of the GPU; 0: none


def why_dense(traits):
    """Why the layer stays dense; "" if it can be packed."""
    if traits.dtype != "bfloat16":
        return f"their weights are {traits.dtype}, and Snug packs bfloat16"
    if traits.activation != "silu" or traits.has_swiglu_limits:
        return f"their activation is {traits.activation}" + (
            " with limits" if traits.has_swiglu_limits else "") + ", and Snug has plain SwiGLU"
    if traits.has_bias:
        return "they have biases"
    if traits.weights_on_input:
        return "the router's weights multiply their input"
    if traits.is_spread:
        return "expert, data or sequence parallelism spreads them; tensor parallelism does not"
    if traits.has_adapters:
        return "vLLM's LoRA replaces their kernels"
    if traits.num_experts > MAX_EXPERTS or traits.top_k > MAX_TOP_K:
        return (f"{traits.num_experts} experts with top-{traits.top_k} routing are more than "
                f"Snug's kernels take ({MAX_EXPERTS}, {MAX_TOP_K})")
    if traits.sm_major not in (0, 9):
        return "the kernels for experts need a Hopper GPU (sm_90)"
    return ""
