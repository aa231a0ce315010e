"""The decode worker's side: pulls the pages of a request into pages of its own."""

import time

from .peer import PROBLEMS, Peers


class PullError(Exception):
    """The pages did not arrive. Their memory is not touched any more; what is in it is unknown."""


class PageClient:
    def __init__(self, layout, options, record, log):
        self._layout, self._record = layout, record
        self._peers = Peers(layout, options, log)

    def pull(self, address, request, first, blocks, ready=None):
        """Fills `blocks` with the request's blocks from number `first` on, or raises PullError.
        `ready` is called before the first byte is written, and may wait."""
        start, moved, error = time.monotonic(), None, None
        try:
            moved = self._pull(self._peers.connected(address), request, first, blocks, ready)
        except PROBLEMS as problem:
            error = PullError(f"KV pages from {address}: {problem}")
            raise error from problem
        except BaseException as problem:
            error = problem
            raise
        finally:
            self._record(moved, time.monotonic() - start, error)

    def drop(self, address, request):
        """Tells the other side that nobody will pull this request; it may have gone."""
        try:
            with self._peers.connected(address).ask("drop", request=request) as (_, wait):
                wait()
        except PROBLEMS:
            pass  # it gives the blocks back after its own timeout

    def close(self):
        self._peers.close()

    def _pull(self, peer, request, first, blocks, ready):
        num_bytes = len(blocks) * self._layout.block_bytes
        with peer.ask("pull", request=request, first=first, count=len(blocks)) as (id, wait):
            table = self._layout.table(blocks)  # while the peer makes its own
            offered = wait()["bytes"]
            if offered != num_bytes:
                raise ValueError(f"the peer offers {offered} bytes for {num_bytes}")
            if ready is not None:
                ready()
            peer.finish(peer.channel.receive(id, table), num_bytes)
        return peer.channel.take_moved(is_sender=False)
