"""Tensors from one process to another, compressed on the way.

    listener = snug.wire.listen("127.0.0.1:0")          # one side
    connection = listener.accept()
    connection.recv(7, buffer).wait()                   # the bytes are there and verified

    connection = snug.wire.connect(address)             # the other
    connection.send(7, data, dtype="bf16").wait()       # the receiver has them

Data is any bytes-like object, a torch tensor, or a list of them, which travel as
one message. Everything is encrypted (TLS 1.3). On one host only this user is let in; addresses
other than loopback need the same token, of 16 to 4095 bytes, on both sides: token=, or the
variable SNUG_TOKEN.

Tensors on a GPU are encoded there and travel through the host. A link is faster between two
processes of one host. Both ends open it, each with its end of one connection:

    link = connection.link()
    link.send(7, tensor).wait()                         # from GPU memory to GPU memory

All calls are thread-safe. A forked child cannot use its parent's connections: it opens its own.
"""

import ctypes
import os
import threading
import time
from ctypes import byref, c_int, c_size_t, c_void_p
from typing import NamedTuple

from ._handle import Handle
from ._library import (DTYPES, TIMEOUT, Segment, Status, WireOptions, WireStats, check, dtype_name,
                       has_link, has_wire, library, memory_of, milliseconds_of, no_cuda, number_of,
                       seconds_of, whole, writable_memory)

MODES = {"raw": 0, "fixed": 1, "entropy": 2, "auto": 3}
_MAX_NOTE_BYTES = 1 << 20


class Stats(NamedTuple):
    raw_bytes: int   # sent or received, before encoding
    wire_bytes: int  # the same as it travelled
    chunks: dict     # how many in each mode


_SLICE = 0.1  # seconds in the library at a time: bounds how long Ctrl-C and close() wait


class _Waiting(Handle):
    """A handle with calls that wait for the peer."""

    def _wait(self, seconds, call):
        """Repeats call(milliseconds) until it returns something other than a timeout."""
        deadline = None if seconds is None else time.monotonic() + max(0.0, seconds_of(seconds))
        while True:
            start = time.monotonic()
            left = _SLICE if deadline is None else min(_SLICE, max(0, deadline - start))
            code = call(round(1000 * left))
            if code and self._is_closed:
                raise ValueError("closed")
            now = time.monotonic()
            is_over = deadline is not None and now >= deadline
            # A timeout before the slice is over is the connection's: it is lost.
            if code != TIMEOUT or now - start < left / 2 or is_over:
                return code


class Transfer(_Waiting):
    """A message on its way. Keeps its memory alive."""

    def __init__(self, pointer, buffers):
        super().__init__(pointer, library.snug_wire_transfer_free)
        self._buffers = buffers

    def wait(self, seconds=None):
        """Returns when the message has arrived; raises TimeoutError after `seconds`."""
        status = Status()
        with self._use() as pointer:
            code = self._wait(seconds, lambda patience: library.snug_wire_wait(
                pointer, patience, byref(status)))
            if code == TIMEOUT and library.snug_wire_is_done(pointer):
                code = library.snug_wire_wait(pointer, -1, byref(status))  # it ended just now
        check(code, status)

    def done(self):
        with self._use() as pointer:
            return bool(library.snug_wire_is_done(pointer))

    def done_bytes(self):
        """How much of the message was sent or has arrived, before encoding."""
        with self._use() as pointer:
            return library.snug_wire_done_bytes(pointer)

    def _release(self):
        """Closing does not stop a message: the library still reads or writes its memory."""
        if self._is_ours() and not library.snug_wire_is_done(self._pointer):
            _abandoned.append((self._pointer, self._buffers))
        else:
            super()._release()


_abandoned = []
os.register_at_fork(after_in_child=_abandoned.clear)


def _free_abandoned():
    for _ in range(len(_abandoned)):
        try:
            pointer, buffers = _abandoned.pop(0)
        except IndexError:  # another thread was faster
            return
        if library.snug_wire_is_done(pointer):
            library.snug_wire_transfer_free(pointer)
        else:
            _abandoned.append((pointer, buffers))


