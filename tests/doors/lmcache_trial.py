"""LMCache's storage manager with Snug's serde and adapter: python lmcache_trial.py [KV.safetensors]

Chunks of KV caches (k.* and v.* of the file, or Gaussians) are stored in a folder, dropped from
memory and fetched again: every bit is compared. Then one bit of one file is flipped, and one file
is cut.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import torch
from lmcache.v1.distributed.api import (GroupedObjectKeys, MemoryLayoutDesc, ObjectKey,
                                        PrefetchTaskSpec)
from lmcache.v1.distributed.config import get_arg_parser, parse_args_to_config
from lmcache.v1.distributed.storage_manager import StorageManager
from safetensors.torch import load_file

SHAPE = torch.Size([2, 4, 256, 128])  # K and V, layers, tokens of a chunk, channels
LAYOUT = MemoryLayoutDesc([SHAPE], [torch.bfloat16])


def check(what, is_true, note=""):
    print(f"{'ok  ' if is_true else 'FAIL'} {what} {note}", flush=True)
    if not is_true:
        os._exit(1)  # LMCache's threads would keep the process


def chunks(path, count=4):
    if path is None:
        torch.manual_seed(0)
        pool = torch.randn(1 << 20).to(torch.bfloat16)
    else:
        pool = torch.cat([tensor.reshape(-1) for name, tensor in sorted(load_file(path).items())
                          if name[0] in "kv"]).repeat(8)
    return [pool[i * 100_003:][:SHAPE.numel()].view(SHAPE).clone() for i in range(count)]


class Cache:
    def __init__(self, folder, serde):
        adapter = {"type": "plugin", "module_path": "snug.lmcache", "class_name": "SnugFolder",
                   "adapter_params": {"base_path": str(folder)}, "serde": serde}
        self.manager = StorageManager(parse_args_to_config(get_arg_parser().parse_args(
            ["--l1-size-gb", "1", "--l1-init-size-gb", "1", "--eviction-policy", "LRU",
             "--l2-adapter", json.dumps(adapter)])))
        self.folder = folder

    def store(self, data):
        objects = self.manager.reserve_write(list(data), LAYOUT)
        for key, memory in objects.items():
            memory.tensor.copy_(data[key])
        self.manager.finish_write(list(data))
        deadline = time.monotonic() + 120
        while len(self.files()) < len(data) and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(1)
        return self.files()

    def files(self):
        return [f for f in Path(self.folder).rglob("*") if f.is_file() and ".tmp" not in f.name]

    def fetch(self, data):
        """Keys that were found, and whether each is exact."""
        keys = list(data)
        self.manager.delete_l1_keys(keys)
        handle = self.manager.submit_prefetch_task(PrefetchTaskSpec([GroupedObjectKeys(
            keys=keys, object_group_id=0, layout_desc=LAYOUT)]))
        self.manager.wait_prefetch_status(handle, 120)
        result = self.manager.query_prefetch_status(handle)
        hits = [key for i, key in enumerate(keys) if result.hit_cells[0].test(i)]
        exact = []
        if hits:
            with self.manager.read_prefetched_results(hits) as found:
                exact = [torch.equal(memory.tensor.view(torch.int16), data[key].view(torch.int16))
                         for key, memory in zip(hits, found)]
            self.manager.finish_read_prefetched(hits)
        return hits, exact


def trial(codec, path):
    with tempfile.TemporaryDirectory() as folder:
        cache = Cache(folder, {"type": "snug", "codec": codec})
        data = {ObjectKey(bytes([i]) * 32, "model", 0): chunk
                for i, chunk in enumerate(chunks(path))}
        files = cache.store(data)
        stored = sum(f.stat().st_size for f in files)
        raw = sum(chunk.numel() * 2 for chunk in data.values())
        check(f"{codec}: stored", len(files) == len(data) and stored < raw,
              f"{stored / raw:.3f} of the size")
        hits, exact = cache.fetch(data)
        check(f"{codec}: all chunks come back, bit for bit", len(hits) == 4 and all(exact))
        with open(files[0], "r+b") as file:
            file.seek(files[0].stat().st_size // 2)
            byte = file.read(1)[0]
            file.seek(-1, 1)
            file.write(bytes([byte ^ 1]))
        hits, exact = cache.fetch(data)
        check(f"{codec}: a flipped bit is a miss", len(hits) < 4 and all(exact),
              f"{len(hits)} hits")
        os.truncate(files[0], 1000)
        hits, exact = cache.fetch(data)
        check(f"{codec}: a cut file is a miss", len(hits) < 4 and all(exact), f"{len(hits)} hits")
        cache.manager.close()


if __name__ == "__main__":
    for name in ("entropy", "fixed"):
        trial(name, sys.argv[1] if len(sys.argv) > 1 else None)
