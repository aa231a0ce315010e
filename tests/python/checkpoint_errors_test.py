"""What snug.safe_open and snug.load_file answer to wrong arguments, files and packages."""

import pickle
import subprocess
import sys
import unittest
from unittest import mock

import snug
from checkpoint_files import Folder, mock_numpy, needs
from snug.checkpoint import is_compressed


def setUpModule():
    global folder
    folder = Folder()


def tearDownModule():
    folder.close()


class Errors(unittest.TestCase):
    def test_files(self):
        with self.assertRaisesRegex(FileNotFoundError, "nowhere"), mock_numpy():
            snug.safe_open(folder.root / "nowhere.safetensors", "np")
        junk = folder.root / "junk.safetensors"
        for content in (b"", b"x" * 100):
            junk.write_bytes(content)
            with self.assertRaisesRegex(snug.SnugError, "junk"), mock_numpy():
                snug.safe_open(junk, "np")

    def test_compressed_files_are_told_by_their_header(self):
        for path in (folder.root / "compressed").glob("*.safetensors"):
            self.assertTrue(is_compressed(path), path)
        others = {"short": b"1234", "pickle": b"PK\3\4" + bytes(100),
                  "outside": (2).to_bytes(8, "little") + b'{}"snug.format"'}
        for name, header in {"tensor": b'{"snug.format": {"dtype": "U8"}}',
                             "list": b'["snug.format"]',
                             "value": b'{"__metadata__": {"a": "snug.format"}}',
                             "cut": b'{"__metadata__": {"snug.format"'}.items():
            others[name] = len(header).to_bytes(8, "little") + header
        for name, data in others.items():
            (folder.root / name).write_bytes(data)
        for path in (*(folder.root / "plain").glob("*.safetensors"), folder.root,
                     folder.root / "missing", *(folder.root / name for name in others)):
            self.assertFalse(is_compressed(path), path)

    def test_arguments(self):
        path = folder.root / "compressed/model-1.safetensors"
        with self.assertRaisesRegex(ValueError, '"pt" or "np"'):
            snug.safe_open(path, "tf")
        for framework in (None, 3):
            with self.assertRaisesRegex(TypeError, '"pt" or "np"'):
                snug.safe_open(path, framework)
        with mock_numpy():
            with self.assertRaisesRegex(ValueError, 'device="cpu"'):
                snug.safe_open(path, "np", device="cuda")
            with snug.safe_open(path, "np", backend="pread") as file:
                with self.assertRaisesRegex(TypeError, "open the file again"):
                    pickle.dumps(file)
                with self.assertRaisesRegex(snug.SnugError, "nobody.*keys()") as caught:
                    file.get_tensor("nobody")
                self.assertEqual(caught.exception.code, 9)
                with self.assertRaisesRegex(TypeError, "name"):
                    file.get_slice(1)

    def test_missing_packages_are_named(self):
        path = folder.root / "compressed"
        for name, framework in (("numpy", "np"), ("torch", "pt")):
            with mock.patch.dict(sys.modules, {name: None}):
                with self.assertRaisesRegex(ImportError, f"pip install {name}"):
                    snug.safe_open(path, framework)

    @needs("numpy")
    def test_dtypes_that_a_framework_lacks(self):
        with snug.safe_open(folder.root / "compressed", "np") as file:
            for dtype in ("F4", "F6_E2M3", "F6_E3M2"):
                with self.assertRaisesRegex(TypeError, f"{dtype}: snug.Reader"):
                    file.get_tensor("of." + dtype)
                with self.assertRaises(TypeError):
                    file.get_slice("of." + dtype)[0]
        # numpy knows the names once anybody has imported ml_dtypes.
        code = ("import sys, snug; sys.modules['ml_dtypes'] = None\n"
                f"snug.safe_open({str(folder.root / 'compressed')!r}, 'np').get_tensor('of.BF16')")
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        self.assertRegex(ended.stderr, "TypeError: .*BF16.*pip install -U ml_dtypes")

    @needs("torch")
    def test_torch_devices(self):
        path = folder.root / "compressed"
        with self.assertRaisesRegex(ValueError, "nonsense"):
            snug.safe_open(path, "pt", device="nonsense")
        import torch
        if not torch.cuda.is_available():
            for device in ("cuda", "cuda:1", 0):
                with self.assertRaisesRegex(RuntimeError, 'no GPU; use device="cpu"'):
                    snug.safe_open(path, "pt", device=device)
        for device in ("cpu", torch.device("cpu")):
            with snug.safe_open(path, "pt", device=device) as file:
                self.assertEqual(file.get_tensor("one number").item(), -7)
                with self.assertRaisesRegex(TypeError, "F6_E2M3"):
                    file.get_tensor("of.F6_E2M3")


if __name__ == "__main__":
    unittest.main()
