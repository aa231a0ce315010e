"""Owners of C objects."""

import contextlib
import os
import threading


class Handle:
    """A C object. It is freed once, when it is closed and no call uses it any more.

    A forked child cannot use it unless it survives a fork: threads stay with the parent. `scope`
    is what it is freed in: on a thread that has used no GPU, freeing memory of another one would
    begin to use GPU 0, which takes half a gigabyte there.
    """

    def __init__(self, pointer, free, survives_fork=False, scope=contextlib.nullcontext()):
        self._pointer, self._free, self._scope = pointer, free, scope
        self._owner = None if survives_fork else os.getpid()
        self._lock, self._num_users, self._is_closed = threading.Lock(), 0, False

    def close(self):
        with self._lock:
            is_last = not self._is_closed and self._num_users == 0
            self._is_closed = True
        if is_last:
            self._release()

    def __reduce__(self):  # copy and pickle: two owners would free the object twice
        raise TypeError(f"a {type(self).__name__} cannot be copied or pickled; open another one")

    def __copy__(self):
        return self.__reduce__()

    def __deepcopy__(self, _):
        return self.__reduce__()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        if hasattr(self, "_lock"):  # not if the constructor failed
            self.close()

    @contextlib.contextmanager
    def _use(self):
        """The pointer, valid until the end of the block."""
        if not self._is_ours():
            raise ValueError("opened by another process, before a fork")
        with self._lock:
            if self._is_closed:
                raise ValueError("closed")
            self._num_users += 1
        try:
            yield self._pointer
        finally:
            with self._lock:
                self._num_users -= 1
                is_last = self._is_closed and self._num_users == 0
            if is_last:
                self._release()

    def _is_ours(self, getpid=os.getpid):  # at exit, the module may be gone before the object
        return self._owner in (None, getpid())

    def _release(self):
        if self._is_ours():
            with self._scope:
                self._free(self._pointer)
