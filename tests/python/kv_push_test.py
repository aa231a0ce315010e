"""snug.kv: pages that a prefill worker pushes to addresses of the decode worker, and what damages
them on the way. Nothing is ever written where nobody awaits it."""

import random
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

from kv_proxy import Proxy
from snug import SnugError, wire
from snug.kv import messages, peer
from snug.kv.areas import Area, item_numbers, overlap
from snug.kv.channel import Channel, Options
from snug.kv.inbox import PageInbox
from snug.kv.push import Nowhere, PagePusher, Pages, PushError

PAGE, NUM_PAGES, NUM_LAYERS = 1 << 15, 64, 4


class Memory:
    dtype, fingerprint = "bf16", "pages of a test, bf16"


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
        fields = {"id": 1, "sender": "s", "request": "r", "area": "pages"}
        good = [[1 << 40, 4096]] * messages.MAX_SEGMENTS
        note = messages.pack("place", segments=good, **fields)
        self.assertLess(len(messages.pack("place", segments=[[(1 << 57) - 1, 1 << 30]] *
                                          messages.MAX_SEGMENTS, **fields)), 1 << 20)
        self.assertEqual(messages.unpack(note), ("place", {**fields, "segments": good}))
        for bad in ([], good + [[0, 1]], [[1]], [[1, 2, 3]], [[1, -2]], [[1, 2.0]], ["12"], "12",
                    [[True, 1]], 5):
            with self.assertRaisesRegex(messages.BadMessage, "list of segments"):
                messages.unpack(messages.pack("place", segments=bad, **fields))


