"""Models that snug.torch compresses, on the CPU and, where there is one, the GPU."""

import os
import tempfile
import unittest
import warnings
import weakref
from types import SimpleNamespace
from unittest import mock

from torch_support import DEVICES, Attention, bf16, same_bits  # first: without torch, it skips

import torch
from torch import nn

import snug
import snug.torch
from snug.torch.choice import choose, forget_plans, workspace_bytes
from snug.torch.model import _slower


class Models(unittest.TestCase):
    def test_compress_run_and_restore(self):
        for device in DEVICES:
            model = Attention(device=device)
            before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            x = bf16(4, 256, device=device, scale=1)
            dense = model(x)
            report = snug.torch.compress_model(model)
            self.assertEqual(len(report.layers), 2)  # q+k+v and o
            self.assertLess(report.num_bytes, 0.78 * report.dense_bytes)
            torch.testing.assert_close(model(x), dense, rtol=2e-2, atol=2e-2)
            torch.testing.assert_close(model(x), model(x.clone()), rtol=0, atol=0)
            snug.torch.decompress_model(model)
            after = model.state_dict()
            self.assertEqual(before.keys(), after.keys())
            for name, tensor in before.items():
                self.assertTrue(same_bits(after[name], tensor), name)

    def test_modes_stay(self):
        for is_training in (False, True):
            model = Attention().train(is_training)
            snug.torch.compress_model(model)
            self.assertEqual({m.training for m in model.modules()}, {is_training})
            snug.torch.decompress_model(model)
            self.assertEqual({m.training for m in model.modules()}, {is_training})

    def test_compression_changes_no_result(self):
        for device in DEVICES:
            models = []
            for policy in ("memory", "twin"):
                torch.manual_seed(1)
                model = Attention(device=device)
                snug.torch.compress_model(model, policy)
                models.append(model)
            self.assertGreaterEqual(models[1].o_proj.num_bytes, 2 * 256 * 256)
            for m in (1, 5, 16, 40, 300):
                x = bf16(m, 256, device=device, scale=1, seed=m)
                self.assertTrue(same_bits(models[0](x), models[1](x)))

    def test_layers_are_freed_as_they_are_replaced(self):
        model = nn.Sequential(*[nn.Linear(128, 128, dtype=torch.bfloat16) for _ in range(4)])
        for step, kind in ((snug.torch.compress_model, snug.torch.CompressedLinear),
                           (snug.torch.decompress_model, nn.Linear)):
            layers, alive = [weakref.ref(layer) for layer in model], []
            made = kind.__init__

            def count(layer, *args, **kwargs):
                alive.append(sum(layer() is not None for layer in layers))
                made(layer, *args, **kwargs)

            with mock.patch.object(kind, "__init__", count):
                step(model)
            self.assertEqual(alive, [4, 3, 2, 1])

    def test_speed_keeps_both_forms(self):
        model = Attention()
        x = bf16(4, 256, scale=1)
        dense = model(x)
        report = snug.torch.compress_model(model, "speed")
        self.assertIn("75", str(report))
        self.assertIn("% more", str(report))
        self.assertTrue(same_bits(model(x), dense))

    def test_speed_says_what_it_knows(self):
        weight = mock.Mock(is_cuda=True)
        for gain, text in ((1.03, "1.03x of dense"), (0.0, "no estimate for this GPU")):
            choice = mock.Mock(packed=False, gain=gain)
            with mock.patch("snug.torch.model.choose", return_value=choice):
                reason = _slower(64, 64, "speed", 8, mock.Mock(weight=weight))
            self.assertEqual(reason, f"not surely faster compressed at batch 8 ({text})")
        with mock.patch("snug.torch.on_gpu.has_cuda", False), \
                self.assertRaisesRegex(snug.SnugError, "move the tensors to the CPU"):
            choose(0, 64, 64, 8)

    def test_inputs_changed_in_place_are_seen(self):
        model = Attention()
        snug.torch.compress_model(model)
        x = bf16(1, 256, scale=1)
        model.q_proj(x)
        x.mul_(2)
        self.assertTrue(same_bits(model.k_proj(x), model.k_proj(x.clone())))

    def products(self, model, inputs):
        """Rows and columns of the products that a call of q_proj, k_proj or v_proj computes."""
        sizes, multiply = [], snug.torch.linear.multiply

        def count(x, packed, bias, header, dense):
            sizes.append((x.shape[0], header.n))
            return multiply(x, packed, bias, header, dense)

        with mock.patch("snug.torch.linear.multiply", count):
            for name, x in inputs:
                getattr(model, name)(x)
        return sizes

    def test_cross_attention_is_not_fused(self):
        class TextCrossAttention(Attention):
            pass

        model = nn.Module()
        model.self_attn, model.encoder_attn, model.attn = Attention(), Attention(), Attention()
        model.crossattention = Attention()
        model.text = TextCrossAttention()
        snug.torch.compress_model(model)
        x, encoded = bf16(1, 256, scale=1), bf16(100, 256, scale=1)
        for name in ("encoder_attn", "crossattention", "text"):
            inputs = [("q_proj", x), ("k_proj", encoded), ("v_proj", encoded), ("q_proj", x)]
            self.assertEqual(self.products(getattr(model, name), inputs),
                             [(1, 256), (100, 64), (100, 64), (1, 256)], name)
        for name in ("self_attn", "attn"):
            inputs = [("q_proj", x), ("k_proj", x), ("v_proj", x)]
            self.assertEqual(self.products(getattr(model, name), inputs), [(1, 384)], name)

    def test_fused_layers_with_different_inputs_are_told(self):
        model = Attention()
        snug.torch.compress_model(model)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(20):
                model.q_proj(bf16(1, 256))  # now and then, as after an error
                model(bf16(1, 256))
            self.assertEqual(caught, [])
            for _ in range(20):
                model.q_proj(bf16(1, 256))
        self.assertEqual(len(caught), 1)
        self.assertIn("fuse=False", str(caught[0].message))

    def test_names_to_skip_are_a_list(self):
        with self.assertRaisesRegex(TypeError, "skip is a list"):
            snug.torch.compress_model(nn.Sequential(), skip="lm_head")

    def test_what_stays_dense_is_said(self):
        model = nn.Sequential(nn.Linear(64, 64), nn.Embedding(100, 64, dtype=torch.bfloat16),
                              nn.Linear(64, 100, bias=False, dtype=torch.bfloat16),
                              nn.Linear(64, 64, dtype=torch.bfloat16))
        model[2].weight = model[1].weight
        text = str(snug.torch.compress_model(model, skip=["3"]))
        for reason in ("torch.float32", "shares its weights", "asked to skip"):
            self.assertIn(reason, text)
        with self.assertRaises(ValueError):
            snug.torch.compress_model(model, policy="fast")

    def test_a_layer_in_several_places_stays_one(self):
        model = nn.Module()
        model.first = nn.Linear(256, 256, dtype=torch.bfloat16)
        model.more = nn.ModuleList([model.first, model.first])
        model.again = model.first
        report = snug.torch.compress_model(model)
        self.assertEqual(len(report.layers), 1)
        for layer in (model.more[0], model.more[1], model.again):
            self.assertIs(layer, model.first)
        self.assertIsInstance(model.first, snug.torch.CompressedLinear)
        snug.torch.decompress_model(model)
        self.assertIs(model.more[1], model.first)
        self.assertEqual(len(list(model.parameters())), 2)

    def test_hooks_are_not_lost(self):
        model = nn.Sequential(*[nn.Linear(256, 256, dtype=torch.bfloat16) for _ in range(3)])
        calls = []
        model[0].register_forward_hook(lambda *_: calls.append("hook"))
        model[1].forward = lambda x: calls.append("patched") or x
        self.assertIn("hooks", str(snug.torch.compress_model(model)))
        self.assertIsInstance(model[2], snug.torch.CompressedLinear)
        model(bf16(1, 256))
        self.assertEqual(calls, ["hook", "patched"])

    def test_code_that_reads_weights_works(self):
        layer = nn.TransformerEncoderLayer(256, 4, 512, batch_first=True, dtype=torch.bfloat16)
        layer.eval()
        x = bf16(1, 4, 256, scale=1)
        with torch.no_grad():
            dense = layer(x)
            snug.torch.compress_model(layer)
            self.assertIsInstance(layer.linear1, snug.torch.CompressedLinear)
            torch.testing.assert_close(layer(x), dense, rtol=2e-2, atol=2e-2)
        model = Attention()
        weight = model.k_proj.weight.clone()
        snug.torch.compress_model(model)
        self.assertTrue(same_bits(model.k_proj.weight, weight))

    def test_measured_plans_are_kept_in_a_file(self):
        with self.assertRaisesRegex(ValueError, "no compressed layers on a GPU"):
            snug.torch.tune(Attention())
        if "cuda" not in DEVICES:
            self.skipTest("no GPU")
        model = Attention(device="cuda")
        snug.torch.compress_model(model)
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "cache", "tuning.txt")
            self.assertEqual(snug.torch.tune(model, rows=(1, 3, 4, 64), file=file), 6)
            self.assertEqual(snug.torch.tune(model, rows=(1, 3, 4, 64), file=file), 0)
            self.assertEqual(len(snug.torch.load_tuning(file)), 6)
            self.assertIn("measured", snug.torch.explain(256, 256, 64))
            self.assertEqual(os.listdir(os.path.dirname(file)), ["tuning.txt"])
            with open(file, "a") as end:
                end.write("not a plan\n")
            with self.assertRaisesRegex(snug.SnugError, "tuning.txt.*delete the file"):
                snug.torch.tune(model, rows=(1,), file=file)

    def test_other_plans_need_other_workspaces(self):
        library = SimpleNamespace(snug_gemm_load_tuning=lambda *_: 0,
                                  snug_gemm_linear_workspace_bytes=mock.Mock(side_effect=[1, 2]))
        self.addCleanup(forget_plans)
        with (mock.patch.multiple(snug.torch.tuning, library=library, require_cuda=mock.Mock()),
              mock.patch.object(snug.torch.choice, "library", library)):
            self.assertEqual([workspace_bytes(-1, 256, 256, 4) for _ in range(2)], [1, 1])
            snug.torch.load_tuning(os.devnull)
            self.assertEqual(workspace_bytes(-1, 256, 256, 4), 2)

    def test_torch_compile(self):
        for device in DEVICES:
            model = Attention(device=device)
            snug.torch.compress_model(model)
            x = bf16(4, 256, device=device, scale=1)
            compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
            with torch.no_grad():
                self.assertTrue(same_bits(compiled(x), model(x)))

    def test_cuda_graphs(self):
        if "cuda" not in DEVICES:
            self.skipTest("no GPU")
        model = Attention(width=1024, device="cuda")
        # Attention above adds k and v four times 64 wide; widen it.
        model.q_proj = nn.Linear(1024, 256, bias=False, dtype=torch.bfloat16, device="cuda")
        model.o_proj = nn.Linear(256, 1024, bias=False, dtype=torch.bfloat16, device="cuda")
        snug.torch.compress_model(model)
        with torch.no_grad():
            graphs = []
            for m in (1, 8, 64):
                x = bf16(m, 1024, device="cuda", scale=1, seed=m)
                expected = model(x)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    y = model(x)
                graphs.append((graph, x, y, expected))  # a graph does not keep its inputs
            for _ in range(3):
                for graph, _, y, expected in reversed(graphs):
                    y.fill_(float("nan"))
                    graph.replay()
                    torch.cuda.synchronize()
                    self.assertTrue(same_bits(y, expected))


if __name__ == "__main__":
    unittest.main()
