"""The decode worker's side: pulls the pages of a request into pages of its own."""

import itertools
import threading
import time
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeout

from .. import wire
from .._library import SnugError
from . import messages
from .channel import Channel, host_name

_PAUSE_SECONDS = 2.0  # after a failed connection: requests fail at once instead of waiting again


class PullError(Exception):
    """The pages did not arrive. Their memory is not touched any more; what is in it is unknown."""


class PageClient:
    def __init__(self, layout, options, record, log):
        self._layout, self._options = layout, options
        self._record, self._log = record, log
        self._peers, self._lock = {}, threading.Lock()
        self._is_closed = False

    def pull(self, address, request, first, blocks, ready=None):
        """Fills `blocks` with the request's blocks from number `first` on, or raises PullError.
        `ready` is called before the first byte is written, and may wait."""
        start, moved, error = time.monotonic(), None, None
        try:
            moved = self._peer(address).pull(request, first, blocks, ready)
        except (SnugError, ValueError, FutureTimeout) as problem:
            error = PullError(f"KV pages from {address}: {problem or 'no answer in time'}")
            raise error from problem
        finally:
            self._record(moved, time.monotonic() - start, error)

    def drop(self, address, request):
        """Tells the other side that nobody will pull this request; it may have gone."""
        try:
            self._peer(address).drop(request)
        except (SnugError, ValueError):
            pass  # it gives the blocks back after its own timeout

    def close(self):
        with self._lock:
            self._is_closed = True
            peers = list(self._peers.values())
        for peer in peers:
            peer.close()

    def _peer(self, address):
        with self._lock:
            if self._is_closed:
                raise ValueError("closed")
            peer = self._peers.get(address)
            if peer is None or peer.is_replaceable():
                # Addresses of instances that are gone would add up.
                self._peers = {name: other for name, other in self._peers.items()
                               if not other.is_replaceable()}
                peer = self._peers[address] = _Peer(
                    address, self._layout, self._options, self._log,
                    tries_link=peer is None or not peer.lost_by_link)
        peer.connect()
        return peer


class _Peer:
    """A connection to one prefill worker; a new one is made after any error."""

    def __init__(self, address, layout, options, log, tries_link):
        self._address, self._layout, self._options, self._log = address, layout, options, log
        self._tries_link, self.lost_by_link = tries_link, False
        self._lock, self._channel = threading.Lock(), None
        self._failed_at, self._failure = None, None
        self._ids, self._answers = itertools.count(1), {}

    def is_replaceable(self):
        return self._failed_at is not None and (
            self._channel is not None or time.monotonic() - self._failed_at > _PAUSE_SECONDS)

    def connect(self):
        with self._lock:
            if self._failed_at is not None:
                raise ValueError(self._failure)
            if self._channel is not None:
                return
            try:
                self._open()
            except (SnugError, ValueError) as error:
                self._fail(error)
                raise
            threading.Thread(target=self._listen, name="snug.kv.answers", daemon=True).start()

    def pull(self, request, first, blocks, ready):
        channel, id, answer = self._channel, next(self._ids), Future()
        num_bytes = len(blocks) * self._layout.block_bytes
        self._answers[id] = answer
        try:
            channel.connection.send_note(messages.pack("pull", id=id, request=request, first=first,
                                                       count=len(blocks)))
            table = self._layout.table(blocks)  # while the peer makes its own
            kind, fields = answer.result(self._options.timeout)
            if kind == "no":
                raise ValueError(fields["why"])
            if fields["bytes"] != num_bytes:
                self._fail(f"the peer offers {fields['bytes']} bytes for {num_bytes}")
                raise ValueError(self._failure)
            if ready is not None:
                ready()
            self._finish(channel, id, table, num_bytes)
        except FutureTimeout:
            self._fail(f"no answer in {self._options.timeout} s")
            raise
        finally:
            self._answers.pop(id, None)
        return channel.take_moved(is_sender=False)

    def drop(self, request):
        self._channel.connection.send_note(messages.pack("drop", request=request))

    def close(self):
        self._fail("closed")

    def _finish(self, channel, id, table, num_bytes):
        try:
            channel.finish(channel.receive(id, table), num_bytes)
        except BaseException as error:
            self._fail(error)
            raise

    def _open(self):
        connection = wire.connect(self._address, **self._options.of_wire())
        channel = Channel(connection, self._layout, self._options)
        try:
            gpu = self._options.device is not None and self._options.link and self._tries_link
            connection.send_note(messages.pack(
                "hello", version=messages.VERSION, layout=self._layout.fingerprint,
                host=host_name(), gpu=int(gpu)))
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
        self._channel = channel

    def _listen(self):
        """Hands each answer to the pull that waits for it, until the connection ends."""
        try:
            while self._failed_at is None:
                note = self._channel.next_note()
                if note is None:
                    continue
                kind, fields = messages.unpack(note)
                if kind not in ("send", "no"):
                    raise messages.BadMessage(f"the peer sent {kind} in answer to a pull")
                answer = self._answers.pop(fields["id"], None)
                if answer is not None:
                    _settle(answer, (kind, fields))
        except (SnugError, ValueError) as error:
            self._fail(error)

    def _fail(self, why):
        if self._failed_at is None:
            self._failure, self._failed_at = str(why) or "the connection ended", time.monotonic()
        if self._channel is not None:
            self._channel.close()
        for answer in list(self._answers.values()):
            _settle(answer, ValueError(self._failure))


def _settle(answer, outcome):
    try:
        if isinstance(outcome, Exception):
            answer.set_exception(outcome)
        else:
            answer.set_result(outcome)
    except InvalidStateError:
        pass  # another thread was faster