class Connection(_Waiting):
    def __init__(self, pointer):
        super().__init__(pointer, library.snug_wire_connection_free)
        self._end = library.snug_wire_connection_close

    def close(self):
        """Calls of other threads that wait on this connection end at once."""
        try:
            with self._use() as pointer:
                super().close()
                self._end(pointer)
        except ValueError:  # closed, or of another process
            super().close()

    def send(self, tag, data, dtype=None):
        """dtype: by default that of GPU tensors, and "bytes" for everything else."""
        if _on_gpu(data):
            return _start_on_gpu("snug_cuda_wire_send", self, tag, data, dtype)
        number = number_of(DTYPES, dtype or "bytes", "dtype")
        return _start(library.snug_wire_send, self, (_tag(tag), number),
                      map(memory_of, _items_of(data)))

    def recv(self, tag, into, dtype=None):
        """Fills writable memory of exactly the size that is sent; dtype is for GPU tensors."""
        if _on_gpu(into):
            return _start_on_gpu("snug_cuda_wire_recv", self, tag, into, dtype)
        return _start(library.snug_wire_recv, self, (_tag(tag),),
                      map(writable_memory, _items_of(into)))

    def link(self, mode="auto", timeout=30.0):
        """A link between the current GPUs of both ends. Both ends must call this."""
        if not has_link:
            raise ValueError(no_cuda)
        import torch  # tells which GPU is current
        torch.cuda.init()
        device = torch.cuda.current_device()
        arguments = number_of(MODES, mode, "mode"), milliseconds_of(timeout)

        def start():
            link, status = c_void_p(), Status()
            with self._use() as pointer, torch.cuda.device(device):  # threads have their own
                check(library.snug_link_open(pointer, *arguments, byref(link), byref(status)),
                      status)
            return Link(link, device, torch.cuda.device(device))

        return _interruptible(start)

    def send_note(self, note):
        """A short text or some bytes beside the tensors, at most 1 MiB."""
        note = note.encode() if isinstance(note, str) else bytes(memoryview(note))
        status = Status()
        with self._use() as pointer:
            check(library.snug_wire_send_note(pointer, note, len(note), byref(status)), status)

    def recv_note(self, seconds=None):
        buffer = ctypes.create_string_buffer(_MAX_NOTE_BYTES)
        num_bytes, status = c_size_t(), Status()
        with self._use() as pointer:
            check(self._wait(seconds, lambda patience: library.snug_wire_recv_note(
                pointer, patience, buffer, len(buffer), byref(num_bytes), byref(status))), status)
        return ctypes.string_at(buffer, num_bytes.value)  # .raw would copy all of the buffer

    def stats(self):
        stats, status = WireStats(), Status()
        with self._use() as pointer:
            check(library.snug_wire_stats_of(pointer, byref(stats), byref(status)), status)
        return _stats_of(stats)


class Link(Handle):
    """GPU memory to GPU memory between two processes of one host."""

    def __init__(self, pointer, device, scope):
        super().__init__(pointer, library.snug_link_free, scope=scope)
        self._device = device

    def send(self, tag, tensors, dtype=None):
        return _start_on_gpu("snug_link_send", self, tag, tensors, dtype, self._device)

    def recv(self, tag, into, dtype=None):
        """Fills tensors of exactly the size and dtype that are sent."""
        return _start_on_gpu("snug_link_recv", self, tag, into, dtype, self._device)

    def stats(self):
        """What was sent and what was received."""
        sent, received, status = WireStats(), WireStats(), Status()
        with self._use() as pointer:
            check(library.snug_link_stats_of(pointer, byref(sent), byref(received),
                                             byref(status)), status)
        return _stats_of(sent), _stats_of(received)


class Listener(_Waiting):
    def __init__(self, pointer):
        super().__init__(pointer, library.snug_wire_listener_free)

    @property
    def address(self):
        text = ctypes.create_string_buffer(512)
        with self._use() as pointer:
            library.snug_wire_listener_address(pointer, text, len(text))
        return text.value.decode()

    def accept(self, seconds=60):
        accepted, status = c_void_p(), Status()
        with self._use() as pointer:
            check(self._wait(seconds, lambda patience: library.snug_wire_accept(
                pointer, patience, byref(accepted), byref(status))), status)
        return Connection(accepted)


def connect(address, **options):
    """HOST:PORT, or shm:NAME on one host. Options: token, mode, lanes, chunk_bytes, timeout,
    insecure (no token, no encryption, any user)."""
    stop = c_int(0)
    return _interruptible(lambda: Connection(_open(library.snug_wire_connect, address, options,
                                                   byref(stop))), stop)


