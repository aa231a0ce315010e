"""KV pages from GPU memory to GPU memory of two processes (snug.kv), next to raw on the same path:

    SNUG_LIBRARY=build/libsnug_c_paced.so PYTHONPATH=python \
        python3 bench/kv/kv_transfer_bench.py --data kv.safetensors

on one GPU, under MPS. The shape is that of a model of 8B parameters: 32 layers, 8 KV heads of 128,
128 KiB a token. The link is paced, as in gpu_wire_bench: copies are made for real, and count as
arrived when their time at the set rate has come. A time is from the call that asks for the pages
until all of them are in place, decoded and verified. Pairs of raw and compressed pulls alternate.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import torch

from snug.kv.channel import Options
from snug.kv.client import PageClient
from snug.kv.held import HeldRequests
from snug.kv.pages import CacheLayout
from snug.kv.server import PageServer

LAYERS, HEADS, DIM = 32, 8, 128
MAX_RUNS = 60  # pairs, as far as 1.5 s last


def sample_of(path):
    """Rows of 128 channels from the KV cache of a trained model; Gaussians without one."""
    if path is None:
        torch.manual_seed(1)
        return [torch.randn(4096, DIM).bfloat16() for _ in range(2)]
    from safetensors.torch import load_file
    tensors = load_file(path)
    rows = lambda name: tensors[name].permute(0, 2, 1, 3).reshape(-1, DIM)  # tokens x channels
    return [rows("k.1"), rows("v.1")]


def make_caches(tokens, page, data):
    """One tensor a layer, as FlashAttention has it in vLLM: blocks, K or V, tokens, heads, dim."""
    caches = {}
    for layer in range(LAYERS):
        cache = torch.zeros(tokens // page, 2, page, HEADS, DIM, dtype=torch.bfloat16,
                            device="cuda")
        if data is not None:
            for which, rows in enumerate(data):
                index = torch.arange(tokens * HEADS, device="cuda") * 7 + layer * 131
                values = rows.cuda()[index % len(rows)]
                cache[:, which] = values.view(tokens // page, page, HEADS, DIM)
        caches[f"layer{layer}"] = cache
    return caches


def order_of(count):
    generator = torch.Generator().manual_seed(2)
    return torch.randperm(count, generator=generator).tolist()


def serve(arguments):
    """The prefill side: holds what it is told to, and starts servers at new rates."""
    caches = make_caches(arguments.max_tokens, arguments.page, sample_of(arguments.data))
    layout = CacheLayout(caches, arguments.max_tokens // arguments.page, arguments.page, "bf16")
    torch.cuda.synchronize()
    servers, held = [], {}
    for line in sys.stdin:
        word, *rest = json.loads(line)
        if word == "rate":
            os.environ["SNUG_BENCH_GBITS"] = str(rest[0])
            for server in servers:
                server.close()
            held = {mode: HeldRequests() for mode in ("raw", "auto")}
            servers = [PageServer("127.0.0.1:0", layout, held[mode],
                                  Options(mode=mode, device=0, link=rest[1]),
                                  lambda *_: None, lambda text: print(text, file=sys.stderr))
                       for mode in ("raw", "auto")]
            print(json.dumps([server.address for server in servers]), flush=True)
        else:
            blocks, names = rest
            for mode in held:
                for name in names:
                    held[mode].hold(name, order_of(len(caches["layer0"]))[:blocks], 600)
            print(json.dumps("held"), flush=True)


class Child:
    def __init__(self, arguments):
        words = [sys.executable, __file__, "--serve", "--page", str(arguments.page), "--max-tokens",
                 str(arguments.max_tokens)] + (["--data", arguments.data] if arguments.data else [])
        self.process = subprocess.Popen(words, text=True, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE)

    def ask(self, *words):
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def measure(arguments):
    child = Child(arguments)
    here = make_caches(arguments.max_tokens, arguments.page, None)
    there = make_caches(arguments.max_tokens, arguments.page, sample_of(arguments.data))
    num_blocks = arguments.max_tokens // arguments.page
    layout = CacheLayout(here, num_blocks, arguments.page, "bf16")
    rates = [(rate, True) for rate in arguments.gbits] + [(0, True)] + (
        [(0, False)] if arguments.host else [])
    for rate, link in rates:
        os.environ["SNUG_BENCH_GBITS"] = str(rate)
        addresses = child.ask("rate", rate, link)
        moved = {}
        clients = {mode: PageClient(layout, Options(mode=mode, device=0, link=link),
                                    lambda m, *_, mode=mode: moved.__setitem__(mode, m), print)
                   for mode in ("raw", "auto")}
        for tokens in arguments.tokens:
            count = tokens // arguments.page
            names = [f"{rate}-{tokens}-{i}" for i in range(arguments.warm + MAX_RUNS)]
            child.ask("hold", count, names)
            blocks, seconds = order_of(num_blocks)[::-1][:count], {"raw": [], "auto": []}
            until = time.perf_counter() + 1.5
            for i, name in enumerate(names):
                if i >= arguments.warm + arguments.runs and time.perf_counter() > until:
                    break
                pairs = list(zip(("raw", "auto"), addresses))
                for mode, address in pairs if i % 2 else pairs[::-1]:
                    start = time.perf_counter()
                    clients[mode].pull(address, name, 0, blocks)
                    seconds[mode].append(time.perf_counter() - start)
            report(arguments, rate, link, tokens, seconds, moved)
        check(here, there, order_of(num_blocks)[::-1], order_of(num_blocks), count)
        for client in clients.values():
            client.close()
    child.process.stdin.close()
    child.process.wait(20)


def report(arguments, rate, link, tokens, seconds, moved):
    raw, auto = (seconds[mode][arguments.warm:] for mode in ("raw", "auto"))
    gains = sorted(a / b for a, b in zip(raw, auto))
    row = {"gbits": rate, "link": link, "pairs": len(gains), "page": arguments.page, "tokens": tokens,
           "raw_ms": round(1e3 * statistics.median(raw), 3),
           "snug_ms": round(1e3 * statistics.median(auto), 3),
           "gain": round(statistics.median(gains), 3),
           "quartiles": [round(gains[len(gains) // 4], 3), round(gains[3 * len(gains) // 4], 3)],
           "wire_ratio": round(moved["auto"].wire_bytes / max(1, moved["auto"].raw_bytes), 4)}
    print(json.dumps(row), flush=True)


def check(here, there, into, of, count):
    for name, cache in here.items():
        if not torch.equal(cache[into[:count]].view(torch.int16),
                           there[name][of[:count]].view(torch.int16)):
            raise SystemExit(f"{name}: pages differ")


def main():
    numbers = lambda text: [int(word) for word in text.split(",")]
    parser = argparse.ArgumentParser()
    parser.add_argument("--data")
    parser.add_argument("--page", type=int, default=16)
    parser.add_argument("--gbits", type=numbers, default=[25, 100, 200, 400])
    parser.add_argument("--tokens", type=numbers, default=[1024, 4096, 16384])
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--warm", type=int, default=2)
    parser.add_argument("--host", action="store_true", help="also over TCP, through the host")
    parser.add_argument("--max-tokens", type=int)
    parser.add_argument("--serve", action="store_true")
    arguments = parser.parse_args()
    arguments.max_tokens = arguments.max_tokens or max(arguments.tokens)
    serve(arguments) if arguments.serve else measure(arguments)


if __name__ == "__main__":
    main()
