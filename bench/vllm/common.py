"""What the benchmarks of vLLM share: a model's shape with random weights, and an engine of it."""

import json
import os
import tempfile
import time

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # engine and profiler in one process
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")

MODES = ("dense", "snug", "twin")
LLAMA_8B = dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=4096,
                intermediate_size=14336, num_attention_heads=32, num_key_value_heads=8,
                num_hidden_layers=32, vocab_size=128256, rms_norm_eps=1e-5, rope_theta=500000.0,
                max_position_embeddings=8192, torch_dtype="bfloat16", tie_word_embeddings=False,
                hidden_act="silu", bos_token_id=0, eos_token_id=1)
CAPTURED = [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512]


def shape_folder(num_layers):
    """A folder with the config.json of Llama-3.1-8B and no weights."""
    folder = tempfile.mkdtemp()
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(dict(LLAMA_8B, num_hidden_layers=num_layers), file)
    return folder


def start(mode, model=None, num_layers=32, **options):
    """An engine; `mode` is dense, snug or twin. Without `model`: the 8B shape, random weights."""
    if mode == "twin":
        os.environ["SNUG_VLLM_POLICY"] = "twin"
    if mode != "dense":
        from snug.vllm.plugin import register
        register()  # the plugin need not be installed
        options.setdefault("quantization", "snug")
    from vllm import LLM
    if model is None:
        model = shape_folder(num_layers)
        options.setdefault("load_format", "dummy")
    began = time.perf_counter()
    defaults = dict(skip_tokenizer_init=True, dtype="bfloat16", max_model_len=2048,
                    max_num_seqs=256, max_num_batched_tokens=8192, seed=0, disable_log_stats=True,
                    enable_prefix_caching=False,
                    compilation_config={"cudagraph_capture_sizes": CAPTURED})
    llm = LLM(model=model, **{**defaults, **options})
    print(f"{mode}: engine started in {time.perf_counter() - began:.1f} s", flush=True)
    return llm


def prompts(count, length, vocabulary=120000):
    return [{"prompt_token_ids": [(i * 7 + j * 13 + 5) % vocabulary for j in range(length)]}
            for i in range(count)]


def save(path, results):
    with open(path, "w") as file:
        json.dump(results, file, indent=1)
