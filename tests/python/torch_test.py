"""snug.torch on the CPU and, where there is one, the GPU."""

import copy
import io
import os
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
import weakref

try:
    import torch
    from torch import nn
except ImportError:
    print("skipped: torch is not installed")
    sys.exit(77)

import snug
import snug.torch
from snug._library import has_cuda
from snug.torch.choice import is_faster_packed
from snug.torch.model import _slower, dense_state_dict

DEVICES = ["cpu"] + (["cuda"] if has_cuda and torch.cuda.is_available() else [])


def bf16(*shape, device="cpu", scale=0.02, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator) * scale).to(torch.bfloat16).to(device)


def same_bits(a, b):
    return torch.equal(a.contiguous().view(torch.int16).cpu(), b.contiguous().view(torch.int16).cpu())


class Attention(nn.Module):
    def __init__(self, width=256, device="cpu"):
        super().__init__()
        options = dict(bias=False, dtype=torch.bfloat16, device=device)
        self.q_proj = nn.Linear(width, width, **options)
        self.k_proj = nn.Linear(width, 64, **options)
        self.v_proj = nn.Linear(width, 64, **options)
        self.o_proj = nn.Linear(width, width, **options)

    def forward(self, x):
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        return self.o_proj(q + torch.cat([k, v, k, v], -1))


