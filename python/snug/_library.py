"""Finds libsnug_c and describes its C functions to ctypes.

Functions and structs repeat include/snug/snug.h, snug_gpu.h and snug_load.h. The sizes of all
structs are compared with the library's when it is loaded.
"""

import ctypes
import itertools
import math
import operator
import os
import sys
import warnings
from ctypes import (POINTER, byref, c_char, c_char_p, c_double, c_float, c_int, c_int32, c_int64,
                    c_size_t, c_uint32, c_uint64, c_void_p)
from pathlib import Path

VERSION = "0.1.0"  # of this package; include/snug/snug.h has the same
DRIVER_CUDA = 13  # the major version of CUDA that wheels are built with
CORRUPT, IO, NOT_FOUND, TIMEOUT = 5, 7, 9, 12  # of enum snug_code


class SnugError(Exception):
    """An error that a Snug function reports. `code` is one of enum snug_code."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


class SnugTimeout(SnugError, TimeoutError):
    """The peer took longer than allowed."""


class SnugFileNotFound(SnugError, FileNotFoundError):
    """There is no such file."""


class SnugOSError(SnugError, OSError):
    """The operating system refused a read or write."""


_ERRORS = {TIMEOUT: SnugTimeout, NOT_FOUND: SnugFileNotFound, IO: SnugOSError}


class Status(ctypes.Structure):
    _fields_ = [("code", c_int32), ("reserved", c_int32), ("what", c_char_p),
                ("block", c_uint64), ("byte", c_uint64), ("found", c_uint64),
                ("expected", c_uint64), ("line", c_char * 464)]


class EncodeOptions(ctypes.Structure):
    _fields_ = [("dtype", c_int32), ("codec", c_int32), ("log2_block", c_int32),
                ("num_threads", c_int32)]


class FrameInfo(ctypes.Structure):
    _fields_ = [("dtype", c_int32), ("block_elems", c_uint32), ("raw_bytes", c_uint64),
                ("frame_bytes", c_uint64), ("num_elems", c_uint64), ("num_blocks", c_uint64)]


class CudaResult(ctypes.Structure):
    _fields_ = [("num_bytes", c_uint64), ("code", c_uint32), ("reason", c_uint32),
                ("block", c_uint64)]


class CudaOptions(ctypes.Structure):
    _fields_ = [("dtype", c_int32), ("codec", c_int32), ("log2_block", c_int32),
                ("max_sms", c_int32), ("host_result", POINTER(CudaResult))]


class DeltaOptions(ctypes.Structure):
    _fields_ = [("dtype", c_int32), ("log2_block", c_int32), ("allow_frame", c_int32),
                ("num_threads", c_int32)]


class DeltaInfo(ctypes.Structure):
    _fields_ = [("dtype", c_int32), ("needs_base", c_int32), ("raw_bytes", c_uint64),
                ("delta_bytes", c_uint64), ("num_changed", c_uint64), ("base_hash", c_uint64),
                ("target_hash", c_uint64), ("num_blocks", c_uint64), ("block_elems", c_uint32),
                ("reserved", c_uint32)]


class CudaDeltaOptions(ctypes.Structure):
    _fields_ = [("dtype", c_int32), ("log2_block", c_int32), ("host_result", POINTER(CudaResult))]


class GemmMatrix(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("num_bytes", c_uint64), ("n", c_uint64), ("k", c_uint64),
                ("num_escaped", c_uint64), ("kind", c_int32), ("reserved", c_int32)]


class GemmPlan(ctypes.Structure):
    _fields_ = [("kernel", c_int32), ("split_k", c_int32), ("warps", c_int32),
                ("strips", c_int32), ("tile_m", c_int32)]


class GemmChoice(ctypes.Structure):
    _fields_ = [("packed", c_int32), ("gain", c_float), ("plan", GemmPlan)]


class WireOptions(ctypes.Structure):
    _fields_ = [("token", c_char_p), ("mode", c_int32), ("num_lanes", c_int32),
                ("chunk_bytes", c_uint64), ("timeout_ms", c_int64), ("insecure", c_int64)]


class WireStats(ctypes.Structure):
    _fields_ = [("raw_bytes", c_uint64), ("wire_bytes", c_uint64), ("known_bytes", c_uint64),
                ("num_chunks", c_uint64 * 3), ("goodput", c_double * 3)]


class Segment(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("num_bytes", c_uint64)]


class MetadataInfo(ctypes.Structure):
    _fields_ = [("key", c_void_p), ("value", c_void_p), ("key_bytes", c_uint64),
                ("value_bytes", c_uint64)]


class ReaderInfo(ctypes.Structure):
    _fields_ = [("num_tensors", c_uint64), ("num_metadata", c_uint64), ("raw_bytes", c_uint64),
                ("stored_bytes", c_uint64), ("compressed", c_int32), ("reserved", c_int32)]


class TensorInfo(ctypes.Structure):
    _fields_ = [("name", c_void_p), ("name_bytes", c_uint64), ("dtype_name", c_char_p),
                ("shape", POINTER(c_uint64)), ("num_dims", c_uint64), ("raw_bytes", c_uint64),
                ("stored_bytes", c_uint64), ("file_offset", c_uint64), ("dtype", c_int32),
                ("reserved", c_int32)]


class LoadTarget(ctypes.Structure):
    _fields_ = [("idx", c_uint64), ("dst", c_void_p), ("dst_bytes", c_uint64)]


_STRUCTS = {
    "snug_status": Status, "snug_encode_options": EncodeOptions, "snug_frame_info": FrameInfo,
    "snug_delta_options": DeltaOptions, "snug_delta_info": DeltaInfo,
    "snug_reader_info": ReaderInfo, "snug_tensor_info": TensorInfo, "snug_metadata_info": MetadataInfo,
    "snug_load_target": LoadTarget,
    "snug_wire_options": WireOptions, "snug_wire_stats": WireStats, "snug_segment": Segment,
    "snug_cuda_result": CudaResult, "snug_cuda_options": CudaOptions,
    "snug_cuda_delta_options": CudaDeltaOptions, "snug_gemm_matrix": GemmMatrix,
    "snug_gemm_plan": GemmPlan, "snug_gemm_choice": GemmChoice,
}

# Shorthand for signatures: a pointer, a size, a status, and pointers to both.
_P, _N, _PN, _PP, _S = c_void_p, c_size_t, POINTER(c_size_t), POINTER(c_void_p), POINTER(Status)

_CORE = {
    "snug_elem_bytes": (_N, [c_int]),
    "snug_dtype_name": (c_char_p, [c_int]),
    "snug_codec_name": (c_char_p, [c_int]),
    "snug_encode_bound_bytes": (_N, [_N, POINTER(EncodeOptions)]),
    "snug_encode": (c_int, [_P, _N, _P, _N, POINTER(EncodeOptions), _PN, _S]),
    "snug_inspect": (c_int, [_P, _N, POINTER(FrameInfo), _S]),
    "snug_decode": (c_int, [_P, _N, _P, _N, c_int, _PN, _S]),
    "snug_verify": (c_int, [_P, _N, _S]),
    "snug_status_text": (_N, [_S, c_char_p, _N]),
    "snug_delta_bound_bytes": (_N, [_N, POINTER(DeltaOptions)]),
    "snug_delta_encode": (c_int, [_P, _P, _N, _P, _N, POINTER(DeltaOptions), _PN, _S]),
    "snug_delta_inspect": (c_int, [_P, _N, POINTER(DeltaInfo), _S]),
    "snug_delta_apply": (c_int, [_P, _N, _P, _N, _P, _N, c_int, _PN, _S]),
    "snug_tensor_hash": (c_uint64, [_P, _N, c_int]),
    "snug_gemm_packed_bound_bytes": (_N, [c_uint64, c_uint64, c_int]),
    "snug_gemm_pack_host": (c_int, [_P, c_uint64, c_uint64, c_uint64, c_int, _P, _N, _PN, _S]),
    "snug_gemm_unpack_host": (c_int, [_P, _N, _P, _N, c_uint64, _S]),
    "snug_gemm_inspect": (c_int, [_P, _N, c_uint64, POINTER(GemmMatrix), _S]),
    "snug_gemm_num_strips": (_N, [c_uint64]),
    "snug_gemm_strip_sums_host": (c_int, [_P, _N, _P, _N, _S]),
}

# In libraries built with the checkpoint store.
_STORE = {
    "snug_reader_open": (c_int, [c_char_p, _PP, _S]),
    "snug_reader_free": (None, [_P]),
    "snug_reader_inspect": (c_int, [_P, POINTER(ReaderInfo), _S]),
    "snug_reader_tensor": (c_int, [_P, _N, POINTER(TensorInfo), _S]),
    "snug_reader_read": (c_int, [_P, _N, _P, _N, c_int, _PN, _S]),
    "snug_reader_read_rows": (c_int, [_P, _N, c_uint64, c_uint64, _P, _N, c_int, _PN, _S]),
    "snug_reader_read_bytes": (c_int, [_P, _N, c_uint64, _P, _N, c_int, _S]),
    "snug_reader_metadata": (c_int, [_P, _N, POINTER(MetadataInfo), _S]),
    "snug_reader_load": (c_int, [_P, POINTER(LoadTarget), _N, c_int, _S]),
    "snug_compress_file": (c_int, [c_char_p, c_char_p, c_int, c_int, c_int, POINTER(c_int), _S]),
}
_SEND = (c_int, [_P, c_uint64, c_int, POINTER(Segment), _N, _PP, _S])
_WIRE = {
    "snug_wire_connect": (c_int, [c_char_p, POINTER(WireOptions), POINTER(c_int), _PP, _S]),
    "snug_wire_listen": (c_int, [c_char_p, POINTER(WireOptions), _PP, _S]),
    "snug_wire_listener_address": (_N, [_P, c_char_p, _N]),
    "snug_wire_accept": (c_int, [_P, c_int64, _PP, _S]),
    "snug_wire_send": _SEND,
    "snug_wire_recv": (c_int, [_P, c_uint64, POINTER(Segment), _N, _PP, _S]),
    "snug_wire_wait": (c_int, [_P, c_int64, _S]),
    "snug_wire_is_done": (c_int, [_P]),
    "snug_wire_done_bytes": (c_uint64, [_P]),
    "snug_wire_send_note": (c_int, [_P, _P, _N, _S]),
    "snug_wire_recv_note": (c_int, [_P, c_int64, _P, _N, _PN, _S]),
    "snug_wire_stats_of": (c_int, [_P, POINTER(WireStats), _S]),
    "snug_wire_connection_free": (None, [_P]),
    "snug_wire_listener_free": (None, [_P]),
    "snug_wire_transfer_free": (None, [_P]),
}

# In libraries built with CUDA.
_CUDA = {
    "snug_cuda_status": (c_int, [POINTER(CudaResult), _S]),
    "snug_cuda_capture_id": (c_uint64, [_P]),
    "snug_cuda_encode_workspace_bytes": (_N, [_N, POINTER(CudaOptions)]),
    "snug_cuda_decode_workspace_bytes": (_N, [_N, POINTER(CudaOptions)]),
    "snug_cuda_encode": (c_int, [_P, _N, _P, _N, _P, _N, _P, POINTER(CudaOptions), _P, _S]),
    "snug_cuda_decode": (c_int, [_P, _N, _P, _N, _P, _N, _P, POINTER(CudaOptions), _P, _S]),
    "snug_cuda_paged_workspace_bytes": (_N, [_N, _N, POINTER(CudaOptions)]),
    "snug_cuda_encode_paged": (c_int, [_P, _N, _N, _P, _N, _P, _N, _P, POINTER(CudaOptions), _P,
                                       _S]),
    "snug_cuda_decode_paged": (c_int, [_P, _N, _P, _N, _N, _P, _N, _P, POINTER(CudaOptions), _P,
                                       _S]),
    "snug_cuda_delta_encode_workspace_bytes": (_N, [_N, POINTER(CudaDeltaOptions)]),
    "snug_cuda_delta_apply_workspace_bytes": (_N, [_N, POINTER(CudaDeltaOptions)]),
    "snug_cuda_delta_encode": (c_int, [_P, _P, _N, _P, _N, _P, _N, _P, POINTER(CudaDeltaOptions),
                                       _P, _S]),
    "snug_cuda_delta_apply_to": (c_int, [_P, _N, _P, _P, _N, _P, _N, _P, POINTER(CudaDeltaOptions),
                                         _P, _S]),
    "snug_cuda_tensor_hash": (c_int, [_P, _N, _P, _P, _N, _P, _S]),
    "snug_gemm_pack_workspace_bytes": (_N, [c_uint64, c_uint64]),
    "snug_gemm_pack": (c_int, [_P, c_uint64, c_uint64, c_uint64, c_int, _P, _N, _P, _N, _P, _P,
                               _S]),
    "snug_gemm_open": (c_int, [_P, c_uint64, _P, POINTER(GemmMatrix), _S]),
    "snug_gemm_strip_sums": (c_int, [POINTER(GemmMatrix), _P, _P, _S]),
    "snug_gemm_unpack": (c_int, [POINTER(GemmMatrix), _P, c_uint64, _P, _S]),
    "snug_gemm_linear_workspace_bytes": (_N, [c_uint64, c_uint64, c_uint64]),
    "snug_gemm_init_workspace": (c_int, [_P, _N, _P, _S]),
    "snug_gemm_linear": (c_int, [POINTER(GemmMatrix), _P, c_uint64, c_uint64, _P, _P, c_uint64, _P,
                                 _N, POINTER(GemmPlan), _P, _S]),
    "snug_gemm_choose": (c_int, [c_uint64, c_uint64, c_uint64, c_int, POINTER(GemmChoice), _S]),
    "snug_gemm_apply_delta_workspace_bytes": (_N, [c_uint64, c_uint64]),
    "snug_gemm_apply_delta": (c_int, [POINTER(GemmMatrix), _P, _N, c_int, _P, _N, _P, _N, _P,
                                      POINTER(CudaDeltaOptions), _P, _S]),
    "snug_gemm_explain": (_N, [c_uint64, c_uint64, c_uint64, c_int, c_char_p, _N]),
    "snug_gemm_tune": (c_int, [POINTER(GemmMatrix), _P, c_uint64, c_uint64, _P, c_uint64, _P, _N,
                               _P, POINTER(GemmChoice), _S]),
    "snug_gemm_tuning_text": (_N, [c_char_p, _N]),
    "snug_gemm_load_tuning": (c_int, [c_char_p, _S]),
}

# In libraries built with both.
_LOAD = {
    "snug_cuda_loader_open": (c_int, [c_int, c_uint64, _PP, _S]),
    "snug_cuda_loader_load": (c_int, [_P, _P, POINTER(LoadTarget), _N, _P, _S]),
    "snug_cuda_loader_free": (None, [_P]),
}
_LINK = {
    "snug_cuda_wire_send": _SEND,
    "snug_cuda_wire_recv": _SEND,
    "snug_link_open": (c_int, [_P, c_int, c_int64, _PP, _S]),
    "snug_link_send": _SEND,
    "snug_link_recv": _SEND,
    "snug_link_stats_of": (c_int, [_P, POINTER(WireStats), POINTER(WireStats), _S]),
    "snug_link_free": (None, [_P]),
}


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
    if not _declare(library, {"snug_struct_bytes": (_N, [c_char_p])}):
        raise _misfit(library, "it has no snug_struct_bytes")
    for name, struct in _STRUCTS.items():
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
_declare(library, _CORE)
has_store = _declare(library, _STORE)
has_wire = _declare(library, _WIRE)
has_cuda = _declare(library, _CUDA)
has_loader = _declare(library, _LOAD)
has_link = _declare(library, _LINK)
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


class TensorMemory:
    """The same of a contiguous torch tensor, on a CPU or GPU."""

    def __init__(self, tensor):
        if tensor.device.type not in ("cpu", "cuda"):
            raise ValueError("tensors must be on a CPU or an NVIDIA GPU")
        if not tensor.is_contiguous():
            raise ValueError("tensors must be contiguous")
        self.address, self.num_bytes = tensor.data_ptr(), tensor.numel() * tensor.element_size()
        self._owner = tensor


def memory_of(item):
    return TensorMemory(item) if hasattr(item, "data_ptr") else Buffer(item)


def writable_memory(item):
    """Of a buffer or tensor that a CPU can write to."""
    if item.device.type != "cpu" if hasattr(item, "data_ptr") else memoryview(item).readonly:
        raise ValueError("needs writable memory of the CPU")
    return memory_of(item)
