"""Finds libsnug_c, checks that it fits this package, and converts what its functions take.

_c_abi has the functions. Other modules take structs from here, too.
"""

import ctypes
import itertools
import math
import operator
import os
import sys
import warnings
from ctypes import byref, c_char_p, c_int, c_size_t
from pathlib import Path

from . import _c_abi
from ._c_abi import (  # noqa: F401
    CudaDeltaOptions, CudaOptions, CudaResult, DeltaInfo, DeltaOptions, EncodeOptions, ExpertsArgs,
    ExpertsShape, FrameInfo, GemmChoice, GemmMatrix, GemmPlan, GroupedArgs, LoadTarget,
    MetadataInfo, ReaderInfo, Segment, Status, TensorInfo, WireOptions, WireStats)

VERSION = "0.1.0"  # of this package; include/snug/snug.h has the same
DRIVER_CUDA = 13  # the major version of CUDA that wheels are built with
# enum snug_code
CORRUPT, DST_TOO_SMALL, IO, NOT_FOUND, NO_DEVICE, TIMEOUT, PEER = 5, 6, 7, 9, 11, 12, 13


class SnugError(Exception):
    """An error that a Snug function reports. `code` is one of enum snug_code."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code

    def __reduce__(self):  # Exception's would call __init__ with the text alone
        return type(self), (self.code, str(self)), self.__dict__


class SnugTimeout(SnugError, TimeoutError):
    """The peer took longer than allowed."""


class SnugFileNotFound(SnugError, FileNotFoundError):
    """There is no such file."""


class SnugOSError(SnugError, OSError):
    """The operating system refused a read or write."""


_ERRORS = {TIMEOUT: SnugTimeout, NOT_FOUND: SnugFileNotFound, IO: SnugOSError}


def _check_folder(package):
    """The distribution named snug, another project, installs its files into the same folder."""
    cure = "pip uninstall snug, then pip install --force-reinstall snug-llm"
    if getattr(sys.modules.get(__package__), "DISTRIBUTION", None) != "snug-llm":
        raise ImportError(f"{package} was overwritten by the distribution snug, which is another "
                          f"project: {cure}")
    if any(package.parent.glob("snug-*.dist-info")):
        warnings.warn(f"the distribution snug, another project, shares {package} with snug-llm, and "
                      f"only one of the two works: {cure}", RuntimeWarning, stacklevel=2)


def _driver_problem():
    """Why the GPU library of the wheel cannot run here; None where it can."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "there is no NVIDIA driver here (libcuda.so.1)"
    version = c_int()
    if driver.cuDriverGetVersion(byref(version)) != 0:
        return "the NVIDIA driver does not tell its version"
    if version.value < DRIVER_CUDA * 1000:
        there = f"{version.value // 1000}.{version.value % 1000 // 10}"
        return (f"the NVIDIA driver is for CUDA {there}, and Snug needs one for CUDA {DRIVER_CUDA}.0 "
                "(version 580 or later)")
    return None


def _candidates(package):
    """Paths of libraries, best first, and why the GPU library is not among them, if it is not."""
    if os.environ.get("SNUG_LIBRARY"):
        return [os.environ["SNUG_LIBRARY"]], None  # an explicit choice is never second-guessed
    paths = [str(package / "libsnug_c.so"), str(package.parents[1] / "build" / "libsnug_c.so"),
             "libsnug_c.so.0"]
    with_gpu = package / "libsnug_cuda.so"  # has all of libsnug_c and the GPU's functions
    if not with_gpu.exists():
        return paths, None
    problem = _driver_problem()
    return (paths, problem) if problem else ([str(with_gpu), *paths], None)


def _load(paths):
    """The first library that opens, and why those before it did not."""
    reasons = []
    for name in paths:
        if os.sep in name and not os.path.exists(name):
            reasons.append(f"{name}: no such file")
            continue
        try:
            library = ctypes.CDLL(name)
        except OSError as error:
            reasons.append(str(error))
            continue
        if hasattr(library, "snug_version"):
            return library, reasons
        reasons.append(f"{name}: not libsnug_c")
    raise ImportError("libsnug_c was not found; reinstall snug-llm, or build the library (make "
                      "build) and set SNUG_LIBRARY to build/libsnug_c.so. Tried: "
                      + "; ".join(reasons))


def _declare(library, functions):
    """False if the library was built without the first of them."""
    if not hasattr(library, next(iter(functions))):
        return False
    for name, (result, arguments) in functions.items():
        function = getattr(library, name, None)
        if function is None:
            raise _misfit(library, f"it has no {name}")
        function.restype = result
        function.argtypes = arguments
    return True


def _misfit(library, why):
    return ImportError(f"libsnug_c {_version(library)} ({library._name}) does not fit the Python "
                       f"package snug {VERSION}: {why}")


def _version(library):
    library.snug_version.restype = c_char_p
    return library.snug_version().decode()


def _check_version(library):
    if _version(library) != VERSION:
        raise _misfit(library, "install both from one build")


def _check_structs(library):
    if not _declare(library, {"snug_struct_bytes": (c_size_t, [c_char_p])}):
        raise _misfit(library, "it has no snug_struct_bytes")
    for name, struct in _c_abi.STRUCTS.items():
        there, here = library.snug_struct_bytes(name.encode()), ctypes.sizeof(struct)
        if there != here:
            raise _misfit(library, f"{name} has {there} bytes there and {here} here")


def _numbers(name_of):
    """Names to numbers of a C enum, which starts with 0 and has no holes."""
    names = (name_of(number).decode() for number in itertools.count())
    return {name: i for i, name in enumerate(itertools.takewhile("unknown".__ne__, names))}


