"""KV pages from a prefill to a decode instance of vLLM, compressed on the way.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "SnugConnector",
        "kv_connector_module_path": "snug.vllm.kv_connector", "kv_role": "kv_producer",
        "kv_load_failure_policy": "recompute"}'

and the same with "kv_consumer". docs/kv.md has the options and what happens when things fail.
"""

from dataclasses import dataclass

try:
    from vllm.distributed import parallel_state
    from vllm.distributed.kv_transfer.kv_connector.v1.base import (KVConnectorBase_V1,
                                                                   KVConnectorHandshakeMetadata,
                                                                   KVConnectorRole, SupportsHMA)
    from vllm.v1.kv_cache_interface import FullAttentionSpec
except ModuleNotFoundError as error:
    if error.name != "vllm":
        raise
    raise ImportError("snug.vllm.kv_connector runs inside vLLM: pip install vllm") from None

from .kv_scheduler import SchedulerSide
from .kv_stats import SnugPromMetrics, SnugStats
from .kv_worker import Rank, WorkerSide

try:
    from vllm.v1.metrics.cache_hit_source import CacheHitSource
except ImportError:  # before vLLM 0.28
    CacheHitSource = None


@dataclass
class WorkerAddress(KVConnectorHandshakeMetadata):
    """Where a worker serves its pages."""
    address: str


class SnugConnector(KVConnectorBase_V1, SupportsHMA):
    if CacheHitSource is not None:
        _cache_hit_source = CacheHitSource.P2P

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        groups = kv_cache_config.kv_cache_groups
        if len(groups) != 1:
            raise ValueError(
                f"SnugConnector transfers models with one kind of KV cache, and this one has "
                f"{len(groups)} (sliding windows, Mamba states); start vLLM with "
                "--disable-hybrid-kv-cache-manager")
        if not _is_full_attention(groups[0].kv_cache_spec):
            raise ValueError(
                "SnugConnector transfers KV caches that keep every token, and this model has "
                f"{type(groups[0].kv_cache_spec).__name__}; serve it without --kv-transfer-config")
        parallel = vllm_config.parallel_config
        if max(getattr(parallel, f"{way}_context_parallel_size", 1)
               for way in ("decode", "prefill")) > 1:
            raise ValueError("SnugConnector does not know how context parallelism divides blocks; "
                             "start vLLM without it")
        config = self._kv_transfer_config
        self._block_tokens = groups[0].kv_cache_spec.block_size
        self._is_producer, self._is_consumer = config.is_kv_producer, config.is_kv_consumer
        self._scheduler = self._worker = None
        if role == KVConnectorRole.SCHEDULER:
            self._scheduler = SchedulerSide(self._block_tokens, self._is_producer)
        else:
            self._worker = WorkerSide(config.kv_connector_extra_config, _rank(parallel),
                                      vllm_config.cache_config.cache_dtype)

    # ---- scheduler ----

    def set_xfer_handshake_metadata_pp_aware(self, metadata):
        self._scheduler.set_workers({rank: worker.address for rank, worker in metadata.items()})

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        return self._scheduler.num_new_matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        self._scheduler.after_alloc(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output):
        return self._scheduler.take_metadata()

    def request_finished(self, request, block_ids):
        return self._scheduler.finished(request, block_ids)

    def request_finished_all_groups(self, request, block_ids):
        return self._scheduler.finished(request, block_ids[0])

    # ---- worker ----

    def register_kv_caches(self, kv_caches):
        self._worker.register(kv_caches, self._kv_cache_config.num_blocks, self._block_tokens,
                              self._is_producer, self._is_consumer)

    def get_handshake_metadata(self):
        address = self._worker.address
        return None if address is None else WorkerAddress(address)

    def start_load_kv(self, forward_context, **kwargs):
        self._worker.start(self._get_connector_metadata())

    def wait_for_layer_load(self, layer_name):
        pass  # requests wait until all of their pages are there

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        pass  # pages are read when the decode worker asks for them

    def wait_for_save(self):
        pass

    def get_finished(self, finished_req_ids):
        return self._worker.take_finished()

    def get_block_ids_with_load_errors(self):
        return self._worker.take_bad_blocks()

    def shutdown(self):
        if self._worker is not None:
            self._worker.shutdown()

    # ---- metrics ----

    def get_kv_connector_stats(self):
        return self._worker.take_stats() if self._worker is not None else None

    @classmethod
    def build_kv_connector_stats(cls, data=None):
        return SnugStats(data=data or {})

    @classmethod
    def build_prom_metrics(cls, vllm_config, metric_types, labelnames, per_engine_labelvalues):
        return SnugPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)


def _is_full_attention(spec):
    """Blocks outside a sliding window are given back while a prompt is computed, so that what is in
    them is another request's. Mamba states are no blocks of tokens."""
    specs = getattr(spec, "kv_cache_specs", None)  # of layers with pages of different sizes
    if specs:
        return all(map(_is_full_attention, specs.values()))
    return isinstance(spec, FullAttentionSpec)


def _rank(parallel):
    pp, tp = parallel_state.get_pp_group(), parallel_state.get_tp_group()
    return Rank(pp.rank_in_group, tp.rank_in_group, pp.world_size, tp.world_size,
                parallel.data_parallel_rank_local or 0)
