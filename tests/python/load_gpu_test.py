"""Checkpoints straight to a GPU: the same tensors as in CPU memory, and none from damaged files."""

import random
import sys
import unittest

try:
    import torch
    if not torch.cuda.is_available():
        raise ImportError("no GPU")
except ImportError as error:
    print(f"skipped: needs torch and a GPU ({error})")
    sys.exit(77)

import snug
import snug.torch
from checkpoint_files import Folder, bf16, compress, write_plain
from snug.reader import Reader
from snug.torch.gpu_loader import GpuLoader, shared_loader

PIECES = (64 << 10, 0)  # bytes


def bits(tensor):
    """Its bytes: some dtypes have no comparison."""
    return tensor.contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8).cpu()


class LoadGpu(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Folder()
        rng, root = random.Random(3), cls.folder.root
        # Tails of less than a block, of less than an element, and several pieces.
        big = {"large": ("BF16", [700, 1000], bf16(rng, 700_000)),
               "bytes": ("U8", [300_001], rng.randbytes(300_001)),
               "F32": ("F32", [513, 257], rng.randbytes(513 * 257 * 4)),
               "zeros": ("F16", [400, 400], bytes(320_000))}
        write_plain(root / "big.safetensors", big)
        compress(root / "big.safetensors", root / "big.snug.safetensors")

    @classmethod
    def tearDownClass(cls):
        cls.folder.close()

    def names(self, path):
        """Of the tensors that torch has a dtype for."""
        with snug.safe_open(path, "pt") as file:
            return [name for name in file.keys()
                    if not file.get_slice(name).get_dtype().startswith("F6")]

    def test_tensors_and_slices(self):
        root = self.folder.root
        for path in (root / "plain", root / "compressed", root / "big.safetensors",
                     root / "big.snug.safetensors"):
            with snug.safe_open(path, "pt") as cpu, snug.safe_open(path, "pt", "cuda") as gpu:
                for name in self.names(path):
                    ours, expected = gpu.get_tensor(name), cpu.get_tensor(name)
                    self.assertEqual((ours.device.type, ours.dtype, ours.shape),
                                     ("cuda", expected.dtype, expected.shape))
                    self.assertTrue(torch.equal(bits(ours), bits(expected)), (path, name))
                    self.assertTrue(torch.equal(bits(gpu.get_slice(name)[...]), bits(expected)))
                    if expected.dim() == 2 and len(expected) > 9:
                        part = gpu.get_slice(name)[3:9]
                        self.assertTrue(torch.equal(bits(part), bits(expected[3:9])))

    def test_load_file(self):
        for name in ("big.safetensors", "big.snug.safetensors"):
            ours = snug.torch.load_file(self.folder.root / name, device="cuda")
            for key, tensor in snug.torch.load_file(self.folder.root / name).items():
                self.assertTrue(torch.equal(bits(ours[key]), bits(tensor)), key)

    def test_pieces_and_threads(self):
        with Reader(self.folder.root / "big.snug.safetensors") as reader:
            expected = {name: reader.read(name) for name in reader.keys()}
            for threads in (1, 3, 16):
                for piece_bytes in PIECES:
                    loader = GpuLoader("cuda", threads, piece_bytes)
                    for _ in range(3):  # slots are used again
                        tensors = {name: torch.zeros(len(data), dtype=torch.uint8, device="cuda")
                                   for name, data in expected.items()}
                        loader.load(reader, tensors)
                        for name, data in expected.items():
                            self.assertEqual(tensors[name].cpu().numpy().tobytes(), data, name)

    def test_files_of_a_device_share_a_loader(self):
        device = torch.device("cuda", torch.cuda.current_device())
        files = [snug.safe_open(self.folder.root / name, "pt", "cuda")
                 for name in ("big.safetensors", "big.snug.safetensors")]
        for file in files:
            file.get_tensor("large")
        self.assertIs(shared_loader(device), files[0]._arrays._gpu)
        self.assertIs(shared_loader(device), files[1]._arrays._gpu)

    def test_damaged_files(self):
        path, rng, refused = self.folder.root / "damaged.safetensors", random.Random(5), 0
        content = (self.folder.root / "big.snug.safetensors").read_bytes()
        right = {name: bits(tensor) for name, tensor in
                 snug.torch.load_file(self.folder.root / "big.safetensors").items()}
        for _ in range(60):
            data = bytearray(content)
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            path.write_bytes(data)
            try:
                tensors = snug.torch.load_file(path, device="cuda")
            except snug.SnugError as error:
                refused += 1
                self.assertIn("damaged.safetensors", str(error))
                continue
            for name, tensor in tensors.items():
                self.assertTrue(torch.equal(bits(tensor), right[name]), name)
        self.assertGreater(refused, 40)
        path.write_bytes(content)  # the GPU works as before
        self.assertEqual(len(snug.torch.load_file(path, device="cuda")), len(right))

    def test_wrong_memory(self):
        with Reader(self.folder.root / "big.safetensors") as reader:
            with self.assertRaisesRegex(ValueError, "large has"):
                GpuLoader("cuda").load(reader, {"large": torch.zeros(8, device="cuda")})
            with self.assertRaisesRegex(ValueError, "large is on cpu"):
                memory = torch.zeros(reader.info("large").raw_bytes, dtype=torch.uint8)
                GpuLoader("cuda").load(reader, {"large": memory})
        with self.assertRaisesRegex(snug.SnugError, "64 KiB"):
            GpuLoader("cuda", piece_bytes=3)


if __name__ == "__main__":
    unittest.main()
