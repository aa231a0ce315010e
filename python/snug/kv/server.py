"""The side that answers: connections from workers that ask (peer.py), and pages that are pulled."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from .. import wire
from .._library import SnugError
from . import messages
from .channel import Channel, host_name

_EARLY_SECONDS = 5.0  # how much sooner than the engine a peer may know that a request has ended
_MAX_SENDS = 8


class Server:
    """Serves until `close`. Subclasses have `_answer(channel, kind, fields)` for what was asked."""

    def __init__(self, address, layout, options, log):
        self._layout, self._options, self._log = layout, options, log
        self._listener = wire.listen(address, **options.of_wire())
        self._channels, self._lock, self._is_closed = set(), threading.Lock(), False
        _thread(self._accept)

    @property
    def address(self):
        return self._listener.address

    def close(self):
        with self._lock:
            self._is_closed = True
            channels = list(self._channels)
        self._listener.close()
        for channel in channels:
            channel.close()

    def _accept(self):
        while not self._is_closed:
            try:
                _thread(self._serve, self._listener.accept(1))
            except TimeoutError:
                continue
            except SnugError as error:  # of one peer; the next may be better
                self._log(f"a worker could not connect: {error}")
                time.sleep(0.1)
            except ValueError:  # the listener is closed
                return

    def _serve(self, connection):
        channel = Channel(connection, self._layout, self._options)
        with self._lock:
            self._channels.add(channel)
        try:
            if not self._is_closed and self._greet(channel):  # it came while we closed
                while not self._is_closed:
                    note = channel.next_note()
                    if note is not None:
                        self._answer(channel, *messages.unpack(note))
        except (SnugError, ValueError) as error:  # it left, or we closed
            if isinstance(error, messages.BadMessage):
                self._log(str(error))
        finally:
            channel.close()
            with self._lock:
                self._channels.discard(channel)

    def _greet(self, channel):
        kind, hello = messages.unpack(channel.connection.recv_note(self._options.timeout))
        if kind != "hello":
            raise messages.BadMessage("a peer asked for something before it said hello")
        why = None
        if hello["version"] != messages.VERSION:
            why = "another version of Snug's protocol for KV pages; update both sides"
        elif hello["layout"] != self._layout.fingerprint:
            why = f"the KV caches differ: here {self._layout.fingerprint}"
        if why:
            self._log(f"refused a worker: {why}; there {hello['layout']}")
            self._refuse(channel, 0, why)
            channel.connection.recv_note(self._options.timeout)  # it hangs up
            return False
        self._replace_lost(channel, hello["sender"])
        link = (self._options.link and self._options.device is not None and hello["gpu"] == 1
                and hello["host"] == host_name())
        channel.connection.send_note(messages.pack("welcome", link=int(link)))
        if link and not channel.open_link():
            self._log("no GPU link to a worker of this host: pages travel through the host")
        return True

    def _replace_lost(self, channel, sender):
        """Before it is welcome: who connects again has lost its last connection, which may look
        alive here for long."""
        channel.sender = sender
        with self._lock:
            lost = [other for other in self._channels
                    if other is not channel and other.sender == sender]
        for other in lost:
            other.close()

    def _refuse(self, channel, id, why):
        channel.connection.send_note(messages.pack("no", id=id, why=why[:messages.MAX_TEXT]))


class PageServer(Server):
    """The prefill worker's side: sends the pages of held requests to whoever asks for them.
    `record(moved, seconds, error)` is told of every transfer."""

    def __init__(self, address, layout, held, options, record, log):
        self._held, self._record = held, record
        self._sends = ThreadPoolExecutor(_MAX_SENDS, "snug.kv.send")
        super().__init__(address, layout, options, log)

    def close(self):
        super().close()
        self._sends.shutdown(wait=False, cancel_futures=True)

    def _answer(self, channel, kind, fields):
        if kind == "pull":
            self._sends.submit(self._send, channel, **fields)
        elif kind == "drop":
            self._held.drop(fields["request"])
            channel.connection.send_note(messages.pack("dropped", id=fields["id"]))
        else:
            raise messages.BadMessage(f"a decode worker sent {kind}, which is ours to send")

    def _send(self, channel, id, request, first, count):
        blocks = self._held.borrow(request, _EARLY_SECONDS)
        error, start, moved = None, time.monotonic(), None
        try:
            if blocks is None:
                self._refuse(channel, id, "the request is not held (any more)")
            elif count == 0 or first + count > len(blocks):
                why = f"the request has {len(blocks)} blocks"
                error = f"{why}, and {count} from number {first} on were asked for"
                self._refuse(channel, id, why)
            else:
                num_bytes = count * self._layout.block_bytes
                channel.connection.send_note(messages.pack("send", id=id, bytes=num_bytes))
                table = self._layout.table(blocks[first:first + count])
                channel.finish(channel.send(id, table), num_bytes)
                moved = channel.take_moved(is_sender=True)
        except Exception as problem:  # of any kind, such as torch's: the executor would keep it
            error = problem
            channel.close()
        finally:
            if error is not None:
                self._log(f"pages of a request were not sent: {error}")
            if blocks is not None:
                self._held.give_back(request)
                self._record(moved, time.monotonic() - start, error)


def _thread(target, *arguments):
    threading.Thread(target=target, args=arguments, name="snug.kv.serve", daemon=True).start()
