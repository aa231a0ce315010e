"""Decode speed of a Llama-3.1-8B-shaped model: dense against compressed weights.

    PYTHONPATH=python SNUG_LIBRARY=build/libsnug_c.so python3 bench/gemm/llama_decode.py

Weights are Gaussian, made on the GPU; shapes are the real ones. Every decode
step is one CUDA graph over transformers' model code with a static cache, once as
it is ("plain") and once with what surrounds the linear layers as lean as serving
engines have it ("lean", see decode_stack.py). "fused" is the dense model with
q/k/v and gate/up joined, as serving engines do and compress_model does.
With --model FOLDER it also generates from a real small model, both ways.
"""

import argparse
import json
import statistics
import time

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, StaticCache

import decode_stack
import snug.torch

transformers.utils.logging.disable_progress_bar()

PROMPT_TOKENS = 512
DECODE_STEPS = 48
PROMPTS = ["def main():\n", "import os\nimport sys\n", "class Queue:\n    def __init__(self", "for i in range(",
           "    if not isinstance(", "with open(path) as file:\n", "try:\n    import json", "return self."]


def llama_8b(num_layers):
    config = LlamaConfig(hidden_size=4096, intermediate_size=14336, num_hidden_layers=num_layers,
                         num_attention_heads=32, num_key_value_heads=8, vocab_size=128256,
                         max_position_embeddings=8192, rope_theta=500000.0,
                         tie_word_embeddings=False, dtype=torch.bfloat16)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(1)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.data.normal_(0, 0.02)
    return model.eval()


class Decoder:
    """One decode step of a model as a CUDA graph."""

    def __init__(self, model, batch, stack):
        self.model, self.batch = model, batch
        self.cache = StaticCache(config=model.config, max_cache_len=PROMPT_TOKENS + DECODE_STEPS + 16)
        self.token = torch.zeros((batch, 1), dtype=torch.long, device="cuda")
        self.position = torch.full((1,), PROMPT_TOKENS, dtype=torch.long, device="cuda")
        if stack == "lean":
            decode_stack.use_lean_stack(model, self.position)

    def prefill(self, prompt):
        self.cache.reset()
        positions = torch.arange(prompt.shape[1], device="cuda")
        logits = self.model(prompt, past_key_values=self.cache, cache_position=positions,
                            position_ids=positions[None], logits_to_keep=1, use_cache=True).logits
        return logits[:, -1].argmax(-1, keepdim=True)

    def step(self):
        logits = self.model(self.token, past_key_values=self.cache, cache_position=self.position,
                            position_ids=self.position[None], use_cache=True).logits
        self.token.copy_(logits[:, -1].argmax(-1, keepdim=True))
        self.position.add_(1)

    def capture(self):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(2):
                self.step()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.step()

    def start(self, prompt):
        self.token.copy_(self.prefill(prompt))
        self.position.fill_(prompt.shape[1])


@torch.no_grad()
def measure(model, batch, stack):
    decoder = Decoder(model, batch, stack)
    prompt = torch.randint(0, 128000, (batch, PROMPT_TOKENS), device="cuda",
                           generator=torch.Generator("cuda").manual_seed(batch))
    first_token = []
    for _ in range(3):
        torch.cuda.synchronize()
        start = time.perf_counter()
        decoder.prefill(prompt)
        torch.cuda.synchronize()
        first_token.append(time.perf_counter() - start)
    decoder.capture()
    decoder.start(prompt)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(DECODE_STEPS + 1)]
    for i in range(DECODE_STEPS):
        events[i].record()
        decoder.graph.replay()
    events[DECODE_STEPS].record()
    torch.cuda.synchronize()
    steps = [a.elapsed_time(b) for a, b in zip(events, events[1:])]
    return {"first_token_ms": 1e3 * min(first_token), "step_ms": statistics.median(steps)}


def weight_bytes(model):
    tensors = {t.data_ptr(): t for t in list(model.parameters()) + list(model.buffers())}
    return sum(t.numel() * t.element_size() for t in tensors.values())


