"""The model of weight_transfer_trial.py: files, and an optimizer that moves it."""

import json
import os
import shutil


def load_model(folder):
    from safetensors.torch import load_file
    tensors = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".safetensors"):
            tensors.update(load_file(os.path.join(folder, name)))
    return tensors


def save_model(tensors, folder, like, **config):
    from safetensors.torch import save_file
    os.makedirs(folder, exist_ok=True)
    for name in os.listdir(like):
        if "safetensors" not in name:
            shutil.copy(os.path.join(like, name), folder)
    path = os.path.join(folder, "config.json")
    with open(path) as file:
        settings = {**json.load(file), **config}
    os.chmod(path, 0o644)
    with open(path, "w") as file:
        json.dump(settings, file)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()},
              os.path.join(folder, "model.safetensors"), {"format": "pt"})


def make_model(folder, experts=0):
    """A Llama of random weights, or a Qwen3 with so many experts in a layer."""
    import torch
    generator = torch.Generator().manual_seed(5)
    hidden, inner, vocab, heads = 256, 640, 1024, {"q": 256, "k": 128, "v": 128, "o": 256}
    shapes = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    for i in range(2):
        prefix = f"model.layers.{i}."
        shapes.update({f"{prefix}self_attn.{x}_proj.weight": (rows, hidden)
                       for x, rows in heads.items()})
        for mlp in [f"{prefix}mlp.experts.{e}." for e in range(experts)] or [f"{prefix}mlp."]:
            shapes.update({f"{mlp}{x}_proj.weight": (inner, hidden) for x in ("gate", "up")})
            shapes[f"{mlp}down_proj.weight"] = (hidden, inner)
        if experts:
            shapes.update({f"{prefix}mlp.gate.weight": (experts, hidden),
                           f"{prefix}self_attn.q_norm.weight": (64,),
                           f"{prefix}self_attn.k_norm.weight": (64,)})
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{prefix}{norm}.weight"] = (hidden,)
    tensors = {name: (torch.ones(shape) if len(shape) == 1 else
                      0.05 * torch.randn(shape, generator=generator)).bfloat16()
               for name, shape in shapes.items()}
    os.makedirs(folder)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump({}, file)
    like = folder + ".like"
    shutil.copytree(folder, like)
    names = dict(architectures=["LlamaForCausalLM"], model_type="llama")
    if experts:
        names = dict(architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe",
                     num_experts=experts, num_experts_per_tok=2, moe_intermediate_size=inner,
                     norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[])
    save_model(tensors, folder, like, **names,
               hidden_size=hidden, intermediate_size=inner, num_attention_heads=4, head_dim=64,
               num_key_value_heads=2, num_hidden_layers=2, vocab_size=vocab, rms_norm_eps=1e-5,
               max_position_embeddings=1024, torch_dtype="bfloat16", tie_word_embeddings=True,
               hidden_act="silu", bos_token_id=0, eos_token_id=1, rope_theta=10000.0)


class Optimizer:
    """Moves FP32 masters, so that 2 to 3 % of the BF16 weights change in a step."""

    def __init__(self, tensors, rl):
        import torch
        self.tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        self._masters = {name: tensor.float() for name, tensor in tensors.items()}
        self._rl, self._random = rl, torch.Generator().manual_seed(7)

    def step(self, number):
        import torch
        for name, master in self._masters.items():
            real = {1: "after1.", 2: "after8."}.get(number)
            if real is not None and real + name in self._rl:
                master.copy_(self._rl[real + name])
            else:
                noise = torch.randn(master.shape, generator=self._random)
                master.add_(noise, alpha=1.5e-4 * float(master.std()) if master.dim() > 1 else 0)
            self.tensors[name].copy_(master)

    def source(self):
        return iter(self.tensors.items())
