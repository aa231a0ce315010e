"""A trainer's end of the connections to its workers: one update, made and sent."""

import time
from typing import NamedTuple

import torch

from .. import SnugError
from ..torch import compress, delta, tensor_hash
from ..torch.deltas import delta_info
from .weight_update import (BATCH_TAG, PROTOCOL, Refused, padded, recv_text, send_text,
                            version_of)

_BATCH_BYTES = 16 << 20
_SLICE_SECONDS = 0.5  # after which a sender looks whether the worker said something


class Sent(NamedTuple):
    """What one update took."""
    raw_bytes: int          # of the weights, as all workers hold them
    wire_bytes: int         # sent for them
    num_deltas: int
    num_whole: int
    encode_seconds: float
    seconds: float


class _Key(NamedTuple):
    """The part of a tensor that some workers hold."""
    name: str
    offset: int
    size: tuple
    stride: tuple
    dtype: torch.dtype

    def of(self, tensor):
        tensor = tensor.detach().contiguous()
        # Trainers keep parameters as parts of one large buffer: offsets count from its start.
        first = tensor.storage_offset() + self.offset
        return tensor.as_strided(self.size, self.stride, first).to(self.dtype).contiguous()


class Worker:
    """One worker and what it holds."""

    def __init__(self, connection, tensors, seconds):
        self.connection, self.seconds = connection, seconds
        if recv_text(connection, seconds) != {"hello": PROTOCOL}:
            raise RuntimeError("a worker speaks another protocol: install the same Snug on both "
                               "sides")
        send_text(connection, tensors)
        answer = recv_text(connection, seconds)
        if "error" in answer:
            raise Refused(answer["error"])
        self.taken, pieces = set(answer["taken"]), answer["pieces"]
        self.keys = [_Key(tensors[number][0], offset, tuple(size), tuple(stride),
                          getattr(torch, dtype))
                     for number, offset, size, stride, dtype, _ in pieces]
        self.hashes = [piece[-1] for piece in pieces]
        self.new_hashes = None
        send_text(connection, "ok")

    def wait(self, transfer):
        """Until the worker has what was sent, or says that it does not want it."""
        deadline = time.monotonic() + self.seconds
        while True:
            try:
                return transfer.wait(min(_SLICE_SECONDS, self.seconds))
            except TimeoutError:
                reason = self.reason()
                if reason is not None:
                    raise reason from None
                if transfer.done() or time.monotonic() > deadline:
                    raise

    def reason(self):
        """Why the worker refused the update, or None."""
        try:
            answer = recv_text(self.connection, 0.1)
        except (SnugError, TimeoutError, ValueError):
            return None
        return Refused(answer["error"]) if "error" in answer else None


class Update:
    """One update on its way to all workers."""

    def __init__(self, workers, known):
        self._workers, self._known = workers, known
        self._num_entries = [0] * len(workers)
        self._batches, self._num_bytes = [[] for _ in workers], 0
        self._under_way = []
        self._counts = {"delta": 0, "whole": 0}
        self._wire_bytes, self._encode_seconds = 0, 0.0
        self.changes = {}  # key -> (target hash, delta or None, new values or None)

    def send(self, number, tensors):
        held = holders_of(self._workers)
        for worker in self._workers:
            worker.new_hashes = list(worker.hashes)
            send_text(worker.connection, {
                "update": PROTOCOL, "number": number, "base": version_of(worker.hashes)})
        for name, tensor in tensors:
            for key, holders in held.get(name, {}).items():
                self._add(key, key.of(tensor), holders)
        self._flush()
        self._wait()
        for worker, count in zip(self._workers, self._num_entries):
            send_text(worker.connection, {"end": count, "target": version_of(worker.new_hashes)})

    def expect(self, answer):
        for worker in self._workers:
            found = recv_text(worker.connection, worker.seconds)
            if found != answer:
                raise Refused(found.get("error", f"a worker answered {found}"))

    def summary(self, seconds):
        raw_bytes = sum(torch.Size(key.size).numel() * key.dtype.itemsize
                        for worker in self._workers for key in worker.keys)
        return Sent(raw_bytes, self._wire_bytes, self._counts["delta"], self._counts["whole"],
                    self._encode_seconds, seconds)

    def _add(self, key, new, holders):
        start = time.monotonic()
        base_hash, base = self._known.get(key, (None, None))
        forms = {"delta" if worker.hashes[i] == base_hash and base is not None else "whole"
                 for worker, i in holders}
        payloads = {form: _PAYLOADS[form](base, new) for form in sorted(forms)}
        first = next(iter(payloads.values()))
        if first.target_hash != base_hash:
            kept = new.clone() if first.change is None else None
            self.changes[key] = first.target_hash, first.change, kept
        self._encode_seconds += time.monotonic() - start
        for worker, i in holders:
            has_base = worker.hashes[i] == base_hash and base is not None
            payload = payloads["delta" if has_base else "whole"]
            if worker.hashes[i] != payload.target_hash:
                self._append(worker, i, payload)
        if self._num_bytes >= _BATCH_BYTES:
            self._flush()

    def _append(self, worker, i, payload):
        number = self._workers.index(worker)
        self._batches[number].append((i, payload))
        self._num_entries[number] += 1
        self._num_bytes += payload.on_host.numel()
        self._wire_bytes += padded(payload.on_host.numel())
        self._counts[payload.form] += 1
        worker.new_hashes[i] = payload.target_hash

    def _flush(self):
        """Sends what has been collected; encoding goes on meanwhile."""
        self._wait()
        for worker, batch in zip(self._workers, self._batches):
            if not batch:
                continue
            send_text(worker.connection, {"batch": [
                [i, payload.form, payload.on_host.numel(), payload.target_hash]
                for i, payload in batch]})
            segments = []
            for _, payload in batch:
                num_bytes = payload.on_host.numel()
                segments += [payload.on_host, bytes(padded(num_bytes) - num_bytes)]
            self._under_way.append((worker, worker.connection.send(BATCH_TAG, segments)))
        self._batches, self._num_bytes = [[] for _ in self._workers], 0

    def _wait(self):
        for worker, transfer in self._under_way:
            worker.wait(transfer)
        self._under_way = []


class _Payload(NamedTuple):
    form: str
    on_host: torch.Tensor  # what is sent
    target_hash: int
    change: object         # the delta on the tensor's device, or None


def _whole(_, new):
    return _Payload("whole", compress(new).cpu(), tensor_hash(new), None)


def _delta(base, new):
    if new.element_size() > 2:
        base, new = base.cpu(), new.cpu()  # deltas on GPUs have elements of one or two bytes
    change = delta(base.to(new.device), new)
    on_host = change.cpu()
    if on_host.numel() > new.numel() * new.element_size() // 2:
        whole = _whole(None, new)
        if whole.on_host.numel() < on_host.numel():
            return whole
    return _Payload("delta", on_host, delta_info(on_host).target_hash, change)


_PAYLOADS = {"delta": _delta, "whole": _whole}


def holders_of(workers):
    """name -> key -> [(worker, number of its piece)]"""
    held = {}
    for worker in workers:
        for i, key in enumerate(worker.keys):
            held.setdefault(key.name, {}).setdefault(key, []).append((worker, i))
    return held