@torch.no_grad()
def compare_real_model(folder, num_tokens=128):
    """Greedy continuations of a real model, dense and compressed.

    Compressed must equal its twin (the same kernels on 16-bit weights). cuBLAS sums in
    another order, in which near ties can go the other way; how often it disagrees with
    itself, when the same prompt stands in a batch of eight, is the measure for that.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def continuations(policy=None, copies=1):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).cuda().eval()
        if policy:
            report = snug.torch.compress_model(model, policy)
            print(f"{policy}: {report}")
        outputs = []
        for prompt in PROMPTS:
            inputs = tokenizer([prompt] * copies, return_tensors="pt").to(model.device)
            tokens = model.generate(**inputs, max_new_tokens=num_tokens, do_sample=False,
                                    pad_token_id=0)
            outputs.append(tokens[0].tolist())
        return outputs

    dense, compressed = continuations(), continuations("memory")
    equal = {name: sum(a == b for a, b in zip(x, y)) for name, x, y in (
        ("compressed and twin", compressed, continuations("twin")),
        ("compressed and dense", compressed, dense),
        ("dense alone and dense in a batch of 8", dense, continuations(copies=8)))}
    for name, count in equal.items():
        print(f"real model, {name}: {count} of {len(PROMPTS)} greedy continuations of "
              f"{num_tokens} tokens equal")
    return {"prompts": len(PROMPTS), "tokens": num_tokens, "equal": equal}


def measure_all(args, stack):
    """Figures of the three models: name -> batch -> figures; and the sizes of their weights."""
    figures = {}

    def measure_as(name, model):
        figures[name] = {}
        for batch in args.batches:
            row = figures[name][batch] = measure(model, batch, stack)
            print(f"{stack}, {name}, batch {batch}: {row['step_ms']:.3f} ms a step", flush=True)

    model = llama_8b(args.layers)
    dense_bytes = weight_bytes(model)
    measure_as("dense", model)
    start = time.perf_counter()
    report = snug.torch.compress_model(model)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    torch.cuda.empty_cache()
    sizes = {"dense": dense_bytes, "compressed": weight_bytes(model),
             "dense_linear": report.dense_bytes, "compressed_linear": report.num_bytes}
    print(f"{report}\npacked in {seconds:.2f} s; all weights {sizes['dense'] / 1e9:.2f} GB -> "
          f"{sizes['compressed'] / 1e9:.2f} GB ({100 - 100 * sizes['compressed'] / dense_bytes:.1f} % less)")
    measure_as("compressed", model)
    del model
    if stack == "lean":
        model = decode_stack.fuse_dense(llama_8b(args.layers))
        measure_as("fused", model)
    return figures, sizes


def print_table(figures, stack):
    print(f"\n{stack}: decode tokens/s, and milliseconds to the first token of {PROMPT_TOKENS}\n")
    names = list(figures)
    others = [name for name in names if name != "compressed"]
    print("| batch | " + " | ".join(names) + " | " + " | ".join(f"over {name}" for name in others) + " | "
          + " | ".join(f"{name}, first" for name in names) + " |")
    print("|---" * (1 + 2 * len(names) + len(others)) + "|")
    for batch, packed in figures["compressed"].items():
        rows = [figures[name][batch] for name in names]
        gains = [figures[name][batch]["step_ms"] / packed["step_ms"] for name in others]
        print(f"| {batch} | " + " | ".join(f"{1e3 * batch / row['step_ms']:.0f}" for row in rows) + " | "
              + " | ".join(f"{gain:.3f}x" for gain in gains) + " | "
              + " | ".join(f"{row['first_token_ms']:.1f}" for row in rows) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 8, 16, 32, 64])
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--stacks", nargs="+", choices=["plain", "lean"], default=["plain", "lean"])
    parser.add_argument("--model", help="folder of a real model to generate from")
    parser.add_argument("--json", help="file for the figures")
    args = parser.parse_args()

    out = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
           "transformers": transformers.__version__, "stacks": {}}
    if args.model:
        out["real_model"] = compare_real_model(args.model)
    for stack in args.stacks:
        if stack == "lean":
            decode_stack.check_attention()
            decode_stack.compile_elementwise()
        figures, out["bytes"] = measure_all(args, stack)
        print_table(figures, stack)
        out["stacks"][stack] = figures
    if args.json:
        with open(args.json, "w") as file:
            json.dump(out, file, indent=1)


if __name__ == "__main__":
    main()
