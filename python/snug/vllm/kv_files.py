"""vLLM's file tier for offloaded KV blocks, with frames in its files:

    --kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both",
        "kv_connector_extra_config": {"spec_name": "TieringOffloadingSpec",
        "cpu_bytes_to_use": 34359738368, "secondary_tiers": [{"type": "SnugFileTier",
        "module_path": "snug.vllm.kv_files", "root_dir": "/var/cache/kv"}]}}'

It is vLLM's own tier `fs`, whose other options work as there; threads of that tier encode and
decode. A damaged file is a miss, and is deleted. vLLM's memory before the files stays as it is.
vLLM 0.24 takes no tiers from other modules; 0.32 does.
"""

import functools
import os
import threading
import uuid

try:
    from vllm.v1.kv_offload.tiering.fs.manager import FileSystemTierManager
except ModuleNotFoundError as error:
    if error.name != "vllm":
        raise
    raise ImportError("snug.vllm.kv_files runs inside vLLM: pip install vllm") from None

import numpy

from .._library import CODECS, SnugError, number_of
from ..kv import frames


class SnugFileTier(FileSystemTierManager):
    def __init__(self, offloading_spec, primary_kv_view, tier_type, root_dir, codec="entropy",
                 **options):
        number_of(CODECS, codec, "codec")
        # Frames and the blocks of `fs` must not meet under one name.
        root_dir = os.path.join(root_dir, "snug")
        super().__init__(offloading_spec, primary_kv_view, tier_type, root_dir, **options)
        self._codec = codec
        self._dtype = frames.dtype_name([offloading_spec.config.model.dtype])
        self._blocks = numpy.frombuffer(primary_kv_view.cast("B"), numpy.uint8).reshape(
            -1, self._block_size)
        self._rooms = threading.local()  # each thread encodes into memory of its own

    def submit_store(self, job_metadata):
        if self.events is not None:
            self._store_job_keys[job_metadata.job_id] = list(job_metadata.keys)
        self._submit(job_metadata, self._store, self._pool.enqueue_store)

    def submit_load(self, job_metadata):
        self._load_job_keys[job_metadata.job_id] = list(job_metadata.keys)
        self._submit(job_metadata, self._load, self._pool.enqueue_load)

    def shutdown(self):
        super().shutdown()
        self._blocks = None  # vLLM cannot unmap memory that arrays refer to

    def _submit(self, job, move, enqueue):
        """A task for each block."""
        self._job_block_counts[job.job_id] = len(job.keys)
        tasks = [functools.partial(move, self.file_mapper.get_file_name(key), int(block))
                 for key, block in zip(job.keys, job.chunk_ids)]
        enqueue(job.job_id, len(tasks), tasks)

    def _store(self, path, block):
        if os.path.exists(path):
            return
        room = self._room()
        size = frames.encode(self._blocks[block], room, self._dtype, self._codec)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        unfinished = f"{path}_{uuid.uuid4().hex}.tmp"
        try:
            with open(unfinished, "xb") as file:
                file.write(room[:size])
            os.replace(unfinished, path)
        except BaseException:
            _remove(unfinished)
            raise

    def _load(self, path, block):
        room = self._room()
        with open(path, "rb") as file:
            size = file.readinto(room)  # no frame is larger, whatever the file is
        try:
            frames.decode(room[:size], self._blocks[block], self._dtype)
        except SnugError:
            _remove(path)
            raise

    def _room(self):
        if not hasattr(self._rooms, "room"):
            self._rooms.room = numpy.empty(
                frames.bound_bytes(self._block_size, self._dtype, self._codec), numpy.uint8)
        return self._rooms.room


def _remove(path):
    try:
        os.remove(path)
    except OSError:
        pass  # another process was faster
