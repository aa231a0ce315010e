"""snug.kv on a GPU: pages between two workers, and blocks in slots of host memory."""

import sys
import unittest

try:
    import numpy
    import torch
    if not torch.cuda.is_available():
        raise ImportError("no GPU")
except ImportError as error:
    print(f"skipped: needs torch and a GPU ({error})")
    sys.exit(77)

from snug import SnugError
from snug.kv.areas import Area
from snug.kv.channel import Options
from snug.kv.client import PageClient
from snug.kv.gpu_transfers import GpuTransfers
from snug.kv.held import HeldRequests
from snug.kv.inbox import PageInbox
from snug.kv.pages import CacheLayout
from snug.kv.push import PagePusher, Pages as PushedPages
from snug.kv.server import PageServer
from snug.kv.slots import SlotStore, plan_slots


def caches(fill, num_blocks=64, num_layers=3):
    torch.manual_seed(1)
    made = {}
    for layer in range(num_layers):
        cache = torch.zeros(num_blocks, 2, 16, 8, 128, dtype=torch.bfloat16, device="cuda")
        made[f"layer{layer}"] = cache.normal_() if fill else cache
    torch.cuda.synchronize()  # the wire has streams of its own
    return made


class Pages(unittest.TestCase):
    def moved(self, link):
        there, here = caches(True), caches(False)
        held, options, records = HeldRequests(), Options(device=0, link=link), []
        server = PageServer("127.0.0.1:0", CacheLayout(there, 64, 16, "bf16"), held, options,
                            lambda *_: None, print)
        client = PageClient(CacheLayout(here, 64, 16, "bf16"), options,
                            lambda *what: records.append(what), print)
        self.addCleanup(server.close)
        self.addCleanup(client.close)
        order = torch.randperm(64).tolist()
        for i in range(3):
            held.hold(f"r{i}", order[:40], 60)
            client.pull(server.address, f"r{i}", 1, list(range(39)))
        torch.cuda.synchronize()
        for name, cache in here.items():
            self.assertTrue(torch.equal(cache[:39].view(torch.int16),
                                        there[name][order[1:40]].view(torch.int16)))
            self.assertFalse(cache[39:].any())
        self.assertEqual([moved.raw_bytes for moved, _, _ in records], [39 * 3 * 65536] * 3)

    def test_through_the_host(self):
        self.moved(link=False)

    def test_over_a_link(self):
        self.moved(link=True)


class Pushes(unittest.TestCase):
    """Pages are on the GPU, metadata is in host memory, both on one connection."""
    dtype, fingerprint = "bf16", "pages of a test, bf16"

    def pair(self, here, notes, link):
        """The inbox of a decode worker that has pages `here`, and what pushes to it."""
        areas = {"pages": Area([page.data_ptr() for page in here], [64 * 65536] * 3, [65536] * 3),
                 "metadata": Area([notes.data_ptr()], [256], [64])}
        options = Options(device=0, link=link)
        inbox = PageInbox("127.0.0.1:0", self, areas, ("metadata",), options, print)
        pusher = PagePusher(self, options, lambda moved: None, print)
        self.addCleanup(inbox.close)
        self.addCleanup(pusher.close)
        return inbox, pusher

    def moved(self, link):
        there, here = caches(True).values(), caches(False).values()
        notes = torch.zeros(4, 64, dtype=torch.uint8)
        inbox, pusher = self.pair(here, notes, link)
        order = torch.randperm(64).tolist()[:40]
        inbox.expect("r", pages=range(40), metadata=[2])
        tables = [numpy.array([[page.data_ptr() + block * 65536, 65536] for page in pages
                               for block in blocks], numpy.uint64)
                  for pages, blocks in ((there, order), (here, range(40)))]
        pusher.push(inbox.address, PushedPages("r", "pages", False, *tables))
        note = torch.arange(64, dtype=torch.uint8)
        tables = [numpy.array([[address, 64]], numpy.uint64)
                  for address in (note.data_ptr(), notes[2].data_ptr())]
        pusher.push(inbox.address, PushedPages("r", "metadata", True, *tables))
        inbox.finish("r")
        for source, page in zip(there, here):
            self.assertTrue(torch.equal(page[:40].view(torch.int16),
                                        source[order].view(torch.int16)))
            self.assertFalse(page[40:].any())
        self.assertTrue(torch.equal(notes[2], note) and int(notes.sum()) == int(note.sum()))

    def small_pieces(self, link):
        """Some heads of each token, as between instances of other parallel sizes."""
        there, here = caches(True).values(), caches(False).values()
        inbox, pusher = self.pair(here, torch.zeros(4, 64, dtype=torch.uint8), link)
        inbox.expect("r", pages=range(64))
        parts = [page.view(-1, 2, 128)[:6000, 1] for page in (next(iter(there)), next(iter(here)))]
        tables = [numpy.array([[part.data_ptr() + 512 * i, 256] for i in range(len(part))],
                              numpy.uint64) for part in parts]
        pusher.push(inbox.address, PushedPages("r", "pages", False, *tables))
        inbox.finish("r")
        self.assertTrue(torch.equal(*(part.view(torch.int16) for part in parts)))
        self.assertEqual(sum(int(page.count_nonzero()) for page in here),
                         int(parts[1].count_nonzero()))

    def test_small_pieces_through_the_host(self):
        self.small_pieces(link=False)

    def test_small_pieces_over_a_link(self):
        self.small_pieces(link=True)

    def test_through_the_host(self):
        self.moved(link=False)

    def test_over_a_link(self):
        self.moved(link=True)


class Offload(unittest.TestCase):
    def setUp(self):
        self.pages = [cache.view(64, -1).view(torch.int8) for cache in caches(True).values()]
        for page in self.pages:
            page[60:].random_(-128, 127)  # these do not shrink
        self.original = [page.clone() for page in self.pages]
        _, slot_bytes = plan_slots(0, 3 * 65536, 0.77)
        self.store = SlotStore(torch.zeros(32, slot_bytes, dtype=torch.uint8, pin_memory=True))

    def run_job(self, transfers, job, is_store, blocks, slots, waits):
        transfers.submit(job, is_store, blocks, slots)
        if waits:
            transfers.wait([job])
        ended = []
        while not ended:
            ended = transfers.take_finished()
        self.assertEqual(ended[0][:2], (job, len(blocks) * 3 * 65536))

    def test_there_and_back(self):
        blocks, slots = [*range(0, 50, 2), 61, 63], list(range(27))[::-1]
        for codec in ("fixed", "entropy"):
            for waits in (False, True):
                with self.subTest(codec, waits=waits):
                    transfers = GpuTransfers(self.pages, "bf16", codec, self.store)
                    self.run_job(transfers, 1, True, blocks, slots, waits)
                    for page in self.pages:
                        page.zero_()
                    self.run_job(transfers, 2, False, blocks, slots, waits)
                    for page, before in zip(self.pages, self.original):
                        self.assertTrue(torch.equal(page[blocks], before[blocks]))
                        self.assertFalse(page[1:50:2].any())
                        page.copy_(before)
        self.assertEqual(self.store.num_apart, 8)

    def test_damage_is_an_error(self):
        transfers = GpuTransfers(self.pages, "bf16", "fixed", self.store)
        self.run_job(transfers, 1, True, [5], [0], True)
        self.store.rows[0][30_000] ^= 1
        transfers.submit(2, False, [6], [0])
        with self.assertRaisesRegex(SnugError, "checksum"):
            transfers.wait([2])


if __name__ == "__main__":
    unittest.main()
