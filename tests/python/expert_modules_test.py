"""Which experts of a model compress_model replaces, on the CPU and, where there is one, the GPU."""

import unittest

from torch_support import DEVICES, bf16  # first: without torch, it skips

import torch
from torch import nn

import snug.torch
from snug.torch.expert_modules import is_bank, why_not_experts
from snug.torch.experts import CompressedExperts
from snug.torch.model import dense_state_dict

try:
    from transformers import MixtralConfig, Qwen3MoeConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralExperts
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeForCausalLM
except ImportError:
    MixtralExperts = None


class Bank(nn.Module):
    """Experts as transformers has them, maybe with limits of their activation."""

    def __init__(self, experts=2, n=64, k=128, limit=float("inf")):
        super().__init__()
        self.limit = limit
        self.gate_up_proj = nn.Parameter(bf16(experts, 2 * n, k))
        self.down_proj = nn.Parameter(bf16(experts, k, n, seed=1))

    def forward(self, hidden_states, top_k_index, top_k_weights):
        y = torch.zeros_like(hidden_states)
        for row, experts in enumerate(top_k_index.tolist()):
            for place, expert in enumerate(experts):
                gate, up = (self.gate_up_proj[expert] @ hidden_states[row]).chunk(2)
                gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
                h = nn.functional.silu(gate) * up
                y[row] += top_k_weights[row, place] * (self.down_proj[expert] @ h)
        return y


class Modules(unittest.TestCase):
    def test_limits_of_the_activation_are_found(self):
        """As in DeepSeek-V4, GLM-5 and MiniMax-M3: small rows do not reach them."""
        self.assertIsNone(why_not_experts(Bank()))
        for limit in (7, 10, 100, 1000):
            self.assertIn("something else", why_not_experts(Bank(limit=limit)) or "", limit)

    def test_torch_has_another_default_device(self):
        bank = Bank()
        with torch.device("meta"):
            self.assertIsNone(why_not_experts(bank))

    def test_more_experts_than_a_bank_takes(self):
        model = nn.Sequential(Bank(513, 16, 16))
        report = snug.torch.compress_model(model)
        self.assertIn("513 experts of 16 x 16 are more than a bank takes", str(report))


@unittest.skipIf(MixtralExperts is None, "transformers with banks of experts is not installed")
class Transformers(unittest.TestCase):
    def test_a_model_keeps_its_logits(self):
        config = Qwen3MoeConfig(vocab_size=64, hidden_size=128, intermediate_size=128,
                                num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
                                head_dim=64, moe_intermediate_size=128, num_experts=6,
                                num_experts_per_tok=2, decoder_sparse_step=1, mlp_only_layers=[])
        for device in DEVICES:
            torch.manual_seed(1)
            model = Qwen3MoeForCausalLM(config).to(torch.bfloat16).to(device).eval()
            tokens = torch.arange(12, device=device)[None]
            with torch.no_grad():
                before = model(tokens).logits.float()
                dense = {name: weight.clone() for name, weight in model.state_dict().items()}
                report = snug.torch.compress_model(model)
                after = model(tokens).logits.float()
            saved = dense_state_dict(model)
            self.assertEqual(saved.keys(), dense.keys())
            for name, weight in dense.items():
                self.assertTrue(torch.equal(saved[name].cpu(), weight.cpu()), name)
            packed = [name for name, m in model.named_modules() if isinstance(m, CompressedExperts)]
            self.assertEqual(packed, [f"model.layers.{i}.mlp.experts" for i in range(2)])
            self.assertLess(report.num_bytes, report.dense_bytes)
            self.assertLess(float((after - before).norm() / before.norm()), 0.02)
            restored = snug.torch.decompress_model(model).state_dict()
            self.assertEqual(restored.keys(), dense.keys())
            for name, weight in dense.items():
                self.assertTrue(torch.equal(restored[name], weight), name)

    def test_other_modules_are_left_alone(self):
        config = MixtralConfig(hidden_size=32, intermediate_size=32, num_local_experts=2,
                               hidden_act="gelu")
        other = MixtralExperts(config).to(torch.bfloat16)
        with torch.no_grad():
            for weight in other.parameters():
                weight.normal_(std=0.3)
        self.assertIn("something else", why_not_experts(other))
        self.assertIn("not bfloat16", why_not_experts(other.float()))
        self.assertFalse(is_bank(nn.Linear(2, 2)))

    def experts(self):
        config = MixtralConfig(hidden_size=128, intermediate_size=256, num_local_experts=2)
        bank = MixtralExperts(config).to(torch.bfloat16)
        with torch.no_grad():
            for weight in bank.parameters():
                weight.normal_(std=0.05)
        return bank

    def test_what_a_replacement_would_lose(self):
        bank = self.experts()
        self.assertIsNone(why_not_experts(bank))
        hook = bank.register_forward_hook(lambda *_: None)
        self.assertIn("hooks", why_not_experts(bank))
        hook.remove()
        bank.bias = nn.Parameter(torch.zeros(2))
        self.assertIn("other weights", why_not_experts(bank))
        report = snug.torch.compress_model(nn.Sequential(bank))
        self.assertIn("other weights", str(report))

    def test_experts_that_two_layers_share(self):
        bank = self.experts()
        model = nn.ModuleList([nn.ModuleList([bank]), nn.ModuleList([bank])])
        weight = bank.down_proj.detach().clone()
        report = snug.torch.compress_model(model)
        self.assertEqual(len(report.layers), 1)
        self.assertIsInstance(model[0][0], CompressedExperts)
        self.assertIs(model[0][0], model[1][0])
        snug.torch.decompress_model(model)
        self.assertIs(model[0][0], model[1][0])
        self.assertTrue(torch.equal(model[0][0].down_proj, weight))


if __name__ == "__main__":
    unittest.main()
