"""Time to the first token where one vLLM instance computes the prompt and another one goes on, on
one GPU under MPS, with SnugConnector raw and compressing over a paced link:

    SNUG_LIBRARY=build/libsnug_c_paced.so SNUG_BENCH_GBITS=100 PYTHONPATH=python \
        python3 bench/kv/vllm_pd_bench.py [--tokens 1024,4096,16000]

The model has 8B parameters with random weights. Two pairs of instances run side by side, one for
each mode, and get requests in turn. "prefill" is the answer of the first instance, "decode" that of
the second: loading of the pages, four tokens. "same": tokens equal in both modes. Those of one
instance alone may differ in the last bits: it computes the last token of a prompt with the others.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ENGINE = Path(__file__).resolve().parents[2] / "tests" / "doors" / "kv_engine.py"
SHAPE = dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=4096,
             intermediate_size=14336, num_attention_heads=32, num_key_value_heads=8,
             num_hidden_layers=32, vocab_size=128256, rms_norm_eps=1e-5, rope_theta=500000.0,
             max_position_embeddings=32768, torch_dtype="bfloat16", tie_word_embeddings=False,
             hidden_act="silu", bos_token_id=0, eos_token_id=1)


class Engine:
    def __init__(self, folder, role, mode, max_tokens, logs):
        options = {"max_model_len": max_tokens, "enable_prefix_caching": False, "seed": 0,
                   "load_format": "dummy", "skip_tokenizer_init": True, "dtype": "bfloat16",
                   "gpu_memory_utilization": 0.2, "kv_cache_memory_bytes": 5 << 30,
                   "max_num_batched_tokens": max_tokens}
        self.log = f"{logs}/{mode}.{role}.log"
        self.process = subprocess.Popen(
            [sys.executable, str(ENGINE), folder, role, json.dumps({"mode": mode})], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=open(self.log, "w"),
            env=dict(os.environ, KV_ENGINE_OPTIONS=json.dumps(options)))

    def wait(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"an engine ended; its log is {self.log}")
        return json.loads(line)

    def ask(self, word, argument=None):
        self.process.stdin.write(json.dumps([word, argument]) + "\n")
        self.process.stdin.flush()
        start = time.perf_counter()
        return self.wait(), time.perf_counter() - start


def request(pair, prompt, count):
    """Seconds of both instances, and the tokens."""
    (first,), prefill = pair[0].ask("generate", [[prompt, 1, {"do_remote_decode": True}]])
    (second,), decode = pair[1].ask("generate", [[prompt, count, first["params"]]])
    return prefill, decode, second["tokens"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", default="1024,4096,16000")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--logs", default=tempfile.mkdtemp())
    arguments = parser.parse_args()
    lengths = [int(n) for n in arguments.tokens.split(",")]
    folder = tempfile.mkdtemp()
    with open(f"{folder}/config.json", "w") as file:
        json.dump(SHAPE, file)
    pairs = {mode: [Engine(folder, role, mode, max(lengths) + 64, arguments.logs)
                    for role in ("kv_producer", "kv_consumer")] for mode in ("raw", "auto")}
    try:
        for pair in pairs.values():
            for engine in pair:
                engine.wait()
        run(pairs, lengths, arguments.runs)
    finally:
        for pair in pairs.values():
            for engine in pair:
                engine.process.stdin.close()
                engine.process.kill()


def run(pairs, lengths, runs):
    rng = random.Random(1)
    for length in lengths:
        seconds = {mode: [] for mode in pairs}
        alone, same, same_alone = [], 0, 0
        for i in range(runs + 2):
            prompt = [rng.randrange(5, 120000) for _ in range(length)]
            ((plain,), plain_seconds) = pairs["raw"][1].ask("generate", [[prompt, 4, None]])
            alone.append(plain_seconds)
            answers = {}
            for mode, pair in pairs.items():
                prefill, decode, answers[mode] = request(pair, prompt, 4)
                seconds[mode].append((prefill, decode))
            same += answers["raw"] == answers["auto"]
            same_alone += answers["raw"] == plain["tokens"]
        row = {"gbits": os.environ.get("SNUG_BENCH_GBITS", "0"), "tokens": length,
               "requests": runs + 2, "same": same, "same_as_alone": same_alone,
               "alone_ms": round(1e3 * statistics.median(alone[2:]), 1)}
        for mode, times in seconds.items():
            row[f"{mode}_prefill_ms"] = round(1e3 * statistics.median(t[0] for t in times[2:]), 1)
            row[f"{mode}_decode_ms"] = round(1e3 * statistics.median(t[1] for t in times[2:]), 1)
            row[f"{mode}_ms"] = round(1e3 * statistics.median(sum(t) for t in times[2:]), 1)
        row["gain"] = round(row["raw_ms"] / row["auto_ms"], 3)
        print(json.dumps(row), flush=True)
    for mode, pair in pairs.items():
        metrics, _ = pair[1].ask("metrics")
        print(mode, {name: value for name, value in metrics.items() if value}, flush=True)


if __name__ == "__main__":
    main()
