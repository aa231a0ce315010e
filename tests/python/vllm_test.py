"""snug.vllm without vLLM: options, sizes, and what happens where vLLM is missing or too different.

tests/doors/doors_test.py has the tests with a real engine (make doors-test)."""

import ctypes
import logging
import os
import random
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock
from ctypes import byref
from pathlib import Path

import snug
import snug.vllm
from checkpoint_files import bf16, needs, write_plain
from snug import saving
from snug._library import Status, check, library
from snug.vllm import plugin
from snug.vllm.expert_limits import Traits, why_dense
from snug.vllm.options import Options, is_on
from snug.vllm.report import Layer, Report

ROOT = Path(__file__).parents[2]


class OptionsTest(unittest.TestCase):
    def test_options_of_a_configuration(self):
        mark = {"quant_method": "snug", "policy": "speed", "batch": 64, "skip": ["lm_head"]}
        self.assertEqual(vars(Options.read(mark, {})),
                         vars(Options("speed", "auto", 64, ["lm_head"])))
        self.assertEqual(vars(Options.read({"policy": "twin"}, {})), vars(Options("twin")))

    def test_mark_of_compress(self):
        mark = {"quant_method": "snug", "format": 1, "original_xxh3_128": "0" * 32}
        self.assertEqual(vars(Options.read(mark, {})), vars(Options()))
        # What transformers writes says nothing about vLLM.
        for mode in ("load", "run"):
            self.assertEqual(Options.read({**mark, "mode": mode}, {}).mode, "auto")

    def test_environment_counts_more(self):
        environment = {"SNUG_VLLM_POLICY": "speed", "SNUG_VLLM_BATCH": "8",
                       "SNUG_VLLM_MODE": "load", "SNUG_VLLM_SKIP": "lm_head, model.layers.3"}
        options = Options.read({"policy": "twin", "batch": 1}, environment)
        self.assertEqual((options.policy, options.batch, options.mode), ("speed", 8, "load"))
        self.assertTrue(options.skips("model.layers.3.mlp.down_proj"))
        self.assertFalse(options.skips("model.layers.31.mlp.down_proj"))

    def test_parts_that_are_off(self):
        for what in ("EXPERTS", "HEAD"):
            self.assertFalse(is_on(what, {}))
            self.assertFalse(is_on(what, {"SNUG_VLLM_" + what: "0"}))
            self.assertTrue(is_on(what, {"SNUG_VLLM_" + what: "1"}))
            with self.assertRaisesRegex(ValueError, f"SNUG_VLLM_{what} 'yes'.*one of: 0, 1"):
                is_on(what, {"SNUG_VLLM_" + what: "yes"})

    def test_bad_values(self):
        for mark, environment, text in (
                ({"format": 2}, {}, "install a newer snug-llm"),
                ({"policy": "fast"}, {}, "one of: memory, speed, twin"),
                ({}, {"SNUG_VLLM_MODE": "gpu"}, "one of: auto, run, load"),
                ({"batch": 0}, {}, "number of rows"),
                ({}, {"SNUG_VLLM_BATCH": "many"}, "number of rows"),
                ({"skip": "lm_head"}, {}, "list of names"),
                ({"skip": None}, {}, "list of names"),
                ({"skip": [1]}, {}, "list of names")):
            with self.assertRaisesRegex(ValueError, text):
                Options.read(mark, environment)


class ExpertLimits(unittest.TestCase):
    def test_what_stays_dense(self):
        qwen = Traits(num_experts=128, top_k=8, activation="silu", dtype="bfloat16")
        self.assertEqual(why_dense(qwen), "")
        self.assertEqual(why_dense(qwen._replace(sm_major=0)), "")  # a CPU, for tests
        for change, text in (({"dtype": "float16"}, "float16"),
                             ({"activation": "swigluoai"}, "swigluoai"),
                             ({"has_swiglu_limits": True}, "silu with limits"),
                             ({"has_bias": True}, "biases"),
                             ({"weights_on_input": True}, "multiply their input"),
                             ({"is_spread": True}, "expert, data or sequence parallelism"),
                             ({"has_adapters": True}, "LoRA"),
                             ({"num_experts": 513}, "513 experts"),
                             ({"top_k": 17}, "top-17"),
                             ({"sm_major": 10}, "Hopper")):
            self.assertIn(text, why_dense(qwen._replace(**change)))


