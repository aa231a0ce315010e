"""Models and adapters of random weights, as folders that vLLM serves."""

import json

import torch
from safetensors.torch import save_file

SIZES = dict(hidden_size=256, intermediate_size=640, num_attention_heads=4, num_key_value_heads=2,
             head_dim=64, num_hidden_layers=2, vocab_size=1024)
EXPERT_SIZE = 192


def make_model(folder, seed, tied, experts=0):
    """A Llama, or a Qwen3 with experts, with random BF16 weights in two files."""
    torch.manual_seed(seed)
    sizes = dict(SIZES, architectures=["LlamaForCausalLM"], model_type="llama", rms_norm_eps=1e-5,
                 max_position_embeddings=1024, torch_dtype="bfloat16", tie_word_embeddings=tied,
                 hidden_act="silu", bos_token_id=0, eos_token_id=1, rope_theta=10000.0)
    hidden, inner, vocab = (SIZES[key] for key in ("hidden_size", "intermediate_size",
                                                   "vocab_size"))
    layer = {"self_attn.q_proj": (256, hidden), "self_attn.k_proj": (128, hidden),
             "self_attn.v_proj": (128, hidden), "self_attn.o_proj": (hidden, 256),
             "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,)}
    if experts:
        sizes.update(architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe",
                     num_experts=experts, num_experts_per_tok=2, moe_intermediate_size=EXPERT_SIZE,
                     norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[])
        layer.update({"self_attn.q_norm": (64,), "self_attn.k_norm": (64,),
                      "mlp.gate": (experts, hidden)})
    for parent, size in [(f"mlp.experts.{i}.", EXPERT_SIZE) for i in range(experts)] or [
            ("mlp.", inner)]:
        layer.update({f"{parent}gate_proj": (size, hidden), f"{parent}up_proj": (size, hidden),
                      f"{parent}down_proj": (hidden, size)})
    shapes = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    if not tied:
        shapes["lm_head.weight"] = vocab, hidden
    for i in range(SIZES["num_hidden_layers"]):
        shapes.update({f"model.layers.{i}.{name}.weight": shape for name, shape in layer.items()})
    files = {"model-00001-of-00002.safetensors": {}, "model-00002-of-00002.safetensors": {}}
    for name, shape in shapes.items():
        weight = torch.randn(shape) * 0.05 + (1.0 if len(shape) == 1 else 0.0)
        file = list(files)["layers.1." in name or name == "lm_head.weight"]
        files[file][name] = weight.to(torch.bfloat16)
    folder.mkdir(parents=True)
    for file, tensors in files.items():
        save_file(tensors, folder / file, {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(sizes))
    (folder / "model.safetensors.index.json").write_text(json.dumps(
        {"metadata": {}, "weight_map": {n: f for f, ts in files.items() for n in ts}}))


def make_tokenizer(folder):
    """Numbers for words, for programs that need one."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast
    words = models.WordLevel({str(i): i for i in range(SIZES["vocab_size"])}, "0")
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words)).save_pretrained(folder)


def make_adapter(folder):
    """A LoRA of rank 8 for all q_proj and down_proj."""
    torch.manual_seed(3)
    shapes = {"self_attn.q_proj": (256, 256), "mlp.down_proj": (256, 640)}
    tensors = {}
    for i in range(SIZES["num_hidden_layers"]):
        for name, (out, into) in shapes.items():
            prefix = f"base_model.model.model.layers.{i}.{name}."
            tensors[prefix + "lora_A.weight"] = torch.randn(8, into).to(torch.bfloat16)
            tensors[prefix + "lora_B.weight"] = 0.1 * torch.randn(out, 8).to(torch.bfloat16)
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "bias": "none",
         "target_modules": [name.split(".")[1] for name in shapes]}))
