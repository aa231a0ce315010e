"""What became of the layers: one line in the log, one a layer at debug level, and gauges."""

import zlib
from collections import Counter
from typing import NamedTuple

from .._units import change


class Layer(NamedTuple):
    name: str
    n: int
    k: int
    num_bytes: int
    kept_dense: str  # why, or ""


class Report:
    """Of one process, which has one part of the model if that is divided among GPUs."""

    def __init__(self, log, policy):
        self._log, self._policy = log, policy
        self._num_expected = 0
        self._layers = {}
        self._reasons = Counter()  # why layers stay dense; the log has one layer of each at first
        self._is_told = False
        self.settings = {}  # what compiled graphs depend on: see engine.compile_settings

    def expect(self):
        self._num_expected += 1

    def forget(self):
        self._num_expected -= 1
        self._tell_if_complete()

    def add(self, layer):
        if layer.name in self._layers:
            return  # an update of the weights
        self._layers[layer.name] = layer
        if layer.kept_dense:
            is_first = layer.kept_dense not in self._reasons
            self._reasons[layer.kept_dense] += 1
            tell = self._log.info if is_first else self._log.debug
            tell("Snug: %s (%d x %d) stays dense: %s", layer.name, layer.n, layer.k,
                 layer.kept_dense)
        else:
            self._log.debug("Snug: %s (%d x %d): %d bytes, %.2f bits a weight", layer.name, layer.n,
                            layer.k, layer.num_bytes, 8 * layer.num_bytes / (layer.n * layer.k))
        self._tell_if_complete()

    @property
    def dense_bytes(self):
        return sum(2 * layer.n * layer.k for layer in self._layers.values())

    @property
    def num_bytes(self):
        return sum(layer.num_bytes for layer in self._layers.values())

    def summary(self):
        packed = sum(not layer.kept_dense for layer in self._layers.values())
        return (f"Snug: {packed} of {len(self._layers)} layers packed (policy {self._policy}): "
                f"{self.dense_bytes / 1e9:.3f} GB -> {self.num_bytes / 1e9:.3f} GB "
                f"({change(self.dense_bytes, self.num_bytes)})"
                + "".join(f"; {count} dense: {why}" for why, count in self._reasons.items()))

    def _tell_if_complete(self):
        if self._is_told or not self._layers or len(self._layers) < self._num_expected:
            return
        self._is_told = True
        sizes = sorted((layer.name, layer.num_bytes) for layer in self._layers.values())
        self.settings.update(policy=self._policy, sizes=zlib.crc32(repr(sizes).encode()))
        self._log.info("%s", self.summary())
        _export(self.dense_bytes, self.num_bytes)


def _export(dense_bytes, num_bytes):
    """Gauges of this process. vLLM's /metrics shows them if PROMETHEUS_MULTIPROC_DIR is set, by
    which prometheus_client collects the gauges of all processes."""
    try:
        from prometheus_client import REGISTRY, Gauge
    except ImportError:
        return
    text = {"snug:weight_bytes": "Bytes of linear layers and experts in GPU memory",
            "snug:weight_bytes_saved": "Bytes of GPU memory that packed layers save"}
    values = {"snug:weight_bytes": num_bytes, "snug:weight_bytes_saved": dense_bytes - num_bytes}
    for name, value in values.items():
        gauge = REGISTRY._names_to_collectors.get(name)  # of an earlier engine of this process
        if gauge is None:
            gauge = Gauge(name, text[name], multiprocess_mode="livesum")
        gauge.set(value)
