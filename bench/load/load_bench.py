#!/usr/bin/env python3
"""load_bench.py SNUG FOLDER: time to load a model, compressed and plain, in seconds.

Makes a BF16 model with the shapes of Llama 3.1 8B in FOLDER (gaussian weights; --layers sets its
size), compresses it with the tool SNUG, and loads both: the compressed folder by Snug, the plain
one by every loader that is installed. Files are in the page cache. With --pace, reads arrive at
that rate (GB/s), by bench/load/paced_reads.c. Each time is the best of --runs. Prints JSON: seconds,
GB/s of restored tensors, and the most memory beyond the tensors, on GPU and host.

  bench/load/load_bench.py build/snug /tmp/model --device cuda --pace 0 8 2
  taskset -c 0,1 bench/load/load_bench.py build/snug /tmp/model --device cpu --layers 1 --pace 0 1
"""

import argparse
import ctypes
import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.path.insert(0, os.path.join(HERE, "..", "..", "python"))

HIDDEN, INNER, KEYS, VOCABULARY = 4096, 14336, 1024, 128256
LAYER = {"self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (KEYS, HIDDEN),
         "self_attn.v_proj": (KEYS, HIDDEN), "self_attn.o_proj": (HIDDEN, HIDDEN),
         "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN),
         "mlp.down_proj": (HIDDEN, INNER), "input_layernorm": (HIDDEN,),
         "post_attention_layernorm": (HIDDEN,)}


def make_model(folder, num_layers, vocabulary, device):
    """Shards of eight layers, and one with embeddings and head."""
    import torch
    from safetensors.torch import save_file
    generator = torch.Generator(device).manual_seed(1)

    def weight(shape):
        scale = 0.02 if len(shape) > 1 else 0.1
        values = torch.randn(shape, generator=generator, device=device) * scale
        return (values if len(shape) > 1 else values + 1).to(torch.bfloat16).cpu()

    shards = [{"model.embed_tokens.weight": (vocabulary, HIDDEN),
               "lm_head.weight": (vocabulary, HIDDEN), "model.norm.weight": (HIDDEN,)}]
    for first in range(0, num_layers, 8):
        shards.append({f"model.layers.{i}.{name}.weight": shape
                       for i in range(first, min(first + 8, num_layers))
                       for name, shape in LAYER.items()})
    os.makedirs(folder, exist_ok=True)
    places = {}
    for i, shapes in enumerate(shards):
        name = f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
        save_file({key: weight(shape) for key, shape in shapes.items()},
                  os.path.join(folder, name), {"format": "pt"})
        places.update(dict.fromkeys(shapes, name))
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as file:
        json.dump({"metadata": {}, "weight_map": places}, file)


class MemoryWatch:
    """The most memory, of the host and of the GPU, that was in use in a block."""

    def __init__(self, device):
        self._device = device

    def __enter__(self):
        self._stop, self._peaks = threading.Event(), [0, 0]
        self._start = self._now()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()
        self.host, self.gpu = (peak - start for peak, start in zip(self._peaks, self._start))

    def _now(self):
        with open("/proc/self/statm") as file:
            host = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        if self._device == "cpu":
            return host, 0
        import torch
        free, total = torch.cuda.mem_get_info()
        return host, total - free

    def _watch(self):
        while not self._stop.wait(0.002):
            self._peaks = [max(peak, now) for peak, now in zip(self._peaks, self._now())]


def touch(tensors, device):
    """Has every byte in its place: some loaders return before that."""
    import torch
    if device == "cuda":
        torch.cuda.synchronize()
        return
    for tensor in tensors.values():
        tensor.view(torch.uint8).flatten()[::4096].sum()


def measure(load, folder, device, runs, want):
    import torch
    best = None
    for _ in range(runs):
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.synchronize()
        with MemoryWatch(device) as memory:
            start = time.perf_counter()
            tensors = load(folder, device)
            touch(tensors, device)
            seconds = time.perf_counter() - start
        num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        if {name: tensor.shape for name, tensor in tensors.items()} != want:
            raise RuntimeError("other tensors than in the files")
        del tensors
        on_gpu = num_bytes if device == "cuda" else 0
        row = {"seconds": round(seconds, 3), "GB/s": round(num_bytes / seconds / 1e9, 2),
               "GPU MB beyond tensors": round((memory.gpu - on_gpu) / 1e6),
               "host MB": round((memory.host - (num_bytes - on_gpu)) / 1e6)}
        if best is None or seconds < best["seconds"]:
            best = row
    return best


