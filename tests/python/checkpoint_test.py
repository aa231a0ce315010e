"""snug.safe_open and snug.load_file against safetensors' own.

SNUG_TEST_MODEL=FOLDER adds a model; SNUG_TEST_SLICES and SNUG_TEST_DAMAGED set how many slices and
damaged files are tried."""

import os
import random
import shutil
import sys
import unittest
from pathlib import Path

import snug
from checkpoint_files import (
    Folder, bf16, compress, mock_numpy, module, needs, random_index, raw_of, write_plain)

NUM_SLICES = int(os.environ.get("SNUG_TEST_SLICES", 60))
NUM_DAMAGED = int(os.environ.get("SNUG_TEST_DAMAGED", 150))
MODEL = os.environ.get("SNUG_TEST_MODEL")


def setUpModule():
    global folder, pairs
    folder = Folder()
    roots = [(folder.root / "plain", folder.root / "compressed")]
    if MODEL:
        copy = folder.root / "model"
        shutil.copytree(MODEL, copy)
        for file in Path(MODEL).glob("*.safetensors"):
            (copy / file.name).unlink()
            compress(file, copy / file.name)
        roots.append((Path(MODEL), copy))
    # Files of safetensors, and where Snug reads the same tensors: files and folders.
    pairs = [(file, ours) for plain, packed in roots for file in sorted(plain.glob("*.safetensors"))
             for ours in (file, plain, packed / file.name, packed)]


def tearDownModule():
    folder.close()


