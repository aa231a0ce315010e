"""SGLang's HiCache keeps KV pages compressed in files:

    --enable-hierarchical-cache --hicache-storage-backend dynamic
    --hicache-storage-backend-extra-config '{"backend_name": "snug", "module_path": "snug.hicache",
        "class_name": "SnugHiCache", "file_storage_path": "/var/cache/kv"}'

It is SGLang's own `file` backend, whose other options (limits, eviction) work as there; what it
writes and reads are Snug frames. A damaged file is a miss, and is deleted.
"""

import dataclasses
import os

try:
    import numpy
    import torch
    from sglang.srt.mem_cache.hicache_storage import HiCacheFile
except ModuleNotFoundError as error:
    if error.name not in ("sglang", "torch", "numpy"):
        raise
    raise ImportError("snug.hicache runs inside SGLang: pip install sglang") from None

from ._library import CODECS, SnugError, number_of
from .kv import frames


class SnugHiCache(HiCacheFile):
    def __init__(self, storage_config, kwargs=None):
        # Names of files end with the model's, by which `file` knows its own: frames get another.
        super().__init__(dataclasses.replace(
            storage_config, model_name=f"{storage_config.model_name or ''}-snug"))
        self._codec = (storage_config.extra_config or {}).get("codec", "entropy")
        number_of(CODECS, self._codec, "codec")

    def set(self, key, value=None, target_location=None, target_sizes=None):
        if self.exists(key):
            return super().set(key, value)  # writes nothing
        raw, dtype = _bytes_of(value.contiguous()), frames.dtype_name([value.dtype])
        room = numpy.empty(frames.bound_bytes(raw.nbytes, dtype, self._codec), numpy.uint8)
        size = frames.encode(raw, room, dtype, self._codec)
        return super().set(key, torch.from_numpy(room[:size]))

    def get(self, key, target_location, target_sizes=None):
        path = os.path.join(self.file_path, f"{self._get_suffixed_key(key)}.bin")
        page = target_location if target_location.is_contiguous() else target_location.contiguous()
        most = frames.bound_bytes(page.nbytes, frames.dtype_name([page.dtype]), self._codec)
        try:
            room = torch.empty(min(os.path.getsize(path), most), dtype=torch.uint8)
            found = super().get(key, room)
        except OSError:
            return None
        if found is None:
            return None
        try:
            frames.decode(found.numpy(), _bytes_of(page), frames.dtype_name([page.dtype]))
        except SnugError:
            self._forget(key, path)
            return None
        if page is not target_location:
            target_location.copy_(page)
        return target_location

    def _forget(self, key, path):
        try:
            os.remove(path)
        except OSError:
            pass  # another rank was faster
        name = self._get_suffixed_key(key)
        self._evictor.abort(name)  # its bytes are free again
        if self.metadata_cache is not None:
            self.metadata_cache.remove(name)


def _bytes_of(tensor):
    return tensor.view(torch.uint8).reshape(-1).numpy()
