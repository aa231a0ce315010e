"""snug.kv: pages that a prefill worker pushes to addresses of the decode worker. Nothing is ever
written where nobody awaits it."""

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

from kv_pushes import NUM_LAYERS, NUM_PAGES, PAGE, Memory, PushTest
from snug import SnugError
from snug.kv import messages, peer
from snug.kv.channel import Channel
from snug.kv.push import Nowhere, PagePusher, Pages, PushError


class Pushes(PushTest):
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
            connection.send_note(messages.pack("place", id=1, request="r", area="pages",
                                               segments=segments))

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
            answers = {messages.unpack(connection.recv_note(10))[0] for _ in range(2)}
            self.assertEqual(answers, {"go", "no"})

        for act, is_refused in (
                (one_id_twice, False), (lambda c: of_other_size(c, PAGE - 2), True),
                (lambda c: of_other_size(c, 2 * PAGE), True), (drop, True), (place_twice, False)):
            with self.connected() as connection:
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

    def test_a_peer_that_asks_and_asks(self):
        """What waits takes memory: its connection ends."""
        self.inbox.expect("r", pages=range(NUM_PAGES))
        table = self.pages("r", [(i, i) for i in range(NUM_PAGES)]).targets[:65].tolist()

        def place(connection, some):
            for segment in some:
                connection.send_note(messages.pack("place", id=1, request="r", area="pages",
                                                   segments=[segment]))

        with self.connected() as connection:
            place(connection, table[:40])
            for _ in range(32):
                self.assertEqual(messages.unpack(connection.recv_note(10))[0], "go")
            with self.assertRaisesRegex(SnugError, "closed"):
                place(connection, table[40:])
                connection.recv_note(10)
        self.assertIn("a prefill worker sends over 64 times at once", self.log)
        self.inbox.cancel("r")
        self.assertFalse(self.here.any())

    def test_more_threads_than_a_connection_serves(self):
        receive = Channel.receive

        def receive_late(*arguments):
            time.sleep(0.05)
            return receive(*arguments)

        # 8 that are asked, and 32 that threads of the other side are about to forget.
        with unittest.mock.patch("snug.kv.inbox._MAX_OPEN", 40), \
                unittest.mock.patch("snug.kv.peer._MAX_ASKED", 8), \
                unittest.mock.patch.object(Channel, "receive", receive_late):
            self.test_many_at_once()
        self.assertEqual(self.log, [])

    def test_an_error_that_nobody_expected(self):
        """The peer is told at once, and the log says what it was."""
        self.inbox.expect("r", pages=[1])
        start = time.monotonic()
        with unittest.mock.patch.object(Channel, "receive", side_effect=RuntimeError("no GPU")):
            with self.assertRaises(PushError):
                self.push("r", [(0, 1)])
        self.assertLess(time.monotonic() - start, 10)
        self.assertIn("KV pages did not arrive: no GPU", self.log)

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
