"""Checkpoints as safetensors opens them, plain or compressed.

    with snug.safe_open("model.snug.safetensors", framework="pt") as file:
        for name in file.keys():
            tensor = file.get_tensor(name)
        rows = file.get_slice("lm_head.weight")[100:116]     # decodes only what holds them
"""

import json
import math
import numbers
import struct

from ._arrays import arrays_of, is_packed, stored_shape
from ._library import NOT_FOUND, SnugError
from ._shards import open_shards

_MAX_HEADER_BYTES = 100_000_000  # safetensors' own limit


class safe_open:
    """What safetensors.safe_open does, also for files and folders that `snug compress` wrote.

    filename: a file, a model folder, or an index (*.safetensors.index.json). framework: "pt" or
    "np". device: where torch's tensors go. NVIDIA GPUs decode whole tensors themselves; slices,
    and tensors for other devices, are decoded by the CPU and copied. `backend` is safetensors' and
    changes nothing here.
    """

    def __init__(self, filename, framework, device="cpu", *, backend=None):
        self._arrays = arrays_of(framework, device)
        self._filename = filename
        self._readers, self._tensors = open_shards(filename)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # Slices stay usable: the last of them closes its file.
        self._readers = self._tensors = None

    def keys(self):
        """Names of all tensors, sorted."""
        return sorted(self._open_tensors())

    def offset_keys(self):
        """Names of all tensors in the order of their data, file by file."""
        return list(self._open_tensors())

    def metadata(self):
        """The metadata of the file, or what all files of a folder agree on. None without any."""
        self._open_tensors()
        first, *others = [reader.metadata for reader in self._readers] or [{}]
        return {key: value for key, value in first.items()
                if all(other.get(key) == value for other in others)} or None

    def get_tensor(self, name):
        return self.get_slice(name)._whole()

    def get_tensors(self):
        """All tensors by name, in the order of their data."""
        owners, tensors = self._open_tensors(), {}  # another thread may close the file meanwhile
        for reader in dict.fromkeys(owners.values()):
            names = [name for name, owner in owners.items() if owner is reader]
            tensors.update(_load(reader, names, self._arrays))
        return tensors

    def tensors_in_turn(self, names=None, group_bytes=256 << 20):
        """Yields (name, tensor), in the order of `names` or else of the data. Reads as many at once
        as group_bytes hold, or one that is larger."""
        group, size, reader = {}, 0, None
        for name in self.offset_keys() if names is None else names:
            owner = self._reader_of(name)
            raw_bytes = owner.info(name).raw_bytes
            if group and (owner is not reader or name in group or size + raw_bytes > group_bytes):
                yield from _load(reader, group, self._arrays).items()
                group, size = {}, 0
            reader = owner
            group[name] = raw_bytes
            size += raw_bytes
        if group:
            yield from _load(reader, group, self._arrays).items()

    def get_slice(self, name):
        """A TensorSlice: index it to read a part of the tensor."""
        return TensorSlice(self._reader_of(name), name, self._arrays)

    def _reader_of(self, name):
        if not isinstance(name, str):
            raise TypeError(f"the name of a tensor is a str, not {name!r}")
        reader = self._open_tensors().get(name)
        if reader is None:
            raise SnugError(NOT_FOUND, f'not found: {self._filename}: no tensor "{name}"; keys() '
                                       "lists all names")
        return reader

    def __reduce__(self):  # torch's DataLoader pickles what a dataset holds
        raise TypeError("a safe_open cannot be copied or pickled: open the file again")

    def _open_tensors(self):
        if self._tensors is None:
            raise ValueError(f"{self._filename} is closed")
        return self._tensors


