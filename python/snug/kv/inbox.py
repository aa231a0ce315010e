"""The decode worker's side where prefill workers push: takes pages of requests that await them.

What is written lies in items that the request awaits, whatever a peer asks for. Nothing is written
for a request that has ended, so that its memory may be used again.
"""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy

from . import messages
from .areas import item_numbers, overlap
from .server import Server

_MAX_TRANSFERS = 32
_MAX_OPEN = 64  # of one connection, whether they transfer or wait; notes take up to 1 MiB each


class _Incoming:
    """A transfer that writes to the segments of `table`."""

    def __init__(self, channel, request, table):
        self.channel, self.request, self.table = channel, request, table


class PageInbox(Server):
    """`areas` are named; those named in `host_areas` are in host memory and have no dtype."""

    def __init__(self, address, memory, areas, host_areas, options, log):
        self._areas, self._host_areas = areas, host_areas
        self._awaited, self._incoming, self._changed = {}, [], threading.Condition()
        self._open = []  # the channel of every question that was not dealt with
        self._transfers = ThreadPoolExecutor(_MAX_TRANSFERS, "snug.kv.inbox")
        super().__init__(address, memory, options, log)

    def close(self):
        """Returns when nothing is written any more."""
        super().close()
        with self._changed:
            self._awaited.clear()
            self._wait_for(list(self._incoming))
        self._transfers.shutdown(wait=False, cancel_futures=True)

    def expect(self, request, **items):
        """From now on the request's pages may come, to these items of each area."""
        items = {name: item_numbers(numbers) for name, numbers in items.items()}
        with self._changed:
            self._awaited[request] = items

    def finish(self, request):
        """All has been sent. Returns when all is there."""
        with self._changed:
            self._awaited.pop(request, None)
            self._wait_for(self._incoming_of(request))

    def cancel(self, request):
        """Returns when nothing is written for this request any more. What else was on a connection
        that ends here is sent again."""
        with self._changed:
            self._awaited.pop(request, None)
            transfers = self._incoming_of(request)
        for incoming in transfers:
            incoming.channel.close()
        with self._changed:
            self._wait_for(transfers)

    def __len__(self):
        with self._changed:
            return len(self._awaited)

    def _answer(self, channel, kind, fields):
        if kind != "place":
            raise messages.BadMessage(f"a prefill worker sent {kind}, which is ours to send")
        with self._changed:
            if self._open.count(channel) == _MAX_OPEN:
                raise messages.BadMessage(f"a prefill worker sends over {_MAX_OPEN} times at once")
            self._open.append(channel)
        self._transfers.submit(self._take, channel, **fields)

    def _take(self, channel, id, request, area, segments):
        table = numpy.array(segments, numpy.uint64)
        incoming = transfer = None
        try:
            incoming = self._claim(channel, request, area, table)
            if channel.is_closed:
                return
            if incoming is None:
                self._refuse(channel, id, "the request does not await these pages (any more)")
                return
            is_host = area in self._host_areas
            transfer = (channel.receive_host_bytes if is_host else channel.receive)(id, table)
            try:
                channel.connection.send_note(messages.pack("go", id=id))
            finally:  # it may write until then, whatever happens
                channel.finish(transfer, int(table[:, 1].sum()))
        except Exception as problem:  # of any kind, such as torch's: the executor would keep it
            self._log(f"KV pages did not arrive: {problem}")
            if transfer is None:
                self._refuse(channel, id, str(problem))
            else:
                channel.close()
        finally:
            with self._changed:
                self._open.remove(channel)
                if incoming is not None:
                    self._incoming.remove(incoming)
                    self._changed.notify_all()

    def _claim(self, channel, request, area, table):
        """None if these segments are not the request's, are sent already, or their sender left."""
        with self._changed:
            while not channel.is_closed and request in self._awaited:
                items = self._awaited[request].get(area)
                if items is None or not self._areas[area].holds(table, items):
                    self._log(f"refused to write where request {request} awaits nothing")
                    return None
                older = [other for other in self._incoming if overlap(other.table, table)]
                if not older:
                    incoming = _Incoming(channel, request, table)
                    self._incoming.append(incoming)
                    return incoming
                if any(other.channel is channel for other in older):
                    return None
                # Another rank, with the same heads or metadata, or what is sent again: its lost
                # connection is closed, and may still write for a moment. One after the other.
                self._wait_for(older)
            return None

    def _incoming_of(self, request):
        return [incoming for incoming in self._incoming if incoming.request == request]

    def _wait_for(self, transfers):
        self._changed.wait_for(lambda: not any(
            incoming in self._incoming for incoming in transfers))
