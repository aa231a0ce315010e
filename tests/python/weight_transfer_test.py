"""Weight updates from a Trainer to the weights of a model, with a stand-in for vLLM's layers."""

import sys
import threading
import unittest

try:
    import torch
    from torch import nn
except ImportError:
    print("skipped: torch is not installed")
    sys.exit(77)

import snug
import snug.torch
import snug.wire
from snug.vllm import weight_plan
from snug.vllm.trainer import Trainer
from snug.vllm.weight_receiver import Receiver
from snug.vllm.weight_store import Weights
from snug.vllm.weight_update import Refused

DEVICES = ["cpu"] + (["cuda"] if snug._library.has_cuda and torch.cuda.is_available() else [])


class Model(nn.Module):
    """Fuses q and k, takes every second column of o, converts the norm, ties the head."""

    def __init__(self, rank=0):
        super().__init__()
        self.rank = rank
        self.qk = nn.Linear(64, 96, bias=False, dtype=torch.bfloat16)
        self.o = nn.Linear(32, 64, bias=False, dtype=torch.bfloat16)
        self.norm = nn.LayerNorm(64, bias=False, dtype=torch.float32)
        self.embed = nn.Embedding(40, 64, dtype=torch.bfloat16)  # padded from 37
        self.head = nn.Linear(64, 40, bias=False, dtype=torch.bfloat16)
        self.head.weight = self.embed.weight

    def load_weights(self, weights):
        for name, tensor in weights:
            if name == "q":
                self.qk.weight.data[:64].copy_(tensor)
            elif name == "k":
                self.qk.weight.data[64:].copy_(tensor)
            elif name == "o":
                self.o.weight.data.copy_(tensor[:, self.rank::2])
            elif name == "norm":
                self.norm.weight.data.copy_(tensor)
            else:
                self.embed.weight.data[:37].copy_(tensor)
                self.embed.weight.data[37:].fill_(0)


class Layers:
    """`derived` names modules whose parameter is kept negated."""

    def __init__(self, model, derived=()):
        self.model, self.derived = model, [getattr(model, name) for name in derived]
        self.processed, self.fail_at = [], None
        for module in self.derived:
            module.weight.data.neg_()

    def kind(self, module, name):
        return "derived" if any(module is one for one in self.derived) else "direct"

    def process(self, module):
        self.processed.append(module)

    def process_tied(self, written):
        self.processed.append("tied")

    def reload(self, module, tensors):
        if module is self.fail_at:
            raise MemoryError("no memory to process a layer")
        module.weight.data.copy_(-tensors["weight"])


class Worker:
    """A worker of an engine; also the trainer's client."""

    def __init__(self, model, layers):
        self.layers, self.weights = layers, None

        def make(tensors):
            pieces = weight_plan.record(model, tensors, model.load_weights)
            self.weights = Weights(pieces, layers, torch.device("cpu"))
            return self.weights

        self.receiver = Receiver(make)

    def init_weight_transfer_engine(self, info):
        self.receiver.connect(**info)

    def start_weight_update(self):
        pass

    def update_weights(self, info):
        self.receiver.commit(info["commit"])

    def finish_weight_update(self):
        pass


class Both:
    """Two workers behind one client, as with tensor parallelism."""

    def __init__(self, *workers):
        self.workers = workers

    def __getattr__(self, name):
        def call(*arguments):
            errors = []

            def one(worker):
                try:
                    getattr(worker, name)(*arguments)
                except Exception as error:
                    errors.append(error)

            threads = [threading.Thread(target=one, args=(w,)) for w in self.workers]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if errors:
                raise errors[0]
        return call


def versions(num, device="cpu"):
    generator = torch.Generator().manual_seed(1)
    shapes = {"q": (64, 64), "k": (32, 64), "o": (64, 64), "norm": (64,), "embed": (37, 64)}
    masters = {name: 0.02 * torch.randn(*shape, generator=generator)
               for name, shape in shapes.items()}
    for _ in range(num):
        yield {name: master.to(torch.float32 if name == "norm" else torch.bfloat16).to(device)
               for name, master in masters.items()}
        for master in masters.values():
            master += 1e-6 * torch.randn(master.shape, generator=generator)


def state(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


class Updates(unittest.TestCase):
    def setUp(self):
        self.closing = []

    def tearDown(self):
        for handle in self.closing:
            handle.close()

    def pair(self, weights, rank=0, loaded=None, **derived):
        model = Model(rank)
        model.load_weights((loaded or weights).items())
        worker = Worker(model, Layers(model, **derived))
        return model, worker

    def trainer(self, client, holder):
        trainer = Trainer(client, lambda: iter(holder.items()))
        self.closing.append(trainer)
        return trainer

    def same(self, model, weights, derived=()):
        fresh = Model(model.rank)
        fresh.load_weights(weights.items())
        for name, tensor in fresh.state_dict().items():
            sign = -1 if name.partition(".")[0] in derived else 1
            self.assertTrue(torch.equal(sign * model.state_dict()[name], tensor), name)

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
        holder = dict(first)
        model, worker = self.pair(first)
        trainer = self.trainer(worker, holder)
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
            self.assertTrue(all(torch.equal(old[n], t) for n, t in model.state_dict().items()))
        del workers[1].weights.verify
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
        self.assertTrue(all(torch.equal(before[n], t) for n, t in model.state_dict().items()))

    def test_another_version(self):
        first, second = versions(2)
        holder = dict(first)
        model, worker = self.pair(first)
        trainer = self.trainer(worker, holder)
        before = state(model)
        holder.update(second)
        trainer._workers[0].hashes[0] ^= 1
        with self.assertRaisesRegex(Refused, "but this engine serves version"):
            trainer.send_weights()
        self.assertTrue(all(torch.equal(before[n], t) for n, t in model.state_dict().items()))

    def test_a_source_that_fails(self):
        first, second = versions(2)
        model, worker = self.pair(first)
        holder = dict(first)
        trainer = self.trainer(worker, holder)
        before = state(model)
        holder.update(second)

        def broken():
            yield from list(holder.items())[:2]
            raise OSError("a shard is lost")

        trainer._source = broken
        with self.assertRaisesRegex(OSError, "a shard is lost"):
            trainer.send_weights()
        self.assertTrue(all(torch.equal(before[n], t) for n, t in model.state_dict().items()))

    def test_a_source_that_leaves_out_or_changes_tensors(self):
        first, second = versions(2)
        model, worker = self.pair(first)
        holder = dict(first)
        trainer = self.trainer(worker, holder)
        before = state(model)
        for change, words in (({"k": second["k"].view(64, 32)}, "k of shape"),
                              ({"more": second["k"]}, "more of shape"), ({}, "left out 5 tensors")):
            holder.clear()
            holder.update(change)
            with self.assertRaisesRegex(ValueError, words):
                trainer.send_weights()
        self.assertTrue(all(torch.equal(before[n], t) for n, t in model.state_dict().items()))
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
        holder = dict(first)
        model, worker = self.pair(first)
        trainer = self.trainer(worker, holder)
        before = state(model)
        holder.update(second)
        commit, worker.update_weights = worker.update_weights, lambda info: 1 / 0
        with self.assertRaises(ZeroDivisionError):
            trainer.send_weights()
        self.assertTrue(all(torch.equal(before[n], t) for n, t in model.state_dict().items()))
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