def are_equal(plain, packed, device):
    """Whether both folders give the same bits."""
    import torch
    from loaders import safetensors_load, snug_load
    theirs, ours = safetensors_load(plain, device), snug_load(packed, device)
    return theirs.keys() == ours.keys() and all(
        torch.equal(ours[name].view(torch.uint8), tensor.view(torch.uint8))
        for name, tensor in theirs.items())


def codec_rate(snug, plain):
    """Of the CPU's codec, memory to memory, with as many threads as a load has."""
    path = min(entry.path for entry in os.scandir(plain) if entry.name.endswith(".safetensors"))
    done = subprocess.run([snug, "bench", path, "--json", "--runs", "3", "--limit", "64MiB", "-t",
                           str(len(os.sched_getaffinity(0)))], check=True, capture_output=True)
    row = next(row for row in json.loads(done.stdout)["results"] if row["name"] == "snug entropy")
    return round(row["decompress_bytes_per_s"][1] / 1e9, 2)


def reload_rate(packed, runs):
    """The same without fresh memory, whose pages cost more than to decode them."""
    from loaders import snug_load, snug_reload
    tensors, best = snug_load(packed, "cpu"), None
    for _ in range(runs):
        start = time.perf_counter()
        snug_reload(packed, tensors)
        seconds = time.perf_counter() - start
        best = min(best or seconds, seconds)
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    return round(num_bytes / best / 1e9, 2)


def bench(options, pacing):
    import loaders
    import torch
    plain, packed = (os.path.join(options.folder, name) for name in ("plain", "packed"))
    if not os.path.isdir(plain):
        make_model(plain, options.layers, options.vocabulary, options.device)
    if not os.path.isdir(packed):
        subprocess.run([options.snug, "compress", plain, packed], check=True,
                       stdout=subprocess.DEVNULL)
    size = {folder: sum(entry.stat().st_size for entry in os.scandir(folder))
            for folder in (plain, packed)}
    result = {"machine": {"CPUs": len(os.sched_getaffinity(0)), "torch": torch.__version__},
              "plain bytes": size[plain], "packed bytes": size[packed], "sources": {}}
    if options.device == "cuda":
        result["machine"]["GPU"] = torch.cuda.get_device_name()
    result["equal"] = are_equal(plain, packed, options.device)  # also brings files into the cache
    if options.device == "cpu":
        result["codec in memory, GB/s"] = codec_rate(options.snug, plain)
        result["to memory that has its pages, GB/s"] = reload_rate(packed, options.runs)
    want = {name: tensor.shape for name, tensor in loaders.safetensors_load(plain, "cpu").items()}
    for pace in options.pace:
        pacing.paced_reads_set(ctypes.c_double(pace * 1e9))
        rows = {"snug": measure(loaders.snug_load, packed, options.device, options.runs, want)}
        for name, load in loaders.DENSE.items():
            if options.loaders and name not in options.loaders:
                continue
            if pace > 0 and name in loaders.NOT_PACED:
                rows[name] = {"not run": "its reads cannot be paced"}
                continue
            try:
                row = measure(load, plain, options.device, options.runs if pace == 0 else 1, want)
            except Exception as error:
                row = {"not run": f"{type(error).__name__}: {error}"[:200]}
            if pace > 0 and row.get("GB/s", 0) > 1.02 * pace:
                row = {"not run": "its reads cannot be paced"}
            rows[name] = row
            print(pace, name, row, file=sys.stderr, flush=True)
        pacing.paced_reads_set(ctypes.c_double(0))
        dense = min((row["seconds"] for name, row in rows.items()
                     if name != "snug" and "seconds" in row), default=None)
        result["sources"][f"{pace:g} GB/s" if pace else "page cache"] = {
            "over the fastest dense loader": dense and round(dense / rows["snug"]["seconds"], 2),
            "loaders": rows}
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("snug")
    parser.add_argument("folder")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY)
    parser.add_argument("--pace", type=float, nargs="+", default=[0], help="GB/s; 0: page cache")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--loaders", nargs="*", help="only these dense loaders")
    options = parser.parse_args()
    options.folder = os.path.abspath(options.folder)
    if os.environ.get("PACED_READS_UNDER") != options.folder:  # start again with the library
        with tempfile.TemporaryDirectory() as scratch:
            library = os.path.join(scratch, "paced_reads.so")
            subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library,
                            os.path.join(HERE, "paced_reads.c"), "-ldl"], check=True)
            sys.exit(subprocess.run(
                [sys.executable, *sys.argv],
                env={**os.environ, "PACED_READS_UNDER": options.folder, "LD_PRELOAD": library},
            ).returncode)
    print(json.dumps(bench(options, ctypes.CDLL(None)), indent=1))


if __name__ == "__main__":
    main()
