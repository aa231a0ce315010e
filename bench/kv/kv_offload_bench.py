"""KV blocks from GPU memory to pinned host memory and back: Snug's slots, and vLLM's own copies in
the same run where vLLM can be imported (0.24):

    SNUG_LIBRARY=build/libsnug_c.so PYTHONPATH=python \
        python3 bench/kv/kv_offload_bench.py --data kv.safetensors

The shape is that of a model of 8B parameters, 128 KiB a token. A time is from the submission of a
job until it is reported as finished.
"""

import argparse
import json
import statistics
import time

import torch

from kv_transfer_bench import LAYERS, make_caches, order_of, sample_of
from snug.kv.gpu_transfers import GpuTransfers
from snug.kv.slots import SlotStore, plan_slots


class Snug:
    def __init__(self, pages, codec, ratio, num_blocks):
        block_bytes = sum(page.shape[1] for page in pages)
        _, slot_bytes = plan_slots(0, block_bytes, ratio)
        rows = torch.empty(num_blocks, slot_bytes, dtype=torch.uint8, pin_memory=True)
        self.store, self.name = SlotStore(rows), codec
        self.transfers = GpuTransfers(pages, "bf16", codec, self.store)
        self.blocks_gain = block_bytes / slot_bytes

    def run(self, job, is_store, blocks, slots):
        self.transfers.submit(job, is_store, blocks, slots)
        while not self.transfers.take_finished():
            pass


class Plain:
    """vLLM's handlers of both directions."""

    name, blocks_gain = "vllm", 1.0

    def __init__(self, pages, num_blocks):
        from vllm.v1.kv_offload.base import (CanonicalKVCacheRef, CanonicalKVCaches,
                                             CanonicalKVCacheTensor, GPULoadStoreSpec)
        from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
        from vllm.v1.kv_offload.cpu.gpu_worker import CpuGpuOffloadingHandlers
        size = pages[0].shape[1]
        caches = CanonicalKVCaches(
            tensors=[CanonicalKVCacheTensor(page, size) for page in pages],
            group_data_refs=[[CanonicalKVCacheRef(i, size) for i in range(len(pages))]])
        handlers = CpuGpuOffloadingHandlers(kv_caches=caches, block_size_factor=1,
                                            num_cpu_blocks=num_blocks)
        self._store, self._load = handlers.gpu_to_cpu_handler, handlers.cpu_to_gpu_handler
        self._gpu = lambda blocks: GPULoadStoreSpec(blocks, [len(blocks)], [0])
        self._cpu = CPULoadStoreSpec

    def run(self, job, is_store, blocks, slots):
        handler = self._store if is_store else self._load
        specs = self._gpu(blocks), self._cpu(slots)
        handler.transfer_async(job, specs if is_store else specs[::-1])
        while not handler.get_finished():
            pass


def measure(way, pages, original, tokens, page, runs, jobs):
    count, num_blocks = tokens // page, len(pages[0])
    blocks, slots = order_of(num_blocks)[:count], order_of(num_blocks)[::-1][:count]
    seconds = {True: [], False: []}
    for _ in range(runs + 1):
        for is_store in (True, False):
            if not is_store:
                for cache in pages:
                    cache[blocks] = 0
            torch.cuda.synchronize()
            start = time.perf_counter()
            way.run(next(jobs), is_store, blocks, slots)
            seconds[is_store].append(time.perf_counter() - start)
    torch.cuda.synchronize()
    exact = all(torch.equal(a[blocks], b[blocks]) for a, b in zip(pages, original))
    store, load = (statistics.median(seconds[key][1:]) for key in (True, False))
    size = tokens * LAYERS * pages[0].shape[1] / page
    row = {"way": way.name, "page": page, "tokens": tokens, "store_ms": round(1e3 * store, 3),
           "load_ms": round(1e3 * load, 3), "load_GBps": round(size / load / 1e9, 1),
           "blocks": round(way.blocks_gain, 3), "exact": exact}
    if isinstance(way, Snug):
        row["apart"] = way.store.num_apart
    print(json.dumps(row), flush=True)
    if not exact:
        raise SystemExit("blocks differ")


def noise(way, pages, jobs):
    """Blocks that do not shrink are kept apart, and come back exact."""
    for cache in pages:
        cache.random_(-128, 127)
    original = [cache.clone() for cache in pages]
    way.run(next(jobs), True, [3, 1], [0, 1])
    for cache in pages:
        cache[[1, 3]] = 0
    way.run(next(jobs), False, [3, 1], [0, 1])
    torch.cuda.synchronize()
    exact = all(torch.equal(a[[1, 3]], b[[1, 3]]) for a, b in zip(pages, original))
    print(json.dumps({"way": way.name, "noise": "exact" if exact else "WRONG",
                      "apart": way.store.num_apart, "apart_bytes": way.store.apart_bytes}))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data")
    parser.add_argument("--page", type=int, default=16)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    import itertools
    tokens, jobs = 16384, itertools.count()
    caches = make_caches(tokens, arguments.page, sample_of(arguments.data))
    pages = [cache.view(len(cache), -1).view(torch.int8) for cache in caches.values()]
    original = [page.clone() for page in pages]
    ways = [lambda: Snug(pages, "fixed", 0.7575, len(pages[0])),
            lambda: Snug(pages, "entropy", 0.70, len(pages[0])),
            lambda: Plain(pages, len(pages[0]))]
    for make in ways:
        try:
            way = make()
        except ImportError as error:
            print(f"without vLLM's own: {error}")
            continue
        for count in (1024, 4096, 16384):
            measure(way, pages, original, count, arguments.page, arguments.runs, jobs)
        if isinstance(way, Snug):
            noise(way, pages, jobs)
            for page, saved in zip(pages, original):
                page.copy_(saved)
        del way


if __name__ == "__main__":
    main()
