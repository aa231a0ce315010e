"""Where the blocks of a paged KV cache lie: tables of addresses for the wire."""

import hashlib
import json

import numpy


class CacheLayout:
    """The pages of all layers. Two workers can exchange blocks if their `fingerprint` is equal;
    `beside` is more of it, which their caches do not show.

    A cache is a tensor, or anything else with data_ptr(), shape, stride() and element_size(),
    one of whose first two dimensions counts blocks. Where a kernel's blocks are smaller than the
    engine's, a block is several of them in a row. A cache that several layers share counts once.
    """

    def __init__(self, caches, num_blocks, block_tokens, dtype, beside=""):
        if not caches:
            raise ValueError("there is no KV cache to transfer")
        self.num_blocks, self.dtype = num_blocks, dtype
        bases, page_bytes, strides, shapes = [], [], [], []
        seen = set()
        for name, cache in caches.items():
            place = cache.data_ptr(), tuple(cache.shape), tuple(cache.stride())
            if place in seen:  # layers that share a cache
                continue
            seen.add(place)
            page = _page_of(name, cache, num_blocks)
            shapes.append([page.num_bytes, len(page.starts), *page.signature])
            for start in page.starts:
                bases.append(start)
                page_bytes.append(page.num_bytes)
                strides.append(page.stride)
        self._bases, self._page_bytes, self._strides = (
            numpy.array(column, numpy.uint64)[:, None] for column in (bases, page_bytes, strides))
        self.block_bytes = sum(page_bytes)
        told = json.dumps([dtype, block_tokens, shapes])
        self.fingerprint = (f"{len(shapes)} caches, {block_tokens} tokens a block, "
                            f"{self.block_bytes} bytes a block, {dtype}, {beside}, "
                            f"{hashlib.sha256(told.encode()).hexdigest()[:16]}")

    def table(self, blocks):
        """Rows (address, bytes) of these blocks, layer by layer. Neighbours in one cache are one
        row; two caches never are, since they may be two allocations."""
        blocks = numpy.asarray(blocks, numpy.int64)
        if blocks.size == 0 or blocks.min() < 0 or blocks.max() >= self.num_blocks:
            raise ValueError(f"blocks are numbers from 0 to {self.num_blocks - 1}")
        starts = (self._bases + self._strides * blocks.astype(numpy.uint64)).reshape(-1)
        sizes = numpy.broadcast_to(self._page_bytes, (len(self._bases), len(blocks))).reshape(-1)
        is_first = numpy.ones(len(starts), bool)
        is_first[1:] = starts[1:] != starts[:-1] + sizes[:-1]
        is_first[::len(blocks)] = True
        first = numpy.flatnonzero(is_first)
        table = numpy.empty((len(first), 2), numpy.uint64)
        table[:, 0] = starts[first]
        table[:, 1] = numpy.add.reduceat(sizes, first)
        return table


class _Page:
    """Of one cache: block b has num_bytes at each of `starts`, plus b * stride."""

    def __init__(self, starts, num_bytes, stride, signature):
        self.starts, self.num_bytes, self.stride, self.signature = (starts, num_bytes, stride,
                                                                    signature)


def _page_of(name, cache, num_blocks):
    shape, strides, width = list(cache.shape), list(cache.stride()), cache.element_size()
    axis = next((axis for axis in range(min(2, len(shape)))
                 if shape[axis] >= num_blocks and shape[axis] % num_blocks == 0), None)
    if axis is None:
        raise ValueError(f"{name}: a KV cache of shape {tuple(shape)} is not divided into "
                         f"{num_blocks} blocks; this cache cannot be transferred")
    parts = shape[axis] // num_blocks
    others = [dim for dim in range(len(shape)) if dim != axis and shape[dim] > 1]
    inner = [dim for dim in others if strides[dim] < strides[axis]]
    outer = [dim for dim in others if strides[dim] >= strides[axis]]
    num_elems = 1
    for dim in sorted(inner, key=lambda dim: strides[dim]):
        if strides[dim] != num_elems:
            raise ValueError(f"{name}: the pages of a KV cache of shape {tuple(shape)} and strides "
                             f"{tuple(strides)} have holes; this cache cannot be transferred")
        num_elems *= shape[dim]
    if parts > 1 and num_elems != strides[axis]:
        raise ValueError(f"{name}: a block of {parts} pages has holes; this cache cannot be "
                         "transferred")
    starts = [0]
    for dim in outer:
        starts = [start + i * strides[dim] * width for start in starts for i in range(shape[dim])]
    signature = [parts, width, [[shape[dim], strides[dim]] for dim in inner]]
    return _Page([cache.data_ptr() + start for start in starts], num_elems * parts * width,
                 strides[axis] * parts * width, signature)