class Pushes(unittest.TestCase):
    def setUp(self):
        self.options = Options(timeout=20.0)
        values = numpy.random.default_rng(3).standard_normal(
            (NUM_LAYERS, NUM_PAGES, PAGE // 2), numpy.float32)
        self.there = (values.view(numpy.uint32) >> 16).astype(numpy.uint16)  # BF16
        self.here = numpy.zeros_like(self.there)
        self.notes = numpy.zeros((8, 24), numpy.uint8)
        self.log, self.moved = [], []
        self.start()

    def start(self):
        layers = [layer.ctypes.data for layer in self.here]
        areas = {"pages": Area(layers, [NUM_PAGES * PAGE] * NUM_LAYERS, [PAGE] * NUM_LAYERS),
                 "metadata": Area([self.notes.ctypes.data], [8 * 24], [24])}
        self.inbox = PageInbox("127.0.0.1:0", Memory, areas, ("metadata",), self.options,
                               self.log.append)
        self.addCleanup(self.inbox.close)
        self.pusher = PagePusher(Memory, self.options, self.moved.append, self.log.append)
        self.addCleanup(self.pusher.close)

    def pages(self, request, pairs):
        tables = [numpy.array([[layer.ctypes.data + pair[side] * PAGE, PAGE]
                               for layer in memory for pair in pairs], numpy.uint64)
                  for side, memory in enumerate((self.there, self.here))]
        return Pages(request, "pages", False, *tables)

    def push(self, request, pairs, address=None):
        self.pusher.push(address or self.inbox.address, self.pages(request, pairs))

    def assert_moved(self, pairs):
        expected = numpy.zeros_like(self.there)
        for source, target in pairs:
            expected[:, target] = self.there[:, source]
        self.assertTrue((self.here == expected).all())

    def test_pages_and_metadata_arrive(self):
        self.inbox.expect("r", pages=[9, 2], metadata=[5])
        pairs = [(3, 9), (8, 2)]
        self.push("r", pairs)
        source = numpy.arange(24, dtype=numpy.uint8)
        to = self.notes.ctypes.data + 5 * 24
        self.pusher.push(self.inbox.address, Pages(
            "r", "metadata", True, numpy.array([[source.ctypes.data, 24]], numpy.uint64),
            numpy.array([[to, 16], [to + 16, 8]], numpy.uint64)))
        self.inbox.finish("r")
        self.assert_moved(pairs)
        self.assertEqual(self.notes[5].tolist(), source.tolist())
        self.assertEqual(int(self.notes.sum()), int(source.sum()))
        self.assertEqual(sum(moved.raw_bytes for moved in self.moved), 2 * NUM_LAYERS * PAGE + 24)
        self.assertEqual((len(self.inbox), self.log), (0, []))

    def test_they_are_compressed(self):
        self.options = self.options._replace(mode="entropy")
        self.start()
        self.inbox.expect("r", pages=range(NUM_PAGES))
        self.push("r", [(i, i) for i in range(NUM_PAGES)])
        self.assertTrue((self.here == self.there).all())
        self.assertLess(self.moved[0].wire_bytes, 0.8 * self.moved[0].raw_bytes)

    def test_many_at_once(self):
        for i in range(NUM_PAGES):
            self.inbox.expect(f"r{i}", pages=[i])
        threads = [threading.Thread(target=self.push, args=(f"r{i}", [(NUM_PAGES - 1 - i, i)]))
                   for i in range(NUM_PAGES)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assert_moved([(NUM_PAGES - 1 - i, i) for i in range(NUM_PAGES)])

    def test_more_segments_than_a_note_has_room_for(self):
        self.inbox.expect("r", pages=[1])
        with unittest.mock.patch("snug.kv.push.MAX_SEGMENTS", 3):
            self.push("r", [(0, 1)])
        self.assert_moved([(0, 1)])
        self.assertEqual(len(self.moved), 2)

    def test_nothing_is_written_where_nobody_awaits_it(self):
        self.inbox.expect("r", pages=[1, 2, 3])
        self.inbox.expect("ended", pages=[4])
        self.inbox.cancel("ended")
        good = self.pages("r", [(0, 1)])
        below, across, other = (good.targets.copy() for _ in range(3))
        below[1, 0] = self.here.ctypes.data - PAGE
        across[1, 1] = 4 * PAGE
        other[1, 0] = self.notes.ctypes.data
        for pages in (self.pages("r", [(0, 4)]), self.pages("r", [(0, 1), (0, 0)]),
                      self.pages("ended", [(0, 4)]), self.pages("unknown", [(0, 1)]),
                      good._replace(area="metadata"), good._replace(area="unknown"),
                      *(good._replace(targets=targets) for targets in (below, across, other))):
            with self.assertRaisesRegex(PushError, "does not await these pages"):
                self.pusher.push(self.inbox.address, pages)
        self.assertFalse(self.here.any() or self.notes.any())
        self.push("r", [(0, 1)])  # the same connection still works
        self.assert_moved([(0, 1)])

    def test_a_peer_that_keeps_no_promise(self):
        """It sends other sizes than it said, uses an id twice, and says what it may not."""
        self.inbox.expect("r", pages=[1, 2])
        page = numpy.full(PAGE, 7, numpy.uint8)
        table = self.pages("r", [(0, 1)]).targets[:1].tolist()

        def place(connection, segments=table):
            connection.send_note(messages.pack("place", id=1, sender="x", request="r",
                                               area="pages", segments=segments))

        def one_id_twice(connection):
            place(connection)
            place(connection, self.pages("r", [(0, 2)]).targets[:1].tolist())
            for _ in range(2):
                connection.recv_note(10)
            for _ in range(2):
                connection.send(1, page, "bf16").wait(10)

        def of_other_size(connection, num_bytes):
            place(connection)
            connection.recv_note(10)
            connection.send(1, numpy.full(num_bytes, 9, numpy.uint8), "bf16").wait(10)

        def drop(connection):
            connection.send_note(messages.pack("drop", id=1, request="r"))
            connection.recv_note(10)

        def place_twice(connection):
            for _ in range(2):
                place(connection)
            for _ in range(2):
                connection.recv_note(10)

        for act, is_refused in (
                (one_id_twice, False), (lambda c: of_other_size(c, PAGE - 2), True),
                (lambda c: of_other_size(c, 2 * PAGE), True), (drop, True), (place_twice, True)):
            with wire.connect(self.inbox.address, **self.options.of_wire()) as connection:
                connection.send_note(messages.pack(
                    "hello", version=messages.VERSION, layout=Memory.fingerprint, host="", gpu=0))
                self.assertEqual(messages.unpack(connection.recv_note(10))[0], "welcome")
                if is_refused:
                    with self.assertRaises(SnugError):
                        act(connection)
                else:
                    act(connection)
            self.inbox.cancel("r")
            outside = self.here.copy()
            outside[0, 1:3] = 0
            self.assertFalse(outside.any())
            self.inbox.expect("r", pages=[1, 2])
        self.here[:] = 0
        self.push("r", [(5, 1)])
        self.assert_moved([(5, 1)])

    def test_an_error_that_nobody_expected(self):
        """The peer is told at once, and the log says what it was."""
        self.inbox.expect("r", pages=[1])
        start = time.monotonic()
        with unittest.mock.patch.object(Channel, "receive", side_effect=RuntimeError("no GPU")):
            with self.assertRaises(PushError):
                self.push("r", [(0, 1)])
        self.assertLess(time.monotonic() - start, 10)
        self.assertIn("KV pages did not arrive: no GPU", self.log)

    def damaged(self, fault, times=1, each=False):
        proxy = Proxy(self.inbox.address, of_client=True)
        self.addCleanup(proxy.close)
        proxy.harm(fault, 300_000, times, each)
        self.inbox.expect("r", pages=range(32))
        pairs = [(i + 20, i) for i in range(32)]
        return proxy, pairs, lambda: self.push("r", pairs, proxy.address)

    def test_what_was_damaged_is_sent_again(self):
        for insecure in (False, True):
            for fault in ("flip", "cut"):
                with self.subTest(fault=fault, insecure=insecure):
                    self.options = self.options._replace(insecure=insecure)
                    self.here[:] = 0
                    self.start()
                    proxy, pairs, push = self.damaged(fault)
                    push()
                    self.inbox.finish("r")
                    self.assertEqual(proxy.num_faults, 1)
                    self.assert_moved(pairs)
                    self.assertTrue(any("sent again" in line for line in self.log), self.log)

    def test_what_is_always_damaged(self):
        proxy, _, push = self.damaged("flip", None, each=True)
        with self.assertRaisesRegex(PushError, "damaged data"):
            push()
        self.assertEqual(sum("sent again" in line for line in self.log), 2)
        self.inbox.cancel("r")
        self.assertFalse(self.here[:, 32:].any())
        proxy.fault = None
        self.here[:] = 0
        self.inbox.expect("again", pages=[40])
        with unittest.mock.patch("snug.kv.peer._PAUSE_SECONDS", 0.0):
            self.push("again", [(1, 40)], proxy.address)
        self.assert_moved([(1, 40)])

    def test_a_peer_that_falls_silent(self):
        self.options = self.options._replace(timeout=2.0)
        self.start()
        _, _, push = self.damaged("stall", None)
        start = time.monotonic()
        with self.assertRaises(PushError):
            push()
        self.assertLess(time.monotonic() - start, 12)

    def stalled(self):
        """A push that stands still in the middle; later connections work."""
        proxy, pairs, push = self.damaged("stall", None)
        pushing = ThreadPoolExecutor(1).submit(push)
        while not proxy.num_faults:
            time.sleep(0.01)
        proxy.fault = None
        return pairs, pushing

    def test_after_cancel_nothing_is_written(self):
        """The request ends while its pages are on their way, and two threads say so."""
        _, pushing = self.stalled()
        self.assertEqual(len(self.inbox._incoming), 1)

        def cancel():
            self.inbox.cancel("r")
            return len(self.inbox._incoming)

        with ThreadPoolExecutor(2) as threads:
            start = time.monotonic()
            left = [future.result() for future in [threads.submit(cancel) for _ in range(2)]]
        self.assertEqual(left, [0, 0])
        self.assertLess(time.monotonic() - start, 5)
        before = self.here.copy()
        with self.assertRaisesRegex(PushError, "does not await these pages"):
            pushing.result()
        self.assertTrue((self.here == before).all())

    def test_a_lost_connection_does_not_write_beside_the_next(self):
        pairs, pushing = self.stalled()
        self.push("r", pairs)  # on another connection
        self.assertTrue(any("did not arrive" in line for line in self.log), self.log)
        pushing.result()  # sent again, too
        self.inbox.finish("r")
        self.assert_moved(pairs)

    def test_two_ranks_send_the_same(self):
        """Ranks that hold the same heads write the same pages, and all write the metadata. None of
        them ends a transfer of another, which would take all else on that connection along."""
        ranks = [PagePusher(Memory, self.options, self.moved.append, self.log.append)
                 for _ in range(4)]
        pairs = [(i, i) for i in range(NUM_PAGES)]
        for rank in ranks:
            self.addCleanup(rank.close)
        for turn in range(4):
            self.inbox.expect(f"r{turn}", pages=range(NUM_PAGES))
            with ThreadPoolExecutor(len(ranks)) as threads:
                for pushed in [threads.submit(rank.push, self.inbox.address,
                                              self.pages(f"r{turn}", pairs)) for rank in ranks]:
                    pushed.result()
            self.inbox.finish(f"r{turn}")
        self.assert_moved(pairs)
        self.assertEqual(self.log, [])

    def test_a_rank_waits_for_another_that_stands_still(self):
        """Until the request ends: then neither writes."""
        pairs, first = self.stalled()
        other = PagePusher(Memory, self.options, self.moved.append, self.log.append)
        self.addCleanup(other.close)
        second = ThreadPoolExecutor(1).submit(other.push, self.inbox.address,
                                              self.pages("r", pairs))
        time.sleep(0.5)
        self.assertFalse(first.done() or second.done())
        self.inbox.cancel("r")
        before = self.here.copy()
        for push in (first, second):
            with self.assertRaisesRegex(PushError, "does not await these pages"):
                push.result()
        self.assertTrue((self.here == before).all())

    def test_closing_waits_for_what_is_written(self):
        _, pushing = self.stalled()
        self.inbox.close()
        self.assertEqual((len(self.inbox._incoming), len(self.inbox)), (0, 0))
        with self.assertRaises(PushError):
            pushing.result()

    def test_a_connection_that_another_thread_has_just_lost(self):
        """It is made again. Only what was never there is nowhere: SGLang would give up the whole
        decode instance."""
        self.inbox.expect("r", pages=[1, 2])
        self.push("r", [(0, 1)])
        connect = peer.Peer.connect

        def lose_once(self):
            peer.Peer.connect = connect
            self.fail("another transfer was damaged")
            connect(self)

        with unittest.mock.patch.object(peer.Peer, "connect", lose_once):
            self.push("r", [(0, 2)])
        self.assert_moved([(0, 1), (0, 2)])
        self.assertEqual(len(self.log), 1)
        self.assertIn("another transfer was damaged; sent again", self.log[0])

    def test_closed_while_it_connects(self):
        """Nothing stays open."""
        connect, peers = peer.wire.connect, self.pusher._peers

        def connect_late(*arguments, **options):
            connection = connect(*arguments, **options)
            peers.close()
            return connection

        with unittest.mock.patch.object(peer.wire, "connect", connect_late):
            with self.assertRaisesRegex(PushError, "closed"):
                self.push("r", [(0, 1)])
        with self.assertRaisesRegex(ValueError, "closed"):
            peers._peers[self.inbox.address].tell("drop", id=1, request="r")

    def test_nobody_there(self):
        address = self.inbox.address
        self.inbox.close()
        for _ in range(2):
            with self.assertRaises(Nowhere):
                self.push("r", [(0, 1)], address)

    def test_other_kinds_of_memory(self):
        class Other(Memory):
            fingerprint = "pages of a test, f16"
        pusher = PagePusher(Other, self.options, self.moved.append, self.log.append)
        self.addCleanup(pusher.close)
        self.inbox.expect("r", pages=[1])
        with self.assertRaisesRegex(Nowhere, "caches differ"):
            pusher.push(self.inbox.address, self.pages("r", [(0, 1)]))


if __name__ == "__main__":
    unittest.main()
