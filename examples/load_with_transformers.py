"""Loads a model folder that `snug compress` wrote into transformers, exactly.

    snug compress Llama-3.1-8B/
    python3 examples/load_with_transformers.py Llama-3.1-8B.snug "The capital of France is"

With --run, the linear layers stay compressed on the GPU.
"""

import argparse

import torch
import transformers

import snug.transformers

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("model", help="a compressed model folder")
parser.add_argument("prompt", nargs="?", help="text to continue; needs the model's tokenizer")
parser.add_argument("--run", action="store_true", help="run from compressed weights on the GPU")
arguments = parser.parse_args()

options = {}
if arguments.run:
    options["quantization_config"] = snug.transformers.SnugConfig(mode="run")
model = transformers.AutoModelForCausalLM.from_pretrained(arguments.model, **options)
if arguments.run:
    print(model.hf_quantizer.report)
print(f"{model.num_parameters():,} parameters, {model.dtype}, on {model.device}")

if arguments.prompt:
    tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.model)
    inputs = tokenizer(arguments.prompt, return_tensors="pt").to(model.device)
    with torch.no_grad():
        print(tokenizer.decode(model.generate(**inputs, max_new_tokens=20)[0]))
