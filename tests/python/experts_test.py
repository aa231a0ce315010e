"""snug.torch.CompressedExperts on the CPU and, where there is one, the GPU."""

import unittest
import warnings

from torch_support import DEVICES, bf16  # first: without torch, it skips

import torch
from torch import nn

import snug.torch
from snug.torch.banks import pack_bank, replace_expert, try_pack_bank
from snug.torch.experts import CompressedExperts
from snug.torch.grouped import grouped


def reference(x, w13, w2, ids, weights):
    y = torch.zeros(x.shape, dtype=torch.float64)
    x, w13, w2 = (t.double().cpu() for t in (x, w13, w2))
    for row, experts in enumerate(ids.tolist()):
        for place, expert in enumerate(experts):
            if 0 <= expert < w2.shape[0]:
                gate, up = (w13[expert] @ x[row]).chunk(2)
                h = nn.functional.silu(gate) * up
                y[row] += weights[row, place].cpu() * (w2[expert] @ h)
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

    def test_ids_beyond_32_bits_add_nothing(self):
        for device in DEVICES:
            layer = CompressedExperts.from_weights(bf16(2, 32, 16, device=device),
                                                   bf16(2, 16, 16, device=device))
            x, weights = bf16(1, 16, device=device), torch.ones((1, 2), device=device)
            ids = torch.tensor([[(1 << 32) + 1, -(1 << 32)]], device=device)
            self.assertEqual(float(layer(x, ids, weights).abs().max()), 0)

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
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            self.assertEqual(try_pack_bank(w13, 2, 1)[2], 1)
        self.assertEqual(layer.kind, 0)
        self.assertTrue(torch.equal(layer.weights()[0].view(torch.int16), w13.view(torch.int16)))

    def test_wrong_shapes_are_refused(self):
        with self.assertRaisesRegex(ValueError, "do not match"):
            CompressedExperts.from_weights(bf16(2, 32, 16), bf16(2, 16, 15))
        with self.assertRaisesRegex(TypeError, "only BF16"):
            CompressedExperts.from_weights(bf16(2, 32, 16).float(), bf16(2, 16, 16))
        with self.assertRaisesRegex(TypeError, "three dimensions"):
            CompressedExperts.from_weights(bf16(2, 32, 16), bf16(16, 16))

    def test_wrong_inputs_are_refused(self):
        for device in DEVICES:
            layer = CompressedExperts.from_weights(bf16(2, 32, 16, device=device),
                                                   bf16(2, 16, 16, device=device))
            x, ids = bf16(3, 16, device=device), torch.zeros((3, 1), dtype=torch.int64,
                                                             device=device)
            layer(x, ids, ids.float())
            for bad_x in (x.float(), x[:, :8], x[0], x[:2]):
                with self.assertRaises(TypeError):
                    layer(bad_x, ids, ids.float())
            with self.assertRaisesRegex(TypeError, "int32 or int64"):
                layer(x, ids.float(), ids.float())
            if device == "cuda":
                with self.assertRaisesRegex(ValueError, "one device"):
                    layer(x, ids.cpu(), ids.float())
            for bank in (layer.gate_up[:-1], layer.gate_up.float(), layer.down):
                with self.assertRaisesRegex(TypeError, "expected the"):
                    torch.ops.snug.experts(x, bank, layer.down, ids, ids.float(), 2, 16, 16,
                                           layer.kind)

    def test_deltas_change_one_expert_in_place(self):
        for device in DEVICES:
            w13, w2 = bf16(3, 96, 72, device=device), bf16(3, 72, 48, device=device, seed=1)
            layer = CompressedExperts.from_weights(w13, w2)
            places = layer.gate_up.data_ptr(), layer.down.data_ptr()
            new13, new2 = w13.clone(), w2.clone()
            new13[1, 5] += 0.01
            new2[1, :, 3] *= 1.5
            layer.apply_delta(1, gate_up=snug.torch.delta(w13[1], new13[1]),
                              down=snug.torch.delta(w2[1], new2[1]))
            self.assertEqual(places, (layer.gate_up.data_ptr(), layer.down.data_ptr()))
            for got, want in zip(layer.weights(), (new13, new2)):
                self.assertTrue(torch.equal(got, want))
            noise = torch.randint(0, 1 << 15, (72, 48), generator=torch.Generator().manual_seed(1))
            noise = noise.to(torch.int16).view(torch.bfloat16).to(device)
            with self.assertRaisesRegex(ValueError, "do not compress"):
                layer.apply_delta(1, gate_up=snug.torch.delta(new13[1], w13[1]),
                                  down=snug.torch.delta(new2[1], noise))
            for number, error in ((-1, ValueError), (3, ValueError), (1 << 64, ValueError),
                                  ("1", TypeError)):
                with self.assertRaisesRegex(error, "number of an expert"):
                    layer.apply_delta(number, down=snug.torch.delta(new2[1], w2[1]))
            with self.assertRaises(snug.SnugError):  # made from another expert
                layer.apply_delta(0, down=snug.torch.delta(new2[1], w2[1]))
            with self.assertRaisesRegex(TypeError, "give a delta: gate_up, down or both"):
                layer.apply_delta(0)
            for got, want in zip(layer.weights(), (new13, new2)):
                self.assertTrue(torch.equal(got, want))

    def test_gradients_of_rows_and_of_routing(self):
        for device in DEVICES:
            w13, w2 = bf16(5, 96, 72, device=device), bf16(5, 72, 48, device=device, seed=1)
            layer = CompressedExperts.from_weights(w13, w2)
            x, grad = bf16(9, 72, scale=1, seed=2), bf16(9, 72, scale=1, seed=3)
            ids = torch.randint(-1, 6, (9, 3), generator=torch.Generator().manual_seed(1))
            weights = torch.rand((9, 3), generator=torch.Generator().manual_seed(1))
            found = [t.to(device).requires_grad_() for t in (x, weights)]
            layer(found[0], ids.to(device), found[1]).backward(grad.to(device))
            exact = [t.detach().double().requires_grad_() for t in (x, weights)]
            reference(exact[0], w13, w2, ids, exact[1]).backward(grad.double())
            for got, want in zip(found, exact):
                self.assertEqual(got.grad.dtype, got.dtype)
                error = (got.grad.double().cpu() - want.grad).norm() / want.grad.norm()
                self.assertLess(float(error), 0.02, device)

    def test_damage_is_found_at_any_time(self):
        for device in DEVICES:
            w13, w2 = bf16(3, 96, 72, device=device), bf16(3, 72, 48, device=device, seed=1)
            layer = CompressedExperts.from_weights(w13, w2)
            model = nn.ModuleDict({"experts": layer})
            layer.apply_delta(1, gate_up=snug.torch.delta(w13[1], w13[2]))
            snug.torch.verify_model(model)
            layer.down[len(layer.down) // 3 + 4096] += 1
            with self.assertRaisesRegex(snug.SnugError, "experts: down: .*expert 1 does not match"):
                snug.torch.verify_model(model)
            with self.assertRaisesRegex(snug.SnugError, "experts.down: .*expert 1"):
                model.load_state_dict(model.state_dict())  # it is not saved as if it was right
            layer.down[len(layer.down) // 3 + 4096] -= 1
            slots = layer.gate_up.view(3, -1)
            slots[2, :256] = CompressedExperts.from_weights(w13[:, :64], w2[..., :32]).gate_up[:256]
            with self.assertRaisesRegex(snug.SnugError, "expert 2"):
                snug.torch.verify_model(model)

    def test_rows_that_fill_no_strip(self):
        for device in DEVICES:
            for n, k in ((1, 1), (20, 24), (33, 7)):
                w13, w2 = bf16(3, 2 * n, k, device=device), bf16(3, k, n, device=device, seed=1)
                layer = CompressedExperts.from_weights(w13, w2)
                layer.verify()
                for got, want in zip(layer.weights(), (w13, w2)):
                    self.assertTrue(torch.equal(got, want))

    def test_states_of_distributed_checkpoints(self):
        """torch looks each of their names up in the module."""
        from torch.distributed.checkpoint.state_dict import (get_model_state_dict,
                                                             set_model_state_dict)
        models = [nn.Sequential(CompressedExperts.from_weights(bf16(2, 32, 16, seed=seed),
                                                               bf16(2, 16, 16, seed=seed)))
                  for seed in (1, 2)]
        set_model_state_dict(models[1], get_model_state_dict(models[0]))
        self.assertTrue(torch.equal(models[1][0].gate_up, models[0][0].gate_up))

    def test_autocast_takes_no_other_type(self):
        """Products of large BF16 values do not fit into FP16."""
        for device in DEVICES:
            w13 = bf16(2, 96, 72, device=device, scale=200)
            layer = CompressedExperts.from_weights(w13, bf16(2, 72, 48, device=device))
            ids = torch.tensor([[0], [1]], device=device)
            found = []
            for is_on in (False, True):
                x = bf16(2, 72, device=device, scale=8).requires_grad_()
                with torch.autocast(device, dtype=torch.float16, enabled=is_on):
                    y = layer(x, ids, torch.ones((2, 1), device=device))
                    y.backward(torch.ones_like(y))
                found.append((y, x.grad))
            for got, want in zip(found[1], found[0]):
                self.assertTrue(torch.equal(got, want) and torch.isfinite(got).all(), device)

    def test_a_slot_takes_no_other_type(self):
        """It would be rounded without a word."""
        bank, shape = pack_bank(bf16(2, 32, 16))
        before = bank.clone()
        for weight in (bf16(32, 16).float(), bf16(16, 32)):
            with self.assertRaisesRegex(TypeError, "BF16 of shape"):
                replace_expert(bank, shape, 1, weight)
        self.assertTrue(torch.equal(bank, before))

    def test_state_dicts(self):
        for device in DEVICES:
            layers = [CompressedExperts.from_weights(bf16(2, 96, 72, device=device, seed=seed),
                                                     bf16(2, 72, 48, device=device, seed=seed))
                      for seed in (1, 2)]
            state = {name: bank.clone() for name, bank in layers[0].state_dict().items()}
            layers[1].load_state_dict(state)
            for got, want in zip(layers[1].weights(), layers[0].weights()):
                self.assertTrue(torch.equal(got, want))
            state["down"][len(state["down"]) // 2 + 8] += 1  # in the header of expert 1
            with self.assertRaisesRegex(snug.SnugError, "down: .*expert 1"):
                layers[1].load_state_dict(state)
            state["down"][len(state["down"]) // 2 + 8] -= 1
            self.assertEqual(set(state), {"gate_up", "down", "gate_up_sums", "down_sums"})
            state["down"][len(state["down"]) // 2 + 4096] += 1  # a weight of expert 1
            with self.assertRaisesRegex(snug.SnugError, "down: .*expert 1 does not match"):
                layers[1].load_state_dict(state)
            state["down"][len(state["down"]) // 2 + 4096] -= 1
            with self.assertRaisesRegex(TypeError, "has checksums of int64"):
                layers[1].load_state_dict({**state, "down_sums": state["down_sums"][0]})
            layers[1].to("meta").to_empty(device=device)
            layers[1].gate_up.zero_()
            with self.assertRaisesRegex(snug.SnugError, "gate_up: expert 0: .*not a packed matrix"):
                layers[1].verify()
            older = {name: state[name] for name in ("gate_up", "down")}
            layers[1].load_state_dict(older)
            layers[1].verify()
            with self.assertRaisesRegex(TypeError, "expected the"):
                layers[1].load_state_dict({**state, "down": layers[0].down.float()})
            with self.assertRaisesRegex(RuntimeError, "size mismatch"):
                layers[1].load_state_dict({**state, "down": state["down"][:-1]})
            for got, want in zip(layers[1].weights(), layers[0].weights()):
                self.assertTrue(torch.equal(got, want))


class Grouped(unittest.TestCase):
    def test_rows_are_close_to_fp64(self):
        for device in DEVICES:
            w = bf16(4, 64, 72, device=device)
            bank, shape = pack_bank(w, 2)
            x = bf16(4, 10, 72, device=device, scale=1)
            counts = [3, 0, 10, 7]
            ids = torch.tensor([e if i < counts[e] else -1 for e in range(4) for i in range(10)])
            want = torch.zeros((40, 64), dtype=torch.float64)
            for row, e in enumerate(ids.tolist()):
                if e >= 0:
                    want[row] = w[e].double().cpu() @ x.view(40, 72)[row].double().cpu()
            for dtype in (torch.int32, torch.int64):
                y = grouped(x.view(40, 72), bank, shape, ids=ids.to(device, dtype))
                self.assertLess(float((y.double().cpu() - want).abs().max()), 0.02)
                masked = grouped(x, bank, shape,
                                 counts=torch.tensor(counts, device=device, dtype=dtype))
                self.assertLess(float((masked.view(40, 64) - y).abs().max()), 0.02)
                self.assertEqual(float(y[ids < 0].abs().max()), 0)

    def test_wrong_inputs_are_refused(self):
        bank, shape = pack_bank(bf16(2, 32, 16))
        x, ids = bf16(3, 16), torch.zeros(3, dtype=torch.int64)
        with self.assertRaisesRegex(TypeError, "either ids or counts"):
            grouped(x, bank, shape)
        with self.assertRaisesRegex(TypeError, "do not fit"):
            grouped(x, bank, shape, ids=ids[:2])
        with self.assertRaisesRegex(TypeError, "3 dimensions"):
            grouped(x, bank, shape, counts=ids[:2])
        with self.assertRaisesRegex(TypeError, "int32 or int64"):
            grouped(x, bank, shape, ids=ids.float())
        with self.assertRaisesRegex(NotImplementedError, "no gradients"):
            grouped(x.requires_grad_(), bank, shape, ids=ids).sum().backward()

if __name__ == "__main__":
    unittest.main()
