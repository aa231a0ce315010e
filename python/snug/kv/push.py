"""The prefill worker's side where it is told where to write: pushes pages to the decode worker."""

import time
from typing import NamedTuple

import numpy

from .messages import MAX_SEGMENTS
from .peer import PROBLEMS, Ended, Peers, Refused, Unreachable

_ATTEMPTS = 3  # after damage; another connection may be better
_MAX_PAUSE = 1.0


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
        self._peers = Peers(memory, options, log)

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
        start, num_failed, pause = time.monotonic(), 0, 0.01
        while True:
            try:
                self._record(self._send(self._peers.connected(address), pages))
                return
            except Unreachable as problem:
                raise Nowhere(f"no connection to {address}: {problem}") from problem
            except Refused as problem:
                raise PushError(f"{address} refused KV pages: {problem}") from problem
            except PROBLEMS as problem:
                num_failed += not isinstance(problem, Ended)
                text = f"KV pages to {address}: {problem}"
                if num_failed == _ATTEMPTS or time.monotonic() - start > self._timeout:
                    raise PushError(text) from problem
                self._log(f"{text}; sent again")
                time.sleep(pause)
                pause = min(2 * pause, _MAX_PAUSE)

    def _send(self, peer, pages):
        with peer.ask("place", request=pages.request, area=pages.area,
                      segments=pages.targets.tolist()) as (id, wait):
            wait()
            send = peer.channel.send_host_bytes if pages.is_host else peer.channel.send
            peer.finish(send(id, pages.sources), int(pages.sources[:, 1].sum()))
        return peer.channel.take_moved(is_sender=True)
