"""snug.kv: what a decode worker checks before a prefill worker may write."""

import random
import sys
import unittest

try:
    import numpy
except ImportError:
    print("skipped: needs numpy")
    sys.exit(77)

from snug.kv import messages
from snug.kv.areas import Area, item_numbers, overlap


class Areas(unittest.TestCase):
    """Against sets of bytes."""

    def segments(self, rng, least):
        return [(rng.randrange(60), rng.randrange(least, 6)) for _ in range(rng.randrange(1, 5))]

    def test_holds(self):
        rng, outcomes = random.Random(1), []
        buffers = [(40, 14, 4), (10, 18, 3)]  # the last item of the first is cut short
        area = Area(*zip(*buffers))
        for _ in range(4000):
            items = sorted(rng.sample(range(6), rng.randrange(7)))
            allowed = {byte for start, size, item in buffers for i in items
                       for byte in range(start + i * item, min(start + (i + 1) * item,
                                                               start + size))}
            segments = self.segments(rng, 0)
            expected = all(size and set(range(start, start + size)) <= allowed
                           for start, size in segments)
            table = numpy.array(segments, numpy.uint64)
            self.assertEqual(area.holds(table, item_numbers(items[::-1])), expected, segments)
            outcomes.append(expected)
        self.assertGreater(sum(outcomes), 50)

    def test_ends_of_the_address_space(self):
        area = Area([(1 << 64) - 4096], [1024], [64])
        for start, size, expected in (((1 << 64) - 4096, 1024, True), (0, 64, False),
                                      ((1 << 64) - 4096, 4097, False),
                                      ((1 << 64) - 4032, (1 << 64) - 64, False)):
            table = numpy.array([[start, size]], numpy.uint64)
            self.assertEqual(area.holds(table), expected, (start, size))

    def test_overlap(self):
        rng, outcomes = random.Random(2), []
        for _ in range(4000):
            tables = [self.segments(rng, 1) for _ in range(2)]
            bytes_of = [{byte for start, size in table for byte in range(start, start + size)}
                        for table in tables]
            expected = bool(bytes_of[0] & bytes_of[1])
            self.assertEqual(overlap(*(numpy.array(t, numpy.uint64) for t in tables)), expected)
            outcomes.append(expected)
        self.assertTrue(50 < sum(outcomes) < 3950)

    def test_refused(self):
        for rows in ([(0, 10, 1), (9, 4, 1)], [(0, 10, 0)]):
            with self.assertRaisesRegex(ValueError, "overlap"):
                Area(*zip(*rows))

    def test_numbers(self):
        self.assertEqual(item_numbers([3, -1, 0, 3]).tolist(), [0, 3])
        self.assertEqual(item_numbers([]).tolist(), [])


class Notes(unittest.TestCase):
    def test_segments(self):
        fields = {"id": 1, "request": "r", "area": "pages"}
        good = [[1 << 40, 4096]] * messages.MAX_SEGMENTS
        note = messages.pack("place", segments=good, **fields)
        self.assertLess(len(messages.pack("place", segments=[[(1 << 57) - 1, 1 << 30]] *
                                          messages.MAX_SEGMENTS, **fields)), 1 << 20)
        self.assertEqual(messages.unpack(note), ("place", {**fields, "segments": good}))
        for bad in ([], good + [[0, 1]], [[1]], [[1, 2, 3]], [[1, -2]], [[1, 2.0]], ["12"], "12",
                    [[True, 1]], 5):
            with self.assertRaisesRegex(messages.BadMessage, "list of segments"):
                messages.unpack(messages.pack("place", segments=bad, **fields))


if __name__ == "__main__":
    unittest.main()
