#!/usr/bin/env python3
"""load.py make FOLDER: a checkpoint with the shape of Llama-3.1-8B and random BF16 weights.
load.py MODE FOLDER OUT.json: seconds that vLLM takes to load it, and the peak of GPU memory.

The time is that of `load_weights`, from the first file to the last layer that is packed.
"""

import argparse
import functools
import json
import os
import time

from common import LLAMA_8B, MODES, save, start


def make(folder, num_layers):
    import torch
    from safetensors.torch import save_file
    os.makedirs(folder)
    config = dict(LLAMA_8B, num_hidden_layers=num_layers)
    hidden, inner, vocab = (config[key] for key in ("hidden_size", "intermediate_size",
                                                    "vocab_size"))
    layer = {"self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (1024, hidden),
             "self_attn.v_proj": (1024, hidden), "self_attn.o_proj": (hidden, hidden),
             "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
             "mlp.down_proj": (hidden, inner), "input_layernorm": (hidden,),
             "post_attention_layernorm": (hidden,)}
    parts = [{"model.embed_tokens": (vocab, hidden)}]
    parts += [{f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
              for i in range(num_layers)]
    parts += [{"model.norm": (hidden,), "lm_head": (vocab, hidden)}]
    index = {}
    for i, part in enumerate(parts):
        file = f"model-{i + 1:05}-of-{len(parts):05}.safetensors"
        tensors = {f"{name}.weight": (torch.randn(shape, device="cuda") * 0.02
                                      + (len(shape) == 1)).to(torch.bfloat16).cpu()
                   for name, shape in part.items()}
        save_file(tensors, os.path.join(folder, file), {"format": "pt"})
        index.update(dict.fromkeys(tensors, file))
    for name, content in (("config.json", config),
                          ("model.safetensors.index.json", {"metadata": {}, "weight_map": index})):
        with open(os.path.join(folder, name), "w") as file:
            json.dump(content, file)


def measure(mode, folder, out):
    import torch
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
    load_weights, results = DefaultModelLoader.load_weights, {"mode": mode}

    @functools.wraps(load_weights)  # Snug's plugin checks its parameters
    def timed(self, *args, **kwargs):
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
        began = time.perf_counter()
        load_weights(self, *args, **kwargs)
        torch.cuda.synchronize()
        results["seconds"] = time.perf_counter() - began
        results["bytes"] = torch.cuda.memory_allocated()
        results["peak_bytes"] = torch.cuda.max_memory_allocated()

    DefaultModelLoader.load_weights = timed
    start(mode, folder, enforce_eager=True, kv_cache_memory_bytes=1 << 30,
          gpu_memory_utilization=0.5)
    save(out, results)
    print(results)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=("make", *MODES))
    parser.add_argument("folder")
    parser.add_argument("out", nargs="?")
    parser.add_argument("--layers", type=int, default=32)
    args = parser.parse_args()
    if args.mode == "make":
        make(args.folder, args.layers)
    else:
        measure(args.mode, args.folder, args.out)


if __name__ == "__main__":
    main()
