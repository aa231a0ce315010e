"""A prefill and a decode worker in one process, for tests of snug.kv."""

import unittest

import numpy

from snug import wire
from snug.kv import messages
from snug.kv.areas import Area
from snug.kv.channel import Options
from snug.kv.inbox import PageInbox
from snug.kv.push import PagePusher, Pages

PAGE, NUM_PAGES, NUM_LAYERS = 1 << 15, 64, 4


class Memory:
    dtype, fingerprint = "bf16", "pages of a test, bf16"


class PushTest(unittest.TestCase):
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

    def connected(self):
        """A connection of a prefill worker that does what a test wants."""
        connection = wire.connect(self.inbox.address, **self.options.of_wire())
        connection.send_note(messages.pack("hello", version=messages.VERSION, sender="test",
                                           layout=Memory.fingerprint, host="", gpu=0))
        self.assertEqual(messages.unpack(connection.recv_note(10))[0], "welcome")
        return connection

    def assert_moved(self, pairs):
        expected = numpy.zeros_like(self.there)
        for source, target in pairs:
            expected[:, target] = self.there[:, source]
        self.assertTrue((self.here == expected).all())
