"""Loads a compressed checkpoint into any torch module, for libraries that take a state_dict.

    python3 examples/load_state_dict.py
"""

import os
import tempfile

import torch

import snug.torch

model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.Linear(1024, 512))
model = model.to(torch.bfloat16)

with tempfile.TemporaryDirectory() as folder:
    # For a real model, use `snug compress` or this.
    path = os.path.join(folder, "model.snug.safetensors")
    snug.torch.save_file(model.state_dict(), path)

    same = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.Linear(1024, 512))
    same = same.to(torch.bfloat16)
    same.load_state_dict(snug.torch.load_file(path))  # a file, or a model folder with an index
    stored_bytes = os.path.getsize(path)

for name, tensor in model.state_dict().items():
    assert torch.equal(tensor, same.state_dict()[name]), name
raw_bytes = sum(tensor.nbytes for tensor in model.state_dict().values())
print(f"{raw_bytes} bytes, stored in {stored_bytes}, loaded exactly")
