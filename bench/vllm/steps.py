#!/usr/bin/env python3
"""steps.py MODE OUT.json: decode and prefill steps of vLLM with the shape of a large model.

MODE: dense (vLLM as it is), snug, or a policy of Snug: speed, twin. Decode: milliseconds a step for
several batches, wall clock. Prefill: sum of the GPU's kernel times in a step of so many rows
(torch's profiler), and wall clock. tables.py joins the files of several modes.
"""

import argparse
import hashlib
import json
import time

from common import MODES, SHAPES, prompts, save, start

BATCHES = "1,2,4,8,16,24,32,48,64,96,128,192,256"
ROWS = "16,32,64,128,256,384,512,1024,2048,4096,8192"
STEPS = 64


def generate(llm, requests, tokens):
    from vllm import SamplingParams
    params = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0.0, detokenize=False)
    began = time.perf_counter()
    outputs = llm.generate(requests, params, use_tqdm=False)
    return time.perf_counter() - began, [list(out.outputs[0].token_ids) for out in outputs]


def decode(llm, batch, repeats):
    """Milliseconds a step: the time of 1 + STEPS tokens less that of 1."""
    requests = prompts(batch, 32)
    generate(llm, requests, 2)
    first = min(generate(llm, requests, 1)[0] for _ in range(repeats))
    runs = [generate(llm, requests, 1 + STEPS) for _ in range(repeats)]
    tokens = hashlib.sha256(repr(runs[0][1]).encode()).hexdigest()[:16]
    return {"step_ms": (min(run[0] for run in runs) - first) / STEPS * 1e3, "tokens": tokens,
            "repeatable": all(run[1] == runs[0][1] for run in runs)}


def prefill(llm, rows, repeats):
    import torch
    from torch.profiler import ProfilerActivity, profile
    length = next(length for length in (256, 128, 64, 32, 16) if rows % length == 0)
    requests = prompts(rows // length, length)
    for _ in range(2):
        generate(llm, requests, 1)
    wall = min(generate(llm, requests, 1)[0] for _ in range(repeats))
    torch.cuda.synchronize()
    kernels, linear = [], []
    for _ in range(2):
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            generate(llm, requests, 1)
            torch.cuda.synchronize()
        events = [(event.key, event.self_device_time_total) for event in profiler.key_averages()]
        kernels.append(sum(time for _, time in events) / 1e3)
        linear.append(sum(time for name, time in events if is_linear(name)) / 1e3)
    best = min(range(2), key=kernels.__getitem__)
    return {"kernel_ms": kernels[best], "linear_ms": linear[best], "wall_ms": wall * 1e3}


def model_bytes(llm):
    model = llm.llm_engine.model_executor.driver_worker.worker.model_runner.model
    return sum(p.numel() * p.element_size() for p in model.parameters())


def is_linear(kernel):
    """Linear layers and experts."""
    return any(part in kernel for part in ("nvjet", "gemm", "cutlass", "cublas", "splitK", "moe",
                                           "snug"))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("out")
    parser.add_argument("--batches", default=BATCHES)
    parser.add_argument("--rows", default=ROWS)
    parser.add_argument("--shape", choices=SHAPES, default="llama-8b")
    parser.add_argument("--layers", type=int, help="other than the shape has")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--options", default="{}", help="more options of vllm.LLM, as JSON")
    args = parser.parse_args()
    import torch
    llm = start(args.mode, shape=args.shape, num_layers=args.layers,
                **{"gpu_memory_utilization": 0.6, **json.loads(args.options)})
    results = {"mode": args.mode, "shape": args.shape, "gpu": torch.cuda.get_device_name(),
               "decode": {}, "prefill": {}}
    results["model_bytes"] = model_bytes(llm)
    print(f"{args.mode}: weights {results['model_bytes'] / 1e9:.3f} GB", flush=True)
    for batch in filter(None, args.batches.split(",")):
        results["decode"][batch] = decode(llm, int(batch), args.repeats)
        print(args.mode, "batch", batch, results["decode"][batch], flush=True)
        save(args.out, results)
    for rows in filter(None, args.rows.split(",")):
        results["prefill"][rows] = prefill(llm, int(rows), args.repeats)
        print(args.mode, "rows", rows, results["prefill"][rows], flush=True)
        save(args.out, results)


if __name__ == "__main__":
    main()
