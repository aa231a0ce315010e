"""Compressed checkpoints of torch.distributed.checkpoint.

    import snug.torch.dcp
    dcp.save(state, storage_writer=snug.torch.dcp.FileSystemWriter(folder))
    dcp.load(state, storage_reader=snug.torch.dcp.FileSystemReader(folder))

The stream of each tensor becomes a row of Snug frames, followed by its length: a number of 8
bytes, little-endian. A reader without this module refuses such a checkpoint.
"""

import io
import struct

from torch.distributed.checkpoint import filesystem

try:
    from torch.distributed.checkpoint._extension import ExtensionRegistry, StreamTransformExtension
except ImportError:
    raise ImportError("snug.torch.dcp needs torch 2.7 or newer: pip install -U torch") from None

from .. import compress, decompress, inspect
from .._library import CORRUPT, SnugError

_CHUNK_BYTES = 64 << 20  # of a stream that are compressed at once
_SAMPLE_BYTES = 256 << 10
_HEADER_BYTES = 4096  # more than the header of a frame has
_DTYPES = ("bf16", "f32", "f16", "bytes")  # torch does not tell which it writes
_LENGTH = struct.Struct("<Q")


class SnugExtension(StreamTransformExtension):
    """For writers and readers of torch.distributed.checkpoint."""

    @staticmethod
    def registry_name():
        return "stream.snug"

    @staticmethod
    def from_descriptor(version):
        if version != "1":
            raise ValueError(f"the checkpoint has version {version} of Snug's streams, this is a "
                             "reader of version 1: install a newer Snug")
        return SnugExtension()

    def get_descriptor(self):
        return "stream.snug/1"

    def transform_to(self, output):
        return _Writer(output)

    def transform_from(self, input):
        return io.BytesIO(_restore(input.read()))


class FileSystemWriter(filesystem.FileSystemWriter):
    """torch's FileSystemWriter, with compression."""

    def __init__(self, path, *args, **kwargs):
        super().__init__(path, *args, _extensions=[SnugExtension()], **kwargs)
        format = getattr(self, "serialization_format", None)  # torch 2.7 has just one
        if format is not None and format.name != "TORCH_SAVE":
            raise ValueError(f"tensors in the format {format.name} cannot be compressed here: use "
                             "SerializationFormat.TORCH_SAVE, or snug.torch.save_file")


class FileSystemReader(filesystem.FileSystemReader):
    """torch's FileSystemReader, for compressed checkpoints and for others."""

    def __init__(self, path, *args, **kwargs):
        registry = ExtensionRegistry()
        registry.register(SnugExtension)
        super().__init__(path, *args, _extension_registry=registry, **kwargs)


class _Writer(io.RawIOBase):
    def __init__(self, output):
        self._output, self._chunk, self._length, self._dtype = output, bytearray(), 0, None

    def writable(self):
        return True

    def write(self, data):
        data = memoryview(data).cast("B")
        self._length += len(data)
        for start in range(0, len(data), _CHUNK_BYTES):
            self._chunk += data[start:start + _CHUNK_BYTES]
            while len(self._chunk) >= _CHUNK_BYTES:
                self._put(self._chunk[:_CHUNK_BYTES])
                del self._chunk[:_CHUNK_BYTES]
        return len(data)

    def close(self):
        if self.closed:
            return
        if self._chunk:
            self._put(self._chunk)
        self._output.write(_LENGTH.pack(self._length))
        super().close()

    def _put(self, chunk):
        if self._dtype is None:
            # From the middle: what comes first may be the header of a torch file.
            start = max(0, len(chunk) - _SAMPLE_BYTES) // 2 // 8 * 8
            sample = chunk[start:start + _SAMPLE_BYTES]
            self._dtype = min(_DTYPES, key=lambda dtype: len(compress(sample, dtype)))
        self._output.write(compress(chunk, self._dtype))


def _restore(stream):
    stream, parts, at = memoryview(stream), [], 0
    end = len(stream) - _LENGTH.size
    while 0 <= at < end:
        num_bytes = inspect(stream[at:min(at + _HEADER_BYTES, end)]).frame_bytes
        parts.append(decompress(stream[at:min(at + num_bytes, end)], max_bytes=_CHUNK_BYTES))
        at += num_bytes
    restored = b"".join(parts)
    if at != end or _LENGTH.unpack(stream[end:])[0] != len(restored):
        raise SnugError(CORRUPT, "corrupt: the checkpoint is shorter than what was written")
    return restored
