"""Tensors that are decoded when they are used, and only the rows that are used."""

import torch
from torch.utils._pytree import tree_map_only

_aten = torch.ops.aten


class Rows(torch.Tensor):
    """A tensor of at least two dimensions that `read(first, last)` gives rows of.

    Taking rows reads nothing; everything else reads the rows that were taken.
    """

    @staticmethod
    def __new__(cls, read, shape, dtype, first=0):
        self = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device="cpu")
        self._read, self._first = read, first
        return self

    def values(self):
        return self._read(self._first, self._first + self.shape[0])

    def __repr__(self):
        return f"Rows({self._first} to {self._first + self.shape[0]}, {tuple(self.shape)})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is _aten.slice.Tensor and isinstance(args[0], cls):
            taken = args[0]._take(*args[1:], **kwargs)
            if taken is not None:
                return taken
        if func in (_aten.detach.default, _aten.alias.default):
            return args[0]
        if func is _aten.copy_.default and args[0].is_meta:
            return args[0]  # vLLM counts what a loader copies, before it loads for real
        args, kwargs = tree_map_only(cls, cls.values, (args, kwargs))
        return func(*args, **kwargs)

    def _take(self, dim=0, start=None, end=None, step=1):
        if dim not in (0, -self.dim()) or step != 1:
            return None
        rows = range(self.shape[0])[start:end]
        return Rows(self._read, (len(rows), *self.shape[1:]), self.dtype, self._first + rows.start)
