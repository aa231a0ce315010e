"""A TCP proxy between two workers that damages what passes, for tests of snug.kv."""

import socket
import threading


class Proxy:
    """`fault`: None, "flip" (one bit of what the server sends, after `after` bytes), "cut" (both
    connections end there, and all later ones) or "stall" (nothing passes any more). With
    `of_client`, of what the client sends."""

    def __init__(self, target, fault=None, after=0, of_client=False):
        host, port = target.rsplit(":", 1)
        self._target, self.fault, self._after = (host, int(port)), fault, after
        self._of_client, self._times = of_client, 1 if fault == "flip" else None
        self._each = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self._listener.getsockname()[1]
        self._passed, self._lock, self._sockets = 0, threading.Lock(), []
        self.num_faults = 0
        _thread(self._accept)

    @property
    def num_passed(self):
        """Bytes that have passed in the watched direction."""
        with self._lock:
            return self._passed

    def harm(self, fault, after, times=1, each=False):
        """`fault` after so many more bytes, and so often; for ever if `times` is None. With `each`,
        after so many bytes of every connection: more than a handshake needs."""
        with self._lock:
            self.fault, self._times, self._each = fault, times, each
            self._after = after if each else self._passed + after

    def close(self):
        self._listener.close()
        with self._lock:
            for end in self._sockets:
                end.close()

    def _accept(self):
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._target)
            except OSError:  # nobody listens there any more
                near.close()
                continue
            with self._lock:
                self._sockets += [near, far]
            _thread(self._pump, near, far, False)
            _thread(self._pump, far, near, True)

    def _pump(self, source, sink, is_from_server):
        passed = 0
        try:
            while True:
                data = bytearray(source.recv(1 << 16))
                if not data:
                    break
                passed += len(data)
                if is_from_server != self._of_client and not self._damage(data, passed):
                    break
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def _damage(self, data, passed_here):
        """False: end the connection."""
        with self._lock:
            self._passed += len(data)
            if self.fault is None or (passed_here if self._each else self._passed) < self._after:
                return True
            fault = self.fault
            self.num_faults += 1
            if self._times is not None:
                self._times -= 1
                self.fault = fault if self._times else None
            if fault == "flip":
                data[len(data) // 2] ^= 1
        if fault == "stall":
            threading.Event().wait(3600)
        return fault == "flip"


def _thread(target, *arguments):
    threading.Thread(target=target, args=arguments, daemon=True).start()
