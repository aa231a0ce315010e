"""Which part of a checkpoint tensor goes to which part of a model's parameters.

vLLM fuses, slices and renames tensors while it loads them, in code that every model has of its
own. `record` lets that code load tensors without memory and notes what it copies where.
"""

from typing import NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_FILLS = (torch.ops.aten.fill_.Scalar, torch.ops.aten.zero_.default)  # of padding


class Region(NamedTuple):
    """Elements of a tensor's storage."""
    offset: int
    size: tuple
    stride: tuple

    def of(self, tensor):
        return tensor.as_strided(self.size, self.stride, tensor.storage_offset() + self.offset)


class Piece(NamedTuple):
    """What one copy of the loader moves."""
    tensor: int          # number of the checkpoint tensor
    source: Region       # of it
    module: object
    parameter: str       # of the module
    target: Region       # of it
    dtype: torch.dtype   # of the parameter: the copy converts
    whole: Region        # all of the parameter, as it was made for loading

    @property
    def num_bytes(self):
        num_elems = 1
        for length in self.target.size:
            num_elems *= length
        return num_elems * self.dtype.itemsize


def record(model, tensors, load):
    """The pieces of `tensors`, [(name, dtype, shape)], that load(iterator) puts into `model`."""
    probes = [(name, torch.empty(shape, dtype=dtype, device="meta"))
              for name, dtype, shape in tensors]
    recorder = _Recorder(model, [probe for _, probe in probes])
    with recorder, torch.no_grad():
        load(iter(probes))
    if recorder.unknown:
        raise ValueError("vLLM computes with these weights while it loads them, so they cannot be "
                         f"updated by parts: {', '.join(sorted(recorder.unknown)[:5])}; use one of "
                         "vLLM's own weight transfer engines")
    return recorder.pieces


class _Recorder(TorchDispatchMode):
    def __init__(self, model, probes):
        super().__init__()
        self.pieces, self.unknown = [], set()
        self._probes = {_storage(probe): number for number, probe in enumerate(probes)}
        self._parameters = {}
        for name, module in model.named_modules():
            for own, tensor in (*module._parameters.items(), *module._buffers.items()):
                if tensor is not None:
                    self._parameters.setdefault(_storage(tensor), (name, module, own, tensor))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        target = args[0] if args else None
        owner = None
        if isinstance(target, torch.Tensor) and func._schema.is_mutable:
            owner = self._parameters.get(_storage(target))
        if owner is None:
            return func(*args, **(kwargs or {}))
        number = None
        if func is torch.ops.aten.copy_.default and args[1].shape == target.shape:
            number = self._probes.get(_storage(args[1]))
        if number is not None:
            self._note(owner, number, target, args[1])
        elif not (func in _FILLS and (len(args) == 1 or args[1] == 0)):
            self.unknown.add(f"{owner[0]}.{owner[2]}")
        return target  # nothing is written

    def _note(self, owner, number, target, source):
        _, module, parameter, whole = owner
        self.pieces.append(Piece(
            number, Region(source.storage_offset(), tuple(source.shape), source.stride()), module,
            parameter, Region(target.storage_offset() - whole.storage_offset(),
                              tuple(target.shape), target.stride()), target.dtype,
            Region(0, tuple(whole.shape), whole.stride())))


def _storage(tensor):
    return tensor.untyped_storage()._cdata