@needs("safetensors", "numpy", "ml_dtypes")
class Same(unittest.TestCase):
    """The same answers as safetensors', in value, dtype and shape."""

    def open_both(self, framework):
        if framework == "pt" and module("torch") is None:
            self.skipTest("no torch")
        for path, ours in pairs:
            with self.subTest(path=path.name, ours=str(ours), framework=framework), \
                    module("safetensors").safe_open(path, framework) as theirs, \
                    snug.safe_open(ours, framework) as file:
                yield theirs, file, ours.is_file()

    def readable(self, theirs, framework):
        """Names of the tensors that safetensors can read."""
        for name in theirs.keys():
            dtype = theirs.get_slice(name).get_dtype()
            if not dtype.startswith("F6") and (framework == "pt" or dtype[:2] not in ("F8", "F4")):
                yield name

    def check_tensors(self, framework):
        for theirs, file, is_file in self.open_both(framework):
            if is_file:
                self.assertEqual(file.keys(), theirs.keys())
                self.assertEqual(file.offset_keys(), theirs.offset_keys())
                self.assertEqual(file.metadata(), theirs.metadata())
            self.assertLessEqual(set(theirs.keys()), set(file.keys()))
            for name in theirs.keys():
                theirs_slice, ours_slice = theirs.get_slice(name), file.get_slice(name)
                self.assertEqual(ours_slice.get_shape(), theirs_slice.get_shape())
                self.assertEqual(ours_slice.get_dtype(), theirs_slice.get_dtype())
            names = list(self.readable(theirs, framework))
            for name in names:
                self.assertEqual(raw_of(file.get_tensor(name)), raw_of(theirs.get_tensor(name)))
            for group_bytes in (1, 100_000):
                turns = list(file.tensors_in_turn(names, group_bytes))
                self.assertEqual([name for name, _ in turns], names)
                for name, tensor in turns:
                    self.assertEqual(raw_of(tensor), raw_of(theirs.get_tensor(name)))
            twice = list(file.tensors_in_turn([names[0]] * 2))
            self.assertEqual([name for name, _ in twice], [names[0]] * 2)
            with self.assertRaisesRegex(snug.SnugError, 'no tensor "nobody"'):
                list(file.tensors_in_turn([names[0], "nobody"]))

    def check_slices(self, framework):
        rng, count = random.Random(5), 0
        for theirs, file, _ in self.open_both(framework):
            names = list(self.readable(theirs, framework))
            for _ in range(-(-NUM_SLICES // len(pairs))):
                name = rng.choice(names)
                theirs_slice, ours_slice = theirs.get_slice(name), file.get_slice(name)
                shape = ours_slice.get_shape()
                if ours_slice.get_dtype() == "F4" or 0 in shape:
                    continue
                index = random_index(rng, shape, framework)
                self.assertEqual(raw_of(ours_slice[index]), raw_of(theirs_slice[index]),
                                 (name, index))
                count += 1
        self.assertGreater(count, NUM_SLICES // 2)

    def test_numpy_tensors(self):
        self.check_tensors("np")

    def test_torch_tensors(self):
        self.check_tensors("pt")

    def test_numpy_slices(self):
        self.check_slices("np")

    def test_torch_slices(self):
        self.check_slices("pt")

    def test_torch_has_another_default_device(self):
        count = 0
        for theirs, file, _ in self.open_both("pt"):
            for name in self.readable(theirs, "pt"):
                part = file.get_slice(name)
                if part.get_dtype() == "BF16" and part.get_shape() and part.get_shape()[0] > 1:
                    with module("torch").device("meta"):
                        row = part[1:2]
                    self.assertEqual(raw_of(row), raw_of(theirs.get_slice(name)[1:2]), name)
                    count += 1
        self.assertGreater(count, 0)

    def test_load_file(self):
        theirs = module("safetensors.numpy").load_file(folder.root / "plain/model-1.safetensors")
        ours = snug.load_file(folder.root / "compressed/model-1.safetensors")
        self.assertEqual(list(ours), list(theirs))
        for name, array in theirs.items():
            self.assertEqual(raw_of(ours[name]), raw_of(array))
            self.assertTrue(ours[name].flags.writeable)


@needs("numpy")
class Slices(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        import numpy
        cls.path = folder.root / "blocks.safetensors"
        cls.numbers = numpy.arange(6 * 200 * 400, dtype=numpy.uint32).reshape(6, 200, 400)
        write_plain(folder.root / "p.safetensors",
                    {"t": ("U32", [6, 200, 400], cls.numbers.tobytes()),
                     "s": ("F32", [], b"\0\0\0\0")})
        compress(folder.root / "p.safetensors", cls.path)

    def test_more_than_safetensors_knows(self):
        import numpy
        with snug.safe_open(self.path, "np") as file:
            slice_, numbers = file.get_slice("t"), self.numbers
            for index in (numpy.s_[::-1], numpy.s_[4:1:-2, ..., ::-3], numpy.s_[None, 3, None],
                          [0, 5], numpy.s_[:, [1, 2], [3, 4]], numpy.s_[9:], numpy.s_[4:2, 7],
                          numpy.s_[2, 3, 4], numpy.s_[2, 5:1:-1], numpy.s_[5, :0], (), ...,
                          numpy.s_[2:3, 4, 100:300:7], numpy.s_[1:2, 3:5, 7], numbers > 90000,
                          numpy.int64(-2), numpy.s_[0:1, 0:200, 3]):
                part = slice_[index]
                self.assertEqual(raw_of(part), raw_of(numbers[index]), index)
                self.assertIsInstance(part, numpy.ndarray)
            for index in (6, -7, (0, 0, 0, 0), 1.5, "a"):
                with self.assertRaises(IndexError):
                    slice_[index]
            self.assertEqual(file.get_slice("s")[...].shape, ())
            self.assertIsInstance(file.get_slice("s")[()], numpy.ndarray)

    def test_reads_only_the_blocks_that_hold_the_slice(self):
        import numpy
        data = bytearray(self.path.read_bytes())
        with snug.safe_open(self.path, "np") as file:
            info = file.get_slice("t")._info
        self.assertLess(info.stored_bytes, info.raw_bytes)
        data[info.stored_bytes // 2] ^= 16  # a block in the middle
        damaged = folder.root / "half.safetensors"
        damaged.write_bytes(data)
        with snug.safe_open(damaged, "np") as file:
            slice_ = file.get_slice("t")
            for index in (numpy.s_[0], numpy.s_[5:], numpy.s_[2, :20], numpy.s_[3, 180:, 5]):
                self.assertEqual(raw_of(slice_[index]), raw_of(self.numbers[index]))
            for index in (..., numpy.s_[2:4], numpy.s_[:, 0]):
                with self.assertRaisesRegex(snug.SnugError, "half.safetensors.*checksum"):
                    slice_[index]

    def test_parts_do_not_keep_the_whole(self):
        with snug.safe_open(self.path, "np") as file:
            part = file.get_slice("t")[:, 0]
        self.assertTrue(part.flags.c_contiguous and part.flags.owndata)

    def test_slices_outlive_their_file(self):
        with snug.safe_open(self.path, "np") as file:
            slice_ = file.get_slice("t")
        for call in (file.keys, file.metadata, lambda: file.get_tensor("t")):
            with self.assertRaisesRegex(ValueError, "closed"):
                call()
        self.assertEqual(slice_[1, 2, 3], self.numbers[1, 2, 3])

    @needs("torch")
    def test_packed_elements(self):
        path = folder.root / "compressed"
        raw = folder.files["model-2.safetensors"]["of.F4"][2]
        with snug.safe_open(path, "pt") as file:
            slice_ = file.get_slice("of.F4")
            self.assertEqual(slice_.get_shape(), [6, 4, 8])
            for index, shape, part in ((slice(1, 3), (2, 4, 4), raw[16:48]),
                                       ((2, slice(1, 3)), (2, 4), raw[36:44]),
                                       ((..., slice(0, 8)), (6, 4, 4), raw)):
                self.assertEqual(raw_of(slice_[index]),
                                 ("torch.float4_e2m1fn_x2", shape, part))
            for index in ((..., 1), (0, 0, slice(2, 4)), [1, 2]):
                with self.assertRaisesRegex(ValueError, "two elements"):
                    slice_[index]


class Folders(unittest.TestCase):
    def setUp(self):
        self.root = folder.root / self.id().rpartition(".")[2]
        shutil.copytree(folder.root / "compressed", self.root)
        self.index = self.root / "model.safetensors.index.json"
        patch = mock_numpy()
        patch.start()
        self.addCleanup(patch.stop)

    def open(self, path=None):
        return snug.safe_open(path or self.root, "np")

    def test_index(self):
        for path in (self.root, str(self.root), self.index):
            with self.open(path) as file:
                names = [name for tensors in folder.files.values() for name in tensors]
                self.assertEqual(file.keys(), sorted(names))
                self.assertEqual(set(file.offset_keys()), set(names))
                self.assertEqual(file.metadata(), {"format": "pt"})  # what both files say

    def test_the_index_decides(self):
        self.index.write_text('{"weight_map": {"weights": "model-1.safetensors"}}')
        with self.open() as file:
            self.assertEqual(file.keys(), ["weights"])

    def test_single_files(self):
        self.index.unlink()
        with self.assertRaisesRegex(ValueError, "2 safetensors files and no index"):
            self.open()
        (self.root / "model-2.safetensors").unlink()
        with self.open() as file:
            self.assertIn("weights", file.keys())
        (self.root / "model-1.safetensors").unlink()
        with self.assertRaisesRegex(FileNotFoundError, "no .*safetensors file"):
            self.open()

    def test_model_safetensors_comes_first(self):
        write_plain(self.root / "model.safetensors", {"x": ("U8", [1], b"x")})
        with self.open() as file:
            self.assertEqual(file.keys(), ["x"])
            self.assertIsNone(file.metadata())

    def test_two_indexes(self):
        self.index.rename(self.root / "a.safetensors.index.json")
        with self.open() as file:
            self.assertIn("weights", file.keys())
        shutil.copy(self.root / "a.safetensors.index.json", self.root / "b.safetensors.index.json")
        with self.assertRaisesRegex(ValueError, "2 indexes"):
            self.open()

    def test_missing_and_damaged_shards(self):
        shard = self.root / "model-2.safetensors"
        content = shard.read_bytes()
        shard.write_bytes(content[:-5])
        with self.assertRaisesRegex(snug.SnugError, "model-2"):
            self.open()
        shard.unlink()
        with self.assertRaisesRegex(FileNotFoundError, "model-2.*index.json names it"):
            self.open()

    def test_bad_indexes(self):
        for text, message in (
                ("", "not an index"), ("[]", "not an index"), ('{"weight_map": 3}', "not an index"),
                ('{"weight_map": {"weights": 3}}', "not an index"), ("[" * 100000, "not an index"),
                ('{"weight_map": {"weights": "../x.safetensors"}}', "out of its folder"),
                ('{"weight_map": {"weights": "/x.safetensors"}}', "out of its folder"),
                ('{"weight_map": {"other": "model-1.safetensors"}}', "other is in model-1")):
            self.index.write_text(text)
            with self.assertRaisesRegex(snug.SnugError, message):
                self.open()
        with self.assertRaises(FileNotFoundError):
            self.open(self.root / "none.safetensors.index.json")


@needs("numpy", "ml_dtypes")
class Damage(unittest.TestCase):
    """Every damaged file gives an error or exactly the right tensors."""

    def answers(self, path):
        with snug.safe_open(path, "np") as file:
            yield "keys", file.keys(), file.offset_keys(), file.metadata()
            for name in file.keys():
                slice_ = file.get_slice(name)
                yield name, slice_.get_dtype(), slice_.get_shape()
                if slice_.get_dtype() not in ("F4", "F6_E2M3", "F6_E3M2"):
                    if slice_.get_shape() and slice_.get_shape()[0] > 1:
                        yield name, raw_of(slice_[1:2])
                    yield name, raw_of(file.get_tensor(name))

    def damage(self, rng, content):
        data = bytearray(content)
        header = 8 + int.from_bytes(data[:8], "little")
        kind = rng.choice(["header", "anywhere", "anywhere", "many", "cut", "zero", "swap"])
        if kind == "cut":
            return data[:rng.randrange(len(data))]
        if kind == "zero":
            at = rng.randrange(len(data))
            size = rng.randint(1, 5000)
            return data[:at] + bytes(len(data[at:at + size])) + data[at + size:]
        if kind == "swap":  # two stretches of 64 bytes, such as the starts of two frames
            a, b = sorted(rng.sample(range(0, len(data) // 16 - 4), 2))
            a, b = header % 16 + 16 * a, header % 16 + 16 * b
            data[a:a + 64], data[b:b + 64] = data[b:b + 64], data[a:a + 64]
            return data[:len(content)]
        for _ in range(rng.randint(2, 20) if kind == "many" else 1):
            at = rng.randrange(header if kind == "header" else len(data))
            data[at] ^= 1 << rng.randrange(8)
        return data

    def test_damaged_files(self):
        rng, refused, path = random.Random(11), 0, folder.root / "damaged.safetensors"
        files = sorted((folder.root / "compressed").glob("*.safetensors"))
        small = folder.root / "small.safetensors"
        write_plain(folder.root / "s.safetensors", {"w": ("BF16", [60, 40], bf16(rng, 2400)),
                                                    "b": ("F32", [3], bytes(12))}, {"a": "b"})
        compress(folder.root / "s.safetensors", small)
        files += [small, *(folder.root / "model").glob("*.safetensors")]
        right = {}
        for i in range(NUM_DAMAGED):
            file = files[i % len(files)]
            if file not in right:
                right[file] = list(self.answers(file)), file.read_bytes()
            expected, content = right[file]
            path.write_bytes(self.damage(rng, content))
            answers = iter(expected)
            try:
                for answer in self.answers(path):
                    self.assertEqual(answer, next(answers), (i, file))
            except snug.SnugError:
                refused += 1
        self.assertGreater(refused, NUM_DAMAGED * 3 // 4)
        print(f"{refused} of {NUM_DAMAGED} damaged files refused, the others read exactly",
              file=sys.stderr)


if __name__ == "__main__":
    unittest.main()
