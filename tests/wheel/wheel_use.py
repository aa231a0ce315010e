"""wheel_use.py alone|numpy|torch: uses an installed snug-llm in an environment with just that."""

import importlib
import importlib.metadata
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import snug

STAGE = sys.argv.pop()
PACKAGE = Path(snug.__file__).parent
ROWS, COLUMNS = 96, 1024


def bf16_values():
    """Bytes like those of trained weights: few exponents, random mantissas."""
    state, values = 1, bytearray()
    for _ in range(ROWS * COLUMNS):
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        values += bytes([state >> 56, 0x3C + (state >> 40 & 3 == 0)])
    return bytes(values)


def write_safetensors(path, values):
    header = json.dumps({"__metadata__": {"format": "pt"}, "weight": {
        "dtype": "BF16", "shape": [ROWS, COLUMNS], "data_offsets": [0, len(values)]}}).encode()
    header += b" " * (-len(header) % 8)
    path.write_bytes(struct.pack("<Q", len(header)) + header + values)


def dynamic_tags(elf):
    """The tags of the dynamic section of a 64-bit ELF file."""
    first, size, count = struct.unpack_from("<Q14x2H", elf, 32)  # of the program headers
    tags = []
    for at in range(first, first + count * size, size):
        kind, offset, num_bytes = struct.unpack_from("<I4xQ16xQ", elf, at)
        if kind == 2:  # PT_DYNAMIC
            tags += [tag for tag, _ in struct.iter_unpack("<2Q", elf[offset:offset + num_bytes])]
    return tags


class Wheel(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.values = bf16_values()
        self.plain = self.folder / "model.safetensors"
        write_safetensors(self.plain, self.values)

    def tool(self, *arguments, code=0):
        result = subprocess.run(["snug", *map(str, arguments)], capture_output=True, text=True)
        self.assertEqual(result.returncode, code, result.stderr)
        return result.stdout + result.stderr

    def compressed(self):
        path = self.folder / "model.snug.safetensors"
        if not path.exists():
            self.tool("compress", self.plain, path)
        return path

    def test_nothing_else_is_needed(self):
        self.assertIsNone(shutil.which("gcc") or shutil.which("c++"), "a compiler is on PATH")
        self.assertIn("site-packages", str(PACKAGE))
        self.assertEqual(Path(snug._library.library._name).parent, PACKAGE)
        metadata = importlib.metadata.metadata("snug-llm")
        self.assertEqual(metadata["Version"], snug.__version__)
        self.assertEqual(set(metadata.get_all("Provides-Extra")),
                         {"torch", "transformers", "vllm", "sglang"})
        required = importlib.metadata.requires("snug-llm")
        self.assertTrue(all("extra ==" in line for line in required), required)
        self.assertTrue((PACKAGE / "libnccl-net-snug.so").exists())
        # The plugin looks for its GPU workers beside itself.
        self.assertEqual((PACKAGE / "libnccl-snug-workers.so").exists(),
                         (PACKAGE / "libsnug_cuda.so").exists())

    def test_libraries_are_searched_in_no_other_folder(self):
        """An empty entry of an RPATH, for one, is the current directory."""
        num_checked = 0
        for path in importlib.metadata.files("snug-llm"):
            data = path.locate().read_bytes()
            if data[:4] == b"\x7fELF":
                num_checked += 1
                for tag in 15, 29:  # DT_RPATH, DT_RUNPATH
                    self.assertNotIn(tag, dynamic_tags(data), path)
        self.assertGreaterEqual(num_checked, 3)  # library, tool, NCCL plugin

    def test_bytes(self):
        frame = snug.compress(self.values, dtype="bf16")
        self.assertLess(len(frame), 0.75 * len(self.values))
        self.assertEqual(snug.decompress(frame), self.values)

    def test_tool(self):
        self.assertTrue(self.tool("--version").startswith(f"snug {snug.__version__} "))
        restored = self.folder / "restored.safetensors"
        self.tool("decompress", self.compressed(), restored)
        self.assertEqual(restored.read_bytes(), self.plain.read_bytes())
        self.assertLess(self.compressed().stat().st_size, 0.75 * self.plain.stat().st_size)

    def test_reader(self):
        with snug.Reader(str(self.compressed())) as reader:
            self.assertEqual(reader.read("weight"), self.values)
            self.assertEqual(reader.rows("weight", 3, 5),
                             self.values[3 * 2 * COLUMNS:5 * 2 * COLUMNS])

    def test_a_truncated_file(self):
        path = self.folder / "short.safetensors"
        path.write_bytes(self.compressed().read_bytes()[:-1000])
        with self.assertRaises(snug.SnugError):
            snug.Reader(str(path)).read("weight")
        self.assertIn("short.safetensors", self.tool("verify", path, code=5))

    def test_a_missing_file(self):
        with self.assertRaises(FileNotFoundError):
            snug.Reader(str(self.folder / "nothing.safetensors"))

    def test_the_gpu_part(self):
        library = snug._library
        if (PACKAGE / "libsnug_cuda.so").exists():
            self.assertEqual(library.has_cuda, library._driver_problem() is None, library.no_cuda)
            open_it = "import ctypes; ctypes.CDLL(%r).snug_cuda_encode"  # needs no driver
            subprocess.run([sys.executable, "-c", open_it % str(PACKAGE / "libsnug_cuda.so")],
                           check=True)
        if not library.has_cuda:
            print(f"no GPU: {library.no_cuda}")

    def test_gpu_library_on_the_cpu(self):
        if not (PACKAGE / "libsnug_cuda.so").exists():
            self.skipTest("the wheel has no GPU part")
        code = "import snug, sys; sys.stdout.buffer.write(snug.compress(bytes(100000), 'bf16'))"
        variables = {**os.environ, "SNUG_LIBRARY": str(PACKAGE / "libsnug_cuda.so")}
        frame = subprocess.run([sys.executable, "-c", code], env=variables, check=True,
                               capture_output=True).stdout
        self.assertEqual(frame, snug.compress(bytes(100000), "bf16"))

    @unittest.skipUnless(STAGE == "alone", "for the environment without numpy and torch")
    def test_alone(self):
        for framework in "np", "pt":
            with self.assertRaisesRegex(ImportError, "pip install"):
                snug.safe_open(str(self.compressed()), framework=framework)
        with self.assertRaisesRegex(ImportError, r"pip install 'snug-llm\[torch\]'"):
            importlib.import_module("snug.torch")

    @unittest.skipUnless(STAGE == "numpy", "for the environment with numpy")
    def test_numpy(self):
        with snug.safe_open(str(self.compressed()), framework="np") as file:
            self.assertEqual(file.get_tensor("weight").tobytes(), self.values)
            part = file.get_slice("weight")[2:4, 8:16]
        self.assertEqual(part.tobytes(), b"".join(
            self.values[(row * COLUMNS + 8) * 2:(row * COLUMNS + 16) * 2] for row in (2, 3)))
        snug.save_file({"a": part}, str(self.folder / "a.safetensors"))
        loaded = snug.load_file(str(self.folder / "a.safetensors"), framework="np")
        self.assertEqual(loaded["a"].tobytes(), part.tobytes())

    @unittest.skipUnless(STAGE == "torch", "for the environment with torch")
    def test_torch(self):
        import torch
        snug_torch = importlib.import_module("snug.torch")
        tensor = snug_torch.load_file(str(self.compressed()))["weight"]
        self.assertEqual(tensor.view(torch.uint8).numpy().tobytes(), self.values)
        frame = snug_torch.compress(tensor)
        self.assertTrue(torch.equal(snug_torch.decompress(frame, tensor.shape), tensor))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]])
