"""What the benchmarks of vLLM share: a model's shape with random weights, and an engine of it."""

import json
import os
import tempfile
import time

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # engine and profiler in one process
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")

MODES = ("dense", "snug", "speed", "twin")  # the last two: policies of Snug
LLAMA_8B = dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=4096,
                intermediate_size=14336, num_attention_heads=32, num_key_value_heads=8,
                num_hidden_layers=32, vocab_size=128256, rms_norm_eps=1e-5, rope_theta=500000.0,
                max_position_embeddings=8192, torch_dtype="bfloat16", tie_word_embeddings=False,
                hidden_act="silu", bos_token_id=0, eos_token_id=1)
QWEN3_30B_A3B = dict(
    architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", hidden_size=2048,
    intermediate_size=6144, moe_intermediate_size=768, num_experts=128, num_experts_per_tok=8,
    norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[], num_attention_heads=32,
    num_key_value_heads=4, head_dim=128, num_hidden_layers=48, vocab_size=151936,
    rms_norm_eps=1e-6, rope_theta=1000000.0, max_position_embeddings=8192,
    torch_dtype="bfloat16", tie_word_embeddings=False, hidden_act="silu", bos_token_id=0,
    eos_token_id=1)
SHAPES = {"llama-8b": LLAMA_8B, "qwen3-30b-a3b": QWEN3_30B_A3B}
CAPTURED = [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512]


def shape_folder(shape, num_layers):
    """A folder with a config.json and no weights."""
    folder, config = tempfile.mkdtemp(), dict(SHAPES[shape])
    if num_layers:
        config["num_hidden_layers"] = num_layers
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file)
    return folder


def start(mode, model=None, shape="llama-8b", num_layers=None, **options):
    """An engine; `mode` is one of MODES. Without `model`: a shape, random weights."""
    if mode in ("speed", "twin"):
        os.environ["SNUG_VLLM_POLICY"] = mode
    if mode != "dense":
        os.environ.setdefault("SNUG_VLLM_EXPERTS", "1")
        from snug.vllm.plugin import register
        register()  # the plugin need not be installed
        options.setdefault("quantization", "snug")
    from vllm import LLM
    if model is None:
        model = shape_folder(shape, num_layers)
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
