"""snug.kv.slots: compressed blocks in slots of one size, and those that need more."""

import sys
import unittest

try:
    import numpy
except ImportError:
    print("skipped: needs numpy")
    sys.exit(77)

from snug import SnugError
from snug.kv.host_transfers import HostTransfers
from snug.kv.slots import SlotStore, plan_slots


class Slots(unittest.TestCase):
    def test_plan(self):
        self.assertEqual(plan_slots(1 << 30, 1 << 20, 0.75), (1365, 786432))
        number, size = plan_slots(1 << 30, 1_000_003, 0.7575)
        self.assertEqual(size % 512, 0)
        self.assertGreaterEqual(size, 757_502)
        self.assertLessEqual(number * size, 1 << 30)
        self.assertEqual(plan_slots(100, 1 << 20, 0.75)[0], 0)
        for ratio in (0, -1, 2):
            with self.assertRaisesRegex(ValueError, "slot_ratio"):
                plan_slots(1 << 30, 1 << 20, ratio)

    def test_accounts(self):
        store = SlotStore(numpy.zeros((2, 512), numpy.uint8))
        store.rows[1][:3] = 7
        store.keep(1, 3)
        self.assertEqual(store.frame(1).tolist(), [7, 7, 7])
        store.keep_apart(1, numpy.arange(600) % 256)
        self.assertEqual((len(store.frame(1)), store.apart_bytes, store.num_apart), (600, 600, 1))
        store.keep_apart(1, numpy.zeros(700))
        self.assertEqual((store.apart_bytes, store.num_apart), (700, 2))
        store.keep(1, 2)  # the slot is used for another block
        self.assertEqual((len(store.frame(1)), store.apart_bytes), (2, 0))
        self.assertTrue(store.fits(512))
        self.assertFalse(store.fits(513))

    def test_warnings(self):
        told = []
        store = SlotStore(numpy.zeros((100, 512), numpy.uint8), told.append)
        for slot in range(100):
            store.keep_apart(slot, numpy.zeros(600, numpy.uint8))
        self.assertEqual(len(told), 5)  # above 5 %, then twice as much each time
        self.assertIn("5 blocks did not fit", told[0])
        self.assertIn("3000 bytes", told[0])
        self.assertIn("slot_ratio", told[0])


class Transfers(unittest.TestCase):
    """Three layers, 8 blocks; blocks 6 and 7 do not shrink."""

    def setUp(self):
        random = numpy.random.default_rng(5)
        self.pages = []
        for _ in range(3):
            values = random.standard_normal((8, 8192), numpy.float32)
            page = (values.view(numpy.uint32) >> 16).astype(numpy.uint16).view(numpy.uint8)
            page[6:] = random.integers(0, 256, page[6:].shape, numpy.uint8)
            self.pages.append(page)
        self.original = [page.copy() for page in self.pages]
        block_bytes = sum(page.shape[1] for page in self.pages)
        _, slot_bytes = plan_slots(0, block_bytes, 0.77)
        self.store = SlotStore(numpy.zeros((4, slot_bytes), numpy.uint8))

    def transfers(self, codec):
        transfers = HostTransfers(self.pages, "bf16", codec, self.store)
        self.addCleanup(transfers.shutdown)
        return transfers

    def run_job(self, transfers, *job):
        transfers.submit(*job)
        transfers.wait([job[0]])
        (name, num_bytes, seconds), = transfers.take_finished()
        self.assertEqual((name, num_bytes), (job[0], len(job[2]) * 3 * 16384))
        self.assertGreaterEqual(seconds, 0)

    def test_there_and_back(self):
        for codec in ("fixed", "entropy"):
            with self.subTest(codec):
                transfers = self.transfers(codec)
                self.run_job(transfers, 1, True, numpy.array([0, 6, 3]), numpy.array([2, 0, 1]))
                for page in self.pages:
                    page[:] = 0
                self.run_job(transfers, 2, False, numpy.array([5, 4, 1]), numpy.array([2, 0, 1]))
                for page, before in zip(self.pages, self.original):
                    self.assertTrue((page[[5, 4, 1]] == before[[0, 6, 3]]).all())
                    self.assertFalse(page[[0, 2, 3, 6, 7]].any())
                    page[:] = before
                self.assertEqual(self.store.apart_bytes, len(self.store.frame(0)))
                self.assertGreater(len(self.store.frame(0)), self.store.slot_bytes)

    def test_damage_is_an_error(self):
        transfers = self.transfers("fixed")
        self.run_job(transfers, 1, True, [0], [3])
        self.store.rows[3][20_000] ^= 1
        transfers.submit(2, False, [1], [3])
        with self.assertRaisesRegex(SnugError, "checksum"):
            transfers.wait([2])
        with self.assertRaisesRegex(SnugError, "checksum"):
            transfers.take_finished()


if __name__ == "__main__":
    unittest.main()
