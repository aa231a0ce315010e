"""The memory of a packed matrix in a running engine.

When vLLM loads new weights, it packs them and copies them over the old ones, because CUDA graphs
know the old address. So the size of the buffer must not depend on the weights.
"""

from ..torch.banks import BankShape
from ..torch.matrix import FIXED


def room_bytes(n, k):
    """Of an n x k matrix in 12-bit form with room for some overflows. That of an expert in a bank
    serves the same purpose: overflows in one tile of 256, which costs 0.3 %."""
    return BankShape(1, n, k, 1, FIXED).num_bytes()


def _padded(num_bytes):
    return -(-num_bytes // 256) * 256


class Arena:
    """One buffer for all packed matrices of a model.

    Buffers of their own would get the blocks that packing leaves behind, which are up to a twelfth
    larger than needed, and torch hands these out whole.
    """

    def __init__(self):
        self._num_expected = 0
        self._memory, self._used = None, 0

    def expect(self, num_bytes):
        self._num_expected += _padded(num_bytes)

    def forget(self, num_bytes):
        self._num_expected -= _padded(num_bytes)

    def take(self, num_bytes, like):
        """Zeros on the device of `like`, a tensor of bytes."""
        if self._memory is None or self._num_expected > 0:
            # The first matrix: by now all layers of a model have been made.
            self._memory = like.new_zeros(max(self._num_expected, num_bytes))
            self._num_expected = self._used = 0
        first = self._used
        if first + num_bytes > self._memory.numel():
            return like.new_zeros(num_bytes)
        self._used += _padded(num_bytes)
        return self._memory[first:first + num_bytes]
