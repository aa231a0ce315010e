"""Whole layers of mixtures of experts: vLLM's Triton kernel and, where the library has CUDA, Snug's.

    moe_peers.py [--shapes A,B] [--rows 1,2,4] [--out FILE] [--only vllm|snug]

Needs torch, a GPU and vLLM (VLLM's fused_experts, with the tuned configuration it ships for the
GPU). All times are of CUDA graphs with twelve calls, each with a routing of its own, so that
weights come from memory. Prints microseconds, the gain, and the error of both against FP64.
"""

import argparse
import json
import statistics

import torch

SHAPES = {
    "Qwen3-30B-A3B": (128, 768, 2048, 8), "Qwen3-30B-A3B/2": (128, 384, 2048, 8),
    "Qwen3.5-35B-A3B": (256, 512, 2048, 8), "Qwen3.5-35B-A3B/2": (256, 256, 2048, 8),
    "GLM-4.5-Air": (128, 1408, 4096, 8), "GLM-4.5-Air/2": (128, 704, 4096, 8),
    "Mixtral": (8, 14336, 4096, 2), "Mixtral/2": (8, 7168, 4096, 2),
}
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)
CALLS = 12


def routings(experts, top_k, m, zipf, seed):
    """Distinct experts for every row; Zipf: expert i has the weight 1 / (i + 1)."""
    generator = torch.Generator().manual_seed(seed)
    weights = 1 / torch.arange(1, experts + 1).double() if zipf else torch.ones(experts).double()
    ids = []
    for _ in range(CALLS):
        mixed = weights[torch.randperm(experts, generator=generator)]
        keys = torch.rand((m, experts), generator=generator).double().log() / mixed
        ids.append(keys.topk(top_k, dim=1).indices.int().cuda())
    return ids


def microseconds(call, ids):
    """The median of five replays."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call(ids[0])
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for some in ids:
                call(some)
        times = []
        for i in range(7):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1000 / len(ids))
    return statistics.median(times[2:])


def error_of(y, x, w13, w2, weights, ids):
    """Relative distance from FP64, for the first rows."""
    rows = min(4, x.shape[0])
    truth = torch.zeros((rows, x.shape[1]), dtype=torch.float64, device="cuda")
    for row in range(rows):
        for place, expert in enumerate(ids[row].tolist()):
            gate, up = (w13[expert].double() @ x[row].double()).chunk(2)
            h = torch.nn.functional.silu(gate) * up
            truth[row] += weights[row, place].double() * (w2[expert].double() @ h)
    return float((y[:rows].double() - truth).norm() / truth.norm())


def cells(name, rows, only, report):
    experts, n, k, top_k = SHAPES[name]
    torch.manual_seed(1)
    w13 = torch.empty((experts, 2 * n, k), dtype=torch.bfloat16, device="cuda").normal_(std=0.02)
    w2 = torch.empty((experts, k, n), dtype=torch.bfloat16, device="cuda").normal_(std=0.02)
    peers = {}
    if only != "snug":
        from vllm.model_executor.layers.fused_moe import fused_experts
        peers["vllm"] = lambda x, weights, ids: fused_experts(x, w13, w2, weights, ids)
    if only != "vllm":
        from snug.torch.experts import CompressedExperts
        layer = CompressedExperts.from_weights(w13, w2)
        peers["snug"] = lambda x, weights, ids: layer(x, ids, weights)
    for m in rows:
        x = torch.randn((m, k), device="cuda").to(torch.bfloat16)
        weights = torch.rand((m, top_k), device="cuda") * 0.25
        for zipf in (False, True):
            ids = routings(experts, top_k, m, zipf, m)
            cell = {"shape": name, "m": m, "routing": "zipf" if zipf else "uniform"}
            for peer, call in peers.items():
                cell[peer] = microseconds(lambda some: call(x, weights, some), ids)
                cell[peer + "_error"] = error_of(call(x, weights, ids[0]), x, w13, w2, weights,
                                                 ids[0])
            report(cell)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    parser.add_argument("--out")
    parser.add_argument("--only", choices=("vllm", "snug"))
    options = parser.parse_args()
    done = []

    def report(cell):
        done.append(cell)
        times = ", ".join(f"{peer} {cell[peer]:.1f} us (error {cell[peer + '_error']:.2e})"
                          for peer in ("vllm", "snug") if peer in cell)
        gain = f", {cell['vllm'] / cell['snug']:.2f}x" if "vllm" in cell and "snug" in cell else ""
        print(f"{cell['shape']:18} {cell['routing']:7} M {cell['m']:5}: {times}{gain}", flush=True)

    for name in options.shapes.split(","):
        cells(name, [int(m) for m in options.rows.split(",")], options.only, report)
    if options.out:
        with open(options.out, "w") as file:
            json.dump(done, file, indent=0)


if __name__ == "__main__":
    main()
