"""vLLM's KV offload to host memory, with blocks compressed: more of them in the same memory.

    --kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both",
        "kv_connector_extra_config": {"spec_name": "SnugOffloadingSpec",
        "spec_module_path": "snug.vllm.kv_offload", "cpu_bytes_to_use": 34359738368}}'

The manager, its policies and metrics are vLLM's; blocks and their slots are Snug's (snug.kv).
"""

try:
    from vllm.v1.kv_offload.base import GPULoadStoreSpec
    from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
    from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec
except ModuleNotFoundError as error:
    if error.name != "vllm":
        raise
    raise ImportError("snug.vllm.kv_offload runs inside vLLM: pip install vllm") from None

import numpy
import torch
from vllm.logger import init_logger

from ..kv.frames import dtype_name
from ..kv.host_transfers import HostTransfers
from ..kv.slots import SlotStore, plan_slots

try:  # vLLM 0.24 has a handler for each direction, later versions one worker
    from vllm.v1.kv_offload.worker.worker import OffloadingHandler, TransferResult
    OffloadingWorker = OffloadingHandler
except ImportError:
    from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult

logger = init_logger(f"vllm.{__name__}")  # vLLM shows what is below its own name
_RATIOS = {"fixed": 0.7575, "entropy": 0.70}  # docs/kv.md has measurements


class SnugOffloadingSpec(CPUOffloadingSpec):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        if getattr(self, "blocks_per_chunk", getattr(self, "block_size_factor", 1)) != 1:
            raise ValueError("SnugOffloadingSpec offloads single blocks: leave out block_size")
        if len(self._groups(*arguments)) != 1:
            raise ValueError("SnugOffloadingSpec offloads models with one kind of KV cache; start "
                             "vLLM with --disable-hybrid-kv-cache-manager")
        self.replicated_layout = False
        self._dtype = _dtype_of(*arguments)
        if self._dtype != "bf16":
            raise ValueError("SnugOffloadingSpec is for KV caches of BF16, and this one has "
                             f"{self._dtype}: leave out spec_name and spec_module_path")
        self._codec = self.extra_config.get("codec", "fixed")
        if self._codec not in _RATIOS:
            raise ValueError(f"codec is {' or '.join(_RATIOS)}, not {self._codec!r}")
        world_size = _world_size_of(*arguments)
        self._num_slots, self._slot_bytes = plan_slots(
            int(self.extra_config["cpu_bytes_to_use"]) // world_size, self.cpu_page_size_per_worker,
            float(self.extra_config.get("slot_ratio", _RATIOS[self._codec])))
        self.num_plain = getattr(self, "num_chunks", getattr(self, "num_blocks", 0))
        self.num_chunks = self.num_blocks = self._num_slots  # what vLLM's manager hands out
        self._transfers = None

    @staticmethod
    def _groups(config, kv_cache_config=None):
        return config.groups if kv_cache_config is None else kv_cache_config.kv_cache_groups

    def get_worker(self, kv_caches):
        return SnugOffloadingWorker(self._open(kv_caches))

    def get_handlers(self, kv_caches):  # vLLM 0.24
        worker = SnugOffloadingWorker(self._open(kv_caches))
        yield GPULoadStoreSpec, CPULoadStoreSpec, worker
        yield CPULoadStoreSpec, GPULoadStoreSpec, worker

    def _open(self, kv_caches):
        if self._transfers is None:
            pages = [cache.tensor.view(torch.int8).view(-1, cache.page_size_bytes)
                     for cache in kv_caches.tensors]
            logger.info("SnugOffloadingSpec: %d slots of %d bytes for blocks of %d (%s, %s); "
                        "uncompressed, %d would have room", self._num_slots, self._slot_bytes,
                        self.cpu_page_size_per_worker, self._dtype, self._codec, self.num_plain)
            self._transfers = self._make_transfers(pages)
        return self._transfers

    def _make_transfers(self, pages):
        shape = self._num_slots, self._slot_bytes
        if pages[0].is_cuda:
            from ..kv.gpu_transfers import GpuTransfers
            rows = torch.empty(shape, dtype=torch.uint8, pin_memory=True)
            return GpuTransfers(pages, self._dtype, self._codec, SlotStore(rows, logger.warning))
        rows = numpy.empty(shape, numpy.uint8)
        return HostTransfers([page.view(torch.uint8).numpy() for page in pages], self._dtype,
                             self._codec, SlotStore(rows, logger.warning))


class SnugOffloadingWorker(OffloadingWorker):
    """A damaged block stops the engine: vLLM has no way to report a failed load here."""

    def __init__(self, transfers):
        self._transfers = transfers

    def submit_store(self, job_id, src_spec, dst_spec):
        self._transfers.submit(job_id, True, src_spec.block_ids, dst_spec.block_ids)
        return True

    def submit_load(self, job_id, src_spec, dst_spec):
        self._transfers.submit(job_id, False, dst_spec.block_ids, src_spec.block_ids)
        return True

    def transfer_async(self, job_id, spec):  # vLLM 0.24
        is_store = isinstance(spec[0], GPULoadStoreSpec)
        return (self.submit_store if is_store else self.submit_load)(job_id, *spec)

    def get_finished(self):
        return [TransferResult(job_id=job, success=True, transfer_size=size, transfer_time=seconds)
                for job, size, seconds in self._transfers.take_finished()]

    def wait(self, job_ids):
        self._transfers.wait(job_ids)

    def shutdown(self):
        self._transfers.shutdown()


def _dtype_of(config, kv_cache_config=None):
    """Snug's name for the elements of the cache; bytes for FP8 and everything else."""
    if kv_cache_config is None:
        name = config.model.dtype
    else:  # vLLM 0.24 gives its whole configuration
        name = config.cache_config.cache_dtype
        name = str(config.model_config.dtype) if name == "auto" else name
    return dtype_name([name])


def _world_size_of(config, kv_cache_config=None):
    return config.parallel.world_size if kv_cache_config is None else (
        config.parallel_config.world_size)
