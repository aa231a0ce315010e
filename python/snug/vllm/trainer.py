"""The trainer's side of weight updates by deltas (docs/rl.md). Needs torch, and no vLLM.

    from snug.vllm.trainer import HTTPClient, Trainer
    trainer = Trainer(HTTPClient("http://localhost:8000"), model.named_parameters)
    for batch in batches:
        train(model, batch)
        trainer.send_weights()     # returns when every worker serves the new weights

The trainer keeps a copy of what the workers have, in the memory of its tensors or, with
keep_on="cpu", in that of the host: as many bytes as the workers hold, 2 a parameter for BF16.
"""

import secrets
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch

from .. import SnugError, wire
from ..torch import apply_delta, compress, delta, tensor_hash
from .clients import HTTPClient, LLMClient
from .weight_update import BATCH_TAG, PROTOCOL, padded, recv_text, send_text, version_of

__all__ = ["HTTPClient", "LLMClient", "Sent", "Trainer"]

_BATCH_BYTES = 16 << 20
_DELTA_HEADER = struct.Struct("<24xQQQ")  # base hash, target hash, number of changes


class Sent(NamedTuple):
    """What one update took."""
    raw_bytes: int          # of the weights, as all workers hold them
    wire_bytes: int         # sent for them
    num_deltas: int
    num_whole: int
    encode_seconds: float
    seconds: float


class Trainer:
    """Sends weights to all workers of the engines behind `client`.

    client    has the four methods of vLLM's VLLMWeightSyncClient: LLMClient, HTTPClient, or one
              of vLLM's own.
    source    a function that returns an iterator of (name, tensor) under the names of the
              checkpoint, such as model.named_parameters. Shards of FSDP are gathered: every rank
              makes a Trainer and calls send_weights.
    listen    where the workers connect to: HOST:PORT, or shm:NAME on one host. For other hosts,
              SNUG_TOKEN is the same on both sides (docs/wire.md, "Security").
    address   the same as workers see it, if that is another one.
    rank      of this process among the trainers. Rank 0 sends.
    metadata  [(name, dtype, shape)] of all tensors, for a source whose tensors cost something.
    keep_on   the device of the copy of what the workers have.
    """

    def __init__(self, client, source, listen="127.0.0.1:0", address=None, rank=0, metadata=None,
                 keep_on=None, seconds=300, lanes=0, insecure=False):
        if metadata is None:
            metadata = [(name, tensor.dtype, tensor.shape) for name, tensor in source()]
        self._tensors = [[name, str(dtype).removeprefix("torch."), list(shape)]
                         for name, dtype, shape in metadata]
        self._client, self._source, self._rank = client, source, rank
        self._keep_on, self._seconds, self._insecure = keep_on, seconds, insecure
        self._workers, self._listener = [], None
        self._known = {}   # key -> (hash, tensor): what workers have
        if rank == 0:
            self._listener = wire.listen(listen, mode="raw", lanes=lanes, insecure=insecure)
            self._address = address or self._listener.address
            self._connect()
        self._compare()

    def send_weights(self):
        """Returns what it took, as Sent; None on ranks that do not send.

        On an error every worker serves what it served before. The next call connects again.
        """
        if self._rank != 0:
            for _, tensor in self._source():
                _full(tensor)
            return None
        start = time.monotonic()
        if not self._workers:
            self._connect()
        try:
            return self._send(_Update(self._workers, self._known), start)
        except BaseException:
            self._disconnect()
            raise

    def close(self):
        self._disconnect()
        if self._listener is not None:
            self._listener.close()

    def _connect(self):
        """Asks every worker what it holds."""
        info = {"address": self._address, "protocol": PROTOCOL, "seconds": self._seconds,
                "insecure": self._insecure}
        with ThreadPoolExecutor(1) as thread:
            ready = thread.submit(self._client.init_weight_transfer_engine, info)
            try:
                # A worker is ready when it was greeted, so none is left when all are ready.
                while not ready.done():
                    try:
                        connection = self._listener.accept(0.2)
                    except TimeoutError:
                        continue
                    self._workers.append(_Worker(connection, self._tensors, self._seconds))
                ready.result()
            except BaseException:
                self._disconnect()
                raise
        if not self._workers:
            raise RuntimeError('no worker connected; vLLM needs --weight-transfer-config '
                               '\'{"backend": "snug"}\'')
        left = set(range(len(self._tensors))).difference(*(w.taken for w in self._workers))
        if left:
            self._disconnect()
            names = ", ".join(self._tensors[number][0] for number in sorted(left)[:5])
            raise ValueError(f"vLLM has no place for {len(left)} of the tensors, such as {names}; "
                             "if it needs none, leave them out of the source")

    def _disconnect(self):
        for worker in self._workers:
            worker.connection.close()
        self._workers = []

    def _compare(self):
        """Keeps what the workers have already: the next update of these is a delta."""
        held = _holders(self._workers)
        for name, tensor in self._source():
            tensor = _full(tensor)
            for key, holders in held.get(name, {}).items():
                part = key.of(tensor)
                number = tensor_hash(part)
                if any(worker.hashes[i] == number for worker, i in holders):
                    self._known[key] = number, self._kept(part)

    def _kept(self, part):
        return part.to(self._keep_on or part.device, copy=True)

    def _send(self, update, start):
        client, number = self._client, secrets.token_hex(8)
        _start(client)
        with ThreadPoolExecutor(1) as thread:
            staged = thread.submit(client.update_weights, {"step": "stage", "update": number})
            try:
                update.send((name, _full(tensor)) for name, tensor in self._source())
            except BaseException as error:
                self._disconnect()  # ends the wait of workers
                # A worker that refuses closes its end: it knows why.
                if isinstance(error, (SnugError, TimeoutError)) and staged.exception() is not None:
                    raise staged.exception() from None
                raise
            staged.result()
        client.update_weights({"step": "commit", "update": number})
        client.finish_weight_update()
        for worker in self._workers:
            worker.hashes = worker.new_hashes
        for key, (target_hash, change, whole) in update.changes.items():
            if whole is None:
                base = self._known[key][1]
                whole = apply_delta(base.to(change.device), change)
            self._known[key] = target_hash, whole.to(self._keep_on or whole.device)
        return update.summary(time.monotonic() - start)


