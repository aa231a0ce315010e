"""snug.wire between two threads over loopback."""

import os
import random
import signal
import socket
import struct
import threading
import time
import unittest
from unittest import mock

import snug
import snug.wire


def bf16_gaussian(count):
    rng = random.Random(1)
    return b"".join(struct.pack("<f", rng.gauss(0, 0.02))[2:] for _ in range(count))


class Wire(unittest.TestCase):
    def setUp(self):
        self.listener = snug.wire.listen(token="a long enough secret")
        accepted = []
        thread = threading.Thread(target=lambda: accepted.append(self.listener.accept()))
        thread.start()
        self.near = snug.wire.connect(self.listener.address, token="a long enough secret")
        thread.join()
        self.far = accepted[0]

    def tearDown(self):
        for handle in (self.near, self.far, self.listener):
            handle.close()

    def test_tensors_arrive(self):
        data = bf16_gaussian(300_000)
        into = bytearray(len(data))
        received = self.far.recv(3, into)
        self.assertEqual(received.done_bytes(), 0)
        sent = self.near.send(3, data, dtype="bf16")
        sent.wait(60)
        received.wait(60)
        self.assertEqual((sent.done_bytes(), received.done_bytes()), (len(data), len(data)))
        self.assertEqual(bytes(into), data)
        self.assertTrue(received.done())
        self.assertEqual(self.near.stats().raw_bytes, len(data))

    def test_segments_need_not_be_cut_alike(self):
        pieces = [bytes([i]) * n for i, n in enumerate((1, 70_000, 0, 33))]
        first, second = bytearray(40_000), bytearray(30_034)
        received = self.far.recv(1, [first, second])
        self.near.send(1, pieces).wait(60)
        received.wait(60)
        self.assertEqual(bytes(first + second), b"".join(pieces))

    def test_notes(self):
        self.near.send_note("hello")
        self.assertEqual(self.far.recv_note(10), b"hello")
        with self.assertRaises(TypeError):
            self.near.send_note(5)  # five zeros, for bytes()

    def test_a_note_is_waited_for(self):
        later = threading.Timer(0.2, lambda: self.near.send_note("at last"))
        later.start()
        self.assertEqual(self.far.recv_note(), b"at last")
        later.join()

    def test_memory_of_a_closed_transfer_stays(self):
        into = bytearray(1000)
        with self.far.recv(4, into):
            pass  # closed before anything was sent
        with self.assertRaises(BufferError):
            into.append(0)  # the library may still write to it
        self.near.send(4, bytes(range(250)) * 4).wait(60)
        self.assertEqual(bytes(into), bytes(range(250)) * 4)
        for _ in range(100):  # the sender may know of the end a moment earlier
            snug.wire._free_abandoned()
            if not snug.wire._abandoned:
                break
            time.sleep(0.05)
        into.append(0)

    def test_closing_while_others_ask(self):
        def ask():
            while True:
                self.near.stats()

        def expect_closed(call):
            with self.assertRaisesRegex(ValueError, "closed"):
                call()
            ended.append(call)

        ended = []
        calls = [ask, ask, lambda: self.near.recv_note(60), lambda: self.listener.accept(60)]
        threads = [threading.Thread(target=expect_closed, args=[call]) for call in calls]
        for thread in threads:
            thread.start()
        time.sleep(0.05)
        self.near.close()
        self.listener.close()
        for thread in threads:
            thread.join(30)
        self.assertEqual(len(ended), len(calls))

    def test_closing_waits_for_nobody(self):
        """Calls that wait end at once, not after their slice."""
        with mock.patch.object(snug.wire, "_SLICE", 60):
            def wait():
                with self.assertRaisesRegex(ValueError, "closed"):
                    self.near.recv_note(60)
                ended.append(time.monotonic())

            ended = []
            threads = [threading.Thread(target=wait) for _ in range(2)]
            for thread in threads:
                thread.start()
            time.sleep(0.05)
            start = time.monotonic()
            self.near.close()
            for thread in threads:
                thread.join(50)
        self.assertEqual(len(ended), 2)
        self.assertLess(max(ended) - start, 20)

    def test_a_deadline_that_has_passed(self):
        with self.assertRaises(TimeoutError):
            self.near.send(1, b"nobody asked for this").wait(-0.001)

    def test_waits_can_be_interrupted(self):
        def interrupt(*_):
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            for wait in (self.near.recv_note, self.near.send(1, b"x").wait):
                signal.setitimer(signal.ITIMER_REAL, 0.05)
                with self.assertRaises(KeyboardInterrupt):
                    wait()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def test_seconds_that_are_no_number(self):
        for seconds in ("1", [], 1j):
            with self.assertRaisesRegex((TypeError, ValueError), "seconds"):
                self.near.recv_note(seconds)
        with self.assertRaisesRegex(ValueError, "seconds"):
            self.listener.accept(float("nan"))

    def test_a_fork_leaves_the_parent_its_connection(self):
        child = os.fork()
        if child == 0:
            try:
                self.near.stats()
            except ValueError:
                self.near = self.far = self.listener = None  # collected: must not hang up
                os._exit(0)
            os._exit(1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        into = bytearray(1000)
        received = self.far.recv(1, into)
        self.near.send(1, b"y" * 1000).wait(60)
        received.wait(60)
        self.assertEqual(into, b"y" * 1000)

    def test_nothing_sent(self):
        with self.assertRaises(TimeoutError):
            self.far.recv(9, bytearray(8)).wait(0.05)

    def test_bad_calls(self):
        with self.assertRaises(ValueError):
            self.far.recv(1, b"read-only")
        with self.assertRaises(ValueError):
            self.near.send(1, b"x", dtype="bfloat16")
        for tag in (1 << 64, -1):
            with self.assertRaisesRegex(ValueError, "64 bits"):
                self.near.send(tag, b"x")
        with self.assertRaisesRegex(TypeError, "64 bits"):
            self.near.send(1.0, b"x")
        self.near.close()
        with self.assertRaises(ValueError):
            self.near.send(1, b"x")

    def test_tokens_are_taken_whole_or_not_at_all(self):
        for token in (b"\0secretsecretsecret", "1234567812345678\0secret"):
            with self.assertRaises(ValueError):
                snug.wire.listen("127.0.0.1:0", token=token)
        with self.assertRaises(TypeError):
            snug.wire.connect("127.0.0.1:1", token=5)
        for token in ("x" * 15, "x" * 4096):
            with self.assertRaisesRegex(snug.SnugError, "16 to 4095"):
                snug.wire.listen("127.0.0.1:0", token=token)
            with mock.patch.dict(os.environ, SNUG_TOKEN=token):
                with self.assertRaisesRegex(snug.SnugError, "16 to 4095"):
                    snug.wire.listen("127.0.0.1:0")

    def test_the_environment_may_give_the_token(self):
        with mock.patch.dict(os.environ, SNUG_TOKEN="a long enough secret"):
            near = snug.wire.connect(self.listener.address)
            self.listener.accept(10).close()
            near.close()

    def test_addresses_are_taken_whole(self):
        with self.assertRaises(ValueError):
            snug.wire.listen("127.0.0.1:0\0x")

    def test_gpu_and_cpu_memory_do_not_mix(self):
        class Device:
            type = "cuda"

        class Tensor:  # all that is looked at before torch is needed
            device = Device()
            data_ptr = None

        for mixture in ([Tensor(), b"x"], [b"x", Tensor()], (bytearray(1), Tensor())):
            with self.assertRaisesRegex(ValueError, "one GPU"):
                self.near.send(1, mixture)
            with self.assertRaisesRegex(ValueError, "one GPU"):
                self.far.recv(1, mixture)

    def test_wrong_token(self):
        waiting = threading.Thread(target=lambda: self._refused())
        waiting.start()
        with self.assertRaises(snug.SnugError):
            snug.wire.connect(self.listener.address, token="another long secret", timeout=5)
        waiting.join()

    def _refused(self):
        try:
            self.listener.accept(1)
        except snug.SnugError:
            pass


class Options(unittest.TestCase):
    def test_numbers_that_c_would_cut(self):
        for name, value in (("lanes", (1 << 32) + 1), ("lanes", -1), ("lanes", 17),
                            ("chunk_bytes", (1 << 64) + (1 << 20)), ("chunk_bytes", 0),
                            ("timeout", -1), ("timeout", 0), ("timeout", float("inf")),
                            ("timeout", float("nan")), ("timeout", 1e300)):
            with self.subTest(name=name, value=value), self.assertRaisesRegex(ValueError, name):
                snug.wire.listen("127.0.0.1:0", **{name: value})
        for name, value in (("lanes", 2.0), ("chunk_bytes", "1 MiB"), ("timeout", "30"),
                            ("timeout", None)):
            with self.subTest(name=name, value=value), self.assertRaisesRegex(TypeError, name):
                snug.wire.connect("127.0.0.1:1", **{name: value})


class Interrupts(unittest.TestCase):
    """Ctrl-C ends every wait at once, not after its timeout."""

    def setUp(self):
        def interrupt(*_):
            raise KeyboardInterrupt

        self.before = signal.signal(signal.SIGALRM, interrupt)

    def tearDown(self):
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self.before)

    def assert_interrupted(self, call):
        start = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with self.assertRaises(KeyboardInterrupt):
            call()
        self.assertLess(time.monotonic() - start, 10)  # of 300 s

    def test_connecting(self):
        with socket.socket() as silent:  # accepts, and says nothing
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            address = "127.0.0.1:%d" % silent.getsockname()[1]
            self.assert_interrupted(lambda: snug.wire.connect(address, timeout=300))
            with silent.accept()[0] as peer:  # the attempt ends too, and hangs up
                peer.settimeout(10)
                while peer.recv(4096):
                    pass

    def test_accepting(self):
        with snug.wire.listen() as listener:
            self.assert_interrupted(lambda: listener.accept(300))

    def test_connecting_still_works(self):
        with snug.wire.listen() as listener, snug.wire.connect(listener.address) as near:
            with listener.accept() as far:
                near.send_note("hello")
                self.assertEqual(far.recv_note(60), b"hello")


class Addresses(unittest.TestCase):
    def test_errors_say_what_to_do(self):
        with self.assertRaisesRegex(snug.SnugError, "HOST:PORT"):
            snug.wire.connect("nowhere")
        with self.assertRaisesRegex(TypeError, "an address is a str"):
            snug.wire.connect(7000)
        with self.assertRaises(snug.SnugError):
            snug.wire.listen("0.0.0.0:0")  # not loopback, and no token


if __name__ == "__main__":
    unittest.main()
