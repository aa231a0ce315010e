"""The weights of one worker, as pieces of checkpoint tensors, and how an update changes them.

An update is verified as a whole before the first byte is written: every base, every result and
every hash. Then it is applied again, in place. That costs the time of applying it twice and no
memory but the update itself, in host memory, and two copies of the largest parameter.

How a parameter is read and written depends on what vLLM made of it:

    direct   it is still what was loaded; it is changed in place
    packed   Snug's quantization method holds it; it is restored, changed and packed in place
    derived  vLLM made something else of it, which cannot be read back. A copy of what was loaded
             stays in host memory. vLLM's own code makes the new parameter and copies it in place.

On a CPU, a parameter is taken as direct only if its hashes are those of the trainer's tensors.
"""

from collections import defaultdict

import torch

from .. import SnugError, inspect
from ..torch import apply_delta, decompress, tensor_hash
from ..torch.deltas import delta_info
from ..torch.tensors import DTYPE_NAMES
from .weight_update import Refused

_FRAME_HEADER_BYTES = 64


class Parameter:
    """One parameter of the model, or one buffer."""

    def __init__(self, piece, layers):
        self.module, self.name, self.whole = piece.module, piece.parameter, piece.whole
        self.dtype, self._layers = piece.dtype, layers
        self.kind = layers.kind(piece.module, piece.parameter)
        self.numbers = []     # of its pieces
        self.host_copy = None

    def tensor(self):
        return getattr(self.module, self.name, None)

    def dense(self):
        """What was loaded: for reading, on the device or the host. None if nobody has it."""
        if self.host_copy is not None:
            return self.host_copy
        if self.kind == "packed":
            return self._layers.dense(self.module, self.name)
        tensor = self.tensor()
        is_as_loaded = (self.kind == "direct" and tensor is not None and not tensor.is_meta
                        and tensor.dtype == self.dtype and tuple(tensor.shape) == self.whole.size
                        and tensor.stride() == self.whole.stride)
        return tensor.detach() if is_as_loaded else None

    def is_on_gpu(self):
        """There vLLM changes nothing of a direct parameter. On a CPU it may have moved the values
        about, which only a delta's hash would show."""
        tensor = self.tensor()
        return tensor is not None and tensor.is_cuda and self.dense() is not None

    def empty(self, device):
        """Memory like that of the loaded parameter; zeros, as vLLM fills padding."""
        size = 1 + sum((n - 1) * s for n, s in zip(self.whole.size, self.whole.stride))
        flat = torch.zeros(size, dtype=self.dtype, device=device)
        return flat.as_strided(self.whole.size, self.whole.stride)


