"""snug.save_file: what is restored from its files is what safetensors writes."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import snug
from checkpoint_files import module, needs, raw_of
from snug._arrays import DTYPES

CLI = os.environ.get("SNUG_CLI", "")
saving = sys.modules["snug.saving"]


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        self.path = self.root / "x.snug.safetensors"

    def check_same_file(self, save, theirs, ours=None, metadata=None):
        """Restores what snug.save_file wrote, and compares it with safetensors' file."""
        if not os.access(CLI, os.X_OK):
            self.skipTest("no snug tool")
        expected, restored = self.root / "theirs", self.root / "restored"
        save(theirs, expected, metadata=metadata)
        for limit in (saving._MAX_IN_MEMORY, 0):  # by way of memory, by way of the folder
            with mock.patch.object(saving, "_MAX_IN_MEMORY", limit):
                snug.save_file(theirs if ours is None else ours, self.path, metadata)
            subprocess.run([CLI, "decompress", "--force", self.path, restored], check=True,
                           stdout=subprocess.DEVNULL)
            self.assertEqual(restored.read_bytes(), expected.read_bytes())
            self.assertEqual({file.name for file in self.root.iterdir()},
                             {"theirs", "restored", self.path.name})


@needs("numpy", "ml_dtypes")
class Numpy(Case):
    def arrays(self):
        """One of every dtype that numpy has, in no order, with names of every kind."""
        import ml_dtypes
        import numpy
        rng = numpy.random.default_rng(3)
        arrays = {}
        for dtype, name in sorted(DTYPES.items(), key=lambda entry: entry[1][::-1]):
            if dtype == "F4":
                continue
            own = numpy.dtype(getattr(ml_dtypes, name, name))
            for i, shape in enumerate(((5, 7), (), (0, 3), (3, 1, 2))):
                raw = rng.integers(0, 2, 8 * 35, numpy.uint8)
                arrays[f"{i}.{dtype}.ä\n\"\\\x01\u2028😀"] = \
                    raw.view(own)[:int(numpy.prod(shape))].reshape(shape)
        return arrays

    @needs("safetensors")
    def test_same_file_as_safetensors(self):
        save = module("safetensors.numpy").save_file
        arrays = self.arrays()
        for metadata in (None, {}, {"format": "np\n"}):
            self.check_same_file(save, arrays, metadata=metadata)
        self.check_same_file(save, {})

    @needs("safetensors")
    def test_memory_in_other_orders(self):
        import numpy
        square = numpy.arange(12.0, dtype=numpy.float32).reshape(3, 4)
        views = {"t": square.T, "step": square[:, ::2], "back": square[::-1],
                 "big": square.astype(">f4"), "wide": numpy.broadcast_to(square[0], (2, 4))}
        dense = {name: numpy.array(view, "<f4", order="C") for name, view in views.items()}
        self.check_same_file(module("safetensors.numpy").save_file, dense, views)

    def test_round_trip(self):
        arrays = self.arrays()
        for codec in ("entropy", "fixed", "raw"):
            snug.save_file(arrays, self.path, {"b": "1", "a": "2"}, codec=codec)  # replaces
            loaded = snug.load_file(self.path)
            self.assertEqual(set(loaded), set(arrays))
            for name, array in arrays.items():
                self.assertEqual(raw_of(loaded[name]), raw_of(array))
            with snug.safe_open(self.path, "np") as file:
                self.assertEqual(file.metadata(), {"a": "2", "b": "1"})
        equal = self.path.read_bytes()
        snug.save_file(dict(reversed(arrays.items())), self.path, {"a": "2", "b": "1"}, "raw")
        self.assertEqual(self.path.read_bytes(), equal)

    def test_refused(self):
        import ml_dtypes
        import numpy
        ones = numpy.ones(3)
        self.path.write_text("old")
        for tensors, metadata, error, message in (
                ([ones], None, ValueError, "a dict"), ({1: ones}, None, TypeError, "str"),
                ({"x": [1]}, None, ValueError, "numpy array or a torch tensor, not list"),
                ({"x": ones.astype(complex)}, None, ValueError, "no dtype complex128"),
                ({"x": numpy.array(["a"])}, None, ValueError, "no dtype str"),
                ({"x": numpy.ones(2, ml_dtypes.float4_e2m1fn)}, None, ValueError, "float4_e2m1fn;"),
                ({"__metadata__": ones}, None, ValueError, "__metadata__"),
                ({"\udc80": ones}, None, ValueError, "surrogates"),
                ({"x": ones}, {"a": 1}, TypeError, "str to str"),
                ({"x": ones}, "a", TypeError, "str to str"),
                ({"__snug__.x": ones}, None, ValueError, "__snug__.x is reserved"),
                ({"x": ones}, {"snug.x": ""}, ValueError, "reserved")):
            with self.assertRaisesRegex(error, message):
                snug.save_file(tensors, self.path, metadata)
        with self.assertRaisesRegex(ValueError, "codec"):
            snug.save_file({}, self.path, codec="none")
        with self.assertRaisesRegex(IsADirectoryError, "name of a file"):
            snug.save_file({}, self.root)
        for limit in (saving._MAX_IN_MEMORY, 0):
            with mock.patch.object(saving, "_MAX_IN_MEMORY", limit), \
                    self.assertRaises(FileNotFoundError):
                snug.save_file({}, self.root / "none" / "x")
        self.assertEqual(self.path.read_text(), "old")
        self.assertEqual(list(self.root.iterdir()), [self.path])

    def test_permissions_are_those_of_new_files(self):
        before = os.umask(0o027)
        try:
            snug.save_file({}, self.path)
        finally:
            os.umask(before)
        self.assertEqual(self.path.stat().st_mode & 0o777, 0o640)

    def test_ctrl_c_leaves_nothing(self):
        import numpy
        large = numpy.random.default_rng(1).normal(size=6_000_000).astype(numpy.float32)
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            with self.assertRaises(KeyboardInterrupt):
                for _ in range(1000):
                    snug.save_file({"x": large}, self.path)
                    self.path.unlink()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        self.assertLessEqual(set(self.root.iterdir()), {self.path})  # done just before, or nothing


