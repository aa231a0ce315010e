"""Whole layers of mixtures of experts: vLLM's Triton kernel and, if the library has CUDA, Snug's.

    moe_peers.py [--shapes A,B] [--rows 1,2,4] [--out FILE] [--only vllm|snug] [--compile]
                 [--kernels 1,1024]

Needs torch, a GPU and vLLM (vLLM's fused_experts, with the tuned configuration it ships for the
GPU). All times are of CUDA graphs with several calls, each with a routing of its own, so that
weights come from memory; the two libraries take turns. Prints microseconds, the gain, and the error
of both against FP64. --compile only fills Triton's cache: one process a shape does that for all
cores. --kernels also prints when each kernel of a call begins and ends, for these numbers of rows.
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
ERROR_ROWS = 8  # errors are computed up to here


def routings(experts, top_k, m, zipf, seed):
    """Distinct experts for every row; Zipf: expert i has the weight 1 / (i + 1)."""
    generator = torch.Generator("cuda").manual_seed(seed)
    weights = torch.ones(experts, dtype=torch.float64, device="cuda")
    if zipf:
        weights /= torch.arange(1, experts + 1, device="cuda")
    ids = []
    for _ in range(CALLS):
        mixed = weights[torch.randperm(experts, generator=generator, device="cuda")]
        keys = torch.rand((m, experts), generator=generator, device="cuda",
                          dtype=torch.float64).log() / mixed
        ids.append(keys.topk(top_k, dim=1).indices.int())
    return ids


def graph_of(call, ids):
    call(ids[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for some in ids:
            call(some)
    return graph


def microseconds(graphs):
    """For each graph the median of five replays of a call. The graphs take turns."""
    times = [[] for _ in graphs]
    for turn in range(6):
        for graph, mine in zip(graphs, times):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            if turn != 0:
                mine.append(begin.elapsed_time(end) * 1000 / CALLS)
    return [statistics.median(mine) for mine in times]


def kernels(graph):
    """When the kernels of a call begin and end, on average: (name, begin, end)."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        graph.replay()
        torch.cuda.synchronize()
    events = sorted((e.time_range.start, e.time_range.end, e.name) for e in profile.events()
                    if e.device_type == torch.autograd.DeviceType.CUDA)
    each = len(events) // CALLS
    if each == 0 or len(events) % CALLS != 0:
        return []
    result = []
    for i in range(each):
        begins = [events[call * each + i][0] - events[call * each][0] for call in range(2, CALLS)]
        ends = [events[call * each + i][1] - events[call * each][0] for call in range(2, CALLS)]
        name = events[i][2].replace("void ", "").replace("snug::gemm::", "").split("(")[0]
        result.append((name[:40], statistics.mean(begins), statistics.mean(ends)))
    return result


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


def make_weights(experts, n, k):
    torch.manual_seed(1)
    return (torch.empty((experts, 2 * n, k), dtype=torch.bfloat16, device="cuda").normal_(std=0.02),
            torch.empty((experts, k, n), dtype=torch.bfloat16, device="cuda").normal_(std=0.02))


def compile_vllm(name, rows):
    from vllm.model_executor.layers.fused_moe import fused_experts
    experts, n, k, top_k = SHAPES[name]
    w13, w2 = make_weights(experts, n, k)
    for m in rows:
        x = torch.zeros((m, k), dtype=torch.bfloat16, device="cuda")
        fused_experts(x, w13, w2, torch.zeros((m, top_k), device="cuda"),
                      routings(experts, top_k, m, False, 1)[0])
    torch.cuda.synchronize()


def cells(name, rows, options, report):
    experts, n, k, top_k = SHAPES[name]
    w13, w2 = make_weights(experts, n, k)
    peers = {}
    if options.only != "snug":
        from vllm.model_executor.layers.fused_moe import fused_experts
        peers["vllm"] = lambda x, weights, ids: fused_experts(x, w13, w2, weights, ids)
    if options.only != "vllm":
        from snug.torch.experts import CompressedExperts
        layer = CompressedExperts.from_weights(w13, w2)
        peers["snug"] = lambda x, weights, ids: layer(x, ids, weights)
    for m in rows:
        x = torch.randn((m, k), device="cuda").to(torch.bfloat16)
        weights = torch.rand((m, top_k), device="cuda") * 0.25
        for zipf in (False, True):
            ids = routings(experts, top_k, m, zipf, m)
            cell = {"shape": name, "m": m, "routing": "zipf" if zipf else "uniform"}
            graphs = [graph_of(lambda some, call=call: call(x, weights, some), ids)
                      for call in peers.values()]
            for peer, graph, us in zip(peers, graphs, microseconds(graphs)):
                cell[peer] = us
                if m in options.kernels:
                    cell[peer + "_kernels"] = kernels(graph)
                if m <= ERROR_ROWS:
                    cell[peer + "_error"] = error_of(peers[peer](x, weights, ids[0]), x, w13, w2,
                                                     weights, ids[0])
            report(cell)


def numbers(text):
    return [int(m) for m in text.split(",")]


def show(cell):
    times = []
    for peer in ("vllm", "snug"):
        if peer in cell:
            error = cell.get(peer + "_error")
            times.append(f"{peer} {cell[peer]:.1f} us" + (f" (error {error:.2e})" if error else ""))
    gain = f", {cell['vllm'] / cell['snug']:.2f}x" if len(times) == 2 else ""
    print(f"{cell['shape']:18} {cell['routing']:7} M {cell['m']:5}: {', '.join(times)}{gain}",
          flush=True)
    for peer in ("vllm", "snug"):
        for kernel, begin, end in cell.get(peer + "_kernels", ()):
            print(f"    {peer} {kernel:40} {begin:8.1f} to {end:8.1f} us", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--rows", type=numbers, default=list(ROWS))
    parser.add_argument("--kernels", type=numbers, default=[])
    parser.add_argument("--out")
    parser.add_argument("--only", choices=("vllm", "snug"))
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    done = []

    def report(cell):
        show(cell)
        done.append(cell)
        if options.out:
            with open(options.out, "w") as file:
                json.dump(done, file, indent=0)

    for name in options.shapes.split(","):
        if options.compile:
            compile_vllm(name, options.rows)
        else:
            cells(name, options.rows, options, report)


if __name__ == "__main__":
    main()
