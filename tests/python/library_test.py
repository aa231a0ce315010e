"""The package and the library are checked against each other when the library is loaded."""

import re
import unittest
from pathlib import Path

import snug
from snug import _library


class Library(unittest.TestCase):
    def test_versions_agree(self):
        project = Path(snug.__file__).resolve().parents[1] / "pyproject.toml"
        version = re.search(r'^version = "(.*)"', project.read_text(), re.MULTILINE).group(1)
        self.assertEqual(version, snug.__version__)
        self.assertEqual(version, _library._version(_library.library))

    def test_every_struct_is_checked(self):
        structs = [value for value in vars(_library).values()
                   if isinstance(value, type) and issubclass(value, _library.ctypes.Structure)]
        self.assertEqual(set(structs), set(_library._STRUCTS.values()))
        _library._check_structs(_library.library)

    def test_another_layout_is_refused(self):
        before = _library._STRUCTS["snug_status"]
        _library._STRUCTS["snug_status"] = _library.Segment
        try:
            with self.assertRaisesRegex(ImportError, r"libsnug_c 0\.\S+ \(.*\) does not fit .* snug "
                                        r"0\.\S+: snug_status has 512 bytes there and 16 here"):
                _library._check_structs(_library.library)
        finally:
            _library._STRUCTS["snug_status"] = before

    def test_a_missing_function_is_named(self):
        functions = {"snug_version": (_library.c_char_p, []), "snug_no_such_function": (None, [])}
        with self.assertRaisesRegex(ImportError, "it has no snug_no_such_function"):
            _library._declare(_library.library, functions)
        self.assertFalse(_library._declare(_library.library, {"snug_nothing_here": (None, [])}))

    def test_names_of_dtypes_and_codecs(self):
        self.assertEqual((_library.DTYPES["bf16"], len(_library.DTYPES)), (1, 13))
        self.assertEqual(_library.CODECS, {"raw": 0, "constant": 1, "fixed": 2, "entropy": 3})
        self.assertLessEqual(set(_library.TORCH_DTYPES.values()), set(_library.DTYPES))


if __name__ == "__main__":
    unittest.main()
