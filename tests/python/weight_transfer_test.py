"""Weight updates from a Trainer to the weights of a model, with a stand-in for vLLM's layers."""

import unittest

from weight_model import Both, TestCase, state, versions  # skips without torch
import torch

import snug
import snug.torch

DEVICES = ["cpu"] + (["cuda"] if snug._library.has_cuda and torch.cuda.is_available() else [])


class Updates(TestCase):
    def test_deltas(self):
        for device in DEVICES:
            first, *later = versions(4, device)
            holder = dict(first)
            model, worker = self.pair({n: t.cpu() for n, t in first.items()})
            addresses = [p.data_ptr() for p in model.parameters()]
            trainer = self.trainer(worker, holder)
            for new in later:
                holder.update(new)
                sent = trainer.send_weights()
                self.assertEqual(sent.num_whole, 0)
                self.assertGreater(sent.num_deltas, 0)
                self.same(model, {n: t.cpu() for n, t in new.items()})
            self.assertEqual([p.data_ptr() for p in model.parameters()], addresses)
            self.assertIn("tied", worker.layers.processed)

    def test_tensors_that_are_parts_of_one_buffer(self):
        first, second = versions(2)
        model, worker, holder, trainer = self.one_worker(first)
        buffer = torch.cat([tensor.flatten() for tensor in second.values()
                            if tensor.dtype == torch.bfloat16])
        at = 0
        for name, tensor in second.items():
            if tensor.dtype == torch.bfloat16:
                holder[name] = buffer[at:at + tensor.numel()].view(tensor.shape)
                at += tensor.numel()
        holder["norm"] = second["norm"]
        trainer.send_weights()
        self.same(model, second)

    def test_an_unchanged_model_sends_nothing(self):
        first = next(versions(1))
        _, worker = self.pair(first)
        sent = self.trainer(worker, first).send_weights()
        self.assertEqual((sent.num_deltas, sent.num_whole, sent.wire_bytes), (0, 0, 0))

    def test_two_workers_with_parts(self):
        first, second = versions(2)
        holder = dict(first)
        models, workers = zip(*(self.pair(first, rank) for rank in (0, 1)))
        trainer = self.trainer(Both(*workers), holder)
        holder.update(second)
        self.assertEqual(trainer.send_weights().num_whole, 0)
        for model in models:
            self.same(model, second)

    def test_whole_tensors_where_there_is_no_base(self):
        first, second, third = versions(3)
        other = {name: tensor + 1 for name, tensor in first.items()}
        holder = dict(second)
        model, worker = self.pair(first, loaded=other)
        trainer = self.trainer(worker, holder)
        worker.layers.reload = lambda module, tensors: module.weight.data.copy_(tensors["weight"])
        self.assertEqual(trainer.send_weights().num_deltas, 0)
        self.same(model, second)
        holder.update(third)
        self.assertEqual(trainer.send_weights().num_whole, 0)
        self.same(model, third)

    def test_layers_that_cannot_be_read_back(self):
        first, second, third = versions(3)
        holder = dict(first)
        model, worker = self.pair(first, derived=("qk", "o"))
        trainer = self.trainer(worker, holder)
        holder.update(second)
        self.assertEqual(trainer.send_weights().num_whole, 3)
        self.same(model, second, ("qk", "o"))
        holder.update(third)
        self.assertEqual(trainer.send_weights().num_whole, 0)
        self.same(model, third, ("qk", "o"))
        before = state(model)
        holder.update(first)
        worker.layers.fail_at = model.o
        with self.assertRaises(MemoryError):
            trainer.send_weights()
        self.unchanged(model, before)


class Hash(unittest.TestCase):
    def test_equal_on_every_device(self):
        data = torch.randn(10_001, generator=torch.Generator().manual_seed(3)).bfloat16()
        other = data.clone()
        other[77] += 1
        numbers = {snug.torch.tensor_hash(data.to(device)) for device in DEVICES}
        self.assertEqual(len(numbers), 1)
        self.assertNotEqual(snug.torch.tensor_hash(other), numbers.pop())


if __name__ == "__main__":
    unittest.main()