@needs("torch")
class Room(unittest.TestCase):
    def setUp(self):
        from snug.vllm import room
        self.room_bytes, self.arena = room.room_bytes, room.Arena()

    def pack(self, values, n, k):
        bound = library.snug_gemm_packed_bound_bytes(n, k, 1)
        weight = (ctypes.c_char * len(values)).from_buffer_copy(values)
        packed, used, status = (ctypes.c_char * bound)(), ctypes.c_size_t(), Status()
        check(library.snug_gemm_pack_host(weight, k, n, k, 1, packed, bound, byref(used),
                                          byref(status)), status)
        return used.value, bound

    def test_sizes_are_those_of_packed_matrices(self):
        rng = random.Random(3)
        for n, k in ((16, 128), (17, 130), (96, 384), (640, 200)):
            used, bound = self.pack(bf16(rng, n * k), n, k)
            self.assertEqual(self.room_bytes(n, k), used + 2048)  # that of one overflow
            self.assertLessEqual(self.room_bytes(n, k), bound)

    def test_room_for_overflows(self):
        rng = random.Random(4)
        n, k = 64, 1024
        values = bytearray(bf16(rng, n * k))
        values[:256] = rng.randbytes(256)  # a tile with many exponents
        used, _ = self.pack(bytes(values), n, k)
        self.assertEqual(used, self.room_bytes(n, k))

    def test_arena(self):
        import torch
        arena, like = self.arena, torch.empty(1, dtype=torch.uint8)
        for size in (1000, 256, 5000, 700):
            arena.expect(size)
        arena.forget(700)
        parts = [arena.take(size, like) for size in (1000, 256, 5000)]
        for i, part in enumerate(parts):
            part.fill_(i + 1)
        self.assertEqual([(part.numel(), int(part[0]), int(part[-1])) for part in parts],
                         [(1000, 1, 1), (256, 2, 2), (5000, 3, 3)])
        self.assertEqual(len({part.untyped_storage().data_ptr() for part in parts}), 1)
        self.assertEqual(parts[0].untyped_storage().nbytes(), 1024 + 256 + 5120)
        self.assertEqual([part.storage_offset() % 256 for part in parts], [0, 0, 0])
        more = arena.take(300, like)  # more than was expected
        self.assertEqual((more.numel(), more.untyped_storage().nbytes()), (300, 300))
        arena.expect(512)  # another model
        self.assertEqual(arena.take(512, like).untyped_storage().nbytes(), 512)

    def test_costs_little(self):
        n, k = 28672, 4096
        self.assertLess(8 * self.room_bytes(n, k) / (n * k), 12.12)


class Registration(unittest.TestCase):
    def setUp(self):
        self.forget_engine()
        self.addCleanup(self.forget_engine)

    def forget_engine(self):
        sys.modules.pop("snug.vllm.engine", None)
        vars(snug.vllm).pop("engine", None)

    def test_import_is_light(self):
        code = ("import sys, snug.vllm, snug.vllm.plugin\n"
                "print([name for name in ('torch', 'vllm', 'numpy') if name in sys.modules])")
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                             check=True)
        self.assertEqual(out.stdout.strip(), "[]")

    def test_entry_point(self):
        text = (ROOT / "pyproject.toml").read_text()
        self.assertIn('[project.entry-points."vllm.general_plugins"]\nsnug = '
                      '"snug.vllm.plugin:register"', text)

    def test_without_vllm(self):
        with unittest.mock.patch.dict(sys.modules, {"vllm": None}), \
                self.assertLogs("vllm.plugins.snug", logging.WARNING) as logs:
            plugin.register()
        self.assertEqual(len(logs.output), 1)
        self.assertIn("compressed models cannot be served: ", logs.output[0])
        self.assertIn("vllm", logs.output[0])

    def test_with_another_vllm(self):
        """Every interface that is gone is named, with the version."""
        modules = {"vllm": types.ModuleType("vllm")}
        for name in ("config", "logger", "platforms", "distributed", "model_executor",
                     "model_executor.layers", "model_executor.layers.linear",
                     "model_executor.layers.quantization", "model_executor.parameter",
                     "model_executor.layers.quantization.base_config",
                     "model_executor.layers.vocab_parallel_embedding",
                     "model_executor.layers.fused_moe", "model_executor.utils",
                     "model_executor.model_loader", "model_executor.model_loader.reload",
                     "model_executor.model_loader.default_loader",
                     "model_executor.model_loader.runai_streamer_loader",
                     "model_executor.model_loader.reload.layerwise"):
            modules["vllm." + name] = types.ModuleType("vllm." + name)
        modules["vllm"].__version__ = "9.9"
        modules["vllm.config"].get_current_vllm_config = None
        with unittest.mock.patch.dict(sys.modules, modules), \
                self.assertLogs("vllm.plugins.snug", logging.WARNING) as logs:
            plugin.register()
        text, = logs.output
        self.assertIn("does not fit vLLM 9.9 (tested: 0.24.0 and 0.32.0)", text)
        self.assertIn("vllm.model_executor.layers.linear.LinearMethodBase", text)
        self.assertIn("default_loader.safetensors_weights_iterator", text)
        self.assertNotIn("get_current_vllm_config", text)


