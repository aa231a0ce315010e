"""Requests whose pages wait for the decode worker, and when they may be used again."""

import threading
import time
from collections import OrderedDict

_MAX_GONE = 4096  # names of requests that nobody needs to wait for


class _Request:
    def __init__(self, blocks, deadline):
        self.blocks, self.deadline = blocks, deadline
        self.num_users, self.is_over = 0, False


class HeldRequests:
    """Each request ends once: sent, not wanted any more, or never asked for in time."""

    def __init__(self, clock=time.monotonic):
        self._clock = clock
        self._changed = threading.Condition()
        self._requests, self._gone = {}, OrderedDict()
        self._num_expired = 0

    def hold(self, request, blocks, seconds):
        with self._changed:
            held = self._requests[request] = _Request(list(blocks), self._clock() + seconds)
            held.is_over = request in self._gone  # dropped before this worker was told of it
            self._changed.notify_all()

    def borrow(self, request, patience=0.0):
        """Its blocks, which stay until `give_back`; None if it is not held within `patience`. The
        decode worker may ask before this worker is told that the request has ended."""
        with self._changed:
            self._changed.wait_for(
                lambda: request in self._requests or request in self._gone, patience)
            held = self._requests.get(request)
            if held is None or held.is_over:
                return None
            held.num_users += 1
            return held.blocks

    def give_back(self, request):
        """After `borrow`, whether the pages arrived or not: a worker asks once, then recomputes."""
        with self._changed:
            held = self._requests[request]
            held.num_users -= 1
            held.is_over = True

    def drop(self, request):
        with self._changed:
            if request in self._requests:
                self._requests[request].is_over = True
            else:
                self._forget(request)

    def take_ended(self):
        """Requests whose blocks nobody reads any more; each is returned once."""
        with self._changed:
            now = self._clock()
            ended = {name for name, held in self._requests.items()
                     if held.num_users == 0 and (held.is_over or held.deadline <= now)}
            self._num_expired += sum(not self._requests[name].is_over for name in ended)
            for name in ended:
                del self._requests[name]
                self._forget(name)
            return ended

    def take_num_expired(self):
        with self._changed:
            number, self._num_expired = self._num_expired, 0
            return number

    def _forget(self, request):
        self._gone[request] = None
        while len(self._gone) > _MAX_GONE:
            self._gone.popitem(last=False)

    def __len__(self):
        with self._changed:
            return len(self._requests)
