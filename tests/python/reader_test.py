"""snug.Reader on plain and compressed files."""

import array
import copy
import json
import os
import pickle
import random
import struct
import subprocess
import tempfile
import threading
import unittest
from pathlib import Path

import snug

DATA = Path(os.environ.get("SNUG_TEST_DATA", Path(__file__).resolve().parents[1] / "data"))
CLI = os.environ.get("SNUG_CLI", "")


def bf16_gaussian(count):
    rng = random.Random(1)
    return b"".join(struct.pack("<f", rng.gauss(0, 0.02))[2:] for _ in range(count))


def write_safetensors(path, tensors, metadata):
    header, data = {"__metadata__": metadata}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


class Files(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.tensors = {
            "weights": ("BF16", [300, 128], bf16_gaussian(300 * 128)),
            "größe": ("F32", [5], array.array("f", range(5)).tobytes()),
            "one number": ("I64", [], struct.pack("<q", -7)),
            "nothing": ("F16", [0, 4], b""),
        }
        plain = Path(cls.folder.name, "x.safetensors")
        write_safetensors(plain, cls.tensors, {"format": "pt", "author": "nobody"})
        cls.paths = [plain]
        if os.access(CLI, os.X_OK):
            subprocess.run([CLI, "compress", plain], check=True, stdout=subprocess.DEVNULL)
            cls.paths.append(Path(cls.folder.name, "x.snug.safetensors"))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def readers(self):
        for path in self.paths:
            with self.subTest(path=path.name), snug.Reader(path) as reader:
                yield reader

    def test_lists_tensors_and_metadata(self):
        for reader in self.readers():
            self.assertEqual(set(reader.keys()), set(self.tensors))
            self.assertEqual(reader.metadata, {"format": "pt", "author": "nobody"})
            self.assertEqual(reader.raw_bytes, self.paths[0].stat().st_size)
            for name, (dtype, shape, raw) in self.tensors.items():
                info = reader.info(name)
                self.assertEqual((info.dtype, list(info.shape), info.raw_bytes),
                                 (dtype, shape, len(raw)))
            self.assertIn("weights", reader)
            self.assertNotIn("__snug__.header", reader)

    def test_compressed_tensors_are_smaller(self):
        for reader, path in zip(self.readers(), self.paths):
            info = reader.info("weights")
            self.assertEqual(reader.compressed, path.name == "x.snug.safetensors")
            self.assertEqual(reader.compressed, info.stored_bytes < 0.75 * info.raw_bytes)

    def test_reads_whole_tensors(self):
        for reader in self.readers():
            for name, (_, _, raw) in self.tensors.items():
                self.assertEqual(reader.read(name), raw)
                self.assertEqual(reader.read(name, threads=2), raw)
                into = bytearray(len(raw))
                self.assertIs(reader.read(name, into=into), into)
                self.assertEqual(into, raw)

    def test_reads_rows(self):
        raw = self.tensors["weights"][2]
        for reader in self.readers():
            for first, last in ((0, 300), (0, 1), (299, 300), (17, 203), (5, 5)):
                self.assertEqual(reader.rows("weights", first, last), raw[256 * first:256 * last])
            into = memoryview(bytearray(512))
            reader.rows("weights", 10, 12, into=into)
            self.assertEqual(into, raw[2560:3072])
            self.assertEqual(reader.rows("one number", 0, 1), struct.pack("<q", -7))
            self.assertEqual(reader.rows("nothing", 0, 0), b"")

    def test_reads_bytes(self):
        raw = self.tensors["weights"][2]
        for reader in self.readers():
            end = len(raw)
            for first, last in ((0, end), (0, 1), (77, 1001), (end - 3, end), (5, 5)):
                self.assertEqual(reader.bytes("weights", first, last), raw[first:last])
            into = bytearray(10)
            self.assertIs(reader.bytes("weights", 90, 100, into=into), into)
            self.assertEqual(into, raw[90:100])
            for first, last in ((-1, 2), (2, 1), (0, len(raw) + 1)):
                with self.assertRaisesRegex(ValueError, f"{len(raw)} bytes"):
                    reader.bytes("weights", first, last)

    def test_bad_calls(self):
        for reader in self.readers():
            with self.assertRaises(KeyError):
                reader.read("no such tensor")
            for first, last in ((-1, 2), (2, 1), (0, 301), (1 << 70, 1 << 71)):
                with self.assertRaisesRegex(ValueError, "300 rows"):
                    reader.rows("weights", first, last)
            for first, last in ((0, 1.0), (0.5, 2), ("0", 1), (None, 1)):
                with self.assertRaisesRegex(TypeError, "whole number"):
                    reader.rows("weights", first, last)
            for threads in (-1, (1 << 32) + 1):
                with self.assertRaisesRegex(ValueError, "threads"):
                    reader.read("weights", threads=threads)
            with self.assertRaisesRegex(ValueError, "bytes"):
                reader.read("weights", into=bytearray(5))
            with self.assertRaisesRegex(ValueError, "writable"):
                reader.read("weights", into=bytes(300 * 128 * 2))

    def test_one_reader_serves_many_threads(self):
        for reader in self.readers():
            wrong = []

            def work():
                for _ in range(20):
                    if reader.read("weights") != self.tensors["weights"][2]:
                        wrong.append(1)

            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(wrong, [])

    def test_a_forked_child_reads_too(self):
        for reader in self.readers():
            child = os.fork()
            if child == 0:
                os._exit(0 if reader.read("weights") == self.tensors["weights"][2] else 1)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            self.assertEqual(reader.read("weights"), self.tensors["weights"][2])

    def test_closed(self):
        reader = snug.Reader(self.paths[0])
        reader.close()
        reader.close()
        with self.assertRaisesRegex(ValueError, "closed"):
            reader.read("weights")

    def test_damage_names_file_and_tensor(self):
        data = bytearray(self.paths[-1].read_bytes())
        data[len(data) // 2] ^= 1  # within the weights
        damaged = Path(self.folder.name, "damaged.safetensors")
        damaged.write_bytes(data)
        if len(self.paths) == 1:
            self.skipTest("no snug tool: plain files have no checksums")
        with snug.Reader(damaged) as reader:
            with self.assertRaisesRegex(snug.SnugError, "damaged.safetensors.*weights") as caught:
                reader.read("weights")
        self.assertEqual(caught.exception.code, 5)


class Opening(unittest.TestCase):
    def test_files_of_older_versions(self):
        with snug.Reader(DATA / "compressed_v1.safetensors") as reader:
            self.assertTrue(reader.compressed)
            self.assertEqual(reader.info("w").shape, (40, 30))
            whole = reader.read("w")
            self.assertEqual(reader.rows("w", 3, 9), whole[180:540])

    def test_copies_are_refused(self):
        with snug.Reader(DATA / "sample.safetensors") as reader:
            for make in (copy.copy, copy.deepcopy, pickle.dumps):
                with self.assertRaisesRegex(TypeError, "cannot be copied"):
                    make(reader)

    def test_metadata_with_nul(self):
        entries = {"a\0b": "c\0d", "": "", "a": "\0", "ends": "here\0"}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "x.safetensors")
            write_safetensors(path, {"w": ("U8", [1], b"x")}, entries)
            with snug.Reader(path) as reader:
                self.assertEqual(reader.metadata, entries)

    def test_real_weights(self):
        with snug.Reader(str(DATA / "sample.safetensors")) as reader:
            raw = reader.read("model.embed_tokens.weight")
            self.assertEqual(snug.decompress(snug.compress(raw, dtype="bf16")), raw)

    def test_files_that_cannot_be_opened(self):
        with self.assertRaisesRegex(snug.SnugError, "no/such.safetensors") as caught:
            snug.Reader("no/such.safetensors")
        self.assertEqual(caught.exception.code, 9)
        with self.assertRaises(snug.SnugError):
            snug.Reader(__file__)
        with self.assertRaises(ValueError):
            snug.Reader("a\0b")


if __name__ == "__main__":
    unittest.main()