class Tensors(unittest.TestCase):
    def test_round_trips_on_every_device(self):
        for device in DEVICES:
            for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.int32, torch.uint8):
                values = (torch.randn(3, 5000) * 50).to(dtype).to(device)
                frame = snug.torch.compress(values)
                self.assertTrue(torch.equal(snug.torch.decompress(frame, values.shape), values))

    def test_every_bf16_pattern(self):
        for device in DEVICES:
            values = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).to(device)
            for codec in ("entropy", "fixed"):
                self.assertTrue(same_bits(snug.torch.decompress(snug.torch.compress(values, codec)), values))

    def test_devices_read_each_other(self):
        if len(DEVICES) < 2:
            self.skipTest("no GPU")
        values = bf16(100_000)
        frame = snug.torch.compress(values.cuda())
        self.assertTrue(same_bits(snug.torch.decompress(frame.cpu()), values))

    def test_damage_is_reported(self):
        for device in DEVICES:
            frame = snug.torch.compress(bf16(50_000, device=device))
            frame[frame.numel() // 2] ^= 4
            with self.assertRaises(snug.SnugError):
                snug.torch.decompress(frame)


    def test_numpy_is_not_needed(self):
        subprocess.run([sys.executable, "-W", "ignore", "-c", """
import sys
sys.modules["numpy"] = None
import torch, snug.torch
t = torch.randn(256, 256).bfloat16()
assert torch.equal(snug.torch.decompress(snug.torch.compress(t), t.shape), t)
assert torch.equal(snug.torch.apply_delta(t, snug.torch.delta(t, t + 1)), t + 1)
snug.torch.compress_model(torch.nn.Sequential(torch.nn.Linear(256, 256).bfloat16()))
"""], check=True)


class Deltas(unittest.TestCase):
    def versions(self, device, shape=(300, 1000)):
        old = bf16(*shape, device=device)
        new = old.clone()
        new.view(torch.int16).view(-1)[::37] += 1
        return old, new

    def test_round_trip_and_wrong_base(self):
        updates = []
        for device in DEVICES:
            old, new = self.versions(device)
            update = snug.torch.delta(old, new)
            self.assertLess(update.numel(), 0.1 * 2 * old.numel())
            self.assertTrue(same_bits(snug.torch.apply_delta(old, update), new))
            with self.assertRaises(snug.SnugError):
                snug.torch.apply_delta(new, update)
            with self.assertRaises(ValueError):
                snug.torch.apply_delta(old[:5], update)
            with self.assertRaises(TypeError):
                snug.torch.delta(old, new.float())
            updates.append(update.cpu())
        for update in updates[1:]:
            self.assertTrue(torch.equal(update, updates[0]))

    def test_a_compressed_layer_follows(self):
        for device in DEVICES:
            old, new = self.versions(device, (256, 512))
            layers = []
            for weight in (old, new):
                linear = nn.Linear(512, 256, bias=False, dtype=torch.bfloat16, device=device)
                linear.weight = nn.Parameter(weight)
                layers.append(snug.torch.CompressedLinear.from_linear(linear))
            update = snug.torch.delta(old, new)
            layers[0].apply_delta(update)
            self.assertTrue(torch.equal(layers[0].packed, layers[1].packed))
            self.assertTrue(torch.equal(layers[0].sums, layers[1].sums))
            x = bf16(3, 512, device=device, scale=1)
            with torch.no_grad():
                self.assertTrue(same_bits(layers[0](x), layers[1](x)))
            with self.assertRaises(snug.SnugError):
                layers[0].apply_delta(update)
            self.assertTrue(same_bits(layers[0].dense_weight(), new))


class Linear(unittest.TestCase):
    def test_weights_come_back_exactly(self):
        for device in DEVICES:
            for n, k in ((1, 1), (16, 64), (100, 300), (257, 1023)):
                linear = nn.Linear(k, n, dtype=torch.bfloat16, device=device)
                weight = bf16(n, k, device=device)
                weight.view(-1)[:1] = float("nan")
                linear.weight = nn.Parameter(weight)
                compressed = snug.torch.CompressedLinear.from_linear(linear)
                if compressed is None:
                    self.assertLess(n * k, 40000)  # padding to whole tiles outweighs
                    continue
                self.assertTrue(same_bits(compressed.decompress().weight, weight))

    def test_products_are_close_to_dense(self):
        for device in DEVICES:
            linear = nn.Linear(1024, 512, dtype=torch.bfloat16, device=device)
            compressed = snug.torch.CompressedLinear.from_linear(linear)
            for m in (1, 3, 8, 16, 33, 64, 200, 700):
                x = bf16(m, 1024, device=device, scale=1, seed=m)
                exact = x.double() @ linear.weight.double().T + linear.bias.double()
                error = (compressed(x).double() - exact).norm() / exact.norm()
                self.assertLess(error.item(), 3e-3)

    def test_batch_shapes_and_strides(self):
        for device in DEVICES:
            linear = nn.Linear(256, 128, bias=False, dtype=torch.bfloat16, device=device)
            compressed = snug.torch.CompressedLinear.from_linear(linear)
            x = bf16(2, 5, 512, device=device, scale=1)[..., ::2]
            self.assertEqual(compressed(x).shape, (2, 5, 128))
            self.assertTrue(same_bits(compressed(x), compressed(x.contiguous())))
            self.assertEqual(compressed(x[:0]).shape, (0, 5, 128))

    def test_bad_input(self):
        compressed = snug.torch.CompressedLinear.from_linear(nn.Linear(256, 256, dtype=torch.bfloat16))
        for x in (torch.zeros(1, 256), bf16(1, 255)):
            with self.assertRaises(TypeError):
                compressed(x)
        with self.assertRaises(snug.SnugError):
            snug.torch.CompressedLinear(torch.zeros(4096, dtype=torch.uint8))
        with self.assertRaises(TypeError):
            snug.torch.CompressedLinear.from_linear(nn.Linear(4, 4))
        with self.assertRaises(TypeError):  # one byte that claims to be many
            snug.torch.CompressedLinear(torch.zeros(1, dtype=torch.uint8).expand(1 << 20))
        with self.assertRaises(TypeError):
            snug.torch.decompress(torch.zeros(64, 64, dtype=torch.uint8))
        with self.assertRaises(ValueError):  # a shape that the packed matrix has not
            torch.ops.snug.unpack(compressed.packed, 128, 512, *compressed.header[2:])

    def test_used_layers_can_be_copied_and_pickled(self):
        for device in DEVICES:
            linear = nn.Linear(256, 256, bias=False, dtype=torch.bfloat16, device=device)
            compressed = snug.torch.CompressedLinear.from_linear(linear)
            x = bf16(1, 256, device=device, scale=1)
            with torch.no_grad():
                y = compressed(x)
            file = io.BytesIO()
            torch.save(compressed, file)
            file.seek(0)
            for other in (copy.deepcopy(compressed), torch.load(file, weights_only=False)):
                self.assertTrue(same_bits(other(x), y))

    def test_gradient_of_the_input(self):
        for device in DEVICES:
            linear = nn.Linear(256, 128, dtype=torch.bfloat16, device=device)
            compressed = snug.torch.CompressedLinear.from_linear(linear)
            for shape in ((7, 256), (256,)):
                x = bf16(*shape, device=device, scale=1)
                grads = []
                for layer in (linear, compressed):
                    leaf = x.clone().requires_grad_()
                    layer(leaf).sum().backward()
                    grads.append(leaf.grad)
                torch.testing.assert_close(grads[0], grads[1], rtol=2e-2, atol=2e-2)
                torch.testing.assert_close(linear.bias.grad, compressed.bias.grad)


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

    def test_dense_copies(self):
        """A layer with both forms gives what the faster one gives, and they never differ."""
        for device in DEVICES:
            linears = []
            for seed in (1, 2):
                linear = nn.Linear(512, 256, dtype=torch.bfloat16, device=device)
                linear.weight.data = bf16(256, 512, device=device, seed=seed)
                linears.append(linear)
            old, new = linears
            both = snug.torch.CompressedLinear.from_linear(old, keep_dense=True)
            packed = snug.torch.CompressedLinear.from_linear(old)
            self.assertEqual(both.state_dict().keys(), packed.state_dict().keys())
            self.assertEqual(both.num_bytes, packed.num_bytes + 2 * 256 * 512)
            self.assertIn("a dense copy", repr(both))
            self.assert_is_one_of(both, packed, old, device)
            update = snug.torch.delta(old.weight.data, new.weight.data)
            both.apply_delta(update)
            packed.apply_delta(update)
            self.assertTrue(same_bits(both.dense, new.weight.data))
            new.bias.data = old.bias.data.clone()
            self.assert_is_one_of(both, packed, new, device)
            state = snug.torch.CompressedLinear.from_linear(old).state_dict()
            both.load_state_dict(state)
            packed.load_state_dict(state)
            self.assert_is_one_of(both, packed, old, device)
            self.assertTrue(same_bits(both.decompress().weight, old.weight))
            x = bf16(7, 512, device=device, scale=1).requires_grad_()
            with torch.autocast(device, dtype=torch.float16):
                self.assertEqual(both(x).dtype, torch.bfloat16)
            both(x).sum().backward()
            self.assertTrue(torch.isfinite(x.grad).all())

    def test_dense_copies_stay_bf16(self):
        linear = nn.Linear(512, 256, bias=False, dtype=torch.bfloat16)
        linear.weight.data = bf16(256, 512)
        linear.weight.data[3, 4] = 1e-20  # 0 in FP16
        layer = snug.torch.CompressedLinear.from_linear(linear, keep_dense=True)
        x = bf16(2, 512, scale=1)
        for change in (nn.Module.half, nn.Module.bfloat16, nn.Module.float):
            change(layer)
            self.assertTrue(same_bits(layer.dense, linear.weight.detach()))
            self.assertTrue(same_bits(layer(x), linear(x)))
        layer.verify()
        layer.dense[3, 4] = 0
        with self.assertRaisesRegex(snug.SnugError, "row 3 of the dense copy"):
            layer.verify()

    def test_both_forms_change_or_none(self):
        layers = []
        for seed in (1, 2):
            linear = nn.Linear(512, 256, bias=False, dtype=torch.bfloat16)
            linear.weight.data = bf16(256, 512, seed=seed)
            layers.append(snug.torch.CompressedLinear.from_linear(linear, keep_dense=True))
            linear.weight.data.mul_(2)  # as an optimizer would that still knows it
        layer, other = layers
        before, state = layer.dense.clone(), other.state_dict()
        update = snug.torch.delta(before, other.dense)
        unpack = torch.ops.snug.unpack
        for fails, change in ((1, lambda: layer.load_state_dict(state)),
                              (2, lambda: layer.apply_delta(update))):
            results = [unpack(layer.packed, *layer.header)] * (fails - 1) + [MemoryError()]
            with unittest.mock.patch.object(torch.ops.snug, "unpack", side_effect=results):
                self.assertRaises(MemoryError, change)
            layer.verify()
            self.assertTrue(same_bits(layer.dense, before))

    def test_layers_are_freed_as_they_are_replaced(self):
        model = nn.Sequential(*[nn.Linear(128, 128, dtype=torch.bfloat16) for _ in range(4)])
        for step, kind in ((snug.torch.compress_model, snug.torch.CompressedLinear),
                           (snug.torch.decompress_model, nn.Linear)):
            layers, alive = [weakref.ref(layer) for layer in model], []
            made = kind.__init__

            def count(layer, *args, **kwargs):
                alive.append(sum(layer() is not None for layer in layers))
                made(layer, *args, **kwargs)

            with unittest.mock.patch.object(kind, "__init__", count):
                step(model)
            self.assertEqual(alive, [4, 3, 2, 1])

    def test_dense_states_of_layers_in_several_places(self):
        model = nn.ModuleList([nn.Linear(128, 128, dtype=torch.bfloat16)])
        model.append(model[0])
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        snug.torch.compress_model(model)
        after = dense_state_dict(model)
        self.assertEqual(after.keys(), before.keys())
        self.assertIs(after["0.weight"], after["1.weight"])
        self.assertTrue(same_bits(after["0.weight"], before["0.weight"]))

    def assert_is_one_of(self, both, packed, dense, device):
        for m in (0, 1, 16, 300, 9000):
            x = bf16(m, 512, device=device, scale=1, seed=m)
            is_packed = device != "cpu" and is_faster_packed(0, 256, 512, m)
            self.assertTrue(m < 9000 or not is_packed)  # there the weights are restored first
            self.assertTrue(same_bits(both(x), (packed if is_packed else dense)(x)), m)

    def test_speed_keeps_both_forms(self):
        model = Attention()
        x = bf16(4, 256, scale=1)
        dense = model(x)
        report = snug.torch.compress_model(model, "speed")
        self.assertIn("75", str(report))
        self.assertIn("% more", str(report))
        self.assertTrue(same_bits(model(x), dense))

    def test_speed_says_what_it_knows(self):
        weight = unittest.mock.Mock(is_cuda=True)
        for gain, text in ((1.03, "1.03x of dense"), (0.0, "no estimate for this GPU")):
            choice = unittest.mock.Mock(packed=False, gain=gain)
            with unittest.mock.patch("snug.torch.model.choose", return_value=choice):
                reason = _slower(64, 64, "speed", 8, unittest.mock.Mock(weight=weight))
            self.assertEqual(reason, f"not surely faster compressed at batch 8 ({text})")

    def test_inputs_changed_in_place_are_seen(self):
        model = Attention()
        snug.torch.compress_model(model)
        x = bf16(1, 256, scale=1)
        model.q_proj(x)
        x.mul_(2)
        self.assertTrue(same_bits(model.k_proj(x), model.k_proj(x.clone())))

    def test_new_weights_are_seen_between_parts(self):
        models = [Attention(), Attention()]
        for model in models:
            snug.torch.compress_model(model)
        x = bf16(1, 256, scale=1)
        models[0].q_proj(x)
        models[0].load_state_dict(models[1].state_dict())
        self.assertTrue(same_bits(models[0].k_proj(x), models[1].k_proj(x)))

    def test_state_dict_saves_and_loads(self):
        for fuse in (False, True):
            source, target = Attention(), Attention()
            for model in (source, target):
                snug.torch.compress_model(model, fuse=fuse)
            file = io.BytesIO()
            torch.save(source.state_dict(), file)
            file.seek(0)
            target.load_state_dict(torch.load(file))
            x = bf16(2, 256, scale=1)
            self.assertTrue(same_bits(source(x), target(x)))

    def test_compressed_state_loads_into_a_dense_model(self):
        source, target = Attention(), Attention()
        snug.torch.compress_model(source, fuse=False)
        snug.torch.load_compressed(target, source.state_dict())
        x = bf16(2, 256, scale=1)
        self.assertTrue(same_bits(source(x), target(x)))

    def test_states_without_checksums(self):
        """As older versions saved them."""
        source, target = Attention(), Attention()
        snug.torch.compress_model(source, fuse=False)
        state = {name: tensor for name, tensor in source.state_dict().items()
                 if not name.endswith(".sums")}
        snug.torch.load_compressed(target, state)
        snug.torch.verify_model(target)
        x = bf16(2, 256, scale=1)
        self.assertTrue(same_bits(source(x), target(x)))
        target = Attention()
        with self.assertRaises(KeyError):
            snug.torch.load_compressed(target, {**state, "other.sums": state["o_proj.packed"]})
        self.assertIs(type(target.o_proj), nn.Linear)

    def test_damaged_state_is_refused(self):
        model = Attention()
        snug.torch.compress_model(model, fuse=False)
        state = model.state_dict()
        state["o_proj.packed"] = torch.zeros(8192, dtype=torch.uint8)
        with self.assertRaises(snug.SnugError):
            model.load_state_dict(state)

    def test_damaged_weights_are_refused(self):
        for device in DEVICES:
            for fuse in (False, True):
                model = Attention(device=device)
                snug.torch.compress_model(model, fuse=fuse)
                x = bf16(2, 256, device=device, scale=1)
                y = model(x)
                state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
                state["o_proj.packed"][-1] ^= 4  # of the last strip
                with self.assertRaisesRegex(snug.SnugError, "o_proj.packed.*rows 240 to 255"):
                    model.load_state_dict(state)
                self.assertTrue(same_bits(model(x), y))  # as it was
                state["o_proj.packed"][-1] ^= 4
                state["o_proj.sums"][3] += 1
                with self.assertRaisesRegex(snug.SnugError, "rows 48 to 63"):
                    model.load_state_dict(state)
                state["o_proj.sums"][3] -= 1
                other = {**state, "o_proj.sums": state["o_proj.sums"].float()}
                with self.assertRaisesRegex(TypeError, "int64"):
                    model.load_state_dict(other, assign=True)
                self.assertEqual(model.o_proj.sums.dtype, torch.int64)
                self.assertTrue(same_bits(model(x), y))
                model.load_state_dict(state)
                del state["o_proj.sums"]
                with self.assertRaisesRegex(RuntimeError, "o_proj.sums"):
                    model.load_state_dict(state)

    def test_damaged_weights_do_not_load_into_a_dense_model(self):
        for device in DEVICES:
            source, target = Attention(device=device), Attention(device=device)
            snug.torch.compress_model(source, fuse=False)
            state = {name: tensor.cpu().clone() for name, tensor in source.state_dict().items()}
            packed = state["k_proj.packed"]
            packed[packed.numel() // 2] ^= 1
            x = bf16(2, 256, device=device, scale=1)
            before = target(x)
            with self.assertRaisesRegex(snug.SnugError, "k_proj: .*rows"):
                snug.torch.load_compressed(target, state)
            self.assertTrue(same_bits(target(x), before))
            packed[packed.numel() // 2] ^= 1
            snug.torch.load_compressed(target, state)
            self.assertTrue(same_bits(target(x), source(x)))

    def test_damage_is_found_at_any_time(self):
        for device in DEVICES:
            model = Attention(device=device)
            snug.torch.compress_model(model)
            snug.torch.verify_model(model)
            fused = model.q_proj.fused
            fused.packed[-3000] ^= 128
            with self.assertRaisesRegex(snug.SnugError, "q_proj.fused: .*rows 368 to 383"):
                snug.torch.verify_model(model)
            fused.packed[-3000] ^= 128
            snug.torch.verify_model(model)

    def test_devices_agree_on_checksums(self):
        if len(DEVICES) < 2:
            self.skipTest("no GPU")
        linear = nn.Linear(700, 300, dtype=torch.bfloat16, device="cuda")
        for kind in (0, 1):
            layer = snug.torch.CompressedLinear.from_linear(linear, kind)
            sums = layer.sums.clone()
            layer.cpu().verify()
            self.assertTrue(torch.equal(snug.torch.CompressedLinear(layer.packed).sums, sums.cpu()))

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
        layer = nn.TransformerEncoderLayer(256, 4, 512, batch_first=True, dtype=torch.bfloat16).eval()
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

    def test_what_does_not_fit_is_not_loaded(self):
        source, target = Attention(), Attention()
        snug.torch.compress_model(source, fuse=False)
        state = source.state_dict()
        del state["o_proj.packed"]
        x = bf16(2, 256, scale=1)
        before = target(x)
        with self.assertRaises(KeyError):
            snug.torch.load_compressed(target, state)
        self.assertTrue(same_bits(target(x), before))

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