_package = Path(__file__).resolve().parent
_check_folder(_package)
_paths, no_cuda = _candidates(_package)
library, _refused = _load(_paths)
_check_version(library)
_check_structs(library)
_declare(library, _c_abi.CORE)
has_store = _declare(library, _c_abi.STORE)
has_wire = _declare(library, _c_abi.WIRE)
has_cuda = _declare(library, _c_abi.CUDA)
has_loader = _declare(library, _c_abi.LOAD)
has_link = _declare(library, _c_abi.LINK)
if not has_cuda and no_cuda is None:
    no_cuda = next((reason for reason in _refused if "libsnug_cuda.so" in reason),
                   "libsnug_c was built without CUDA")
DTYPES, CODECS = _numbers(library.snug_dtype_name), _numbers(library.snug_codec_name)

# Of torch's dtypes, by their names: this module works without torch. Others travel as bytes.
TORCH_DTYPES = {
    "bfloat16": "bf16", "float16": "f16", "float32": "f32", "float64": "f64",
    "float8_e4m3fn": "f8_e4m3", "float8_e5m2": "f8_e5m2", "int8": "i8", "uint8": "bytes",
    "int16": "i16", "int32": "i32", "int64": "i64", "bool": "bool",
}


def check(code, status):
    """Raises SnugError unless `code` is SNUG_OK."""
    if code == 0:
        return
    text = ctypes.create_string_buffer(512)
    library.snug_status_text(byref(status), text, len(text))
    message = text.value.decode(errors="replace")
    raise _ERRORS.get(code, SnugError)(code, message)


def number_of(table, name, kind):
    try:
        return table[name]
    except KeyError:
        raise ValueError(f"unknown {kind} {name!r}; one of: {', '.join(table)}") from None


def name_of(table, number):
    return next(name for name, value in table.items() if value == number)


def dtype_name(dtypes):
    """Snug's name for torch dtypes, or their names; several kinds together are bytes."""
    names = {TORCH_DTYPES.get(str(dtype).removeprefix("torch."), "bytes") for dtype in dtypes}
    return names.pop() if len(names) == 1 else "bytes"


def whole(number, what, low, high):
    """A Python int that C can hold: ctypes would cut off its upper bits without a word."""
    try:
        value = operator.index(number)
    except TypeError:
        raise TypeError(f"{what} must be a whole number, not {number!r}") from None
    if not low <= value <= high:
        raise ValueError(f"{what} must be {low} to {high}, not {value}")
    return value


def threads_of(threads):
    return whole(threads, "threads", 0, (1 << 31) - 1)  # 0: one per CPU


def seconds_of(seconds, what="a timeout"):
    """A number of seconds; may be negative or infinite, for a deadline in the past or none."""
    try:
        value = math.fsum([seconds])  # unlike float(), takes no text
    except (TypeError, OverflowError):
        raise TypeError(f"{what} is a number of seconds, not {seconds!r}") from None
    if math.isnan(value):
        raise ValueError(f"{what} is a number of seconds, not {seconds!r}")
    return value


def milliseconds_of(seconds, what="a timeout"):
    value = seconds_of(seconds, what)
    if not 0 < value <= 1e9:
        raise ValueError(f"{what} is more than 0 and at most 1e9 seconds, not {seconds!r}")
    return max(1, int(value * 1000))


class Buffer:
    """Address and size of a bytes-like object; keeps it alive and in place."""

    def __init__(self, data):
        view = memoryview(data)
        if not view.c_contiguous:
            raise ValueError("the data must be contiguous")
        self.num_bytes = view.nbytes
        self._view = view
        if view.readonly:
            # ctypes takes the address of writable memory only; `bytes` has one of its own.
            self._owner = data if isinstance(data, bytes) else bytes(view)
            self.address = ctypes.cast(ctypes.c_char_p(self._owner), ctypes.c_void_p)
        else:
            flat = view.cast("B") if view.nbytes else bytearray(1)
            self._owner = (ctypes.c_char * max(view.nbytes, 1)).from_buffer(flat)
            self.address = ctypes.addressof(self._owner)


def has_memory(tensor):
    """Whether the elements of a torch tensor are at its address. A DTensor has none: it stands for
    several tensors."""
    return tensor.numel() == 0 or tensor.data_ptr() != 0


def check_memory(tensor, what="the tensor"):
    if not has_memory(tensor):
        raise TypeError(f"{what} is a {type(tensor).__name__} without memory of its own: give a "
                        "plain tensor, such as full_tensor() of a DTensor")


class TensorMemory:
    """The same of a contiguous torch tensor, on a CPU or GPU."""

    def __init__(self, tensor):
        if tensor.device.type not in ("cpu", "cuda"):
            raise ValueError("tensors must be on a CPU or an NVIDIA GPU")
        if not tensor.is_contiguous():
            raise ValueError("tensors must be contiguous")
        if tensor.is_conj() or tensor.is_neg():  # of which the memory knows nothing
            raise ValueError("the tensor is the conjugate or negative of its memory: give "
                             "tensor.resolve_conj().resolve_neg()")
        check_memory(tensor)
        self.address, self.num_bytes = tensor.data_ptr(), tensor.numel() * tensor.element_size()
        self._owner = tensor


def memory_of(item):
    return TensorMemory(item) if hasattr(item, "data_ptr") else Buffer(item)


def writable_memory(item):
    """Of a buffer or tensor that a CPU can write to."""
    if item.device.type != "cpu" if hasattr(item, "data_ptr") else memoryview(item).readonly:
        raise ValueError("needs writable memory of the CPU")
    return memory_of(item)
