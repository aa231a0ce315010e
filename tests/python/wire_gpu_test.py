"""snug.wire with tensors on a GPU: through the host, and over a link."""

import sys
import threading
import unittest

try:
    import torch
    if not torch.cuda.is_available():
        raise ImportError("no GPU")
except ImportError as error:
    print(f"skipped: needs torch and a GPU ({error})")
    sys.exit(77)

import snug
import snug.wire


def both(near, far):
    """Runs two calls at the same time; each side of a link waits for the other."""
    results = {}
    thread = threading.Thread(target=lambda: results.update(far=far()))
    thread.start()
    first = near()
    thread.join()
    return first, results["far"]


class GpuWire(unittest.TestCase):
    def setUp(self):
        self.listener = snug.wire.listen()
        self.near, self.far = both(lambda: snug.wire.connect(self.listener.address),
                                   self.listener.accept)

    def tearDown(self):
        for handle in (self.near, self.far, self.listener):
            handle.close()

    def exchange(self, sender, receiver, data, into):
        received = receiver.recv(3, into)
        sender.send(3, data).wait(60)
        received.wait(60)

    def test_tensors_through_the_host(self):
        data = torch.randn(3_000_001, device="cuda").bfloat16()
        into = torch.empty_like(data)
        self.exchange(self.near, self.far, data, into)
        self.assertTrue(torch.equal(data.view(torch.int16), into.view(torch.int16)))

    def test_one_end_on_a_cpu(self):
        data = torch.randn(100_000, device="cuda").bfloat16()
        into = torch.empty(100_000, dtype=torch.bfloat16)
        self.exchange(self.near, self.far, data, into)
        self.assertTrue(torch.equal(data.cpu().view(torch.int16), into.view(torch.int16)))

    def test_a_link(self):
        near, far = both(self.near.link, self.far.link)
        with near, far:
            for _ in range(3):
                data = torch.randn(9_000_000, device="cuda").bfloat16()
                into = torch.zeros_like(data)
                self.exchange(near, far, data, into)
                self.assertTrue(torch.equal(data.view(torch.int16), into.view(torch.int16)))
            sent, _ = near.stats()
            _, received = far.stats()
            self.assertEqual(sent.raw_bytes, 3 * 18_000_000)
            self.assertEqual(sent.chunks, received.chunks)

    def test_pages(self):
        near, far = both(self.near.link, self.far.link)
        with near, far:
            cache = torch.randn(512, 16 * 1024, device="cuda").bfloat16()
            there = torch.zeros_like(cache)
            order = torch.randperm(512).tolist()
            self.exchange(near, far, [cache[i] for i in order], [there[i] for i in order])
            self.assertTrue(torch.equal(cache.view(torch.int16), there.view(torch.int16)))

    def test_another_dtype_is_refused(self):
        near, far = both(self.near.link, self.far.link)
        with near, far:
            received = far.recv(1, torch.zeros(1000, device="cuda"))
            near.send(1, torch.zeros(2000, device="cuda").bfloat16())
            with self.assertRaises(snug.SnugError):
                received.wait(60)

    def test_bad_calls(self):
        tensor = torch.zeros(64, 64, device="cuda")
        with self.assertRaisesRegex(ValueError, "contiguous"):
            self.near.send(1, tensor.t()[1:])
        with self.assertRaisesRegex(ValueError, "one GPU"):
            self.near.send(1, [tensor, torch.zeros(4)])


if __name__ == "__main__":
    unittest.main()
