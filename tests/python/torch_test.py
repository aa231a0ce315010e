"""snug.torch on the CPU and, where there is one, the GPU: tensors, deltas and layers."""

import copy
import io
import subprocess
import sys
import unittest

from torch_support import DEVICES, bf16, same_bits  # first: without torch, it skips

import torch
from torch import nn

import snug
import snug.torch
from snug._library import memory_of


class Wrapper(torch.Tensor):
    """A tensor that stands for others, as DTensor does: its address is 0."""

    @staticmethod
    def __new__(cls):
        return torch.Tensor._make_wrapper_subclass(cls, (64, 64), dtype=torch.bfloat16)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return args[0]  # detach


class Tensors(unittest.TestCase):
    def test_round_trips_on_every_device(self):
        for device in DEVICES:
            for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.int32, torch.uint8):
                values = (torch.randn(3, 5000) * 50).to(dtype).to(device)
                frame = snug.torch.compress(values)
                self.assertTrue(torch.equal(snug.torch.decompress(frame, values.shape), values))

    def test_every_bf16_pattern(self):
        for device in DEVICES:
            values = torch.arange(65536, dtype=torch.int32).to(device, torch.int16)
            values = values.view(torch.bfloat16)
            for codec in ("entropy", "fixed"):
                frame = snug.torch.compress(values, codec)
                self.assertTrue(same_bits(snug.torch.decompress(frame), values))

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

    def test_tensors_without_memory_are_refused(self):
        values = Wrapper()
        linears = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
        for linear in linears:
            linear.weight = nn.Parameter(Wrapper(), requires_grad=False)
        for call in (snug.torch.compress, snug.torch.tensor_hash, memory_of,
                     lambda values: snug.torch.delta(values, values),
                     lambda values: snug.torch.save_file({"a": values, "b": values}, "none")):
            with self.assertRaisesRegex(TypeError, "without memory of its own"):
                call(values)
        for layer in snug.torch.compress_model(linears).layers:
            self.assertIn("without memory of its own", layer.kept_dense)

    def test_negated_and_conjugated_views(self):
        """Their memory holds other values."""
        negated = torch.randn(300, dtype=torch.complex64).conj().imag
        self.assertTrue(negated.is_neg())
        plain = negated.resolve_neg()
        frame = snug.torch.compress(negated)
        self.assertTrue(torch.equal(snug.torch.decompress(frame), plain))
        self.assertEqual(snug.torch.tensor_hash(negated), snug.torch.tensor_hash(plain))
        with self.assertRaisesRegex(ValueError, "resolve_conj"):
            memory_of(torch.zeros(3, dtype=torch.complex64).conj())

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
        linear = nn.Linear(256, 256, dtype=torch.bfloat16)
        compressed = snug.torch.CompressedLinear.from_linear(linear)
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

    def test_autocast_casts_inputs(self):
        for device in DEVICES:
            linear = nn.Linear(256, 128, dtype=torch.bfloat16, device=device)
            compressed = snug.torch.CompressedLinear.from_linear(linear)
            for dtype in (torch.float32, torch.float16):
                x = bf16(7, 256, device=device, scale=1)
                with self.assertRaisesRegex(TypeError, "expected BF16"):
                    compressed(x.to(dtype))
                with torch.autocast(device, dtype=torch.bfloat16):
                    y = compressed(x.to(dtype))
                self.assertTrue(same_bits(y, compressed(x)))

    def test_gradients_stay_bf16_under_autocast(self):
        for device in DEVICES:
            linear = nn.Linear(256, 128, dtype=torch.bfloat16, device=device)
            compressed = snug.torch.CompressedLinear.from_linear(linear)
            x = bf16(7, 256, device=device, scale=1).requires_grad_()
            with torch.autocast(device, dtype=torch.float16):
                y = compressed(x)
                y.backward(torch.full_like(y, 2.0 ** 20))  # does not fit into FP16
            self.assertTrue(torch.isfinite(x.grad).all())


if __name__ == "__main__":
    unittest.main()
