"""snug.vllm.kv_worker without vLLM: what it refuses, and what it tells the engine then."""

import dataclasses
import importlib
import json
import os
import sys
import tempfile
import time
import types
import unittest
import unittest.mock
from pathlib import Path

try:
    import numpy
except ImportError:
    print("skipped: needs numpy")
    sys.exit(77)

from kv_caches import Cache

BLOCKS, TOKENS = 8, 16
DOORS = Path(__file__).parents[1] / "doors"


@dataclasses.dataclass
class Stats:
    data: dict = None


def worker_module():
    """snug.vllm.kv_worker over stand-ins for the few names of vLLM and torch that it needs."""
    above = "vllm.distributed.kv_transfer.kv_connector.v1.metrics".split(".")
    names = [".".join(above[:i + 1]) for i in range(len(above))]
    stubs = {name: types.ModuleType(name) for name in (
        *names, "vllm.logger", "vllm.v1", "vllm.v1.metrics", "vllm.v1.metrics.utils", "torch")}
    stubs["vllm.logger"].init_logger = lambda _: unittest.mock.Mock()
    stubs[names[-1]].KVConnectorPromMetrics, stubs[names[-1]].KVConnectorStats = object, Stats
    stubs["vllm.v1.metrics.utils"].create_metric_per_engine = None
    stubs["torch"].cuda = types.SimpleNamespace(is_available=lambda: False)
    with unittest.mock.patch.dict(sys.modules, stubs):
        for name in ("kv_worker", "kv_stats"):
            sys.modules.pop(f"snug.vllm.{name}", None)
        return importlib.import_module("snug.vllm.kv_worker")


module = worker_module()


def checked_module():
    """tests/doors/kv_checked.py over stand-ins and the module above."""
    above = "vllm.v1.core.sched.scheduler".split(".")
    names = [".".join(above[:i + 1]) for i in range(len(above))]
    stubs = {name: types.ModuleType(name) for name in (*names, "snug.vllm.kv_connector", "torch")}
    stubs[names[-1]].Scheduler = stubs["snug.vllm.kv_connector"].SnugConnector = object
    stubs["snug.vllm.kv_worker"] = module
    with (unittest.mock.patch.dict(sys.modules, stubs),
          unittest.mock.patch.object(sys, "path", [str(DOORS), *sys.path])):
        return importlib.import_module("kv_checked")


def cache(value, dtype="bfloat16"):
    """One head of a layer."""
    kind = numpy.uint8 if dtype == "uint8" else numpy.uint16
    made = Cache(numpy.full((2, BLOCKS, TOKENS, 1, 64), value, kind))
    made.dtype, made.device, made.is_cuda = f"torch.{dtype}", "cpu", False
    return made


ALONE = module.Rank(0, 0, 1, 1)


