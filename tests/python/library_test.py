"""The package and the library are checked against each other when the library is loaded."""

import copy
import ctypes
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import snug
from snug import _c_abi, _library

ROOT = Path(snug.__file__).resolve().parents[2]


def _kind_of(name):
    """How C passes a type, or a parameter with its name."""
    if "*" in name:
        return "pointer"
    first = next(word for word in name.split() if word not in ("SNUG_API", "const"))
    return {"size_t": "uint64_t", "int": "int32_t"}.get(first, first)


def _kind_in_python(kind):
    if kind is None:
        return "void"
    known = {ctypes.c_uint64: "uint64_t", ctypes.c_int64: "int64_t", ctypes.c_int32: "int32_t",
             ctypes.c_uint32: "uint32_t", ctypes.c_double: "double", ctypes.c_float: "float"}
    return known.get(kind, "pointer")


def _prototypes():
    """Functions of the C headers: kinds of the result and of the arguments."""
    text = "\n".join(path.read_text() for path in (ROOT / "include" / "snug").glob("snug*.h"))
    text = re.sub(r"//.*|/\*(?s:.*?)\*/|^#.*", "", text, flags=re.MULTILINE)
    return {name: (_kind_of(result), [] if arguments.strip() == "void" else
                   [_kind_of(argument) for argument in arguments.split(",")])
            for result, name, arguments in
            re.findall(r"^([\w *]+?)(snug_\w+)\(([^;{}]*)\);", text, re.MULTILINE)}


class Library(unittest.TestCase):
    def test_versions_agree(self):
        header = (ROOT / "include" / "snug" / "snug.h").read_text()
        numbers = [re.search(rf"#define SNUG_VERSION_{part} (\d+)", header).group(1)
                   for part in ("MAJOR", "MINOR", "PATCH")]
        self.assertEqual(snug.__version__, ".".join(numbers))
        self.assertEqual(snug.__version__, _library._version(_library.library))

    def test_project_file(self):
        project = (ROOT / "pyproject.toml").read_text()
        self.assertIn(f'name = "{snug.DISTRIBUTION}"', project)
        self.assertIn('dynamic = ["version"]', project)
        pattern = re.search(r"^regex = '''(.*?)'''", project, re.MULTILINE | re.DOTALL).group(1)
        found = re.search(pattern, (ROOT / "include" / "snug" / "snug.h").read_text())
        self.assertEqual("{major}.{minor}.{patch}".format(**found.groupdict()), snug.__version__)
        extras = re.search(r"^\[project.optional-dependencies\]\n(.*?)\n\n", project,
                           re.MULTILINE | re.DOTALL).group(1)
        self.assertEqual(re.findall(r"^(\w+) =", extras, re.MULTILINE),
                         ["torch", "transformers", "vllm", "sglang"])

    def test_every_struct_is_checked(self):
        structs = [value for value in vars(_c_abi).values()
                   if isinstance(value, type) and issubclass(value, _c_abi.ctypes.Structure)]
        self.assertEqual(set(structs), set(_c_abi.STRUCTS.values()))
        _library._check_structs(_library.library)

    def test_functions_are_those_of_the_headers(self):
        prototypes = _prototypes()
        functions = {}
        for table in ("CORE", "STORE", "WIRE", "CUDA", "LOAD", "LINK"):
            functions |= getattr(_c_abi, table)
        for name, (result, arguments) in functions.items():
            found = _kind_in_python(result), [_kind_in_python(kind) for kind in arguments]
            self.assertEqual(found, prototypes[name], name)

    def test_another_layout_is_refused(self):
        with mock.patch.dict(_c_abi.STRUCTS, snug_status=_c_abi.Segment), \
                self.assertRaisesRegex(ImportError, r"libsnug_c 0\.\S+ \(.*\) does not fit .* snug "
                                       r"0\.\S+: snug_status has 512 bytes there and 16 here"):
            _library._check_structs(_library.library)

    def test_a_missing_function_is_named(self):
        functions = {"snug_version": (_library.c_char_p, []), "snug_no_such_function": (None, [])}
        with self.assertRaisesRegex(ImportError, "it has no snug_no_such_function"):
            _library._declare(_library.library, functions)
        self.assertFalse(_library._declare(_library.library, {"snug_nothing_here": (None, [])}))

    def test_names_of_dtypes_and_codecs(self):
        self.assertEqual((_library.DTYPES["bf16"], len(_library.DTYPES)), (1, 13))
        self.assertEqual(_library.CODECS, {"raw": 0, "constant": 1, "fixed": 2, "entropy": 3})
        self.assertLessEqual(set(_library.TORCH_DTYPES.values()), set(_library.DTYPES))


class Errors(unittest.TestCase):
    def test_travel_between_processes(self):
        for kind in (snug.SnugError, *_library._ERRORS.values()):
            error = kind(5, "corrupt: here")
            for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
                self.assertIs(type(other), kind)
                self.assertEqual((other.code, str(other)), (5, "corrupt: here"))