class _Key(NamedTuple):
    """The part of a tensor that some workers hold."""
    name: str
    offset: int
    size: tuple
    stride: tuple
    dtype: torch.dtype

    def of(self, tensor):
        part = tensor.detach().contiguous().view(-1).as_strided(self.size, self.stride, self.offset)
        return part.to(self.dtype).contiguous()


class _Worker:
    """One worker and what it holds."""

    def __init__(self, connection, tensors, seconds):
        self.connection, self.seconds = connection, seconds
        if recv_text(connection, seconds) != {"hello": PROTOCOL}:
            raise RuntimeError("a worker speaks another protocol: install the same Snug on both "
                               "sides")
        send_text(connection, tensors)
        answer = recv_text(connection, seconds)
        self.taken, pieces = set(answer["taken"]), answer["pieces"]
        self.keys = [_Key(tensors[number][0], offset, tuple(size), tuple(stride),
                          getattr(torch, dtype))
                     for number, offset, size, stride, dtype, _ in pieces]
        self.hashes = [piece[-1] for piece in pieces]
        self.new_hashes = None
        send_text(connection, "ok")


class _Update:
    """One update on its way to all workers."""

    def __init__(self, workers, known):
        self._workers, self._known = workers, known
        self._num_entries = [0] * len(workers)
        self._batches, self._num_bytes = [[] for _ in workers], 0
        self._under_way = []
        self._counts = {"delta": 0, "whole": 0}
        self._wire_bytes, self._encode_seconds = 0, 0.0
        self.changes = {}  # key -> (target hash, delta or None, new values or None)

    def send(self, tensors):
        held = _holders(self._workers)
        for worker in self._workers:
            worker.new_hashes = list(worker.hashes)
            send_text(worker.connection, {"update": PROTOCOL, "base": version_of(worker.hashes)})
        for name, tensor in tensors:
            for key, holders in held.get(name, {}).items():
                self._add(key, key.of(tensor), holders)
        self._flush()
        self._wait()
        for worker, count in zip(self._workers, self._num_entries):
            send_text(worker.connection, {"end": count, "target": version_of(worker.new_hashes)})

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
            transfer.wait(worker.seconds)
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
    _, target_hash, _ = _DELTA_HEADER.unpack_from(on_host.numpy())
    if on_host.numel() > new.numel() * new.element_size() // 2:
        whole = _whole(None, new)
        if whole.on_host.numel() < on_host.numel():
            return whole
    return _Payload("delta", on_host, target_hash, change)


_PAYLOADS = {"delta": _delta, "whole": _whole}


def _holders(workers):
    """name -> key -> [(worker, number of its piece)]"""
    held = {}
    for worker in workers:
        for i, key in enumerate(worker.keys):
            held.setdefault(key.name, {}).setdefault(key, []).append((worker, i))
    return held


def _start(client):
    try:
        client.start_weight_update()
    except Exception as error:
        try:  # another trainer began an update and died; what it staged is forgotten by now
            client.finish_weight_update()
        except Exception:
            raise error from None
        client.start_weight_update()


def _full(tensor):
    """All of a tensor of which FSDP has a part here; a collective call."""
    gather = getattr(tensor, "full_tensor", None)
    return gather() if callable(gather) else tensor
