"""snug.sglang without SGLang: what it hooks, what the hooks do, and SGLangs that lack something.

tests/doors/sglang_weights_trial.py has the tests with a real engine (make doors-test)."""

import contextlib
import enum
import logging
import random
import struct
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock
from pathlib import Path

import snug
from checkpoint_files import bf16, compress, module, needs, raw_of, write_plain
from snug.sglang import plugin, weights

if module("torch"):
    import snug.torch.engine_files  # before sys.modules is changed: it defines operators, once

ROOT = Path(__file__).parents[2]
LOG = "sglang.srt.plugins.snug"
CONFIG = "sglang.srt.utils.hf_transformers.config"
READERS = "sglang.srt.model_loader.weight_utils"
REGISTRY = "sglang.srt.plugins.hook_registry"
READER_NAMES = ["safetensors_weights_iterator",
                "buffered_multi_thread_safetensors_weights_iterator",
                "fastsafetensors_weights_iterator", "instanttensor_weights_iterator",
                "runai_safetensors_weights_iterator"]


class HookType(enum.Enum):
    AFTER = "after"
    AROUND = "around"


class Registry:
    """As SGLang's: hooks are registered by name, and applied when all plugins have run."""

    hooks = {}

    @classmethod
    def register(cls, target, hook, hook_type=HookType.AFTER):
        cls.hooks[target] = hook, hook_type

    @classmethod
    def apply(cls):
        for target, (hook, hook_type) in cls.hooks.items():
            place, name = target.rsplit(".", 1)
            original = getattr(sys.modules[place], name)

            def wrapper(*args, original=original, hook=hook, hook_type=hook_type, **kwargs):
                if hook_type is HookType.AROUND:
                    return hook(original, *args, **kwargs)
                changed = hook(original(*args, **kwargs), *args, **kwargs)
                return original(*args, **kwargs) if changed is None else changed

            setattr(sys.modules[place], name, wrapper)


@contextlib.contextmanager
def fake_sglang(*without):
    """Modules of the names that Snug uses, less those of `without`."""
    modules = {}
    for name in (CONFIG, READERS, REGISTRY):
        parts = name.split(".")
        for i in range(1, len(parts) + 1):
            modules.setdefault(".".join(parts[:i]), types.ModuleType(".".join(parts[:i])))
    modules["sglang"].__version__ = "9.9"
    modules[REGISTRY].HookRegistry, modules[REGISTRY].HookType = Registry, HookType
    modules[CONFIG].get_config = lambda model, **options: model
    for name in READER_NAMES:
        setattr(modules[READERS], name, lambda files, *args, **options: (files, args, options))
    for name in without:
        place, _, leaf = name.rpartition(".")
        if name in modules:
            modules[name] = None
        else:
            delattr(modules[place], leaf)
    Registry.hooks = {}
    with unittest.mock.patch.dict(sys.modules, modules):
        yield modules


class Registration(unittest.TestCase):
    def test_import_is_light(self):
        code = ("import sys, snug.sglang, snug.sglang.plugin\n"
                "print([name for name in ('torch', 'sglang', 'numpy') if name in sys.modules])")
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                             check=True)
        self.assertEqual(out.stdout.strip(), "[]")

    def test_entry_point(self):
        text = (ROOT / "pyproject.toml").read_text()
        self.assertIn('[project.entry-points."sglang.srt.plugins"]\nsnug = '
                      '"snug.sglang.plugin:register"', text)

    def test_hooks(self):
        with fake_sglang(), unittest.mock.patch.object(plugin, "_log") as log:
            plugin.register()
        self.assertEqual(log.mock_calls, [])
        kinds = {target: kind for target, (_, kind) in Registry.hooks.items()}
        self.assertEqual(kinds, {f"{CONFIG}.get_config": HookType.AFTER,
                                 **{f"{READERS}.{name}": HookType.AROUND
                                    for name in READER_NAMES}})

    def refused(self, *without):
        """The one line in the log; nothing is hooked, so SGLang refuses compressed folders."""
        with fake_sglang(*without), self.assertLogs(LOG, logging.WARNING) as logs:
            plugin.register()
        self.assertEqual(Registry.hooks, {})
        text, = logs.output
        self.assertIn("compressed models cannot be served", text)
        return text

    def test_another_sglang(self):
        text = self.refused(f"{CONFIG}.get_config", f"{READERS}.{READER_NAMES[2]}")
        self.assertIn(f"SGLang 9.9 (tested: {plugin.TESTED}) lacks {CONFIG}.get_config, "
                      f"{READERS}.{READER_NAMES[2]}: install a newer snug-llm", text)
        self.assertNotIn("hook_registry", text)

    def test_a_module_is_gone(self):
        self.assertIn(f"lacks {REGISTRY}.HookRegistry: install", self.refused(REGISTRY))

    def test_without_sglang(self):
        with unittest.mock.patch.dict(sys.modules, {"sglang": None}), \
                self.assertLogs(LOG, logging.WARNING) as logs:
            plugin.register()
        self.assertEqual(len(logs.output), 1)
        self.assertIn("compressed models cannot be served", logs.output[0])


