"""A worker's end of the connection to its trainer. Needs torch, and no vLLM.

Updates are received and verified on a thread of their own, while the engine serves. vLLM takes part
only when all workers are ready: it cannot take back an update that it has begun, and of several
workers that raise an error it takes the second's for the answer to its next call. So what goes wrong
is told to the trainer over the connection.
"""

import logging
import threading

import torch

from .. import wire
from .weight_update import PROTOCOL, Refused, Stage, receive, recv_text, send_text, version_of

_log = logging.getLogger("vllm.plugins.snug")
_LINGER_SECONDS, _MAX_LATE_NOTES = 10, 64


class Receiver:
    def __init__(self, make_weights):
        """make_weights([(name, dtype, shape)]) finds the places of a trainer's tensors."""
        self._make_weights = make_weights
        self._tensors = self._weights = self._connection = self._staged = self._thread = None
        self._seconds = 300

    def connect(self, address, protocol, seconds, insecure):
        self.forget()
        if protocol != PROTOCOL:
            raise ValueError("the trainer speaks another protocol: install the same Snug on both "
                             "sides")
        self._seconds = seconds
        self._connection = wire.connect(address, insecure=insecure)
        if self._or_tell(self._shake_hands):
            self._thread = threading.Thread(target=self._serve, daemon=True)
            self._thread.start()

    def commit(self, update):
        """Applies what was staged."""
        if self._staged is None or self._staged[2] != update:
            raise Refused("an update is to be committed that is not staged: its trainer lost the "
                          "connection; the weights are unchanged")
        received, hashes, _ = self._staged
        self._staged = None
        self._weights.commit(received, hashes)

    def forget(self):
        """Ends the connection, and drops what was staged."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._staged = None

    def _shake_hands(self):
        connection = self._connection
        send_text(connection, {"hello": PROTOCOL})
        tensors = [(name, getattr(torch, dtype), shape)
                   for name, dtype, shape in recv_text(connection, self._seconds)]
        if self._weights is None or self._tensors != tensors:
            self._tensors, self._weights = tensors, self._make_weights(tensors)
        weights = self._weights
        weights.read_hashes()  # somebody else may have loaded other weights
        send_text(connection, {"taken": weights.taken, "pieces": [
            [piece.tensor, *piece.source, str(piece.dtype).removeprefix("torch."), known]
            for piece, known in zip(weights.pieces, weights.hashes)]})
        if recv_text(connection, self._seconds) != "ok":
            raise Refused("the trainer ended the handshake")
        _log.info("Snug weight transfer: %d pieces, version %s", len(weights.pieces),
                  version_of(weights.hashes))

    def _serve(self):
        device = self._weights.device
        if device.type != "cuda":
            while self._or_tell(self._stage):
                pass
            return
        with torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream(device)):
            while self._or_tell(self._stage):
                pass

    def _stage(self):
        """Receives and verifies one update; writes nothing."""
        connection, weights = self._connection, self._weights
        header = recv_text(connection, None)  # hours may pass between updates
        self._staged = None
        stage, is_gpu = Stage(weights.raw_bytes, weights.hashes), weights.device.type == "cuda"
        stage.begin(header)
        received = receive(
            connection, stage,
            lambda num_bytes: torch.empty(num_bytes, dtype=torch.uint8, device="cpu",
                                          pin_memory=is_gpu), self._seconds)
        weights.verify(received)
        if is_gpu:
            torch.cuda.current_stream().synchronize()
        self._staged = received, stage.new_hashes(), header["number"]
        send_text(connection, {"staged": header["number"]})

    def _or_tell(self, step):
        """Whether the connection is still of use."""
        connection = self._connection
        if connection is None:
            return False
        try:
            step()
            return True
        except Exception as error:
            self._staged = None
            try:
                send_text(connection, {"error": str(error) or type(error).__name__})
                _log.warning("Snug weight transfer: an update is refused, the weights are "
                             "unchanged: %s", error)
                # The trainer closes its end when it has read that. To close this end before could
                # cost it the words: TCP drops what was not read yet.
                for _ in range(_MAX_LATE_NOTES):
                    connection.recv_note(_LINGER_SECONDS)
            except Exception:
                pass  # the trainer is gone
            connection.close()
            return False
