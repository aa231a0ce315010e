"""The prefill worker's side where it is told where to write: pushes pages to the decode worker."""

import time
import uuid
from typing import NamedTuple

import numpy

from .messages import MAX_SEGMENTS
from .peer import PROBLEMS, Peers, Refused, Unreachable

_ATTEMPTS = 3  # after a damaged or lost connection; another one may be better


class PushError(Exception):
    """The pages did not arrive, or not all of them."""


class Nowhere(PushError):
    """There is no connection to the decode worker."""


class Pages(NamedTuple):
    """Row i of `sources` goes to row i of `targets`; both are (address, bytes)."""
    request: str
    area: str
    is_host: bool
    sources: numpy.ndarray
    targets: numpy.ndarray


class PagePusher:
    def __init__(self, memory, options, record, log):
        self._timeout, self._record, self._log = options.timeout, record, log
        self._peers, self._name = Peers(memory, options, log), uuid.uuid4().hex

    def push(self, address, pages):
        """Returns when the pages are in their places. Pages that were damaged or lost on the way
        are sent again, unless that took as long as a lost peer takes."""
        for first in range(0, len(pages.sources), MAX_SEGMENTS):
            some = slice(first, first + MAX_SEGMENTS)
            self._push(address, pages._replace(sources=pages.sources[some],
                                               targets=pages.targets[some]))

    def close(self):
        self._peers.close()

    def _push(self, address, pages):
        start = time.monotonic()
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._record(self._send(self._peers.connected(address), pages))
                return
            except Unreachable as problem:
                raise Nowhere(f"no connection to {address}: {problem}") from problem
            except Refused as problem:
                raise PushError(f"{address} refused KV pages: {problem}") from problem
            except PROBLEMS as problem:
                text = f"KV pages to {address}: {problem or 'no answer in time'}"
                if attempt == _ATTEMPTS or time.monotonic() - start > self._timeout:
                    raise PushError(text) from problem
                self._log(f"{text}; sent again")

    def _send(self, peer, pages):
        with peer.ask("place", sender=self._name, request=pages.request, area=pages.area,
                      segments=pages.targets.tolist()) as (id, wait):
            wait()
            send = peer.channel.send_host_bytes if pages.is_host else peer.channel.send
            peer.finish(send(id, pages.sources), int(pages.sources[:, 1].sum()))
        return peer.channel.take_moved(is_sender=True)
