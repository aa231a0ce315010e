"""LMCache keeps KV chunks compressed in its second level (files, object stores).

    --l2-adapter '{"type": "plugin", "module_path": "snug.lmcache", "class_name": "SnugFolder",
                   "adapter_params": {"base_path": "/var/cache/kv"}, "serde": {"type": "snug"}}'

Importing this module registers the serde "snug" for all adapters; the adapter above imports it by
its module path. It is LMCache's `fs` adapter, which in LMCache 0.5.6 reads back no object that a
serde made smaller: it asks a file for as many bytes as the serde might have written at most.
Frames carry checksums: damage is a miss, never wrong KV.
"""

import os

try:
    import numpy
    from lmcache.v1.distributed.l2_adapters.fs_l2_adapter import FSL2Adapter, FSL2AdapterConfig
    from lmcache.v1.distributed.serde import (AsyncSerdeProcessor, Deserializer, Serializer,
                                              get_registered_serde_types, register_serde_factory)
except ModuleNotFoundError as error:
    if error.name not in ("lmcache", "numpy", "torch"):
        raise
    raise ImportError("snug.lmcache needs LMCache: pip install lmcache") from None

from ._library import CODECS, number_of, threads_of
from .kv import frames


class SnugSerializer(Serializer):
    """One Snug frame a chunk, made by one thread: LMCache serializes several chunks at a time."""

    def __init__(self, codec="entropy"):
        number_of(CODECS, codec, "codec")
        self._codec = codec

    def serialize(self, src, dst, key):
        return frames.encode(_bytes_of(src), _bytes_of(dst), frames.dtype_name(src.get_dtypes()),
                             self._codec)

    def estimate_serialized_size(self, layout_desc):
        raw_bytes = sum(shape.numel() * dtype.itemsize
                        for shape, dtype in zip(layout_desc.shapes, layout_desc.dtypes))
        return frames.bound_bytes(raw_bytes, frames.dtype_name(layout_desc.dtypes), self._codec)


class SnugDeserializer(Deserializer):
    def deserialize(self, src, dst, key):
        frames.decode(_bytes_of(src), _bytes_of(dst), frames.dtype_name(dst.get_dtypes()))


class SnugFolder(FSL2Adapter):
    """The adapter `fs`, which reads as many bytes as a file has."""

    def __init__(self, config, l1_memory_desc=None):
        super().__init__(config)

    def submit_load_task(self, keys, objects):
        for key, memory in zip(keys, objects):
            try:
                size = os.path.getsize(self._key_to_path(key))
            except OSError:
                continue  # a miss, which the adapter finds itself
            memory.set_used_size(min(size, memory.get_physical_size()))
        return super().submit_load_task(keys, objects)


SnugFolderConfig = FSL2AdapterConfig  # LMCache looks for the name of the adapter and "Config"


def _make_serde(options):
    unknown = set(options) - {"codec", "threads"}
    if unknown:
        raise ValueError(f"the serde snug has the options codec and threads, not "
                         f"{', '.join(sorted(unknown))}")
    threads = threads_of(options.get("threads", 2)) or os.cpu_count()
    return AsyncSerdeProcessor(SnugSerializer(options.get("codec", "entropy")), SnugDeserializer(),
                               max_workers=threads)


def _bytes_of(memory):
    return numpy.frombuffer(memory.byte_array, numpy.uint8)


if "snug" not in get_registered_serde_types():
    register_serde_factory("snug", _make_serde)
