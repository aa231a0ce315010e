"""Saves and loads a compressed checkpoint with torch.distributed.checkpoint.

    python3 examples/distributed_checkpoint.py
"""

import tempfile

import torch
import torch.distributed.checkpoint as dcp

import snug.torch.dcp

state = {"weight": torch.randn(1024, 1024).to(torch.bfloat16), "step": 100}
with tempfile.TemporaryDirectory() as folder:
    # In a distributed job, leave out no_dist: each rank writes its part.
    dcp.save(state, storage_writer=snug.torch.dcp.FileSystemWriter(folder), no_dist=True)
    loaded = {"weight": torch.zeros(1024, 1024, dtype=torch.bfloat16), "step": 0}
    dcp.load(loaded, storage_reader=snug.torch.dcp.FileSystemReader(folder), no_dist=True)
assert torch.equal(loaded["weight"], state["weight"]) and loaded["step"] == 100
print("saved and loaded exactly")
