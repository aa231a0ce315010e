"""Memory that a peer may write to, and which parts of it now."""

import numpy


class Area:
    """Buffers that are cut into items of one size each. Item i of a request is item i of every
    buffer: its page of each layer, for example."""

    def __init__(self, addresses, num_bytes, item_bytes):
        order = numpy.argsort(numpy.array(addresses, numpy.uint64), kind="stable")
        self._starts, self._sizes, self._items = (
            numpy.array(column, numpy.uint64)[order] for column in (addresses, num_bytes,
                                                                    item_bytes))
        ends = self._starts + self._sizes
        if (self._items == 0).any() or (self._starts[1:] < ends[:-1]).any():
            raise ValueError("the buffers of an area overlap, or have items of no bytes")

    def holds(self, segments, items=None):
        """Whether every segment lies within one buffer and, where `items` are given in ascending
        order, within these."""
        if len(self._starts) == 0:
            return len(segments) == 0
        start, size = segments[:, 0], segments[:, 1]
        buffer = numpy.searchsorted(self._starts, start, "right").astype(numpy.int64) - 1
        if (buffer < 0).any():
            return False
        offset, room = start - self._starts[buffer], self._sizes[buffer]
        # Not offset + size <= room, which may pass 2^64.
        if (size == 0).any() or (offset >= room).any() or (size > room - offset).any():
            return False
        if items is None:
            return True
        item_bytes = self._items[buffer]
        first, last = offset // item_bytes, (offset + size - 1) // item_bytes
        at, until = (numpy.searchsorted(items, which) for which in (first, last))
        if len(items) == 0 or (until >= len(items)).any():
            return False
        # No item is missing in between if there are as many as numbers.
        return bool(((items[at] == first) & (items[until] == last)
                     & ((until - at).astype(numpy.uint64) == last - first)).all())


def item_numbers(numbers):
    """For `holds`. Negative numbers are of no item."""
    numbers = numpy.asarray(numbers, numpy.int64)
    return numpy.unique(numbers[numbers >= 0]).astype(numpy.uint64)


def overlap(segments, others):
    """Whether any byte is in both."""
    order = numpy.argsort(segments[:, 0])
    starts = segments[order, 0]
    ends = numpy.maximum.accumulate(starts + segments[order, 1])
    before = numpy.searchsorted(starts, others.sum(axis=1))  # how many start before the end of each
    return bool(((before > 0) & (ends[before - 1] > others[:, 0])).any())
