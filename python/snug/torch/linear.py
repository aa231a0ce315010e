"""Linear layers on packed weights."""

import warnings
from contextlib import contextmanager

import torch
from torch import nn

from .._library import CORRUPT, SnugError
from .deltas import apply_delta, apply_to_packed
from .matrix import (FIXED, as_under_autocast, multiply, pack, read_header, strip_sums, verify,
                     version_of)
from .on_gpu import stream_of


class CompressedLinear(nn.Module):
    """nn.Linear from packed BF16 weights: lossless, in a quarter less memory.

    The packed matrix is the buffer `packed`, its checksums are the buffer `sums`: state_dict saves
    both, and load_state_dict takes others of the same shape and verifies them.

    With `dense`, the same weights as they were, the layer is as fast as a dense one where that
    is faster, and needs the memory of both.
    """

    def __init__(self, packed, bias=None, header=None, sums=None, dense=None):
        super().__init__()
        self.header = header or read_header(packed)
        if sums is None:
            sums = strip_sums(packed, self.header)
        else:
            verify(packed, self.header, sums)
        self.register_buffer("packed", packed)
        self.register_buffer("sums", sums.to(packed.device))
        self.register_buffer("dense", dense, persistent=False)
        self.bias = None if bias is None else nn.Parameter(bias.detach(), bias.requires_grad)

    @classmethod
    def from_linear(cls, linear, kind=FIXED, keep_dense=False):
        """None if the weights would not be smaller."""
        made = pack(linear.weight, kind)
        if made is None:
            return None
        # Its own: an optimizer, or another model, may go on changing the memory of the old layer.
        dense = linear.weight.detach().clone() if keep_dense else None
        return cls(made[0], linear.bias, made[1], dense=dense)

    @property
    def in_features(self):
        return self.header.k

    @property
    def out_features(self):
        return self.header.n

    @property
    def num_bytes(self):
        dense = 0 if self.dense is None else 2 * self.dense.numel()
        return self.packed.numel() + 8 * self.sums.numel() + dense

    def verify(self):
        """Checks that the weights are intact; raises SnugError that names damaged rows."""
        verify(self.packed, self.header, self.sums)
        if self.dense is not None:
            _verify_copy(self.dense, self.dense_weight())

    def forward(self, x):
        x = as_under_autocast(x)
        if x.dtype != torch.bfloat16 or x.shape[-1] != self.header.k:
            raise TypeError(f"expected BF16 with {self.header.k} features, "
                            f"got {x.dtype} of shape {tuple(x.shape)}")
        if x.device != self.packed.device:
            raise ValueError(f"x is on {x.device}, the weights are on {self.packed.device}")
        return multiply(x, self.packed, self.bias, self.header, self.dense)

    def dense_weight(self):
        """The exact weight matrix, restored."""
        return torch.ops.snug.unpack(self.packed, *self.header)

    @property
    def weight(self):
        """The same, for code that reads a layer's weights. Restores them on every access."""
        return self.dense_weight()

    def decompress(self):
        """The exact nn.Linear."""
        return _dense_linear(self.dense_weight(), self.bias)

    def apply_delta(self, delta):
        """Updates the weights to the new version, or raises and leaves them unchanged.

        `delta` is of the dense weight matrix: snug.torch.delta(old, new).
        """
        if self.packed.is_cuda:
            packed, header = apply_to_packed(self.packed, self.header, delta)
        else:
            made = pack(apply_delta(self.dense_weight(), delta), self.header.kind)
            if made is None:
                raise ValueError("the new weights do not compress; make a dense layer of them")
            packed, header = made
        dense = None if self.dense is None else torch.ops.snug.unpack(packed, *header)
        sums = strip_sums(packed, header)
        self.packed, self.header, self.sums, self.dense = packed, header, sums, dense

    def _renew_dense(self):
        if self.dense is not None:
            self.dense = self.dense_weight()

    def _apply(self, *args, **kwargs):
        super()._apply(*args, **kwargs)
        # model.half() leaves the packed weights as they are, and the copy has to equal them.
        if self.dense is not None and self.dense.dtype != torch.bfloat16:
            self._renew_dense()
        return self

    def extra_repr(self):
        bits = 8 * self.packed.numel() / (self.header.n * self.header.k)
        return (f"in_features={self.header.k}, out_features={self.header.n}, "
                f"bias={self.bias is not None}, {bits:.2f} bits per weight"
                + (", and a dense copy" if self.dense is not None else ""))

    def _load_from_state_dict(self, state_dict, prefix, *args):
        packed = state_dict.get(prefix + "packed")
        if packed is not None:
            header = read_header(packed)  # packed sizes differ; n and k must not
            if (header.n, header.k) != (self.header.n, self.header.k):
                args[-1].append(f"{prefix}packed holds {header.n} x {header.k} weights, "
                                f"this layer has {self.header.n} x {self.header.k}")
                return
            before = self.packed, self.sums, self.header
            self.packed = torch.empty_like(packed, device=self.packed.device)
            self.sums = torch.empty_like(self.sums)  # torch would write into those of before
            self.header = header
        super()._load_from_state_dict(state_dict, prefix, *args)
        if packed is None or self.packed.is_meta:
            return
        if prefix + "sums" not in state_dict:  # which is an error unless strict=False
            self.sums = strip_sums(self.packed, self.header)
        try:
            with errors_name(prefix + "packed"):  # where the weights are used, after the last copy
                verify(self.packed, self.header, self.sums)
            self._renew_dense()
        except Exception:  # damaged, checksums of another kind, or no memory for the dense copy
            self.packed, self.sums, self.header = before
            raise


