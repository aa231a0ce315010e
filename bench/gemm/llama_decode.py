"""Decode speed of a Llama-3.1-8B-shaped model: dense against compressed weights.

    PYTHONPATH=python SNUG_LIBRARY=build/libsnug_c.so python3 bench/gemm/llama_decode.py

Weights are Gaussian, made on the GPU; shapes are the real ones. Every decode
step is one CUDA graph over transformers' own model code with a static cache.
With --model FOLDER it also generates from a real small model, both ways.
"""

import argparse
import json
import statistics
import time

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, StaticCache

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
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.data.normal_(0, 0.02)
    return model.eval()


class Decoder:
    """One decode step of a model as a CUDA graph."""

    def __init__(self, model, batch):
        self.model, self.batch = model, batch
        self.cache = StaticCache(config=model.config, max_cache_len=PROMPT_TOKENS + DECODE_STEPS + 16)
        self.token = torch.zeros((batch, 1), dtype=torch.long, device="cuda")
        self.position = torch.full((1,), PROMPT_TOKENS, dtype=torch.long, device="cuda")

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
def measure(model, batch):
    decoder = Decoder(model, batch)
    prompt = torch.randint(0, 128000, (batch, PROMPT_TOKENS), device="cuda",
                           generator=torch.Generator("cuda").manual_seed(batch))
    first_token = []
    for _ in range(4):
        torch.cuda.synchronize()
        start = time.perf_counter()
        decoder.prefill(prompt)
        torch.cuda.synchronize()
        first_token.append(time.perf_counter() - start)
    decoder.capture()
    decoder.start(prompt)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(DECODE_STEPS + 1)]
    tokens = []
    for i in range(DECODE_STEPS):
        events[i].record()
        decoder.graph.replay()
        tokens.append(decoder.token.clone())
    events[DECODE_STEPS].record()
    torch.cuda.synchronize()
    steps = [a.elapsed_time(b) for a, b in zip(events, events[1:])]
    return {"first_token_ms": 1e3 * min(first_token), "step_ms": statistics.median(steps),
            "tokens": torch.cat(tokens, 1).tolist()}


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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 8, 16, 32, 64])
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--model", help="folder of a real model to generate from")
    parser.add_argument("--json", help="file for the figures")
    args = parser.parse_args()

    out = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
           "transformers": transformers.__version__, "batches": {}}
    if args.model:
        out["real_model"] = compare_real_model(args.model)
    model = llama_8b(args.layers)
    dense_bytes = weight_bytes(model)
    dense = {batch: measure(model, batch) for batch in args.batches}
    start = time.perf_counter()
    report = snug.torch.compress_model(model)
    torch.cuda.synchronize()
    print(f"{report}\npacked in {time.perf_counter() - start:.2f} s")
    torch.cuda.empty_cache()
    compressed = {batch: measure(model, batch) for batch in args.batches}

    saved = 1 - weight_bytes(model) / dense_bytes
    linear_saved = 1 - report.num_bytes / report.dense_bytes
    print(f"weights {dense_bytes / 1e9:.2f} GB -> {weight_bytes(model) / 1e9:.2f} GB "
          f"({100 * saved:.1f} % less; linear layers {100 * linear_saved:.1f} %)\n")
    print("batch | dense tok/s | compressed tok/s | gain | first token, dense | compressed")
    for batch in args.batches:
        d, c = dense[batch], compressed[batch]
        same = sum(a == b for x, y in zip(d["tokens"], c["tokens"]) for a, b in zip(x, y))
        gain = d["step_ms"] / c["step_ms"]
        print(f"{batch:5} | {batch / d['step_ms'] * 1e3:11.0f} | {batch / c['step_ms'] * 1e3:16.0f} | "
              f"{gain:.3f}x | {d['first_token_ms']:.1f} ms | {c['first_token_ms']:.1f} ms")
        out["batches"][batch] = {
            "gain": gain, "dense_step_ms": d["step_ms"], "compressed_step_ms": c["step_ms"],
            "dense_first_token_ms": d["first_token_ms"],
            "compressed_first_token_ms": c["first_token_ms"],
            "equal_tokens": same / (batch * DECODE_STEPS)}
    out.update(dense_weight_bytes=dense_bytes, compressed_weight_bytes=weight_bytes(model))
    if args.json:
        with open(args.json, "w") as file:
            json.dump(out, file, indent=1)


if __name__ == "__main__":
    main()