def listen(address="127.0.0.1:0", **options):
    return Listener(_open(library.snug_wire_listen, address, options))


def _interruptible(call, stop=None):
    """Runs `call` on another thread, since this one sees Ctrl-C only while it is in Python. Then
    `stop` is set for the call to end, and what it still returns is collected as garbage."""
    outcome, done = [], threading.Event()

    def run():
        try:
            outcome.append((call(), None))
        except BaseException as error:
            outcome.append((None, error))
        finally:
            done.set()

    threading.Thread(target=run, name="snug.wire", daemon=True).start()
    try:
        done.wait()
    except BaseException:
        if stop is not None:
            stop.value = 1
        raise
    result, error = outcome.pop()
    if error is not None:
        raise error
    return result


def _open(function, address, options, *more):
    pointer, status = c_void_p(), Status()
    if not isinstance(address, str):
        raise TypeError(f"an address is a str, not {type(address).__name__}")
    if "\0" in address:
        raise ValueError("an address has no NUL")
    check(function(address.encode(), byref(_options(**options)), *more, byref(pointer),
                   byref(status)), status)
    return pointer


def _options(token=None, mode="auto", lanes=0, chunk_bytes=1 << 20, timeout=30.0, insecure=False):
    return WireOptions(_token_of(token), number_of(MODES, mode, "mode"),
                       whole(lanes, "lanes", 0, 16),
                       whole(chunk_bytes, "chunk_bytes", 1 << 16, 1 << 22),
                       milliseconds_of(timeout), bool(insecure))


def _token_of(token):
    if token is None:
        return None
    if not isinstance(token, (str, bytes, bytearray)):
        raise TypeError(f"a token is a str or bytes, not {type(token).__name__}")
    token = token.encode() if isinstance(token, str) else bytes(token)
    if b"\0" in token:  # C would take it for the end
        raise ValueError("a token must not contain NUL; take its hex digits")
    return token


def _tag(tag):
    return whole(tag, "a tag, a number of 64 bits,", 0, (1 << 64) - 1)


def _stats_of(stats):
    return Stats(stats.raw_bytes, stats.wire_bytes, dict(zip(MODES, stats.num_chunks)))


def _items_of(data):
    return list(data) if isinstance(data, (list, tuple)) else [data]


def _start(function, handle, arguments, buffers):
    buffers = list(buffers)
    segments = (Segment * len(buffers))(*[(b.address, b.num_bytes) for b in buffers])
    return start_segments(function, handle, arguments, segments, len(buffers), buffers)


def start_segments(function, handle, arguments, segments, num_segments, owner):
    """For callers that have thousands of segments in a table. `owner` keeps the memory alive."""
    _free_abandoned()
    transfer, status = c_void_p(), Status()
    with handle._use() as pointer:
        check(function(pointer, *arguments, segments, num_segments, byref(transfer),
                       byref(status)), status)
    return Transfer(transfer, owner)


def _on_gpu(data):
    """Whether any item is on a GPU; _gpu_of refuses a mixture."""
    return any(hasattr(item, "data_ptr") and item.device.type == "cuda"
               for item in _items_of(data))


def _gpu_of(items):
    if not items or any(not hasattr(item, "data_ptr") or item.device.type != "cuda"
                        or item.device != items[0].device for item in items):
        raise ValueError("all tensors must be on one GPU")
    return items[0].device


def _start_on_gpu(name, handle, tag, data, dtype, device=None):
    items = _items_of(data)
    if device is not None and _gpu_of(items).index != device:
        raise ValueError(f"the link is on GPU {device}, the tensors are on {_gpu_of(items)}")
    device = _gpu_of(items)
    if not has_link:
        raise ValueError(f"{no_cuda}: move the tensors to the CPU")
    if dtype is None:
        dtype = dtype_name(item.dtype for item in items)
    import torch  # there is a tensor, so torch is installed
    with torch.cuda.device(device):
        torch.cuda.current_stream().synchronize()  # kernels that use the tensors have ended
        return _start(getattr(library, name), handle,
                      (_tag(tag), number_of(DTYPES, dtype, "dtype")), map(memory_of, items))


if not has_wire:
    raise ImportError("libsnug_c was built without the wire (SNUG_STORE=OFF)")