@needs("torch")
class Torch(Case):
    def tensors(self):
        import torch
        rng, tensors = random.Random(4), {}
        for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32",
                     "uint64", "float16", "bfloat16", "float32", "float64", "complex64",
                     "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float8_e4m3fnuz",
                     "float8_e5m2fnuz", "float4_e2m1fn_x2"):
            dtype = getattr(torch, name, None)
            if dtype is not None:
                for i, shape in enumerate(((3, 8), (0, 2), (2, 1, 4))):
                    raw = torch.randint(0, 2, (24 * dtype.itemsize,), dtype=torch.uint8)
                    count = torch.Size(shape).numel()
                    tensors[f"{rng.random()}.{i}"] = raw.view(dtype)[:count].clone().view(shape) \
                        if "x2" not in name else raw[:count].clone().view(shape).view(dtype)
        tensors["number"] = torch.tensor(3.0)
        tensors["parameter"] = torch.nn.Parameter(torch.ones(3))
        return tensors

    @needs("safetensors")
    def test_same_file_as_safetensors(self):
        self.check_same_file(module("safetensors.torch").save_file, self.tensors(),
                             metadata={"format": "pt"})

    @needs("safetensors")
    def test_memory_in_other_orders(self):
        import torch
        square = torch.arange(12.0).reshape(3, 4)
        views = {"t": square.clone().T, "step": square.clone()[:, ::2],
                 "wide": square[0].clone().expand(2, 4),
                 "conj": torch.complex(square, square).conj()}
        dense = {name: view.resolve_conj().clone(memory_format=torch.contiguous_format)
                 for name, view in views.items()}
        self.check_same_file(module("safetensors.torch").save_file, dense, views)
        halves = {"a": square[:1], "b": square[1:]}  # of one storage, without common memory
        self.check_same_file(module("safetensors.torch").save_file, halves)

    def test_round_trip(self):
        import snug.torch
        tensors = self.tensors()
        snug.torch.save_file(tensors, self.path, codec="fixed")
        loaded = snug.torch.load_file(self.path, device="cpu")
        self.assertEqual(set(loaded), set(tensors))
        for name, tensor in tensors.items():
            self.assertEqual(raw_of(loaded[name]), raw_of(tensor.detach()))

    def test_refused(self):
        import snug.torch
        import torch
        x = torch.ones(4, 4)
        for tensors, error, message in (
                ({"a": x, "b": x}, RuntimeError, "a and b share memory.*tied"),
                ({"a": x, "b": x[1:]}, RuntimeError, "share memory"),
                ({"a": x[:, :2], "b": x[:, 2:]}, RuntimeError, r"share memory.*clone\(\)"),
                ({"a": x.to_sparse()}, ValueError, "a is sparse"),
                ({"a": x.to("meta")}, ValueError, "meta"),
                ({"a": x.to(torch.complex128)}, ValueError, "complex128"),
                ({"a": 3}, ValueError, "a: expected a torch tensor"),
                ([x], ValueError, "a dict")):
            with self.assertRaisesRegex(error, message):
                snug.torch.save_file(tensors, self.path)
        self.assertEqual(list(self.root.iterdir()), [])


if __name__ == "__main__":
    unittest.main()
