"""Finds libsnug_c and describes its C functions to ctypes.

The functions, structs and numbers here repeat include/snug/snug*.h; everything
else in the package speaks to the library through this module.
"""

import ctypes
import os
from ctypes import (POINTER, byref, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t,
                    c_uint32, c_uint64, c_void_p)
from pathlib import Path

DTYPES = {
    "bytes": 0, "bf16": 1, "f16": 2, "f32": 3, "f64": 4, "f8_e4m3": 5, "f8_e5m2": 6,
    "f4": 7, "i8": 8, "i16": 9, "i32": 10, "i64": 11, "bool": 12,
}
TIMEOUT = 12  # of enum snug_code
CODECS = {"raw": 0, "constant": 1, "fixed": 2, "entropy": 3}


class SnugError(Exception):
    """What a Snug function reports. `code` is one of enum snug_code."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


class SnugTimeout(SnugError, TimeoutError):
    """The other side took longer than allowed."""


class Status(ctypes.Structure):
    _fields_ = [("code", c_int32), ("reserved", c_int32), ("what", c_char_p),
                ("block", c_uint64), ("byte", c_uint64), ("found", c_uint64),
                ("expected", c_uint64)]


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
                ("chunk_bytes", c_uint64), ("timeout_ms", c_int64)]


class WireStats(ctypes.Structure):
    _fields_ = [("raw_bytes", c_uint64), ("wire_bytes", c_uint64), ("known_bytes", c_uint64),
                ("num_chunks", c_uint64 * 3), ("goodput", c_double * 3)]


class WireSegment(ctypes.Structure):
    """Also a snug_cuda_segment: on every platform of CUDA a size_t has 64 bits."""
    _fields_ = [("data", c_void_p), ("num_bytes", c_size_t)]


_CORE = {
    "snug_version": (c_char_p, []),
    "snug_elem_bytes": (c_size_t, [c_int]),
    "snug_encode_bound": (c_size_t, [c_size_t, POINTER(EncodeOptions)]),
    "snug_encode": (c_int, [c_void_p, c_size_t, c_void_p, c_size_t, POINTER(EncodeOptions),
                            POINTER(c_size_t), POINTER(Status)]),
    "snug_inspect": (c_int, [c_void_p, c_size_t, POINTER(FrameInfo), POINTER(Status)]),
    "snug_decode": (c_int, [c_void_p, c_size_t, c_void_p, c_size_t, c_int, POINTER(c_size_t),
                            POINTER(Status)]),
    "snug_verify": (c_int, [c_void_p, c_size_t, POINTER(Status)]),
    "snug_status_text": (c_size_t, [POINTER(Status), c_char_p, c_size_t]),
    "snug_code_name": (c_char_p, [c_int]),
    "snug_delta_bound": (c_size_t, [c_size_t, POINTER(DeltaOptions)]),
    "snug_delta_encode": (c_int, [c_void_p, c_void_p, c_size_t, c_void_p, c_size_t,
                                  POINTER(DeltaOptions), POINTER(c_size_t), POINTER(Status)]),
    "snug_delta_inspect": (c_int, [c_void_p, c_size_t, POINTER(DeltaInfo), POINTER(Status)]),
    "snug_delta_apply": (c_int, [c_void_p, c_size_t, c_void_p, c_size_t, c_void_p, c_size_t, c_int,
                                 POINTER(c_size_t), POINTER(Status)]),
}

# There only where the library was built with CUDA.
_CUDA = {
    "snug_cuda_reason": (c_char_p, [POINTER(CudaResult)]),
    "snug_cuda_encode_workspace": (c_size_t, [c_size_t, POINTER(CudaOptions)]),
    "snug_cuda_decode_workspace": (c_size_t, [c_size_t, POINTER(CudaOptions)]),
    "snug_cuda_encode": (c_int, [c_void_p, c_size_t, c_void_p, c_size_t, c_void_p, c_size_t,
                                 c_void_p, POINTER(CudaOptions), c_void_p]),
    "snug_cuda_decode": (c_int, [c_void_p, c_size_t, c_void_p, c_size_t, c_void_p, c_size_t,
                                 c_void_p, POINTER(CudaOptions), c_void_p]),
    "snug_cuda_delta_encode_workspace": (c_size_t, [c_size_t, POINTER(CudaDeltaOptions)]),
    "snug_cuda_delta_apply_workspace": (c_size_t, [c_size_t, POINTER(CudaDeltaOptions)]),
    "snug_cuda_delta_encode": (c_int, [c_void_p, c_void_p, c_size_t, c_void_p, c_size_t, c_void_p,
                                       c_size_t, c_void_p, POINTER(CudaDeltaOptions), c_void_p]),
    "snug_cuda_delta_apply_to": (c_int, [c_void_p, c_size_t, c_void_p, c_void_p, c_size_t, c_void_p,
                                         c_size_t, c_void_p, POINTER(CudaDeltaOptions), c_void_p]),
}

# Packing on the CPU is always there; multiplying needs CUDA.
_GEMM_HOST = {
    "snug_gemm_packed_bound": (c_size_t, [c_uint64, c_uint64, c_int]),
    "snug_gemm_pack_host": (c_int, [c_void_p, c_uint64, c_uint64, c_uint64, c_int, c_void_p,
                                    c_size_t, POINTER(c_size_t), POINTER(Status)]),
    "snug_gemm_unpack_host": (c_int, [c_void_p, c_size_t, c_void_p, c_uint64, POINTER(Status)]),
    "snug_gemm_inspect": (c_int, [c_void_p, c_size_t, c_uint64, POINTER(GemmMatrix),
                                  POINTER(Status)]),
}
_GEMM_CUDA = {
    "snug_cuda_capture_id": (c_uint64, [c_void_p]),
    "snug_gemm_pack_workspace": (c_size_t, [c_uint64, c_uint64]),
    "snug_gemm_pack": (c_int, [c_void_p, c_uint64, c_uint64, c_uint64, c_int, c_void_p, c_size_t,
                               c_void_p, c_size_t, c_void_p, c_void_p, POINTER(Status)]),
    "snug_gemm_pack_status": (c_int, [POINTER(CudaResult), POINTER(Status)]),
    "snug_gemm_open": (c_int, [c_void_p, c_uint64, c_void_p, POINTER(GemmMatrix), POINTER(Status)]),
    "snug_gemm_unpack": (c_int, [POINTER(GemmMatrix), c_void_p, c_uint64, c_void_p,
                                 POINTER(Status)]),
    "snug_gemm_linear_workspace": (c_size_t, [c_uint64, c_uint64, c_uint64]),
    "snug_gemm_init_workspace": (c_int, [c_void_p, c_size_t, c_void_p, POINTER(Status)]),
    "snug_gemm_linear": (c_int, [POINTER(GemmMatrix), c_void_p, c_uint64, c_uint64, c_void_p,
                                 c_void_p, c_uint64, c_void_p, c_size_t, POINTER(GemmPlan),
                                 c_void_p, POINTER(Status)]),
    "snug_gemm_choose": (c_int, [c_uint64, c_uint64, c_uint64, c_int, POINTER(GemmChoice)]),
    "snug_gemm_delta_workspace": (c_size_t, [c_uint64, c_uint64]),
    "snug_gemm_apply_delta": (c_int, [POINTER(GemmMatrix), c_void_p, c_size_t, c_int, c_void_p,
                                      c_size_t, c_void_p, c_size_t, c_void_p,
                                      POINTER(CudaDeltaOptions), c_void_p, POINTER(Status)]),
    "snug_gemm_explain": (c_size_t, [c_uint64, c_uint64, c_uint64, c_int, c_char_p, c_size_t]),
}

# There only where the library was built with the checkpoint store. Objects are opaque.
_WIRE = {
    "snug_wire_connect": (c_int, [c_char_p, POINTER(WireOptions), POINTER(c_void_p),
                                  POINTER(Status)]),
    "snug_wire_listen": (c_int, [c_char_p, POINTER(WireOptions), POINTER(c_void_p),
                                 POINTER(Status)]),
    "snug_wire_listener_address": (c_size_t, [c_void_p, c_char_p, c_size_t]),
    "snug_wire_accept": (c_int, [c_void_p, c_int64, POINTER(c_void_p), POINTER(Status)]),
    "snug_wire_send": (c_int, [c_void_p, c_uint64, c_int, POINTER(WireSegment), c_size_t,
                               POINTER(c_void_p), POINTER(Status)]),
    "snug_wire_recv": (c_int, [c_void_p, c_uint64, POINTER(WireSegment), c_size_t,
                               POINTER(c_void_p), POINTER(Status)]),
    "snug_wire_wait": (c_int, [c_void_p, c_int64, POINTER(Status)]),
    "snug_wire_is_done": (c_int, [c_void_p]),
    "snug_wire_done_bytes": (c_uint64, [c_void_p]),
    "snug_wire_send_note": (c_int, [c_void_p, c_void_p, c_size_t, POINTER(Status)]),
    "snug_wire_recv_note": (c_int, [c_void_p, c_int64, c_void_p, c_size_t, POINTER(c_size_t),
                                    POINTER(Status)]),
    "snug_wire_stats_of": (None, [c_void_p, POINTER(WireStats)]),
    "snug_wire_connection_free": (None, [c_void_p]),
    "snug_wire_listener_free": (None, [c_void_p]),
    "snug_wire_transfer_free": (None, [c_void_p]),
}

# There only where it was built with both.
_CUDA_WIRE = {
    "snug_cuda_wire_send": _WIRE["snug_wire_send"],
    "snug_cuda_wire_recv": _WIRE["snug_wire_send"],
    "snug_cuda_link_open": (c_int, [c_void_p, c_int, c_int64, POINTER(c_void_p),
                                    POINTER(Status)]),
    "snug_cuda_link_send": _WIRE["snug_wire_send"],
    "snug_cuda_link_recv": _WIRE["snug_wire_send"],
    "snug_cuda_link_stats": (None, [c_void_p, POINTER(WireStats), POINTER(WireStats)]),
    "snug_cuda_link_free": (None, [c_void_p]),
}


def _candidates():
    if "SNUG_LIBRARY" in os.environ:
        return [os.environ["SNUG_LIBRARY"]]  # an explicit choice is never second-guessed
    package = Path(__file__).resolve().parent
    return [str(package / "libsnug_c.so"), str(package.parents[1] / "build" / "libsnug_c.so"),
            "libsnug_c.so.0"]


def _load():
    reasons = []
    for name in _candidates():
        if os.sep in name and not os.path.exists(name):
            reasons.append(f"{name}: no such file")
            continue
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            reasons.append(str(error))
    raise ImportError("libsnug_c was not found; build it (make build) and set SNUG_LIBRARY to "
                      "build/libsnug_c.so, or install it (make install). Tried: "
                      + "; ".join(reasons))


def _declare(library, functions):
    for name, (result, arguments) in functions.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments


library = _load()
_declare(library, _CORE)
has_cuda = hasattr(library, "snug_cuda_encode")
if has_cuda:
    _declare(library, _CUDA)
    _declare(library, _GEMM_CUDA)
_declare(library, _GEMM_HOST)
has_wire = hasattr(library, "snug_wire_connect")
if has_wire:
    _declare(library, _WIRE)
has_cuda_wire = hasattr(library, "snug_cuda_link_open")
if has_cuda_wire:
    _declare(library, _CUDA_WIRE)


def check(code, status):
    """Raises SnugError unless `code` says that all went well."""
    if code == 0:
        return
    text = ctypes.create_string_buffer(512)
    library.snug_status_text(byref(status), text, len(text))
    raise (SnugTimeout if code == TIMEOUT else SnugError)(code, text.value.decode())


def number_of(table, name, kind):
    try:
        return table[name]
    except KeyError:
        raise ValueError(f"unknown {kind} {name!r}; one of: {', '.join(table)}") from None


def name_of(table, number):
    return next(name for name, value in table.items() if value == number)


class Buffer:
    """Address and size of a bytes-like object, which stays alive and unmoved meanwhile."""

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
