"""One connection between two workers, and the GPU link over it where there is one."""

import contextlib
import threading
import time
from ctypes import POINTER, c_void_p, cast
from typing import NamedTuple, Optional

from .. import wire
from .._library import DTYPES, Segment, SnugError, library, milliseconds_of, number_of, whole

_COMPRESSED = ("bf16", "f16", "f32")  # FP8 and packed integers hardly shrink: they travel raw
BYTES_PER_SECOND = 20e6  # the least that a transfer is given time for, as on all of the wire


class Options(NamedTuple):
    mode: str = "auto"        # of snug.wire: raw, fixed, entropy or auto
    timeout: float = 30.0     # seconds of silence, after which a peer counts as lost
    insecure: bool = False    # no token, no encryption, any user
    lanes: int = 0
    link: bool = True         # GPU memory to GPU memory, where both are on one host
    device: Optional[int] = None  # the GPU that the pages are on; None: host memory

    def of_pages(self, dtype, device):
        return self._replace(mode=self.mode if dtype in _COMPRESSED else "raw", device=device)

    def of_wire(self):
        return {"mode": self.mode, "timeout": self.timeout, "insecure": self.insecure,
                "lanes": self.lanes}


class Moved(NamedTuple):
    """What a transfer, or several at the same time, took."""
    raw_bytes: int
    wire_bytes: int


class Channel:
    def __init__(self, connection, layout, options):
        self.connection, self._layout, self._options = connection, layout, options
        self._dtype = number_of(DTYPES, layout.dtype, "dtype")
        self._link, self.is_closed, self.sender = None, False, None
        self._lock = threading.Lock()
        self._counted = (0, 0)

    def open_link(self):
        """Both sides call this. False where the processes may not share GPU memory."""
        try:
            with self._on_device():
                self._link = self.connection.link(self._options.mode, self._options.timeout)
        except SnugError:
            return False
        return True

    def send(self, tag, table):
        if self._link is not None:
            return self._start(library.snug_link_send, self._link, (tag, self._dtype), table)
        name = "snug_wire_send" if self._options.device is None else "snug_cuda_wire_send"
        return self._start(getattr(library, name), self.connection, (tag, self._dtype), table)

    def receive(self, tag, table):
        if self._link is not None:
            return self._start(library.snug_link_recv, self._link, (tag, self._dtype), table)
        if self._options.device is None:
            return self._start(library.snug_wire_recv, self.connection, (tag,), table)
        return self._start(library.snug_cuda_wire_recv, self.connection, (tag, self._dtype), table)

    def send_host_bytes(self, tag, table):
        """Memory of the host that has no dtype, wherever the pages are."""
        return self._start(library.snug_wire_send, self.connection, (tag, DTYPES["bytes"]), table)

    def receive_host_bytes(self, tag, table):
        return self._start(library.snug_wire_recv, self.connection, (tag,), table)

    def finish(self, transfer, num_bytes, tell=lambda error: None):
        """Waits for a transfer. After an error nobody touches its pages any more; `tell` hears of it
        before all else on this channel ends."""
        try:
            transfer.wait(self._options.timeout + num_bytes / BYTES_PER_SECOND)
        except BaseException as error:
            tell(error)
            self.close()
            while not transfer.done():
                time.sleep(0.001)
            raise

    def next_note(self):
        """None after a second without one; an error when the connection has ended."""
        start = time.monotonic()
        try:
            return self.connection.recv_note(1)
        except TimeoutError:
            if time.monotonic() - start < 0.5:  # the connection's own timeout: the peer is lost
                raise
            return None

    def take_moved(self, is_sender):
        """What was moved since the last call."""
        try:
            stats = (self.connection.stats() if self._link is None
                     else self._link.stats()[0 if is_sender else 1])
        except ValueError:  # closed: the peer left as soon as it had its pages
            return Moved(0, 0)
        with self._lock:
            raw, wired = self._counted
            self._counted = (stats.raw_bytes, stats.wire_bytes)
        return Moved(stats.raw_bytes - raw, stats.wire_bytes - wired)

    def close(self):
        self.is_closed = True
        if self._link is not None:
            self._link.close()
        self.connection.close()

    def _start(self, function, handle, arguments, table):
        with self._on_device():
            segments = cast(c_void_p(table.ctypes.data), POINTER(Segment))
            return wire.start_segments(function, handle, arguments, segments, len(table),
                                       (table, self._layout))

    def _on_device(self):
        if self._options.device is None:
            return contextlib.nullcontext()
        import torch  # the pages are on a GPU, so torch is there
        return torch.cuda.device(self._options.device)


def host_name():
    """The same for processes that run on one kernel since the same boot."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def read_options(given, door, what):
    """What a user has chosen: (`door`, Options), where `door` is a NamedTuple of the options that
    only one door has. Values have the types of the defaults: "false" would be true."""
    known = {**door._field_defaults, **Options._field_defaults}
    del known["device"]  # the engine chooses it
    for name, value in given.items():
        if name not in known:
            raise ValueError(f"{what} has no option {name}; it has {', '.join(known)}")
        wanted = type(known[name])
        if type(value) is not wanted and not (wanted is float and type(value) is int):
            raise ValueError(f"{name} of {what} is a {wanted.__name__}, not {value!r}")
    of_door, options = (kind(**{name: given[name] for name in kind._fields if name in given})
                        for kind in (door, Options))
    number_of(wire.MODES, options.mode, "mode")
    milliseconds_of(options.timeout)
    whole(options.lanes, "lanes", 0, 16)
    return of_door, options