class ReportTest(unittest.TestCase):
    def test_one_line_when_all_layers_are_there(self):
        log = logging.getLogger("vllm.plugins.snug.test")
        report = Report(log, "memory")
        report.settings = {}
        for _ in range(3):
            report.expect()
        report.forget()  # a tied head
        with self.assertLogs(log, logging.INFO) as logs:
            report.add(Layer("a", 1000, 1000, 1_510_000, ""))
            report.add(Layer("b", 10, 10, 200, "its values do not compress"))
            report.add(Layer("a", 1000, 1000, 1_510_000, ""))  # new weights
        self.assertEqual(len(logs.output), 2)
        self.assertIn("b (10 x 10) stays dense: its values do not compress", logs.output[0])
        self.assertIn("1 of 2 layers packed (policy memory): 0.002 GB -> 0.002 GB (24.5 %",
                      logs.output[1])
        self.assertEqual(report.settings["policy"], "memory")


class Slices(unittest.TestCase):
    """What the ranks of a divided model read of a compressed file."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        rng = random.Random(5)
        self.n, self.k = 256, 600
        self.values = bf16(rng, self.n * self.k)
        plain = Path(self.folder.name, "plain.safetensors")
        self.path = Path(self.folder.name, "model.safetensors")
        write_plain(plain, {"w": ("BF16", [self.n, self.k], self.values)})
        saving.compress_path(os.fsencode(plain), os.fsencode(self.path), 3, 1)

    def test_rows_of_ranks(self):
        with snug.Reader(self.path) as reader:
            self.assertLess(reader.info("w").stored_bytes, reader.info("w").raw_bytes)
            for ranks in (2, 4, 8):
                rows = self.n // ranks
                parts = [reader.rows("w", rank * rows, (rank + 1) * rows)
                         for rank in range(ranks)]
                self.assertEqual(b"".join(parts), self.values)

    @needs("torch")
    def test_ways_to_name_files(self):
        """By keyword, from a generator, none at all."""
        engine = types.ModuleType("snug.vllm.engine")
        engine.has_nvidia_gpu, engine.num_ranks = lambda: False, lambda: 1
        self.addCleanup(sys.modules.pop, "snug.vllm.checkpoint", None)
        self.addCleanup(vars(snug.vllm).pop, "checkpoint", None)
        with unittest.mock.patch.dict(sys.modules, {"snug.vllm.engine": engine}), \
                unittest.mock.patch.object(snug.vllm, "engine", engine, create=True):
            from snug.vllm import checkpoint
            read = checkpoint._reading_frames(lambda files, *args: (files, args))
            tensors = dict(read(hf_weights_files=iter([self.path])))
            self.assertEqual(bytes(tensors["w"].untyped_storage()), self.values)
            self.assertEqual(read(iter(["a", "b"]), 4), (["a", "b"], (4,)))
            self.assertEqual(read([]), ([], ()))

    @needs("torch")
    def test_lazy_rows(self):
        import torch
        from snug.torch.lazy import Rows
        reads = []
        whole = torch.frombuffer(bytearray(self.values), dtype=torch.bfloat16)
        whole = whole.view(self.n, self.k)
        with snug.safe_open(self.path, framework="pt") as file:
            part = file.get_slice("w")

        def read(first, last):
            reads.append((first, last))
            return part[first:last]

        for ranks in (2, 4, 8):
            rows, columns = self.n // ranks, self.k // ranks
            for rank in range(ranks):
                lazy = Rows(read, whole.shape, torch.bfloat16)
                self.assertEqual(lazy.shape, whole.shape)
                reads.clear()
                mine = lazy.narrow(0, rank * rows, rows)
                torch.empty(mine.shape, dtype=mine.dtype, device="meta").copy_(mine)
                self.assertEqual(reads, [])
                target = torch.empty(mine.shape, dtype=mine.dtype)
                target.copy_(mine)
                self.assertEqual(reads, [(rank * rows, (rank + 1) * rows)])
                self.assertTrue(torch.equal(target, whole[rank * rows:(rank + 1) * rows]))
                across = lazy.narrow(1, rank * columns, columns)
                self.assertTrue(torch.equal(across, whole[:, rank * columns:][:, :columns]))


@needs("torch")
class Operator(unittest.TestCase):
    """`snug::packed_linear` gives what `snug::linear` gives, from a buffer with room to spare."""

    def setUp(self):
        import torch
        from snug._library import has_cuda
        from snug.torch import matrix
        from snug.vllm import operator, room
        self.torch, self.matrix, self.operator = torch, matrix, operator
        self.room_bytes = room.room_bytes
        self.device = "cuda" if has_cuda and torch.cuda.is_available() else "cpu"
        torch.manual_seed(1)

    def packed(self, n, k, kind):
        weight = (self.torch.randn(n, k) * 0.02).to(self.torch.bfloat16).to(self.device)
        packed, header = self.matrix.pack(weight, kind)
        is_raw = kind == self.matrix.RAW
        place = packed.new_zeros(packed.numel() if is_raw else self.room_bytes(n, k))
        place[:packed.numel()] = packed
        return place, packed, header

    def test_products(self):
        torch = self.torch
        for n, k, kind in ((256, 384, self.matrix.FIXED), (96, 1000, self.matrix.RAW),
                           (1536, 512, self.matrix.FIXED)):
            place, packed, header = self.packed(n, k, kind)
            bias = torch.randn(n, device=self.device).to(torch.bfloat16)
            for m in (1, 5, 16, 40, 300):
                x = torch.randn(m, k, device=self.device).to(torch.bfloat16)
                for b in (None, bias):
                    self.assertTrue(torch.equal(torch.ops.snug.packed_linear(x, place, b, n),
                                                torch.ops.snug.linear(x, packed, b, *header)))
            dense = torch.ops.snug.unpack(packed, *header)
            for m in (1, 9000):
                x = torch.randn(m, k, device=self.device).to(torch.bfloat16)
                self.assertTrue(torch.equal(
                    torch.ops.snug.packed_linear(x, place, bias, n, dense),
                    torch.ops.snug.linear(x, packed, bias, *header, dense)))
            y = torch.ops.snug.packed_linear(x[:0], place, None, n)
            self.assertEqual(y.shape, (0, n))

    def test_fake(self):
        from torch._subclasses.fake_tensor import FakeTensorMode
        with FakeTensorMode():
            x = self.torch.empty(3, 64, dtype=self.torch.bfloat16)
            packed = self.torch.empty(1000, dtype=self.torch.uint8)
            self.assertEqual(self.torch.ops.snug.packed_linear(x, packed, None, 48).shape, (3, 48))

    def test_graphs(self):
        """Graphs recorded on one stream share a workspace, and see new weights."""
        torch = self.torch
        if self.device == "cpu":
            self.skipTest("no GPU")
        place, packed, header = self.packed(512, 1024, self.matrix.FIXED)
        stream, graphs = torch.cuda.Stream(), []
        with torch.cuda.stream(stream):
            for m in (64, 8, 1):
                x = torch.randn(m, 1024, device=self.device).to(torch.bfloat16)
                torch.ops.snug.packed_linear(x, place, None, 512)
                stream.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=stream):
                    y = torch.ops.snug.packed_linear(x, place, None, 512)
                graphs.append((graph, x, y))
        for _ in range(2):
            for graph, x, y in graphs:
                graph.replay()
                torch.cuda.synchronize()
                self.assertTrue(torch.equal(y, torch.ops.snug.linear(x, packed, None, *header)))
            other, packed, header = self.packed(512, 1024, self.matrix.FIXED)
            place.copy_(other)
            torch.cuda.synchronize()


if __name__ == "__main__":
    unittest.main()
