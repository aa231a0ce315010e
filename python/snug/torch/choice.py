"""Packed or dense, and by which kernel: what the library chooses for a product."""

import ctypes
import functools
from ctypes import byref

import torch

from .._library import GemmChoice, Status, check, library, number_of, whole
from .on_gpu import require_cuda

POLICIES = {"memory": 0, "speed": 1}  # enum snug_gemm_policy


def explain(n, k, m=1, policy="memory"):
    """One line: which kernel multiplies m rows with an n x k matrix, and why."""
    require_cuda()
    sizes = [whole(number, f"{name} of a product", 1, (1 << 40) - 1)
             for name, number in (("n", n), ("k", k), ("m", m))]
    text = ctypes.create_string_buffer(512)
    library.snug_gemm_explain(*sizes, number_of(POLICIES, policy, "policy"), text, len(text))
    return text.value.decode()


@functools.lru_cache(maxsize=1 << 16)  # layers that have both forms ask at each step
def is_faster_packed(device, n, k, m):
    """Whether m rows are surely multiplied faster from packed weights, on GPU number `device`."""
    return m == 0 or choose(device, n, k, m).packed


@functools.lru_cache(maxsize=1 << 16)
def workspace_bytes(device, n, k, m):
    """Room for a product of up to m rows, on GPU number `device`, which is the current one."""
    return library.snug_gemm_linear_workspace_bytes(n, k, m)


def forget_plans():
    """When other plans have been measured or loaded: what follows from the old ones is forgotten."""
    is_faster_packed.cache_clear()
    workspace_bytes.cache_clear()


def choose(device, n, k, m):
    """What policy "speed" says, and the gain that it expects."""
    require_cuda()
    choice, status = GemmChoice(), Status()
    with torch.cuda.device(device):
        check(library.snug_gemm_choose(n, k, m, POLICIES["speed"], byref(choice), byref(status)),
              status)
    return choice
