"""Owners of C objects: what is freed, when, and in what scope."""

import contextlib
import os
import unittest

from snug._handle import Handle


class Handles(unittest.TestCase):
    def setUp(self):
        self.events = []

    @contextlib.contextmanager
    def scope(self):
        self.events.append("in")
        yield
        self.events.append("out")

    def handle(self, **more):
        return Handle(7, self.events.append, **more)

    def test_freed_once(self):
        handle = self.handle()
        handle.close()
        handle.close()
        del handle
        self.assertEqual(self.events, [7])

    def test_freed_after_the_last_use(self):
        handle = self.handle(scope=self.scope())
        with handle._use() as pointer:
            handle.close()
            self.assertEqual((pointer, self.events), (7, []))
        self.assertEqual(self.events, ["in", 7, "out"])

    def test_freed_as_garbage(self):
        self.handle(scope=self.scope())
        self.assertEqual(self.events, ["in", 7, "out"])

    def test_a_forked_child_frees_nothing(self):
        handle = self.handle(scope=self.scope())
        child = os.fork()
        if child == 0:  # not even the scope: a child cannot use its parent's GPUs
            handle.close()
            os._exit(len(self.events))
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        handle.close()
        self.assertEqual(self.events, ["in", 7, "out"])


if __name__ == "__main__":
    unittest.main()
