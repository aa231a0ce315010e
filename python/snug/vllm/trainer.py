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
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from .. import SnugError, wire
from ..torch import apply_delta, tensor_hash
from .clients import HTTPClient, LLMClient
from .weight_sender import Sent, Update, Worker, holders_of
from .weight_update import PROTOCOL

__all__ = ["HTTPClient", "LLMClient", "Sent", "Trainer"]


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
    seconds   how long to wait for a worker.
    lanes     connections to each worker, 1 to 16; 0: two, or four with many CPUs.
    insecure  no token, no encryption, any user.
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
        tensors = self._gathered()
        with _drained(tensors):
            if rank == 0:
                self._listener = wire.listen(listen, mode="raw", lanes=lanes, insecure=insecure)
                self._address = address or self._listener.address
                self._connect()
            self._compare(tensors)

    def send_weights(self):
        """Returns what it took, as Sent; None on ranks that do not send.

        On an error before the commit every worker serves what it served before; docs/rl.md has
        those of the commit itself. The next call connects again.
        """
        tensors = self._gathered()
        if self._rank != 0:
            for _ in tensors:
                pass
            return None
        start = time.monotonic()
        with _drained(tensors):
            if not self._workers:
                self._connect()
            try:
                return self._send(Update(self._workers, self._known), tensors, start)
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
                    try:
                        self._workers.append(Worker(connection, self._tensors, self._seconds))
                    except BaseException:
                        connection.close()  # or the worker, and `ready` with it, would wait
                        raise
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

    def _gathered(self):
        """Yields (name, tensor) of the source: each tensor that was announced, once."""
        shapes = {name: shape for name, _, shape in self._tensors}
        for name, tensor in self._source():
            tensor = _full(tensor)
            if shapes.pop(name, None) != list(tensor.shape):
                raise ValueError(f"the source gave {name} of shape {tuple(tensor.shape)}, which "
                                 "was not announced, or came before; a source gives the same "
                                 "names and shapes every time")
            yield name, tensor
        if shapes:
            raise ValueError(f"the source left out {len(shapes)} tensors, such as "
                             f"{next(iter(shapes))}; a source gives all of them every time")

    def _compare(self, tensors):
        """Keeps what the workers have already: the next update of these is a delta."""
        held = holders_of(self._workers)
        for name, tensor in tensors:
            for key, holders in held.get(name, {}).items():
                part = key.of(tensor)
                number = tensor_hash(part)
                if any(worker.hashes[i] == number for worker, i in holders):
                    self._known[key] = number, self._kept(part)

    def _kept(self, part):
        return part.to(self._keep_on or part.device, copy=True)

    def _send(self, update, tensors, start):
        client, number = self._client, secrets.token_hex(8)
        try:
            update.send(number, tensors)
            update.expect({"staged": number})
        except (SnugError, TimeoutError) as error:
            raise next(filter(None, (worker.reason() for worker in self._workers)), error) from None
        _start(client)
        client.update_weights({"commit": number})
        client.finish_weight_update()
        for worker in self._workers:
            worker.hashes = worker.new_hashes
        for key, (target_hash, change, whole) in update.changes.items():
            if whole is None:
                base = self._known[key][1]
                whole = apply_delta(base.to(change.device), change)
            self._known[key] = target_hash, whole.to(self._keep_on or whole.device)
        return update.summary(time.monotonic() - start)


def _start(client):
    """vLLM refuses to start while an update is under way: that of a trainer that has died."""
    try:
        client.start_weight_update()
    except Exception as error:
        try:
            client.finish_weight_update()
        except Exception:
            raise error from None
        client.start_weight_update()


@contextmanager
def _drained(tensors):
    """After an error, gathers the tensors that are left, as the other ranks do."""
    try:
        yield
    except Exception:
        for _ in tensors:
            pass
        raise


def _full(tensor):
    """All of a tensor of which FSDP has a part here; a collective call."""
    gather = getattr(tensor, "full_tensor", None)
    return gather() if callable(gather) else tensor
