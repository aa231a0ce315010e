"""snug.kv: pages of a KV cache from one worker to another over the wire, and what damages them."""

import sys
import threading
import time
import unittest
import unittest.mock
from concurrent.futures import ThreadPoolExecutor

try:
    import numpy
except ImportError:
    print("skipped: needs numpy")
    sys.exit(77)

from kv_caches import Cache
from kv_proxy import Proxy
from snug.kv.channel import Channel, Options
from snug.kv.client import PageClient, PullError
from snug.kv.held import HeldRequests
from snug.kv.pages import CacheLayout
from snug.kv.server import PageServer


def caches(fill, shape=(16, 2, 128, 4, 32), num_layers=2):
    random = numpy.random.default_rng(3)
    made = {}
    for layer in range(num_layers):
        values = random.standard_normal(shape, numpy.float32)
        bits = (values.view(numpy.uint32) >> 16).astype(numpy.uint16)  # BF16
        made[f"layer{layer}"] = Cache(bits if fill else numpy.zeros_like(bits))
    return made


class Pages(unittest.TestCase):
    def test_table(self):
        cache = Cache(numpy.zeros((2, 8, 4, 4), numpy.uint16))  # K and V apart
        layout = CacheLayout({"layer": cache}, 8, 4, "bf16")
        start = cache.data_ptr()
        self.assertEqual(layout.block_bytes, 64)
        self.assertEqual(layout.table([1, 2, 5]).tolist(), [
            [start + 32, 64], [start + 160, 32], [start + 256 + 32, 64], [start + 256 + 160, 32]])

    def test_small_pages_of_a_kernel(self):
        cache = Cache(numpy.zeros((16, 4, 4), numpy.uint16))
        layout = CacheLayout({"layer": cache}, 8, 8, "bf16")
        self.assertEqual(layout.table([3]).tolist(), [[cache.data_ptr() + 3 * 64, 64]])

    def test_layers_that_share_a_cache(self):
        own = numpy.zeros((8, 4, 4), numpy.uint16)
        made = {"layer0": Cache(own), "layer1": Cache(own), "layer2": Cache(own.copy())}
        layout = CacheLayout(made, 8, 4, "bf16")
        self.assertEqual(layout.block_bytes, 2 * 32)
        self.assertEqual(layout.table([3]).tolist(), [
            [made[name].data_ptr() + 3 * 32, 32] for name in ("layer0", "layer2")])

    def test_layouts_differ(self):
        plain = numpy.zeros((8, 4, 4, 2), numpy.uint16)
        turned = plain.transpose(0, 2, 1, 3)
        prints = {CacheLayout({"layer": Cache(array)}, 8, tokens, "bf16").fingerprint
                  for array, tokens in ((plain, 4), (turned, 4), (plain, 8))}
        self.assertEqual(len(prints), 3)

    def test_refused(self):
        holes = Cache(numpy.zeros((8, 4, 8), numpy.uint16)[:, :, ::2])
        for cache, what in ((Cache(numpy.zeros((7, 4), numpy.uint16)), "not divided"),
                            (holes, "holes")):
            with self.assertRaisesRegex(ValueError, what):
                CacheLayout({"layer": cache}, 8, 4, "bf16")
        layout = CacheLayout({"layer": Cache(numpy.zeros((8, 4), numpy.uint16))}, 8, 4, "bf16")
        for blocks in ([], [8], [-1]):
            with self.assertRaisesRegex(ValueError, "from 0 to 7"):
                layout.table(blocks)


