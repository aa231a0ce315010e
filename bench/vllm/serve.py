#!/usr/bin/env python3
"""serve.py MODE OUT.json --rate R --memory F: requests that arrive at random, as at a server.

Arrivals are a Poisson process, lengths of prompts and answers are log-normal as in ShareGPT's
conversations; both come from a fixed seed, so that every mode serves the same requests. Prints time
to the first token, time between tokens, throughput, and how many tokens the KV cache holds.
"""

import argparse
import random
import time

from common import MODES, save, start


def workload(count, rate, seed=1):
    chance = random.Random(seed)
    at, requests = 0.0, []
    for i in range(count):
        at += chance.expovariate(rate)
        prompt = min(1024, max(4, int(chance.lognormvariate(5.2, 0.9))))
        answer = min(768, max(4, int(chance.lognormvariate(5.1, 0.8))))
        requests.append((at, [chance.randrange(120000) for _ in range(prompt)], answer))
    return requests


def serve(llm, requests):
    """Seconds of each token of each request, from its arrival and from the token before."""
    from vllm import SamplingParams
    engine = llm.llm_engine
    waiting, live, first, between = list(reversed(requests)), {}, [], []
    began = time.perf_counter()
    while waiting or live:
        now = time.perf_counter() - began
        while waiting and waiting[-1][0] <= now:
            at, prompt, answer = waiting.pop()
            name = str(len(requests) - len(waiting))
            engine.add_request(name, {"prompt_token_ids": prompt}, SamplingParams(
                max_tokens=answer, ignore_eos=True, temperature=0.0, detokenize=False))
            live[name] = [at, 0]
        if not live:
            time.sleep(max(0.0, waiting[-1][0] - now))
            continue
        outputs = engine.step()
        now = time.perf_counter() - began
        for out in outputs:
            last, count = live[out.request_id]
            new = len(out.outputs[0].token_ids)
            if new > count:
                (between if count else first).append(now - last)
                live[out.request_id] = [now, new]
            if out.finished:
                del live[out.request_id]
    return time.perf_counter() - began, first, between


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("out")
    parser.add_argument("--rates", default="10,20,40", help="requests a second")
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--memory", type=float, default=0.16, help="share of the GPU's memory")
    args = parser.parse_args()
    llm = start(args.mode, gpu_memory_utilization=args.memory)
    config = llm.llm_engine.vllm_config.cache_config
    kv_tokens = config.num_gpu_blocks * config.block_size
    serve(llm, workload(32, 100.0, seed=2))
    results = {"mode": args.mode, "kv_tokens": kv_tokens, "rates": {}}
    for rate in args.rates.split(","):
        requests = workload(args.count, float(rate))
        seconds, first, between = serve(llm, requests)
        results["rates"][rate] = {
            "tokens_per_s": sum(answer for _, _, answer in requests) / seconds,
            "ttft_p50_ms": percentile(first, 0.5) * 1e3, "ttft_p99_ms": percentile(first, 0.99) * 1e3,
            "itl_p50_ms": percentile(between, 0.5) * 1e3,
            "itl_p99_ms": percentile(between, 0.99) * 1e3}
        print(args.mode, kv_tokens, "KV tokens,", rate, "requests/s", results["rates"][rate],
              flush=True)
        save(args.out, results)


if __name__ == "__main__":
    main()
