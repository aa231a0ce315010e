"""snug.torch.CompressedExperts on the CPU and, where there is one, the GPU."""

import sys
import unittest
import warnings

try:
    import torch
except ImportError:
    print("skipped: torch is not installed")
    sys.exit(77)

from torch import nn

import snug.torch
from snug._library import has_cuda
from snug.torch.experts import CompressedExperts, why_not_experts

try:
    from transformers import MixtralConfig, Qwen3MoeConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralExperts
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeForCausalLM
except ImportError:
    MixtralExperts = None

DEVICES = ["cpu"] + (["cuda"] if has_cuda and torch.cuda.is_available() else [])


def bf16(*shape, device="cpu", scale=0.05, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator) * scale).to(torch.bfloat16).to(device)


def reference(x, w13, w2, ids, weights):
    y = torch.zeros(x.shape, dtype=torch.float64)
    x, w13, w2 = (t.double().cpu() for t in (x, w13, w2))
    for row, experts in enumerate(ids.tolist()):
        for place, expert in enumerate(experts):
            if 0 <= expert < w2.shape[0]:
                gate, up = (w13[expert] @ x[row]).chunk(2)
                h = nn.functional.silu(gate) * up
                y[row] += weights[row, place].item() * (w2[expert] @ h)
    return y


class Experts(unittest.TestCase):
    def test_a_layer_is_close_to_fp64_and_weights_come_back(self):
        for device in DEVICES:
            w13, w2 = bf16(5, 96, 72, device=device), bf16(5, 72, 48, device=device, seed=1)
            layer = CompressedExperts.from_weights(w13, w2)
            for got, want in zip(layer.weights(), (w13, w2)):
                self.assertTrue(torch.equal(got, want))
            for m in (1, 3, 40):
                x = bf16(m, 72, device=device, scale=1, seed=m)
                ids = torch.randint(-1, 6, (m, 3), generator=torch.Generator().manual_seed(m))
                weights = torch.rand((m, 3), generator=torch.Generator().manual_seed(m))
                y = layer(x, ids.to(device), weights.to(device)).double().cpu()
                want = reference(x, w13, w2, ids, weights)
                self.assertLess(float((y - want).norm() / want.norm()), 0.02, (device, m))

    def test_no_rows(self):
        for device in DEVICES:
            layer = CompressedExperts.from_weights(bf16(2, 32, 16, device=device),
                                                   bf16(2, 16, 16, device=device))
            none = torch.zeros((0, 2), dtype=torch.int64, device=device)
            y = layer(bf16(0, 16, device=device), none, none.float())
            self.assertEqual(tuple(y.shape), (0, 16))

    def test_an_expert_that_does_not_compress_makes_the_layer_raw(self):
        w13, w2 = bf16(2, 256, 512), bf16(2, 512, 128)
        noise = torch.randint(0, 1 << 15, (256, 512), generator=torch.Generator().manual_seed(1))
        w13[1] = noise.to(torch.int16).view(torch.bfloat16)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            layer = CompressedExperts.from_weights(w13, w2)
        self.assertIn("expert 1 do not compress", str(caught[0].message))
        self.assertEqual(layer.kind, 0)
        self.assertTrue(torch.equal(layer.weights()[0].view(torch.int16), w13.view(torch.int16)))

    def test_wrong_shapes_are_refused(self):
        with self.assertRaisesRegex(ValueError, "do not match"):
            CompressedExperts.from_weights(bf16(2, 32, 16), bf16(2, 16, 15))
        with self.assertRaisesRegex(TypeError, "only BF16"):
            CompressedExperts.from_weights(bf16(2, 32, 16).float(), bf16(2, 16, 16))


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
        self.assertIn("not a bank", why_not_experts(nn.Linear(2, 2)))


if __name__ == "__main__":
    unittest.main()
