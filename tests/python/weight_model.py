"""A model with workers and a stand-in for vLLM's layers, for the tests of weight updates."""

import sys
import threading
import unittest

try:
    import torch
    from torch import nn
except ImportError:
    print("skipped: torch is not installed")
    sys.exit(77)

from snug.vllm import weight_plan
from snug.vllm.trainer import Trainer
from snug.vllm.weight_receiver import Receiver
from snug.vllm.weight_store import Weights


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

        self.receiver, self.is_active = Receiver(make), False

    def init_weight_transfer_engine(self, info):
        self.receiver.connect(**info)

    def start_weight_update(self):
        if self.is_active:
            raise RuntimeError("a weight update is already active")
        self.is_active = True

    def update_weights(self, info):
        try:
            self.receiver.commit(info["commit"])
        except BaseException:
            self.is_active = False
            raise

    def finish_weight_update(self):
        if not self.is_active:
            raise RuntimeError("finish without start")
        self.is_active = False


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


class TestCase(unittest.TestCase):
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

    def one_worker(self, weights):
        """A model and its worker, what the trainer sends next, and the trainer."""
        model, worker = self.pair(weights)
        holder = dict(weights)
        return model, worker, holder, self.trainer(worker, holder)

    def unchanged(self, model, before):
        self.assertTrue(all(torch.equal(before[n], t) for n, t in model.state_dict().items()))

    def same(self, model, weights, derived=()):
        fresh = Model(model.rank)
        fresh.load_weights(weights.items())
        for name, tensor in fresh.state_dict().items():
            sign = -1 if name.partition(".")[0] in derived else 1
            self.assertTrue(torch.equal(sign * model.state_dict()[name], tensor), name)