class Weights:
    def __init__(self, pieces, layers, device):
        self.device, self._layers = device, layers
        self.pieces, self._parameters = [], {}
        self.taken = sorted({piece.tensor for piece in pieces})  # of the trainer's tensors
        taken = set()
        for piece in pieces:
            parameter = self._parameters.get((id(piece.module), piece.parameter))
            if parameter is None:
                parameter = Parameter(piece, layers)
            tensor = parameter.tensor()
            at = (id(tensor), piece.target)
            if tensor is not None and at in taken:
                continue  # a tied parameter that the checkpoint holds twice
            taken.add(at)
            self._parameters[(id(piece.module), piece.parameter)] = parameter
            parameter.numbers.append(len(self.pieces))
            self.pieces.append(piece)
        self.raw_bytes = [piece.num_bytes for piece in self.pieces]
        self.hashes = None

    def read_hashes(self):
        """Finds out what the engine serves."""
        self.hashes = [self._hash(piece) for piece in self.pieces]

    def parameter_of(self, number):
        piece = self.pieces[number]
        return self._parameters[(id(piece.module), piece.parameter)]

    def _hash(self, piece):
        base = self._parameters[(id(piece.module), piece.parameter)].dense()
        return None if base is None else tensor_hash(piece.target.of(base))

    @torch.no_grad()
    def verify(self, received):
        """Raises if the update cannot be applied; writes nothing."""
        groups = self._by_parameter(received)
        self._check_complete(groups)
        for parameter, items in groups:
            base = parameter.dense()
            for entry, data in items:
                new = self._result(entry, data, base)
                if parameter.kind == "packed":  # `base` is a restored copy
                    self.pieces[entry.piece].target.of(base).copy_(new)
            if parameter.kind == "packed":
                self._layers.check(parameter.module, parameter.name, base)

    @torch.no_grad()
    def commit(self, received, hashes):
        """Applies an update that `verify` took."""
        groups = self._by_parameter(received)
        reloaded = _reloaded(groups)
        self._reload([group for group in groups if id(group[0].module) in reloaded], hashes)
        try:
            for parameter, items in groups:
                if id(parameter.module) not in reloaded:
                    self._write(parameter, items)
            self._layers.process_tied([parameter for parameter, _ in groups])
        except Exception as error:
            raise RuntimeError("this engine has only a part of the update: use nothing that it "
                               "generates before weights have been sent to it again, which puts "
                               f"that right ({error})") from error
        self.hashes = hashes

    def _write(self, parameter, items):
        base = parameter.dense()
        for entry, data in items:
            self.pieces[entry.piece].target.of(base).copy_(self._result(entry, data, base))
        if parameter.kind == "packed":
            self._layers.write(parameter.module, parameter.name, base)
        else:
            self._layers.process(parameter.module)

    def _check_complete(self, groups):
        """A layer that is processed anew needs all of its parameters."""
        reloaded = _reloaded(groups)
        came = {entry.piece for _, items in groups for entry, _ in items}
        for parameter in self._parameters.values():
            if (id(parameter.module) in reloaded and parameter.dense() is None
                    and not came.issuperset(parameter.numbers)):
                raise Refused(f"the update has only parts of {parameter.name} of a "
                              f"{type(parameter.module).__name__}, and nothing is there to add "
                              "the others from")

    def _by_parameter(self, received):
        groups = defaultdict(list)
        for entry, data in received:
            groups[self.parameter_of(entry.piece)].append((entry, data))
        return list(groups.items())

    def _result(self, entry, data, base):
        """The new values of a piece. Verified: base and result have the hashes that were named."""
        piece = self.pieces[entry.piece]
        old = None if base is None else piece.target.of(base)
        device = torch.device("cpu") if old is None else old.device
        if piece.dtype.itemsize > 2:
            device = torch.device("cpu")  # deltas on GPUs have elements of one or two bytes
        if entry.form == "delta":
            try:
                target_hash = delta_info(data).target_hash
            except SnugError as error:
                raise Refused(f"the delta of piece {entry.piece}: {error}") from None
            if target_hash != entry.target_hash:
                raise Refused(f"the delta of piece {entry.piece} does not lead to the hash that "
                              "the trainer announced")
            new = apply_delta(old.to(device), data.to(device))
        else:
            info = inspect(data[:_FRAME_HEADER_BYTES].numpy().tobytes())  # before memory is taken
            if info.dtype != DTYPE_NAMES.get(piece.dtype) or info.raw_bytes != piece.num_bytes:
                raise Refused(f"piece {entry.piece} came as {info.num_elems} elements of "
                              f"{info.dtype}; it is {piece.dtype} of shape {piece.target.size}")
            new = decompress(data.to(device))
            if tensor_hash(new) != entry.target_hash:
                raise Refused(f"piece {entry.piece} has not the hash that the trainer announced")
        return new.view(piece.target.size)

    def _reload(self, groups, hashes):
        """Has vLLM process whole layers anew. If it cannot, those that it did are put back."""
        modules = {id(parameter.module): parameter.module for parameter, _ in groups}
        items_of = dict(groups)
        done = []
        try:
            for module in modules.values():
                parameters = [p for p in self._parameters.values() if p.module is module]
                before = {p.name: _on_host(p) for p in parameters}
                done.append((module, before))
                after = {p.name: self._assembled(p, items_of.get(p, [])) for p in parameters}
                self._layers.reload(module, after)
                for parameter in parameters:
                    parameter.host_copy = None
                    if not self._reads(parameter, hashes):
                        parameter.host_copy = after[parameter.name].to("cpu")
        except Exception as error:
            self._put_back(done, error)
            raise

    def _put_back(self, done, error):
        for module, before in done:
            if any(tensor is None for tensor in before.values()):
                raise RuntimeError("vLLM failed to process new weights, and what a layer held "
                                   "before is not known: start this engine again") from error
            self._layers.reload(module, before)
            for parameter in self._parameters.values():
                if parameter.module is module and parameter.host_copy is not None:
                    parameter.host_copy = before[parameter.name].to("cpu")

    def _assembled(self, parameter, items):
        base = parameter.dense()
        new = parameter.empty("cpu" if base is None else base.device)
        if base is not None:
            new.copy_(base)
        for entry, data in items:
            self.pieces[entry.piece].target.of(new).copy_(self._result(entry, data, base))
        return new

    def _reads(self, parameter, hashes):
        """Whether the parameter holds what was loaded, bit by bit."""
        base = parameter.dense()
        return base is not None and all(
            tensor_hash(self.pieces[number].target.of(base)) == hashes[number]
            for number in parameter.numbers)


def _reloaded(groups):
    """The modules that vLLM has to process anew."""
    return {id(parameter.module) for parameter, items in groups
            if parameter.kind == "derived" or parameter.host_copy is not None
            or parameter.kind == "direct" and not parameter.is_on_gpu()
            and any(entry.form == "whole" for entry, _ in items)}


def _on_host(parameter):
    if parameter.host_copy is not None:
        return parameter.host_copy
    dense = parameter.dense()
    return None if dense is None else dense.to("cpu", copy=True)