class Worker(unittest.TestCase):
    def worker(self, rank, kept, is_producer, cache_dtype="auto"):
        made = module.WorkerSide({"timeout": 20}, rank, cache_dtype)
        made.register({"layer": kept}, BLOCKS, TOKENS, is_producer, not is_producer)
        self.addCleanup(made.shutdown)
        return made

    def prefill(self, rank, kept, *more):
        made = self.worker(rank, kept, True, *more)
        made.start(types.SimpleNamespace(holds={"r": [0, 1, 2]}, drops=[], loads={}))
        return made

    def load(self, decode, workers):
        """Blocks that could not be loaded to 3, 4 and 5."""
        source = types.SimpleNamespace(request="r", workers=workers)
        load = types.SimpleNamespace(source=source, first=0, blocks=[3, 4, 5])
        decode.start(types.SimpleNamespace(holds={}, drops=[], loads={"d": load}))
        deadline = time.monotonic() + 30
        while decode.take_finished()[1] is None:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        return decode.take_bad_blocks()

    def test_pages_arrive(self):
        there, here = cache(7), cache(0)
        prefill = self.prefill(module.Rank(0, 1, 1, 2), there)
        decode = self.worker(module.Rank(0, 1, 1, 2), here, False)
        self.assertEqual(self.load(decode, {"0,1": prefill.address}), set())
        self.assertTrue((here.array[:, 3:6] == 7).all())
        self.assertFalse(here.array[:, :3].any() or here.array[:, 6:].any())
        self.assertEqual(self.load(decode, {}), {3, 4, 5})  # no worker at all

    def test_the_trial_notes_what_left_and_what_arrived(self):
        """kv_vllm_trial.py compares both, with the worker in kv_checked.py."""
        checked = checked_module().CheckedWorker
        with (tempfile.TemporaryDirectory() as folder,
              unittest.mock.patch.dict(os.environ, KV_TRIAL_HASHES=folder),
              unittest.mock.patch.object(checked, "_hash", lambda _, blocks: blocks),
              unittest.mock.patch.object(module, "WorkerSide", checked)):
            prefill = self.prefill(ALONE, cache(7))
            self.load(self.worker(ALONE, cache(0), False), {"0,0": prefill.address})
            lines = Path(folder, str(os.getpid())).read_text().splitlines()
        about = {"request": "r", "worker": "0,0", "blocks": 3}
        self.assertEqual([json.loads(line) for line in lines],
                         [{"what": "left", **about, "hash": [0, 1, 2]},
                          {"what": "arrived", **about, "hash": [3, 4, 5]}])

    def test_other_parallel_sizes_are_refused(self):
        """Where heads are repeated, pages of a rank look the same with other parallel sizes, and
        are of another head."""
        for there, here in (((1, 4), (1, 2)), ((1, 2), (1, 4)), ((2, 1), (1, 1)), ((1, 1), (2, 1))):
            with self.subTest(prefill=there, decode=here):
                ranks = [[module.Rank(p, t, *sizes) for p in range(sizes[0])
                          for t in range(sizes[1])] for sizes in (there, here)]
                workers = {rank.name: self.prefill(rank, cache(7)).address for rank in ranks[0]}
                for rank in ranks[1]:
                    kept = cache(0)
                    decode = self.worker(rank, kept, False)
                    self.assertEqual(self.load(decode, workers), {3, 4, 5}, rank)
                    self.assertFalse(kept.array.any(), rank)

    def test_a_port_of_each_worker(self):
        """Of two engines of one host with pipeline and tensor parallelism of 2 and 3."""
        ports = [module.WorkerSide({"port": 7000}, module.Rank(p, t, 2, 3, engine), "auto")._address
                 for engine in range(2) for p in range(2) for t in range(3)]
        self.assertEqual(ports, [f"127.0.0.1:{7000 + n}" for n in range(12)])

    def test_options(self):
        """Nothing is taken for what it is not: encryption would be off with "false"."""
        for option, what in (({"insecure": "false"}, "insecure of SnugConnector is a bool"),
                             ({"link": 0}, "link of"), ({"port": "7000"}, "port of"),
                             ({"timeout": "30"}, "timeout of"), ({"lanes": 17}, "0 to 16"),
                             ({"hold_seconds": -1}, "hold_seconds"), ({"mode": "fast"}, "mode"),
                             ({"hold_seconds": float("nan")}, "hold_seconds"),
                             ({"ports": 1}, "no option ports; it has host, port, hold")):
            with self.subTest(option), self.assertRaisesRegex(ValueError, what):
                module.WorkerSide(option, ALONE, "auto")
        module.WorkerSide({"hold_seconds": 5, "link": False, "lanes": 2}, ALONE, "auto")

    def test_formats_that_torch_does_not_name(self):
        """vLLM keeps FP8 of either format as integers, and "fp8" is one of them."""
        for there, here, dtype, fits in (("fp8_e4m3", "fp8_e5m2", "uint8", False),
                                         ("fp8_e5m2", "fp8", "uint8", False),
                                         ("fp8", "fp8_e4m3", "uint8", True),
                                         ("auto", "bfloat16", "bfloat16", True)):
            with self.subTest(prefill=there, decode=here):
                prefill = self.prefill(ALONE, cache(7, dtype), there)
                kept = cache(0, dtype)
                decode = self.worker(ALONE, kept, False, here)
                self.assertEqual(self.load(decode, {"0,0": prefill.address}),
                                 set() if fits else {3, 4, 5})
                self.assertEqual(kept.array.any(), fits)


if __name__ == "__main__":
    unittest.main()