class TensorSlice:
    """A tensor that is read when it is indexed, and then only the blocks that are needed."""

    def __init__(self, reader, name, arrays):
        self._reader, self._name, self._arrays = reader, name, arrays
        self._info = reader.info(name)

    def get_shape(self):
        return list(self._info.shape)

    def get_dtype(self):
        return self._info.dtype

    def __getitem__(self, index):
        # The framework's own errors, before anything is read.
        self._arrays.without_memory(self._info.shape)[index]
        if index is Ellipsis or (isinstance(index, slice) and index == slice(None)):
            return self._whole()
        name, shape = self._info.dtype, stored_shape(self._info.dtype, self._info.shape)
        dtype = self._arrays.dtype(name)
        entries = _expand(index, self._info.shape)
        if is_packed(name) and not _takes_all_of_last(entries or (), self._info.shape):
            raise ValueError(f"{self._name}: a byte holds two elements of {name}, so a slice must "
                             "take all of the last dimension")
        first, cover, rest = (0, shape, index) if entries is None else _cover(entries, shape)
        # torch copies bytes, but not yet packed elements.
        whole = self._read(first, cover, self._arrays.dtype("U8") if is_packed(name) else dtype)
        part = self._arrays.compact(whole[rest], whole)
        return self._arrays.on_device(part.view(dtype) if is_packed(name) else part)

    def _whole(self):
        return _load(self._reader, [self._name], self._arrays)[self._name]

    def _read(self, first, shape, dtype):
        """Elements from number `first` on, as many as the shape has."""
        memory = self._arrays.memory(math.prod(shape) * dtype.itemsize)
        if len(memory):
            start = first * dtype.itemsize
            self._reader.bytes(self._name, start, start + len(memory), into=memory)
        return self._arrays.shaped(memory, dtype, shape)


def _load(reader, names, arrays):
    """Whole tensors of one file, by name."""
    infos = {name: reader.info(name) for name in names}
    # Before anything is read: what the framework cannot hold.
    forms = {name: (arrays.dtype(info.dtype), stored_shape(info.dtype, info.shape))
             for name, info in infos.items()}
    memories = arrays.load(reader, {name: info.raw_bytes for name, info in infos.items()})
    return {name: arrays.on_device(arrays.shaped(memories[name], *forms[name])) for name in names}


def _expand(index, shape):
    """An entry for each dimension and each new one; None for an index with other entries than
    numbers, slices, None and an ellipsis."""
    entries = index if isinstance(index, tuple) else (index,)
    places = [i for i, entry in enumerate(entries) if entry is Ellipsis]
    others = [entry for entry in entries if entry is not Ellipsis]
    if len(places) > 1 or not all(_is_number(entry) or entry is None or isinstance(entry, slice)
                                  for entry in others):
        return None
    missing = len(shape) - sum(entry is not None for entry in others)
    at = places[0] if places else len(others)
    return [*others[:at], *[slice(None)] * missing, *others[at:]]


def _is_number(entry):
    return isinstance(entry, numbers.Integral) and not isinstance(entry, bool)


def _cover(entries, shape):
    """The smallest run of elements that holds all that an expanded index selects: its first
    element, its shape, and the index into it."""
    first, cover, rest, dim, is_one = 0, list(shape), [], 0, True
    for entry in entries:
        if entry is None or not is_one:  # one row so far: the next dimension limits the run, too
            rest.append(entry)
        else:
            rows, step = _rows(entry, shape[dim])
            rest.append(0 if step is None else slice(None, None, step))
            first += rows.start * math.prod(shape[dim + 1:])
            cover[dim] = len(rows)
            is_one = len(rows) == 1
        dim += entry is not None
    # An ellipsis makes numpy return an array where it would return a number.
    return first, tuple(cover), (*rest, Ellipsis)


def _rows(entry, num_rows):
    """The range of rows that covers an entry, and the step in it; None for a single row."""
    if not isinstance(entry, slice):
        row = int(entry) % num_rows
        return range(row, row + 1), None
    rows = range(num_rows)[entry]
    if not rows:
        return range(0), rows.step
    return range(min(rows[0], rows[-1]), max(rows[0], rows[-1]) + 1), rows.step


def _takes_all_of_last(entries, shape):
    last = next((entry for entry in reversed(entries) if entry is not None), None)
    return isinstance(last, slice) and last.indices(shape[-1]) == (0, shape[-1], 1)


def is_compressed(path):
    """Whether `snug compress` wrote the file, by its header. Not if it cannot be read, or is no
    safetensors file: who reads it next says why."""
    try:
        with open(path, "rb") as file:
            size, = struct.unpack("<Q", file.read(8))
            header = file.read(size) if size <= _MAX_HEADER_BYTES else b""
        if b'"snug.format"' not in header:  # large headers take long to parse
            return False
        metadata = json.loads(header).get("__metadata__")
        return isinstance(metadata, dict) and "snug.format" in metadata
    except (OSError, struct.error, ValueError, AttributeError, RecursionError):
        return False


def load_file(filename, framework="np", device="cpu"):
    """All tensors of a file or folder, by name."""
    with safe_open(filename, framework, device) as file:
        return file.get_tensors()
