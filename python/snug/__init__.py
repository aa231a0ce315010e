"""Snug: lossless compression of LLM tensors.

    import snug
    frame = snug.compress(data, dtype="bf16")     # any bytes-like object
    assert snug.decompress(frame) == data

    with snug.safe_open("model.snug.safetensors", framework="pt") as file:  # like safetensors
        rows = file.get_slice("lm_head.weight")[:16]

`snug.torch` compresses tensors on CPU and GPU and runs models from compressed weights;
`snug.wire` sends tensors to other processes.
"""

DISTRIBUTION = "snug-llm"  # tells this package from that of the distribution snug

from ctypes import byref, c_size_t
from typing import NamedTuple

from ._library import (CODECS, DTYPES, VERSION, Buffer, EncodeOptions, FrameInfo, SnugError,
                       Status, check, library, name_of, number_of, threads_of)
from .checkpoint import load_file, safe_open
from .reader import Reader
from .saving import save_file

__all__ = ["Frame", "Reader", "SnugError", "compress", "decompress", "inspect", "load_file",
           "safe_open", "save_file", "verify"]
__version__ = VERSION


class Frame(NamedTuple):
    """What the header of a compressed tensor says."""
    dtype: str
    raw_bytes: int
    frame_bytes: int
    num_elems: int
    num_blocks: int


def compress(data, dtype="bytes", codec="entropy", threads=0):
    """Returns one self-contained frame of any bytes-like object. `threads=0` uses every CPU."""
    source = Buffer(data)
    options = EncodeOptions(number_of(DTYPES, dtype, "dtype"), number_of(CODECS, codec, "codec"), 0,
                            threads_of(threads))
    bound = library.snug_encode_bound_bytes(source.num_bytes, byref(options))
    frame = bytearray(max(bound, 1))
    target = Buffer(frame)
    num_bytes, status = c_size_t(), Status()
    check(library.snug_encode(source.address, source.num_bytes, target.address, bound,
                              byref(options), byref(num_bytes), byref(status)), status)
    return bytes(memoryview(frame)[:num_bytes.value])


def inspect(frame):
    """Reads the header. Sizes are claims until `decompress` succeeds."""
    source = Buffer(frame)
    info, status = FrameInfo(), Status()
    check(library.snug_inspect(source.address, source.num_bytes, byref(info), byref(status)),
          status)
    return Frame(name_of(DTYPES, info.dtype), info.raw_bytes, info.frame_bytes, info.num_elems,
                 info.num_blocks)


def decompress(frame, threads=0, max_bytes=None):
    """Returns the exact bytes given to `compress`, or raises SnugError.

    A hostile frame may claim any size: `max_bytes` limits what is allocated.
    """
    claimed = inspect(frame).raw_bytes
    if max_bytes is not None and claimed > max_bytes:
        raise ValueError(f"the frame holds {claimed} bytes, more than the {max_bytes} allowed")
    source = Buffer(frame)
    data = bytearray(claimed)
    target = Buffer(data)
    status = Status()
    check(library.snug_decode(source.address, source.num_bytes, target.address, claimed,
                              threads_of(threads), None, byref(status)), status)
    return bytes(data)


def verify(frame):
    """Checks structure and checksums without decompressing; raises SnugError."""
    source = Buffer(frame)
    status = Status()
    check(library.snug_verify(source.address, source.num_bytes, byref(status)), status)
