"""In the place of Mooncake's transfer engine in a prefill instance: the pages of rooms whose decode
instance has Snug are pushed by snug.kv, everything else goes to Mooncake.

SGLang's engine writes to addresses and knows no rooms. The decode instance has to know for which
room it is written, or pages that come late could end up in another request. So the room is noted
where a worker takes its next chunk.
"""

import contextvars
import threading
import time

import numpy

from ..kv.push import Nowhere, Pages, PushError

_OFFER = b"snug 1 "  # begins the frame that a decode instance adds to its registration
_room = contextvars.ContextVar("snug.room", default=None)
_LOG_SECONDS = 60.0


def offer_of(address):
    return _OFFER + address.encode()


def take_offer(registration):
    """(session, address) of a decode instance that registers itself; None if this is something
    else. The address is None where that instance has no Snug."""
    if len(registration) < 4 or registration[0] != b"None":
        return None
    address = None
    if registration[-1].startswith(_OFFER):  # SGLang needs not see it
        address = registration.pop()[len(_OFFER):].decode()
    return registration[3].decode(), address


class RoomQueue:
    """A queue of chunks that notes for which room the thread works now."""

    def __init__(self, queue):
        self._queue = queue

    def get(self):
        chunk = self._queue.get()
        _room.set(None if chunk is None else chunk.room)
        return chunk

    def put(self, chunk):
        self._queue.put(chunk)


class RoomExecutor:
    """An executor whose threads work for the room of the thread that submits."""

    def __init__(self, executor):
        self._executor = executor

    def submit(self, function, *arguments):
        return self._executor.submit(contextvars.copy_context().run, function, *arguments)


class PushEngine:
    """`areas` is {name: (Area, is_host)} of this instance's memory. `has_ended(room)` and
    `fail(room, why)` are SGLang's."""

    def __init__(self, engine, pusher, areas, has_ended, fail, log):
        self._engine, self._pusher, self._areas = engine, pusher, areas
        self._has_ended, self._fail, self._log = has_ended, fail, log
        self._addresses = {}
        self._lock, self._sums, self._logged = threading.Lock(), [0, 0, 0], None

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def note_registration(self, message):
        found = take_offer(message)
        if found is None:
            return
        session, address = found
        if address is None:
            self._addresses.pop(session, None)
            self._log.warning("Decode instance %s does not take KV through Snug: it travels by "
                              "SGLang's own transfer", session)
        else:
            self._addresses[session] = address
            self._log.info("KV to decode instance %s travels through Snug, at %s", session, address)

    def batch_transfer_sync(self, session, sources, targets, sizes):
        """0, or -1 for a decode instance that is not there: SGLang then sends it nothing more
        until its own probe finds it alive. Other failures are those of one room."""
        address, room = self._addresses.get(session), _room.get()
        if address is None:
            return self._engine.batch_transfer_sync(session, sources, targets, sizes)
        if room is None:
            self._log.error("Snug cannot tell of which room SGLang sends KV: it is not sent")
            return -1
        if self._has_ended(room):
            return 0  # SGLang has told the decode instance
        try:
            self._pusher.push(address, self._pages(room, sources, targets, sizes))
        except Nowhere as error:
            self._log.error("KV of room %s was not sent: %s", room, error)
            return -1
        except Exception as error:  # of any kind: it would end SGLang's worker
            self._fail(room, f"Snug: {error}")
        return 0

    def record(self, moved):
        with self._lock:
            for i, number in enumerate((1, *moved)):
                self._sums[i] += number
            now = time.monotonic()
            if self._logged is not None and now - self._logged < _LOG_SECONDS:
                return
            self._logged, sums = now, list(self._sums)
        self._log.info("KV through Snug so far: %d transfers, %d bytes as %d", *sums)

    def _pages(self, room, sources, targets, sizes):
        tables = [numpy.array([addresses, sizes], numpy.uint64).T.copy()
                  for addresses in (sources, targets)]
        for name, (area, is_host) in self._areas.items():
            if area.holds(tables[0]):
                return Pages(str(room), name, is_host, *tables)
        raise PushError("SGLang sends what is neither a KV page nor metadata")
