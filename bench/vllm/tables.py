#!/usr/bin/env python3
"""tables.py STEPS_DENSE.json STEPS_SNUG.json [SERVE_DENSE.json SERVE_SNUG.json]: Markdown."""

import json
import sys


def load(path):
    with open(path) as file:
        return json.load(file)


def steps(dense, snug):
    print(f"Weights on the GPU: {dense['model_bytes'] / 1e9:.2f} GB dense, "
          f"{snug['model_bytes'] / 1e9:.2f} GB packed. {dense['gpu']}.\n")
    print("| batch | dense: step, ms | packed | gain |\n|---|---|---|---|")
    for batch, cell in dense["decode"].items():
        there = snug["decode"].get(batch)
        if there:
            print(f"| {batch} | {cell['step_ms']:.3f} | {there['step_ms']:.3f} | "
                  f"{cell['step_ms'] / there['step_ms']:.3f}x |")
    print("\n| rows | dense: kernels, ms | packed | gain | linear layers: dense | packed | gain "
          "| wall clock: dense, ms | packed | gain |\n|---|---|---|---|---|---|---|---|---|---|")
    for rows, cell in dense["prefill"].items():
        there = snug["prefill"].get(rows)
        if there:
            print(f"| {rows} | " + " | ".join(
                f"{cell[key]:.2f} | {there[key]:.2f} | {cell[key] / max(there[key], 1e-9):.3f}x"
                for key in ("kernel_ms", "linear_ms", "wall_ms")) + " |")


def serving(dense, snug):
    print(f"\nTokens that the KV cache holds: {dense['kv_tokens']} dense, {snug['kv_tokens']} packed "
          f"({snug['kv_tokens'] / dense['kv_tokens']:.2f}x).\n")
    print("| requests/s | mode | tokens/s | TTFT p50, ms | p99 | ITL p50, ms | p99 |\n"
          "|---|---|---|---|---|---|---|")
    for rate in dense["rates"]:
        for results in (dense, snug):
            cell = results["rates"].get(rate)
            if cell:
                print(f"| {rate} | {results['mode']} | {cell['tokens_per_s']:.0f} | "
                      f"{cell['ttft_p50_ms']:.1f} | {cell['ttft_p99_ms']:.1f} | "
                      f"{cell['itl_p50_ms']:.2f} | {cell['itl_p99_ms']:.2f} |")


steps(load(sys.argv[1]), load(sys.argv[2]))
if len(sys.argv) > 3:
    serving(load(sys.argv[3]), load(sys.argv[4]))
