"""Frames in memory of the caller, on the calling thread: arrays of bytes in and out."""

import ctypes
from ctypes import byref

from .. import inspect
from .._library import dtype_name  # noqa: F401: callers name a frame's type by it
from .._library import (CODECS, CORRUPT, DTYPES, EncodeOptions, SnugError, Status, check, library,
                        number_of)

_SMALLEST_BLOCK = 12  # log2; of all block sizes it has the largest bound


def options_of(dtype, codec, log2_block=0):
    return EncodeOptions(number_of(DTYPES, dtype, "dtype"), number_of(CODECS, codec, "codec"),
                         log2_block, 1)


def bound_bytes(raw_bytes, dtype, codec):
    return library.snug_encode_bound_bytes(raw_bytes, byref(options_of(dtype, codec,
                                                                       _SMALLEST_BLOCK)))


def encode(raw, room, dtype, codec, log2_block=0):
    """Writes the frame of `raw` to `room` and returns its size."""
    size, status = ctypes.c_size_t(), Status()
    check(library.snug_encode(raw.ctypes.data, raw.nbytes, room.ctypes.data, room.nbytes,
                              byref(options_of(dtype, codec, log2_block)), byref(size),
                              byref(status)), status)
    return size.value


def decode(frame, raw, dtype):
    """Fills `raw`; SnugError if the frame is damaged, or one of something else."""
    info = inspect(frame)
    if (info.raw_bytes, info.dtype) != (raw.nbytes, dtype):
        raise SnugError(CORRUPT, f"a frame has {info.raw_bytes} bytes of {info.dtype}, and "
                                 f"{raw.nbytes} of {dtype} are wanted")
    status = Status()
    check(library.snug_decode(frame.ctypes.data, frame.nbytes, raw.ctypes.data, raw.nbytes, 1, None,
                              byref(status)), status)
