"""The connector in a worker of vLLM: serves pages of its cache, and loads pages into it."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch
from vllm.logger import init_logger

from .._library import milliseconds_of
from ..kv.channel import read_options
from ..kv.client import PageClient, PullError
from ..kv.frames import dtype_name
from ..kv.held import HeldRequests
from ..kv.pages import CacheLayout
from ..kv.server import PageServer
from .kv_stats import SnugStats

logger = init_logger(f"vllm.{__name__}")  # vLLM shows what is below its own name
_MAX_LOADS = 8
_OPAQUE = ("bytes", "i8")  # what such caches hold has a name in vLLM only
_ALIASES = {"fp8": "fp8_e4m3"}  # vLLM's


class KvOptions(NamedTuple):
    """Beside those of all doors, snug.kv.channel's."""
    host: str = "127.0.0.1"      # where a prefill worker listens
    port: int = 0                # worker n takes port + n; 0: any
    hold_seconds: float = 120.0  # how long pages wait for a decode instance


class Rank(NamedTuple):
    """Of a worker: in its pipeline and tensor groups, and of its engine among those of data
    parallelism on this host."""
    pipeline: int
    tensor: int
    num_pipeline: int
    num_tensor: int
    engine: int = 0

    @property
    def name(self):
        return f"{self.pipeline},{self.tensor}"

    @property
    def number(self):
        """Among all workers of this host, for ports."""
        return (self.engine * self.num_pipeline + self.pipeline) * self.num_tensor + self.tensor

    def __str__(self):
        return (f"pipeline rank {self.pipeline} of {self.num_pipeline}, tensor rank {self.tensor} "
                f"of {self.num_tensor}")


class WorkerSide:
    """`cache_dtype` is vLLM's name for what the caches hold, as --kv-cache-dtype has it."""

    def __init__(self, extra, rank, cache_dtype):
        chosen, self._options = read_options(extra, KvOptions, "SnugConnector")
        milliseconds_of(chosen.hold_seconds, "hold_seconds")
        self._rank, self._cache_dtype = rank, _ALIASES.get(cache_dtype, cache_dtype)
        self._address = f"{chosen.host}:{chosen.port + rank.number if chosen.port else 0}"
        self._hold_seconds = chosen.hold_seconds
        self._held, self._server, self._client = HeldRequests(), None, None
        self._loads = ThreadPoolExecutor(_MAX_LOADS, "snug.kv.load")
        self._lock = threading.Lock()
        self._received, self._bad_blocks, self._stats = set(), set(), SnugStats()

    def register(self, caches, num_blocks, block_tokens, is_producer, is_consumer):
        tensor = next(iter(caches.values()))
        kinds = {(cache.dtype, cache.device) for cache in caches.values()}
        if len(kinds) > 1:
            raise ValueError("SnugConnector needs one dtype and one device for all layers' KV "
                             f"caches, not {sorted(map(str, kinds))}")
        dtype = dtype_name([tensor.dtype])
        # Pages that look the same can be of other heads, where their workers are more or fewer, and
        # of another format, if torch does not name it: vLLM keeps all kinds of FP8 as bytes.
        beside = f"{self._cache_dtype}, {self._rank}" if dtype in _OPAQUE else str(self._rank)
        layout = CacheLayout(caches, num_blocks, block_tokens, dtype, beside)
        layout.caches = caches  # keeps the memory as long as a transfer uses the layout
        options = self._options.of_pages(dtype, tensor.device.index if tensor.is_cuda else None)
        if is_producer:
            self._server = PageServer(self._address, layout, self._held, options,
                                      lambda *what: self._record(True, *what), logger.warning)
        if is_consumer:
            self._client = PageClient(layout, options, lambda *what: self._record(False, *what),
                                      logger.warning)
        logger.info("SnugConnector: %s, mode %s%s", layout.fingerprint, options.mode,
                    f", serving at {self.address}" if is_producer else "")

    @property
    def address(self):
        return self._server.address if self._server is not None else None

    def start(self, metadata):
        for request, blocks in metadata.holds.items():
            self._held.hold(request, blocks, self._hold_seconds)
        for source in metadata.drops:
            address = source.workers.get(self._rank.name)
            if self._client is not None and address is not None:
                self._loads.submit(self._client.drop, address, source.request)
        ready = _work_so_far() if metadata.loads else None
        for request, load in metadata.loads.items():
            self._loads.submit(self._load, request, load, ready)

    def take_finished(self):
        """Requests whose blocks may be freed, and requests whose blocks are loaded (or failed)."""
        sent = self._held.take_ended()
        with self._lock:
            received, self._received = self._received, set()
            self._stats.data["expired_requests"] += self._held.take_num_expired()
        return sent or None, received or None

    def take_bad_blocks(self):
        with self._lock:
            bad, self._bad_blocks = self._bad_blocks, set()
        return bad

    def take_stats(self):
        with self._lock:
            if self._stats.is_empty():
                return None
            stats, self._stats = self._stats, SnugStats()
        return stats

    def shutdown(self):
        for part in (self._client, self._server):
            if part is not None:
                part.close()
        self._loads.shutdown(wait=False)

    def _load(self, request, load, ready):
        try:
            self._pull(load, ready)
        except Exception as error:  # whatever it is, vLLM must be told, or the request hangs
            if not isinstance(error, PullError):
                logger.exception("Loading KV pages failed")
            logger.warning("Request %s computes its prompt here: %s", request, error)
            with self._lock:
                self._bad_blocks.update(load.blocks)
        with self._lock:
            self._received.add(request)

    def _pull(self, load, ready):
        if self._client is None:
            raise PullError("this instance only produces KV pages (kv_role)")
        address = load.source.workers.get(self._rank.name)
        if address is None:
            raise PullError(f"the prefill instance has no worker for {self._rank}: both instances "
                            "need the same parallel sizes")
        self._client.pull(address, load.source.request, load.first, load.blocks, ready)

    def _record(self, is_send, moved, seconds, error):
        with self._lock:
            self._stats.add_transfer(is_send, moved, seconds, error)


def _work_so_far():
    """What waits for kernels that may still use the blocks of the loads; None without a GPU."""
    if not torch.cuda.is_available():
        return None
    event = torch.cuda.Event()
    event.record()
    return event.synchronize
