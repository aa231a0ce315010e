"""SGLang's factory, configuration and host pool with SnugHiCache: python hicache_trial.py

Without an engine, which copies between GPU and host memory. Pages are stored, overwritten and
fetched again; then one bit of a file is flipped. At last the folder has a limit.
"""

import os
import sys
import tempfile
from pathlib import Path

import torch
from sglang.srt.mem_cache.device_pool_info import KVBufferLayout, KVBuffers, MHABufferInfo
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

LAYERS, HEADS, DIM, PAGE, TOKENS = 4, 2, 64, 32, 1024


def check(what, is_true, note=""):
    print(f"{'ok  ' if is_true else 'FAIL'} {what} {note}", flush=True)
    if not is_true:
        sys.exit(1)


def host_pool(layout):
    device = torch.device("cpu")
    sides = [[torch.zeros(TOKENS, HEADS, DIM, dtype=torch.bfloat16) for _ in range(LAYERS)]
             for _ in range(2)]
    pointers = [torch.tensor([t.data_ptr() for t in side], dtype=torch.uint64) for side in sides]
    info = MHABufferInfo(
        buffers=KVBuffers(k=tuple(sides[0]), v=tuple(sides[1]), k_data_ptrs=pointers[0],
                          v_data_ptrs=pointers[1], layout=KVBufferLayout.NHD),
        page_size=PAGE, head_num=HEADS, head_dim=DIM, v_head_dim=DIM, dtype=torch.bfloat16,
        device=device)
    return MHATokenToKVPoolHost(info, 2.0, 0, PAGE, layout, pin_memory=False, device="cpu",
                                device_capacity_tokens=TOKENS, start_layer=0, end_layer=LAYERS)


def backend_of(pool, layout, folder, **options):
    config = HiCacheStorageConfig(
        tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1,
        is_mla_model=False, enable_storage_metrics=False,
        is_page_first_layout=layout == "page_first", model_name="m",
        extra_config={"backend_name": "snug", "module_path": "snug.hicache",
                      "class_name": "SnugHiCache", "file_storage_path": folder, **options})
    backend = StorageBackendFactory.create_backend("dynamic", config, pool)
    backend.register_mem_pool_host(pool)
    return backend


def fetch(backend, pool, keys):
    pages = backend.batch_get(keys, [pool.get_dummy_flat_data_page() for _ in keys])
    for i, page in enumerate(pages):
        if page is not None:
            pool.set_from_flat_data_page(i * PAGE, page)
    return [page is not None for page in pages]


def limit(folder):
    """Room for two pages: the oldest ones go. A new backend finds what the last one left."""
    pool = host_pool("layer_first")
    page = torch.randn(pool.get_data_page(0, flat=True).shape).to(torch.bfloat16)
    size = 2 * page.numel()
    backend = backend_of(pool, "layer_first", folder, max_size=size * 3 // 2, eviction_ratio=1.0)
    stored = backend.batch_set(["a", "b", "c"], [page] * 3)
    check("a limit: the oldest pages go", stored and not backend.exists("a")
          and backend.exists("c") and torch.equal(backend.get("c", page.clone().zero_()), page))
    backend = backend_of(pool, "layer_first", folder, max_size=size * 3 // 2, eviction_ratio=1.0)
    check("a limit: files of an earlier run count", backend.set("d", page)
          and not backend.exists("b") and len(list(Path(folder).glob("*.bin"))) == 2)


def trial(layout, folder):
    pool = host_pool(layout)
    backend = backend_of(pool, layout, folder)
    keys, pages = [f"page{i}" for i in range(4)], []
    for i in range(4):
        page = pool.get_data_page(i * PAGE, flat=True)
        pages.append(torch.randn(page.shape).to(torch.bfloat16))
        pool.set_from_flat_data_page(i * PAGE, pages[i])
    stored = backend.batch_set(keys, [pool.get_data_page(i * PAGE, flat=True) for i in range(4)])
    files = sorted(Path(folder).glob("*.bin"))
    ratio = sum(f.stat().st_size for f in files) / sum(2 * page.numel() for page in pages)
    check(f"{layout}: stored", stored and len(files) == 4 and ratio < 0.75, f"{ratio:.3f}")
    for i in range(4):
        pool.set_from_flat_data_page(i * PAGE, torch.zeros_like(pages[i]))
    hits = fetch(backend, pool, keys)
    exact = [torch.equal(pool.get_data_page(i * PAGE, flat=True), pages[i]) for i in range(4)]
    check(f"{layout}: all pages come back, bit for bit", all(hits) and all(exact))
    with open(files[0], "r+b") as file:
        file.seek(files[0].stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    hits = fetch(backend, pool, keys)
    check(f"{layout}: a flipped bit is a miss of its page", sum(hits) == 3)
    check(f"{layout}: that page can be stored again", not backend.exists(keys[0])
          and backend.set(keys[0], pages[0]) and all(fetch(backend, pool, keys)))
    files[0].write_bytes(b"")
    os.truncate(files[0], 1 << 43)
    check(f"{layout}: a huge file is a miss", sum(fetch(backend, pool, keys)) == 3
          and not files[0].exists() and backend.set(keys[0], pages[0]))
    check(f"{layout}: an unknown page is a miss", fetch(backend, pool, ["none"]) == [False])


if __name__ == "__main__":
    for name in ("layer_first", "page_first"):
        with tempfile.TemporaryDirectory() as scratch:
            trial(name, scratch)
    with tempfile.TemporaryDirectory() as scratch:
        limit(scratch)