# After so many products in a row that not all parts took, a warning. Threads that share a model, or
# a step that an error ended, leave some now and then.
_MANY_PARTIAL = 8


class FusedPart(nn.Module):
    """One of several layers that share their input and one packed matrix.

    The first part to see an input multiplies for all; the others return their
    columns of that result.
    """

    def __init__(self, fused, first, count, is_owner):
        super().__init__()
        self.first, self.count = first, count
        if is_owner:
            self.fused = fused  # a submodule of the first part only: saved once
        else:
            object.__setattr__(self, "fused", fused)

    @property
    def in_features(self):
        return self.fused.header.k

    @property
    def out_features(self):
        return self.count

    @property
    def weight(self):
        """The exact weights of this part, restored on every access."""
        return self.fused.dense_weight()[self.first:self.first + self.count].clone()

    @property
    def bias(self):
        bias = self.fused.bias
        return None if bias is None else bias[self.first:self.first + self.count]

    def forward(self, x):
        return self.fused.columns(x, self.first, self.count)

    def decompress(self):
        """The exact nn.Linear."""
        return _dense_linear(self.weight, self.bias)


class FusedLinear(CompressedLinear):
    """The packed matrix behind FusedParts."""

    def __init__(self, packed, bias, header, num_parts, dense=None):
        super().__init__(packed, bias, header, dense=dense)
        self.num_parts = num_parts
        self._last = None  # input of the last product, its key, the product, parts that took it
        self._num_partial = 0  # products in a row that were replaced before all parts took them

    def columns(self, x, first, count):
        if torch.compiler.is_compiling():
            # The compiler merges the equal calls of the parts.
            return self(x)[..., first:first + count]
        stream = stream_of(x.device.index) if x.is_cuda else 0
        made_for = (version_of(x), version_of(self.packed), self.packed.data_ptr(), stream,
                    torch.is_grad_enabled())
        last = self._last  # threads that share a model may replace it at any time
        if last is None or last[0] is not x or last[1] != made_for or first in last[3]:
            if last is not None:
                self._count_partial()
            last = self._last = (x, made_for, self(x), set())
        _, _, y, taken = last
        taken.add(first)
        if len(taken) == self.num_parts and self._last is last:
            self._last, self._num_partial = None, 0
        return y[..., first:first + count]

    def _count_partial(self):
        """Matrices for each part would be faster then, but take memory, and change results."""
        self._num_partial += 1
        if self._num_partial == _MANY_PARTIAL:
            warnings.warn(f"{self.num_parts} layers that are multiplied as one matrix, because of "
                          "their names (q/k/v or gate/up), read different inputs, which is slow: "
                          "compress the model with fuse=False", RuntimeWarning, stacklevel=4)


def _verify_copy(dense, restored):
    """Compares a dense copy with the weights that were restored from packed ones."""
    found, wanted = dense.view(torch.int16), restored.view(torch.int16)
    if not torch.equal(found, wanted):
        row = int((found != wanted).any(dim=1).nonzero()[0])
        raise SnugError(CORRUPT, f"corrupt: row {row} of the dense copy differs from the packed "
                                 "weights; load the model again")


@contextmanager
def errors_name(layer):
    try:
        yield
    except SnugError as error:
        raise SnugError(error.code, f"{layer}: {error}") from None


def _dense_linear(weight, bias):
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias.detach().clone(), bias.requires_grad)
    return linear
