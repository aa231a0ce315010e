"""What the connector tells vLLM's log and its /metrics."""

from dataclasses import dataclass

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (KVConnectorPromMetrics,
                                                                  KVConnectorStats)
from vllm.v1.metrics.utils import create_metric_per_engine

COUNTERS = {
    "sent_bytes": "Bytes of KV pages sent, before compression",
    "sent_wire_bytes": "The same as they travelled",
    "received_bytes": "Bytes of KV pages received, after decompression",
    "received_wire_bytes": "The same as they travelled",
    "sends": "Requests whose pages were sent",
    "loads": "Requests whose pages were received",
    "failed_sends": "Requests whose pages were asked for and did not arrive",
    "failed_loads": "Requests that compute their pages again, since these did not arrive",
    "expired_requests": "Requests whose pages nobody asked for in time",
    "send_seconds": "Seconds from a decode worker's question until it has its pages",
    "load_seconds": "Seconds from the decision to load until the pages are there",
}


@dataclass
class SnugStats(KVConnectorStats):
    """Sums since the last report."""

    def __post_init__(self):
        if not self.data:
            self.reset()

    def reset(self):
        self.data = dict.fromkeys(COUNTERS, 0)

    def is_empty(self):
        return not any(self.data.values())

    def aggregate(self, other):
        for name, value in other.data.items():
            self.data[name] += value
        return self

    def add_transfer(self, is_send, moved, seconds, error):
        one, all_, done = (("sent", "sends", "send_seconds") if is_send
                           else ("received", "loads", "load_seconds"))
        if error is not None:
            self.data[f"failed_{all_}"] += 1
            return
        self.data[all_] += 1
        self.data[done] += seconds
        self.data[f"{one}_bytes"] += moved.raw_bytes
        self.data[f"{one}_wire_bytes"] += moved.wire_bytes

    def reduce(self):
        """For a line of the log."""
        line = {name: round(value, 4) for name, value in self.data.items() if value}
        for way in ("sent", "received"):
            if self.data[f"{way}_bytes"]:
                line[f"{way}_ratio"] = round(
                    self.data[f"{way}_wire_bytes"] / self.data[f"{way}_bytes"], 4)
        return line


class SnugPromMetrics(KVConnectorPromMetrics):
    def __init__(self, vllm_config, metric_types, labelnames, per_engine_labelvalues):
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters = {
            name: create_metric_per_engine(
                self._counter_cls(name=f"vllm:snug_kv_{name}", documentation=what,
                                  labelnames=labelnames), per_engine_labelvalues)
            for name, what in COUNTERS.items()}

    def observe(self, transfer_stats_data, engine_idx=0):
        for name, value in transfer_stats_data.items():
            if value:
                self._counters[name][engine_idx].inc(value)
