"""The Python package over the C ABI: round trips, errors, hostile frames."""

import array
import os
import random
import struct
import unittest

import snug


def bf16_gaussian(count, seed=1):
    rng = random.Random(seed)
    return b"".join(struct.pack("<f", rng.gauss(0, 0.02))[2:] for _ in range(count))


class Codec(unittest.TestCase):
    def test_round_trips(self):
        data = bf16_gaussian(20000)
        for codec in ("entropy", "fixed", "raw"):
            frame = snug.compress(data, dtype="bf16", codec=codec)
            self.assertEqual(snug.decompress(frame), data)
            snug.verify(frame)
        self.assertLess(len(snug.compress(data, dtype="bf16")), 0.70 * len(data))

    def test_every_bf16_pattern(self):
        data = array.array("H", range(65536)).tobytes()
        self.assertEqual(snug.decompress(snug.compress(data, dtype="bf16")), data)

    def test_takes_any_buffer_and_size(self):
        for source in (b"", b"x", bytearray(b"abc"), memoryview(b"abcdefg"), array.array("d", [1.5, -0.0])):
            self.assertEqual(snug.decompress(snug.compress(source)), bytes(memoryview(source).cast("B")))

    def test_inspect(self):
        info = snug.inspect(snug.compress(bytes(2000), dtype="f32"))
        self.assertEqual((info.dtype, info.raw_bytes, info.num_elems), ("f32", 2000, 500))

    def test_damage_is_reported(self):
        frame = bytearray(snug.compress(bf16_gaussian(5000), dtype="bf16"))
        frame[len(frame) // 2] ^= 1
        with self.assertRaises(snug.SnugError) as caught:
            snug.decompress(frame)
        self.assertEqual(caught.exception.code, 5)
        self.assertIn("corrupt", str(caught.exception))
        for length in (0, 1, 63, 64, len(frame) - 1):
            with self.assertRaises(snug.SnugError):
                snug.decompress(bytes(frame[:length]))

    def test_random_bytes_are_no_frame(self):
        with self.assertRaises(snug.SnugError):
            snug.inspect(os.urandom(4096))

    def test_limits(self):
        frame = snug.compress(bytes(1000))
        with self.assertRaises(ValueError):
            snug.decompress(frame, max_bytes=999)
        self.assertEqual(len(snug.decompress(frame, max_bytes=1000)), 1000)

    def test_numbers_that_c_would_cut(self):
        frame = snug.compress(b"x")
        for threads in (1 << 32, (1 << 32) + 1, -1, -(1 << 31), 1 << 64):
            with self.assertRaisesRegex(ValueError, "threads must be 0 to"):
                snug.compress(b"x", threads=threads)
            with self.assertRaisesRegex(ValueError, "threads must be 0 to"):
                snug.decompress(frame, threads=threads)
        for threads in (1.0, "2", None, float("nan")):
            with self.assertRaisesRegex(TypeError, "threads must be a whole number"):
                snug.compress(b"x", threads=threads)

    def test_bad_names(self):
        with self.assertRaisesRegex(ValueError, "bf16"):
            snug.compress(b"", dtype="bfloat16")
        with self.assertRaisesRegex(ValueError, "entropy"):
            snug.compress(b"", codec="zip")
        with self.assertRaises(ValueError):
            snug.compress(memoryview(bytearray(10))[::2])


if __name__ == "__main__":
    unittest.main()
