"""What snug.transformers refuses: damaged folders, other configs, options that are wrong."""

import json
import shutil
import unittest
import unittest.mock
from pathlib import Path
from types import SimpleNamespace

# First: without torch or transformers it ends the test.
from transformers_support import HAS_GPU, Case, load, models

from transformers import PreTrainedModel
from transformers.modeling_utils import LoadStateDictConfig

import snug
from snug.transformers import SnugConfig, SnugQuantizer


class BadInput(Case):
    def test_damage_is_never_loaded(self):
        def flip(share):
            def change(data):
                data[int(len(data) * share)] ^= 4
            return change
        for name in ("llama", "qwen_moe"):
            for share in (0.4, 0.999):
                with self.subTest(f"{name} {share}"), self.assertRaises(snug.SnugError):
                    load(self.damaged(name, flip(share)))

    def test_truncated_and_foreign_shards(self):
        for change in (lambda data: data[:len(data) // 2], lambda data: data[:9],
                       lambda data: b"", lambda data: b"not what it says" * 100):
            with self.assertRaises(snug.SnugError):
                load(self.damaged("llama", change))

    def test_two_tensors_that_changed_places(self):
        """Each frame is whole, but it is not that tensor's."""
        def swap(data):
            size = int.from_bytes(data[:8], "little")
            header = json.loads(data[8:8 + size])
            names = [name for name, entry in header.items()
                     if name.endswith("_proj.weight") and entry["dtype"] == "U8"][:2]
            header[names[0]], header[names[1]] = header[names[1]], header[names[0]]
            text = json.dumps(header, separators=(",", ":")).encode()
            data[8:8 + size] = text.ljust(size)
        with self.assertRaises(snug.SnugError):
            load(self.damaged("llama", swap))

    def test_missing_shard(self):
        folder = self.work / "missing"
        shutil.copytree(models["llama.snug"], folder)
        sorted(folder.glob("*.safetensors"))[-1].unlink()
        with self.assertRaises(OSError):
            load(folder)

    def test_another_config(self):
        folder = self.work / "other"
        shutil.copytree(models["llama.snug"], folder)
        config = folder / "config.json"
        text = config.read_text()
        config.write_text(text.replace('"intermediate_size": 1024', '"intermediate_size": 512'))
        for mode in ("load", "run") if HAS_GPU else ("load",):
            with self.assertRaises(RuntimeError):
                load(folder, quantization_config=SnugConfig(mode=mode))
        config.write_text(text.replace('"format": 1', '"format": 2'))
        with self.assertRaisesRegex(ValueError, "newer snug-llm"):
            load(folder)

    def test_the_quantizer_of_another_method(self):
        other = SimpleNamespace(quantization_config=SimpleNamespace(quant_method="other"))
        load_config = LoadStateDictConfig(hf_quantizer=other)
        files = sorted(str(path) for path in Path(models["llama.snug"]).glob("*.safetensors"))
        with self.assertRaisesRegex(ValueError, "compressed, and other reads plain files"):
            PreTrainedModel._load_pretrained_model(None, None, files, load_config)

    def test_other_entries_of_the_mark(self):
        config = SnugConfig.from_dict({"quant_method": "snug", "format": 1, "note": "of another"})
        self.assertEqual(config.mode, "load")
        with self.assertRaisesRegex(ValueError, "newer snug-llm"):
            SnugConfig.from_dict({"quant_method": "snug", "format": 2, "note": "of another"})

    def test_zero3(self):
        with unittest.mock.patch("transformers.integrations.deepspeed.is_deepspeed_zero3_enabled",
                                 lambda: True):
            with self.assertRaisesRegex(RuntimeError, "snug decompress"):
                SnugQuantizer(SnugConfig()).validate_environment()

    def test_bad_options(self):
        with self.assertRaisesRegex(TypeError, "list of names"):
            SnugConfig(skip="lm_head")
        with self.assertRaisesRegex(ValueError, "unknown mode"):
            SnugConfig(mode="fast")
        with self.assertRaises(TypeError):
            SnugConfig(bits=4)

    @unittest.skipIf(HAS_GPU, "there is a GPU")
    def test_no_gpu(self):
        with self.assertRaisesRegex(RuntimeError, 'use mode="load"'):
            load(models["llama.snug"], quantization_config=SnugConfig(mode="run"))


if __name__ == "__main__":
    unittest.main()
