"""The files of a checkpoint: one file, or a model folder with an index."""

import json
import os
from contextlib import ExitStack

from ._library import CORRUPT, NOT_FOUND, SnugError, SnugFileNotFound
from .reader import Reader

_SUFFIX, _INDEX = ".safetensors", ".safetensors.index.json"


def open_shards(path):
    """The readers of a checkpoint, and the reader of each tensor in the order of the data."""
    path = os.fsdecode(path)
    index = path if path.endswith(".index.json") else None
    if os.path.isdir(path):
        path, index = _in_folder(path)
    if index is None:
        reader = Reader(path)
        return [reader], dict.fromkeys(reader.keys(), reader)
    return _open_index(index)


def _in_folder(folder):
    """The file to open, or else the index, by the rules of Hugging Face."""
    names = sorted(os.listdir(folder))
    files = [name for name in names if name.endswith(_SUFFIX)]
    indexes = [name for name in names if name.endswith(_INDEX)]
    for choices, is_index in ((["model" + _SUFFIX], False), (["model" + _INDEX], True),
                              (indexes, True), (files, False)):
        there = [name for name in choices if name in names]
        if len(there) == 1:
            chosen = os.path.join(folder, there[0])
            return (None, chosen) if is_index else (chosen, None)
        if len(there) > 1:
            kind = "indexes" if is_index else "safetensors files and no index"
            raise ValueError(f"{folder} has {len(there)} {kind}: give the path of one of them")
    raise SnugFileNotFound(NOT_FOUND, f"{folder} has no *{_SUFFIX} file")


def _open_index(path):
    files = _read_index(path)
    readers, tensors = [], {}
    with ExitStack() as on_error:
        for file in sorted(files):
            reader = on_error.enter_context(_open_shard(path, file))
            for name in files[file]:
                if name not in reader:
                    raise SnugError(CORRUPT, f"{path}: says that {name} is in {file}, but it is "
                                             "not: the index belongs to other files")
            wanted = set(files[file])
            tensors.update((name, reader) for name in reader.keys() if name in wanted)
            readers.append(reader)
        on_error.pop_all()
    return readers, tensors


def _read_index(path):
    """Files to the names of their tensors."""
    try:
        with open(path, encoding="utf-8") as file:
            names = json.load(file)["weight_map"]
        files = {}
        for name, file in names.items():
            files.setdefault(os.fspath(file), []).append(name)
    except FileNotFoundError:
        raise SnugFileNotFound(NOT_FOUND, f"{path}: no such file") from None
    except OSError:
        raise
    except Exception as error:  # not JSON, or other JSON
        raise SnugError(CORRUPT, f"{path}: not an index with a weight_map: {error!r}") from None
    for file in files:
        if os.path.isabs(file) or ".." in file.split("/") or "\0" in file:
            raise SnugError(CORRUPT, f"{path}: names {file!r}, which leads out of its folder")
    return files


def _open_shard(index, file):
    try:
        return Reader(os.path.join(os.path.dirname(index), file))
    except SnugFileNotFound as error:
        raise SnugFileNotFound(error.code, f"{error}; {index} names it: copy it there, or correct "
                                           "the index") from None