class FakeDriver:
    def __init__(self, version, code=0):
        self.version, self.code = version, code

    def cuDriverGetVersion(self, pointer):
        pointer._obj.value = self.version
        return self.code


class Driver(unittest.TestCase):
    """Which of the wheel's two libraries is opened."""

    def problem(self, driver):
        with mock.patch.object(_library.ctypes, "CDLL", side_effect=driver):
            return _library._driver_problem()

    def test_no_driver(self):
        self.assertIn("no NVIDIA driver", self.problem(OSError("no such file")))

    def test_an_old_driver(self):
        problem = self.problem([FakeDriver(12080)])
        self.assertIn("CUDA 12.8, and Snug needs one for CUDA 13.0 (version 580", problem)

    def test_a_driver_that_does_not_answer(self):
        self.assertIn("does not tell", self.problem([FakeDriver(13000, code=999)]))

    def test_a_new_driver(self):
        self.assertIsNone(self.problem([FakeDriver(13000)]))

    def test_the_gpu_library_comes_first_where_it_can_run(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ), \
                mock.patch.object(_library, "_driver_problem", return_value=None) as problem:
            os.environ.pop("SNUG_LIBRARY", None)
            package = Path(folder) / "site" / "snug"
            package.mkdir(parents=True)
            names = [Path(path).name for path in _library._candidates(package)[0]]
            self.assertEqual(names, ["libsnug_c.so", "libsnug_c.so", "libsnug_c.so.0"])
            (package / "libsnug_cuda.so").touch()
            self.assertEqual(_library._candidates(package)[0][0], str(package / "libsnug_cuda.so"))
            problem.return_value = "the reason"
            paths, reason = _library._candidates(package)
            self.assertEqual((Path(paths[0]).name, reason), ("libsnug_c.so", "the reason"))
            os.environ["SNUG_LIBRARY"] = "mine.so"
            self.assertEqual(_library._candidates(package), (["mine.so"], None))


class Installed(unittest.TestCase):
    """A copy of the package, as pip lays it out: libraries beside the Python files."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.site = Path(folder.name)
        self.package = self.site / "snug"
        shutil.copytree(Path(snug.__file__).parent, self.package,
                        ignore=shutil.ignore_patterns("*.so*", "__pycache__"))
        self.bundled = self.package / "libsnug_c.so"
        shutil.copyfile(_library.library._name, self.bundled)

    def run_python(self, code, **variables):
        environment = {**os.environ, "PYTHONPATH": str(self.site), **variables}
        if "SNUG_LIBRARY" not in variables:
            environment.pop("SNUG_LIBRARY", None)
        return subprocess.run([sys.executable, "-c", code], env=environment, cwd=self.site,
                              capture_output=True, text=True)

    def assert_refused(self, code, *words, **variables):
        result = self.run_python(code, **variables)
        last = result.stderr.strip().splitlines()[-1]
        self.assertNotEqual(result.returncode, 0)
        self.assertTrue(last.startswith("ImportError: "), result.stderr)
        for word in words:
            self.assertIn(word, last)

    def test_the_bundled_library_is_used(self):
        code = "import snug; print(snug._library.library._name, end='')"
        result = self.run_python(code)
        self.assertEqual((result.stdout, result.stderr), (str(self.bundled), ""))

    def test_a_gpu_library_that_does_not_open_leaves_the_cpu(self):
        (self.package / "libsnug_cuda.so").write_bytes(b"not a library")
        module = self.package / "_library.py"
        module.write_text(module.read_text().replace("problem = _driver_problem()", "problem = None"))
        result = self.run_python("import snug; print(snug._library.no_cuda); "
                                 "assert snug.decompress(snug.compress(b'abc')) == b'abc'")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        # The library of a build with CUDA has the GPU functions, too: then there is no reason.
        self.assertIn("None" if _library.has_cuda else "libsnug_cuda.so", result.stdout)

    def test_a_library_of_another_version(self):
        old, new = snug.__version__.encode() + b"\0", b"9.9.9\0"
        self.bundled.write_bytes(self.bundled.read_bytes().replace(old, new))
        self.assert_refused("import snug", "libsnug_c 9.9.9", str(self.bundled),
                            f"does not fit the Python package snug {snug.__version__}")

    def test_no_library_at_all(self):
        self.assert_refused("import snug", "reinstall snug-llm", "nothing.so: no such file",
                            SNUG_LIBRARY=str(self.site / "nothing.so"))

    def test_without_torch(self):
        hide = "import sys; sys.modules['torch'] = None; "
        self.assert_refused(hide + "import snug.torch", "pip install 'snug-llm[torch]'")

    def test_the_other_distribution_named_snug(self):
        (self.site / "snug-2.4.0.dist-info").mkdir()
        result = self.run_python("import snug")
        self.assertEqual(result.returncode, 0)
        self.assertIn("RuntimeWarning: the distribution snug, another project", result.stderr)
        (self.package / "__init__.py").write_text("class Query: pass\n")  # installed after Snug
        self.assert_refused("import snug.wire", "overwritten", "pip uninstall snug")


if __name__ == "__main__":
    unittest.main()
