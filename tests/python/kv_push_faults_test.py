"""snug.kv: pages that a prefill worker pushes, and what damages, ends or stops them on the way."""

import sys
import time
import unittest
import unittest.mock
from concurrent.futures import ThreadPoolExecutor

try:
    import numpy  # noqa: F401 (kv_pushes needs it)
except ImportError:
    print("skipped: needs numpy")
    sys.exit(77)

from kv_proxy import Proxy
from kv_pushes import Memory, PushTest
from snug.kv import messages, peer
from snug.kv.channel import Channel
from snug.kv.push import PagePusher, PushError


class Faults(PushTest):
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

    def test_the_first_reason_counts(self):
        """Not that the connection is closed, which follows from it."""
        close, next_note = Channel.close, Channel.next_note

        def close_slowly(channel):
            close(channel)
            time.sleep(0.1)

        def hear_late(channel):
            time.sleep(0.03)
            return next_note(channel)

        with unittest.mock.patch.multiple(Channel, close=close_slowly, next_note=hear_late):
            self.test_what_is_always_damaged()

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
        lost, = self.pusher._peers._peers.values()
        lost.fail("lost")  # of which the other side sees nothing
        pushing.result()
        self.assertTrue(any("did not arrive" in line for line in self.log), self.log)
        self.inbox.finish("r")
        self.assert_moved(pairs)

    def asked(self, pusher):
        """Its only connection, as soon as it waits for an answer."""
        while True:
            for lost in list(pusher._peers._peers.values()):
                if lost._answers:
                    return lost
            time.sleep(0.01)

    def test_what_waited_on_a_lost_connection(self):
        """It does not end what is sent again."""
        for turn in range(4):
            pairs, request = [(turn, 2 * turn)], f"r{turn}"
            self.inbox.expect(request, pages=[2 * turn])
            other = PagePusher(Memory, self.options, self.moved.append, self.log.append)
            self.addCleanup(other.close)
            with self.connected() as rank, ThreadPoolExecutor(1) as thread:
                pages = self.pages(request, pairs)
                rank.send_note(messages.pack("place", id=1, request=request, area="pages",
                                             segments=pages.targets.tolist()))
                self.assertEqual(messages.unpack(rank.recv_note(10))[0], "go")
                pushing = thread.submit(other.push, self.inbox.address, pages)
                lost = self.asked(other)
                time.sleep(0.1)  # until it waits for the first rank there, in most runs
                with unittest.mock.patch.object(lost.channel, "close"):
                    lost.fail("lost")  # of which the other side sees nothing
                time.sleep(0.1)
                rank.send(1, [layer[turn] for layer in self.there], "bf16").wait(10)
                pushing.result()
            self.inbox.finish(request)
        self.assert_moved([(turn, 2 * turn) for turn in range(4)])
        self.assertEqual([line.rpartition(": ")[2] for line in self.log], ["lost; sent again"] * 4)

    def test_aborts_of_other_requests(self):
        """Each ends the connection; nothing is given up for that."""
        self.inbox.expect("r", pages=range(1, 5))
        send, cancelled = Channel.send, []

        def send_into_an_abort(channel, *arguments):
            if len(cancelled) < 5:
                cancelled.append("other")
                self.inbox.cancel("r")
                self.inbox.expect("r", pages=range(1, 5))
            return send(channel, *arguments)

        with unittest.mock.patch.object(Channel, "send", send_into_an_abort):
            self.push("r", [(i, i) for i in range(1, 5)])
        self.inbox.finish("r")
        self.assert_moved([(i, i) for i in range(1, 5)])
        self.assertEqual(sum("sent again" in line for line in self.log), 5)

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
        for request, page in (("first", 1), ("second", 2)):
            self.inbox.expect(request, pages=[page])
        self.push("first", [(0, 1)])
        self.inbox.finish("first")
        connect = peer.Peer.connect

        def lose_once(self):
            peer.Peer.connect = connect
            self.fail("another transfer was damaged")
            connect(self)

        with unittest.mock.patch.object(peer.Peer, "connect", lose_once):
            self.push("second", [(0, 2)])
        self.assert_moved([(0, 1), (0, 2)])
        self.assertEqual(len(self.log), 1)
        self.assertIn("another transfer was damaged; sent again", self.log[0])


if __name__ == "__main__":
    unittest.main()
