"""Weight updates that must not be applied, or fail: what an engine serves, and what it says."""

import unittest

from weight_model import Both, Model, TestCase, state, versions  # skips without torch
import torch

import snug.torch
from snug.vllm import weight_plan
from snug.vllm.trainer import Trainer
from snug.vllm.weight_update import Entry, Refused


class Refusals(TestCase):
    def test_one_worker_that_refuses_stops_all(self):
        first, second = versions(2)
        holder = dict(first)
        models, workers = zip(*(self.pair(first, rank) for rank in (0, 1)))
        trainer = self.trainer(Both(*workers), holder)
        before = [state(model) for model in models]
        holder.update(second)
        workers[1].weights.verify = lambda received: 1 / 0
        with self.assertRaisesRegex(Refused, "division by zero"):
            trainer.send_weights()
        for model, old in zip(models, before):
            self.unchanged(model, old)
        del workers[1].weights.verify
        self.assertEqual(trainer.send_weights().num_whole, 0)
        for model in models:
            self.same(model, second)

    def test_another_version(self):
        first, second = versions(2)
        model, worker, holder, trainer = self.one_worker(first)
        before = state(model)
        holder.update(second)
        trainer._workers[0].hashes[0] ^= 1
        with self.assertRaisesRegex(Refused, "but this engine serves version"):
            trainer.send_weights()
        self.unchanged(model, before)

    def test_a_source_that_fails(self):
        first, second = versions(2)
        model, worker, holder, trainer = self.one_worker(first)
        before = state(model)
        holder.update(second)

        def broken():
            yield from list(holder.items())[:2]
            raise OSError("a shard is lost")

        trainer._source = broken
        with self.assertRaisesRegex(OSError, "a shard is lost"):
            trainer.send_weights()
        self.unchanged(model, before)

    def test_a_source_that_leaves_out_or_changes_tensors(self):
        first, second = versions(2)
        model, worker, holder, trainer = self.one_worker(first)
        before = state(model)
        for change, words in (({"k": second["k"].view(64, 32)}, "k of shape"),
                              ({"more": second["k"]}, "more of shape"), ({}, "left out 5 tensors")):
            holder.clear()
            holder.update(change)
            with self.assertRaisesRegex(ValueError, words):
                trainer.send_weights()
        self.unchanged(model, before)
        holder.clear()
        holder.update(second)
        trainer.send_weights()
        self.same(model, second)

    def test_other_ranks_gather_as_many_tensors(self):
        """Those of FSDP are gathered by all ranks together, so also after an error of rank 0."""
        first, _ = versions(2)
        _, worker = self.pair(first)
        gathered = []

        class Shard:
            def __init__(self, name):
                self.name, self.shape = name, first[name].shape

            def full_tensor(self):
                gathered.append(self.name)
                return first[self.name]

        trainer = Trainer(worker, lambda: ((name, Shard(name)) for name in first),
                          metadata=[(n, t.dtype, t.shape) for n, t in first.items()])
        self.closing.append(trainer)
        trainer._workers[0].hashes[0] ^= 1
        worker.receiver._weights.read_hashes = lambda: 1 / 0
        for words in ("but this engine serves", "division by zero"):
            gathered.clear()
            with self.assertRaisesRegex(ValueError, words):
                trainer.send_weights()
            self.assertEqual(gathered, list(first))

    def test_after_a_trainer_that_died_between_start_and_commit(self):
        first, second = versions(2)
        model, worker, holder, trainer = self.one_worker(first)
        worker.start_weight_update()
        holder.update(second)
        trainer.send_weights()
        self.same(model, second)
        self.assertFalse(worker.is_active)

    def test_a_commit_that_fails_half_way(self):
        """The error says so, and the next update puts it right."""
        first, second, third = versions(3)
        model, worker, holder, trainer = self.one_worker(first)
        worker.layers.process = lambda module: 1 / 0
        holder.update(second)
        with self.assertRaisesRegex(RuntimeError, "only a part of the update.*division by zero"):
            trainer.send_weights()
        worker.layers.process = lambda module: None
        worker.layers.reload = lambda module, tensors: module.weight.data.copy_(tensors["weight"])
        holder.update(third)
        trainer.send_weights()
        self.same(model, third)

    def test_whole_tensors_that_are_not_what_they_should_be(self):
        first = next(versions(1))
        model, worker = self.pair(first)
        self.trainer(worker, first)
        frames = [snug.torch.compress(torch.zeros(1 << 20, dtype=torch.bfloat16)),
                  snug.torch.compress(torch.zeros(64 * 64, dtype=torch.float16))]
        for frame in frames:
            with self.assertRaisesRegex(Refused, "piece 0 came as"):
                worker.weights.verify([(Entry(0, "whole", frame.numel(), 1), frame)])
        short = torch.zeros(8, dtype=torch.uint8)
        with self.assertRaisesRegex(Refused, "the delta of piece 0: "):
            worker.weights.verify([(Entry(0, "delta", 8, 1), short)])

    def test_tensors_that_nobody_takes(self):
        first = next(versions(1))
        model, worker = self.pair(first)
        model.load_weights = lambda weights: None
        with self.assertRaisesRegex(ValueError, "no place for 5 of the tensors, such as q"):
            Trainer(worker, lambda: iter(first.items()))

    def test_a_plan_that_fails_is_told_to_the_trainer(self):
        first = next(versions(1))
        model, worker = self.pair(first)
        model.load_weights = lambda weights: 1 / 0
        with self.assertRaisesRegex(Refused, "division by zero"):
            Trainer(worker, lambda: iter(first.items()))

    def test_a_trainer_that_never_commits(self):
        first, second = versions(2)
        model, worker, holder, trainer = self.one_worker(first)
        before = state(model)
        holder.update(second)
        commit, worker.update_weights = worker.update_weights, lambda info: 1 / 0
        with self.assertRaises(ZeroDivisionError):
            trainer.send_weights()
        self.unchanged(model, before)
        with self.assertRaisesRegex(Refused, "not staged"):
            worker.receiver.commit("another")
        worker.update_weights = commit
        self.assertEqual(trainer.send_weights().num_whole, 0)
        self.same(model, second)

    def test_weights_that_are_computed_with(self):
        model = Model()
        with self.assertRaisesRegex(ValueError, "computes with these weights.*norm.weight"):
            weight_plan.record(
                model, [("norm", torch.float32, (64,))],
                lambda weights: model.norm.weight.data.copy_(next(weights)[1] + 1))


if __name__ == "__main__":
    unittest.main()
