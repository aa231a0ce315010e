"""Loaders of safetensors folders: each takes a folder and a device, and returns tensors by name.

A loader that cannot run here raises; the benchmark then says why.
"""

import glob
import os


def _files(folder):
    return sorted(glob.glob(os.path.join(folder, "*.safetensors")))


def snug_load(folder, device):
    import snug.torch
    return snug.torch.load_file(folder, device=device)


def snug_reload(folder, tensors):
    """Into tensors that are in memory already."""
    import snug
    import torch
    for path in _files(folder):
        with snug.Reader(path) as reader:
            reader.load({name: tensors[name].view(torch.uint8) for name in reader.keys()})


def safetensors_load(folder, device):
    from safetensors.torch import load_file
    tensors = {}
    for path in _files(folder):
        tensors.update(load_file(path, device=device))
    return tensors


def safetensors_pread(folder, device):
    from safetensors import safe_open
    tensors = {}
    for path in _files(folder):
        with safe_open(path, framework="pt", device=device, backend="pread") as file:
            tensors.update((name, file.get_tensor(name)) for name in file.offset_keys())
    return tensors


def fastsafetensors_load(folder, device):
    from fastsafetensors import fastsafe_open
    with fastsafe_open(_files(folder), device="cuda:0" if device == "cuda" else device,
                       nogds=True) as file:
        return {name: file.get_tensor(name) for name in file.keys()}


def runai_load(folder, device):
    from runai_model_streamer import SafetensorsStreamer
    with SafetensorsStreamer() as streamer:
        streamer.stream_files(_files(folder), None, device)
        return {name: tensor.to(device) if device != "cpu" else tensor.clone()
                for name, tensor in streamer.get_tensors()}


def instanttensor_load(folder, device):
    from instanttensor import safe_open
    with safe_open(_files(folder), framework="pt", device="cuda:0") as file:
        return dict(file.tensors())


DENSE = {
    "safetensors": safetensors_load,
    "safetensors, pread": safetensors_pread,
    "fastsafetensors": fastsafetensors_load,
    "runai": runai_load,
    "instanttensor": instanttensor_load,
}
# They map files, or read by AIO, which paced_reads.c does not see.
NOT_PACED = {"safetensors", "instanttensor"}
