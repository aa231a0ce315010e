"""Weights that are saved, loaded, updated and damaged: no two forms of them may differ."""

import io
import unittest
import unittest.mock

from torch_support import DEVICES, Attention, bf16, same_bits  # first: without torch, it skips

import torch
from torch import nn

import snug
import snug.torch
from snug.torch.choice import is_faster_packed
from snug.torch.model import dense_state_dict


class States(unittest.TestCase):
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

    def test_a_model_that_does_not_fit_stays_unchanged(self):
        models = [nn.Sequential(nn.Linear(256, 256, dtype=torch.bfloat16), nn.LayerNorm(256),
                                nn.LayerNorm(256)) for _ in range(2)]
        snug.torch.compress_model(models[0], fuse=False)
        state, target = models[0].state_dict(), models[1]
        linear = target[0]
        before = {name: tensor.clone() for name, tensor in target.state_dict().items()}
        state["1.weight"] = 3 * torch.ones(256)  # would be written before 2.weight is refused
        wrong = {**state, "2.weight": torch.ones(257)}
        with self.assertRaisesRegex(ValueError, "2.weight: the file has the shape .257"):
            snug.torch.load_compressed(target, wrong)
        self.assertIs(target[0], linear)
        for name, tensor in target.state_dict().items():
            self.assertTrue(torch.equal(tensor, before[name]), name)
        with unittest.mock.patch.object(target, "load_state_dict", side_effect=MemoryError), \
                self.assertRaises(MemoryError):
            snug.torch.load_compressed(target, state)
        self.assertIs(target[0], linear)


if __name__ == "__main__":
    unittest.main()