class Transfers(unittest.TestCase):
    def setUp(self):
        self.options = Options(timeout=20.0)
        self.there, self.here = caches(True), caches(False)
        self.held, self.records = HeldRequests(), []
        self.server = PageServer("127.0.0.1:0", CacheLayout(self.there, 16, 128, "bf16"), self.held,
                                 self.options, self.record, print)
        self.addCleanup(self.server.close)

    def record(self, *what):
        self.records.append(what)

    def client(self, here=None, tokens=128, **options):
        client = PageClient(CacheLayout(here or self.here, 16, tokens, "bf16"),
                            self.options._replace(**options), self.record, print)
        self.addCleanup(client.close)
        return client

    def assert_moved(self, pairs):
        for name, cache in self.here.items():
            for block in range(16):
                source = pairs.get(block)
                expected = 0 if source is None else self.there[name].array[source]
                self.assertTrue((cache.array[block] == expected).all(), (name, block))

    def wait_ended(self, request):
        for _ in range(600):
            if request in self.held.take_ended():
                return
            time.sleep(0.05)
        self.fail(f"{request} is still held")

    def test_pages_arrive(self):
        client = self.client()
        self.held.hold("r", [3, 9, 1], 60)
        client.pull(self.server.address, "r", 1, [7, 2])
        self.assert_moved({7: 9, 2: 1})
        self.wait_ended("r")
        moved = [record[0] for record in self.records]
        self.assertEqual([m.raw_bytes for m in moved], [2 * 131072] * 2)

    def test_many_at_once(self):
        client = self.client()
        for i in range(8):
            self.held.hold(f"r{i}", [i], 60)
        threads = [threading.Thread(target=client.pull, args=(
            self.server.address, f"r{i}", 0, [15 - i])) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assert_moved({15 - i: i for i in range(8)})

    def test_a_request_of_the_future(self):
        client = self.client()
        threading.Timer(0.3, self.held.hold, ("late", [5], 60)).start()
        client.pull(self.server.address, "late", 0, [0])
        self.assert_moved({0: 5})

    def test_not_held(self):
        client = self.client()
        self.held.hold("r", [3, 4], 60)
        with self.assertRaisesRegex(PullError, "has 2 blocks"):
            client.pull(self.server.address, "r", 1, [0, 1])
        for _ in range(600):  # both sides count a failure
            if len(self.records) == 2:
                break
            time.sleep(0.05)
        self.assertEqual([(moved, error is None) for moved, _, error in self.records],
                         [(None, False)] * 2)
        client.drop(self.server.address, "r")
        self.wait_ended("r")
        self.held.hold("good", [6], 60)
        client.pull(self.server.address, "good", 0, [0])  # the same connection still works
        self.assert_moved({0: 6})

    def test_many_are_not_wanted(self):
        """No note is sent before its predecessors are read, of which the wire keeps 64."""
        client, names = self.client(), {f"r{i}" for i in range(150)}
        for name in names:
            self.held.hold(name, [3], 60)
        drop = self.held.drop

        def drop_late(request):
            time.sleep(0.002)
            drop(request)

        with unittest.mock.patch.object(self.held, "drop", drop_late):
            with ThreadPoolExecutor(8) as threads:
                for name in names:
                    threads.submit(client.drop, self.server.address, name)
        self.assertEqual(self.held.take_ended(), names)

    def test_errors_that_nobody_expected(self):
        """Such as torch's. Both sides count a failure at once, and the log says what it was."""
        client, log = self.client(), []
        self.server._log = log.append
        for side, expected in (("send", PullError), ("receive", RuntimeError)):
            with self.subTest(side):
                self.records.clear()
                self.held.hold(side, [3], 60)
                start = time.monotonic()
                with unittest.mock.patch.object(Channel, side, side_effect=RuntimeError("no GPU")):
                    with self.assertRaises(expected):
                        client.pull(self.server.address, side, 0, [0])
                self.wait_ended(side)
                while len(self.records) < 2:
                    time.sleep(0.01)
                self.assertLess(time.monotonic() - start, 15)
                self.assertEqual([(moved, error is None) for moved, _, error in self.records],
                                 [(None, False)] * 2)
        self.assertIn("pages of a request were not sent: no GPU", log)

    def test_other_caches_are_refused(self):
        for client in (self.client(tokens=16), self.client(caches(False, num_layers=1))):
            with self.assertRaisesRegex(PullError, "caches differ"):
                client.pull(self.server.address, "r", 0, [0])

    def test_nobody_there(self):
        client = self.client()
        address = self.server.address
        self.server.close()
        for _ in range(2):
            with self.assertRaises(PullError):
                client.pull(address, "r", 0, [0])
        client.drop(address, "r")

    def test_peers_that_are_gone_are_forgotten(self):
        client = self.client()
        with unittest.mock.patch("snug.kv.peer._PAUSE_SECONDS", 0.0):
            for port in range(1, 4):  # nobody listens there
                with self.assertRaises(PullError):
                    client.pull(f"127.0.0.1:{port}", "r", 0, [0])
        self.assertEqual(len(client._peers), 1)

    def damaged(self, fault, after, **options):
        client = self.client(**options)
        proxy = Proxy(self.server.address, fault, after)
        self.addCleanup(proxy.close)
        self.held.hold("r", list(range(12)), 60)
        with self.assertRaises(PullError):
            client.pull(proxy.address, "r", 0, list(range(12)))
        self.assertGreater(proxy.num_faults, 0)
        for cache in self.here.values():  # what was not asked for was not touched
            self.assertFalse(cache.array[12:].any())
        self.wait_ended("r")
        proxy.fault = None
        self.held.hold("again", [3], 60)
        client.pull(proxy.address, "again", 0, [0])
        for name, cache in self.here.items():
            self.assertTrue((cache.array[0] == self.there[name].array[3]).all())

    def test_a_flipped_bit(self):
        self.damaged("flip", 100_000)

    def test_a_flipped_bit_without_encryption(self):
        self.server.close()
        self.options = self.options._replace(insecure=True)
        self.server = PageServer("127.0.0.1:0", CacheLayout(self.there, 16, 128, "bf16"), self.held,
                                 self.options, self.record, print)
        self.addCleanup(self.server.close)
        self.damaged("flip", 100_000)

    def test_a_connection_that_ends(self):
        self.damaged("cut", 100_000)

    def test_a_peer_that_falls_silent(self):
        self.options = self.options._replace(timeout=2.0)
        self.damaged("stall", 100_000)


if __name__ == "__main__":
    unittest.main()
