"""The side that asks: connections to workers that answer (server.py), one for each address."""

import contextlib
import itertools
import threading
import time
import uuid
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeout

from .. import wire
from .._library import PEER, SnugError
from . import messages
from .channel import Channel, host_name

PROBLEMS = (SnugError, ValueError, FutureTimeout)  # what talking to a peer can raise
_PAUSE_SECONDS = 2.0  # after a failed connection: requests fail at once instead of waiting again
_MAX_ASKED = 32  # at once; the other side ends the connection at 64
_ANSWERS = ("send", "dropped", "go", "no")


class Refused(ValueError):
    """The peer's answer is no. The connection goes on."""


class Unreachable(ValueError):
    """There is no connection."""


class Ended(ValueError):
    """The other side has ended the connection, as it does to stop a transfer of another request."""


class Peers:
    def __init__(self, layout, options, log):
        self._arguments = layout, options, log
        self._peers, self._lock, self._name = {}, threading.Lock(), uuid.uuid4().hex
        self._is_closed = False

    def connected(self, address):
        with self._lock:
            if self._is_closed:
                raise ValueError("closed")
            peer = self._peers.get(address)
            if peer is None or peer.is_replaceable():
                # Addresses of instances that are gone would add up.
                self._peers = {name: other for name, other in self._peers.items()
                               if not other.is_replaceable()}
                peer = self._peers[address] = Peer(
                    address, *self._arguments, name=f"{self._name} to {address}",
                    tries_link=peer is None or not peer.lost_by_link)
        peer.connect()
        return peer

    def close(self):
        with self._lock:
            self._is_closed = True
            peers = list(self._peers.values())
        for peer in peers:
            peer.close()

    def __len__(self):
        return len(self._peers)


class Peer:
    """A connection to one worker; a new one is made after any error."""

    def __init__(self, address, layout, options, log, name, tries_link):
        self._address, self.layout, self._options, self._log = address, layout, options, log
        self._name, self._tries_link, self.lost_by_link = name, tries_link, False
        self._lock, self.channel = threading.Lock(), None
        self._failed_at, self._failure, self._kind = None, None, None
        self._ids, self._answers = itertools.count(1), {}
        self._turns = threading.BoundedSemaphore(_MAX_ASKED)

    def is_replaceable(self):
        return self._failed_at is not None and (
            self.channel is not None or time.monotonic() - self._failed_at > _PAUSE_SECONDS)

    def connect(self):
        with self._lock:
            if self._failed_at is not None:
                # A connection that another thread has just lost can be made again.
                raise Unreachable(self._failure) if self.channel is None else self._problem()
            if self.channel is not None:
                return
            try:
                self._open()
            except (SnugError, ValueError) as error:
                self.fail(error)
                raise Unreachable(self._failure) from error
            if self._failed_at is not None:  # closed meanwhile
                self.channel.close()
                raise self._problem()
            threading.Thread(target=self._listen, name="snug.kv.answers", daemon=True).start()

    @contextlib.contextmanager
    def ask(self, kind, **fields):
        """Gives a function that waits for the answer's fields, and the id of both."""
        id, answer = next(self._ids), Future()

        def wait():
            try:
                kind, fields = answer.result(self._options.timeout)
            except FutureTimeout:
                self.fail(f"no answer in {self._options.timeout} s")
                raise
            if kind == "no":
                raise Refused(fields["why"])
            return fields

        with self._turns:
            self._answers[id] = answer
            try:
                self.tell(kind, id=id, **fields)
                yield id, wait
            except Refused:
                raise
            except BaseException as problem:
                self.fail(problem)  # the other side may wait for this one
                if isinstance(problem, PROBLEMS):
                    raise self._problem() from problem
                raise
            finally:
                self._answers.pop(id, None)

    def tell(self, kind, **fields):
        self.channel.connection.send_note(messages.pack(kind, **fields))

    def finish(self, transfer, num_bytes):
        """Waits for a transfer of this connection."""
        self.channel.finish(transfer, num_bytes, self.fail)

    def fail(self, why):
        """The first reason counts: the others follow from it."""
        if self._failed_at is None:
            is_end = isinstance(why, SnugError) and why.code == PEER
            self._failure, self._kind = str(why) or "the connection ended", (
                Ended if is_end else ValueError)
            self._failed_at = time.monotonic()
        if self.channel is not None:
            self.channel.close()
        for answer in list(self._answers.values()):
            _settle(answer, self._problem())

    def close(self):
        self.fail("closed")

    def _problem(self):
        return self._kind(self._failure)

    def _open(self):
        connection = wire.connect(self._address, **self._options.of_wire())
        channel = Channel(connection, self.layout, self._options)
        try:
            gpu = self._options.device is not None and self._options.link and self._tries_link
            connection.send_note(messages.pack(
                "hello", version=messages.VERSION, layout=self.layout.fingerprint,
                sender=self._name, host=host_name(), gpu=int(gpu)))
            kind, fields = messages.unpack(connection.recv_note(self._options.timeout))
            if kind == "no":
                raise ValueError(fields["why"])
            if kind != "welcome":
                raise messages.BadMessage(f"the peer answered hello with {kind}")
            if fields["link"] and not channel.open_link():
                self.lost_by_link = True
                self._log(f"no GPU link to {self._address}: pages travel through the host")
        except BaseException:
            channel.close()
            raise
        self.channel = channel

    def _listen(self):
        """Hands each answer to the question that waits for it, until the connection ends."""
        try:
            while self._failed_at is None:
                note = self.channel.next_note()
                if note is None:
                    continue
                kind, fields = messages.unpack(note)
                if kind not in _ANSWERS:
                    raise messages.BadMessage(f"the peer sent {kind}, which answers nothing")
                answer = self._answers.pop(fields["id"], None)
                if answer is not None:
                    _settle(answer, (kind, fields))
        except (SnugError, ValueError) as error:
            self.fail(error)


def _settle(answer, outcome):
    try:
        if isinstance(outcome, Exception):
            answer.set_exception(outcome)
        else:
            answer.set_result(outcome)
    except InvalidStateError:
        pass  # another thread was faster
