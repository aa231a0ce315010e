"""The memory of a packed matrix in a running engine.

When vLLM loads new weights, it packs them and copies them over the old ones, because CUDA graphs
know the old address. So the size of the buffer must not depend on the weights.
"""

_HEADER, _STRIP_ROWS, _TILE_COLUMNS = 256, 16, 128
_PALETTE, _ESCAPES, _TILE, _OVERFLOW = 8, 16, 3072, 2048  # bytes: docs/gemm.md
_TILES_PER_SPARE = 256  # trained weights have no overflows, or few: room for these costs 0.3 %


def packed_bytes(n, k, num_overflows=0):
    """Bytes of an n x k matrix in 12-bit form."""
    strips = -(-n // _STRIP_ROWS)
    tiles = strips * -(-k // _TILE_COLUMNS)
    return (_HEADER + _padded(_PALETTE * strips) + _padded(_ESCAPES * tiles) + _TILE * tiles
            + _OVERFLOW * num_overflows)


def room_bytes(n, k):
    """The same with room for some overflows."""
    tiles = -(-n // _STRIP_ROWS) * -(-k // _TILE_COLUMNS)
    return packed_bytes(n, k, tiles // _TILES_PER_SPARE + 1)


def _padded(num_bytes):
    return -(-num_bytes // 256) * 256