class Mark(unittest.TestCase):
    def config(self, mark):
        with fake_sglang() as modules:
            plugin.register()
            Registry.apply()
            return modules[CONFIG].get_config(types.SimpleNamespace(
                model_type="llama", **({} if mark is None else {"quantization_config": mark})))

    def test_is_taken_out(self):
        mark = {"quant_method": "snug", "format": 1, "original_xxh3_128": "0" * 32}
        self.assertEqual(vars(self.config(mark)), {"model_type": "llama"})

    def test_others_stay(self):
        self.assertEqual(vars(self.config(None)), {"model_type": "llama"})
        for mark in ({"quant_method": "fp8", "format": 1}, {"format": 7}):
            self.assertEqual(self.config(dict(mark)).quantization_config, mark)

    def test_newer_format(self):
        with self.assertRaisesRegex(ValueError, "version 2 of Snug's.*install a newer snug-llm"):
            self.config({"quant_method": "snug", "format": 2})


class Files(unittest.TestCase):
    """What SGLang's readers of files give with the hooks."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        rng = random.Random(6)
        self.plain, self.compressed = [], []
        for i in range(2):
            path = Path(folder.name, f"plain-{i}.safetensors")
            write_plain(path, {f"layers.{i}.up_proj.weight": ("BF16", [96, 512],
                                                              bf16(rng, 96 * 512)),
                               f"layers.{i}.norm.weight": ("BF16", [512], bf16(rng, 512))})
            self.plain.append(str(path))
            self.compressed.append(str(path.with_name(f"model-{i}.safetensors")))
            compress(path, self.compressed[-1])
        hooked = contextlib.ExitStack()
        self.addCleanup(hooked.close)
        self.readers = hooked.enter_context(fake_sglang())[READERS]
        plugin.register()
        Registry.apply()

    def test_plain_files_are_sglangs(self):
        for name in READER_NAMES:
            self.assertEqual(getattr(self.readers, name)(self.plain, 4, prefetch=True),
                             (self.plain, (4,), {"prefetch": True}))

    @needs("torch")
    def test_ways_to_name_files(self):
        """Names come by keyword, from a generator, none at all, of both kinds."""
        for name in READER_NAMES:
            read = getattr(self.readers, name)
            self.assertEqual(read(hf_weights_files=iter(self.plain)), (self.plain, (), {}))
            self.assertEqual(read([]), ([], (), {}))
        for files in (iter(self.compressed), [self.plain[0], self.compressed[1]]):
            tensors = dict(self.readers.safetensors_weights_iterator(hf_weights_files=files))
            self.assertEqual({name: raw_of(tensor) for name, tensor in tensors.items()},
                             self.expected())

    def expected(self):
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(snug.safe_open(path, framework="pt"))
                     for path in self.plain]
            return {name: raw_of(file.get_tensor(name)) for file in files for name in file.keys()}

    @needs("torch")
    def test_compressed_files(self):
        for name in READER_NAMES:
            with self.assertLogs(LOG, logging.INFO) as logs:
                tensors = list(getattr(self.readers, name)(self.compressed, 4, prefetch=True))
            self.assertEqual(len(tensors), 4)
            self.assertEqual({name: raw_of(tensor) for name, tensor in tensors}, self.expected())
            self.assertIn("restoring the weights of 2 compressed files (cpu)", logs.output[0])

    @needs("torch")
    def test_ranks_decode_their_rows(self):
        import torch
        from snug.torch.lazy import Rows
        with unittest.mock.patch("torch.distributed.is_initialized", lambda: True), \
                unittest.mock.patch("torch.distributed.get_world_size", lambda: 2):
            tensors = dict(self.readers.safetensors_weights_iterator(self.compressed))
        expected = self.expected()
        self.assertEqual(tensors.keys(), expected.keys())
        for name, tensor in tensors.items():
            self.assertEqual(isinstance(tensor, Rows), name.endswith("up_proj.weight"))
            parts = torch.empty(tensor.shape, dtype=tensor.dtype)
            for rank in range(2):
                rows = tensor.shape[0] // 2
                parts[rank * rows:][:rows].copy_(tensor.narrow(0, rank * rows, rows))
            self.assertEqual(raw_of(parts), expected[name])

    @needs("torch")
    def test_device(self):
        from snug.torch import engine_files
        for cuda, initialized, has_cuda, device in (
                ("13.0", True, True, "cuda:3"), ("13.0", False, True, "cpu"),
                (None, True, True, "cpu"), ("13.0", True, False, "cpu")):
            with unittest.mock.patch("torch.version.cuda", cuda), \
                    unittest.mock.patch("torch.cuda.is_initialized", lambda: initialized), \
                    unittest.mock.patch("torch.cuda.current_device", lambda: 3), \
                    unittest.mock.patch("snug._library.has_cuda", has_cuda), \
                    unittest.mock.patch.object(engine_files, "tensors_of") as tensors_of:
                self.readers.safetensors_weights_iterator(self.compressed)
            tensors_of.assert_called_once_with(self.compressed, device, False)

    @needs("torch")
    def test_a_flipped_bit(self):
        path = Path(self.compressed[1])
        data = bytearray(path.read_bytes())
        data[8 + struct.unpack("<Q", data[:8])[0] + 20000] ^= 1
        path.write_bytes(data)
        with self.assertRaisesRegex(snug.SnugError,
                                    r"model-1\.safetensors.*up_proj.*`snug verify` checks it"):
            list(self.readers.safetensors_weights_iterator(self.compressed))

    @needs("torch")
    def test_a_missing_file(self):
        folder = Path(self.compressed[0]).parent
        folder.joinpath("model.safetensors.index.json").write_text(
            '{"weight_map": {"a": "model-0.safetensors", "b": "model-2.safetensors"}}')
        with self.assertRaisesRegex(FileNotFoundError, "model-2.safetensors is missing"):
            list(self.readers.safetensors_weights_iterator(self.compressed))


if __name__ == "__main__":
    unittest.main(verbosity=2)
