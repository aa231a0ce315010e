"""snug.transformers: compressed folders in transformers, loaded and saved, on the CPU and, where
there is one, the GPU."""

import re
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

# First: without torch or transformers it ends the test.
from transformers_support import (
    HAS_GPU, IDS, Case, accelerate, compress, load, logits, models, unregistered_load)

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

import snug
import snug.torch
import snug.torch.dcp
import snug.transformers
from snug.torch.model import has_compressed
from snug.transformers import SnugConfig


class Load(Case):
    def test_every_model_is_the_dense_one(self):
        for name in models.names:
            with self.subTest(name):
                model = load(models[name + ".snug"])
                self.assert_same(model, load(models[name]))
                self.assertFalse(getattr(model, "is_quantized", False))
                self.assertFalse(hasattr(model.config, "quantization_config"))
        self.assertGreater(len(list(Path(models["qwen_moe.snug"]).glob("*.safetensors"))), 1)

    def test_tied_weights_stay_tied(self):
        model = load(models["tied.snug"])
        self.assertIs(model.lm_head.weight, model.model.embed_tokens.weight)

    def test_options_of_from_pretrained(self):
        for options in (dict(dtype=torch.float32), dict(dtype="auto"), dict(dtype=torch.float16),
                        dict(low_cpu_mem_usage=True), dict(disable_mmap=True),
                        dict(config=AutoConfig.from_pretrained(models["llama.snug"])),
                        dict(quantization_config=SnugConfig())):
            with self.subTest(str(options)[:40]):
                plain = {key: value for key, value in options.items()
                         if key not in ("config", "quantization_config")}
                try:
                    dense = load(models["llama"], **plain)
                except TypeError:  # an option that this version lacks
                    continue
                self.assert_same(load(models["llama.snug"], **options), dense)

    def test_configs_without_the_mark(self):
        dense = load(models["llama"])
        for options in (dict(quantization_config=None), dict(ignore_mismatched_sizes=True),
                        dict(config=AutoConfig.from_pretrained(models["llama"]))):
            self.assert_same(load(models["llama.snug"], **options), dense)

    def test_a_part_of_a_model(self):
        """The configuration of its class is a part of that of the folder, and has no mark."""
        sizes = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                     num_attention_heads=4)
        config = transformers.CLIPConfig(text_config=dict(sizes, vocab_size=600),
                                         vision_config=dict(sizes, image_size=32, patch_size=8))
        transformers.CLIPModel(config).bfloat16().save_pretrained(self.work / "clip")
        compress(self.work / "clip", self.work / "clip.snug")
        part, dense = (transformers.CLIPTextModel.from_pretrained(self.work / name)
                       for name in ("clip.snug", "clip"))
        for name, tensor in dense.named_parameters():
            self.assertTrue(torch.equal(part.get_parameter(name), tensor), name)

    def test_dtype_of_the_files(self):
        """dtype="auto" looks at the first file if config.json has no dtype."""
        for name in ("llama", "llama.snug"):
            folder = self.work / name
            shutil.copytree(models[name], folder)
            text = re.sub(r'"dtype": "bfloat16",', "", (folder / "config.json").read_text())
            (folder / "config.json").write_text(text)
            for index in folder.glob("*.index.json"):
                self.assertNotIn('"dtype"', index.read_text())
            self.assertEqual(load(folder, dtype="auto").dtype, torch.bfloat16, name)
        self.assert_same(load(folder, dtype="auto"), load(models["llama"]))

    def test_files_of_torch(self):
        shutil.copytree(models["tied"], self.work, dirs_exist_ok=True)
        (self.work / "model.safetensors").unlink()
        dense = load(models["tied"])
        torch.save(dense.state_dict(), self.work / "pytorch_model.bin")
        self.assert_same(load(self.work, quantization_config=SnugConfig()), dense)

    def test_a_class_without_auto(self):
        model = transformers.LlamaModel.from_pretrained(models["llama.snug"])
        dense = transformers.LlamaModel.from_pretrained(models["llama"])
        for (name, tensor), other in zip(model.named_parameters(), dense.parameters()):
            self.assertTrue(torch.equal(tensor, other), name)

    @unittest.skipIf(accelerate is None, "accelerate is not installed")
    def test_device_maps(self):
        dense = load(models["qwen_moe"])
        parts = {"model.embed_tokens": "cpu", "lm_head": "cpu", "model.norm": "cpu",
                 "model.rotary_emb": "cpu", "model.layers.0": "disk", "model.layers.1": "cpu"}
        if HAS_GPU:
            dense = dense.cuda()
            self.assertEqual(load(models["llama.snug"], device_map="cuda").device.type, "cuda")
        for device_map in ("auto", {"": "cuda" if HAS_GPU else "cpu"}):
            self.assert_same(load(models["qwen_moe.snug"], device_map=device_map), dense)
        on_disk = load(models["qwen_moe.snug"], device_map=parts, offload_folder=self.work / "off")
        self.assertTrue(torch.equal(logits(on_disk), logits(dense.cpu())))

    def test_generate_and_train(self):
        model, dense = load(models["llama.snug"]), load(models["llama"])
        options = dict(max_new_tokens=8, do_sample=False)
        self.assertTrue(torch.equal(model.generate(IDS, **options), dense.generate(IDS, **options)))
        for each in (model, dense):
            each(IDS, labels=IDS).loss.backward()
        self.assertTrue(torch.equal(model.lm_head.weight.grad, dense.lm_head.weight.grad))

    def test_plain_folders_load_as_before(self):
        self.assert_same(load(models["llama"], quantization_config=SnugConfig()),
                         load(models["llama"]))


class Unregistered(Case):
    def test_transformers_stops(self):
        from transformers.quantizers import auto
        registered = (auto.AUTO_QUANTIZER_MAPPING.pop("snug"),
                      auto.AUTO_QUANTIZATION_CONFIG_MAPPING.pop("snug"))
        ours = transformers.PreTrainedModel._load_pretrained_model
        transformers.PreTrainedModel._load_pretrained_model = staticmethod(unregistered_load)
        try:
            for name in models.names:
                with self.assertRaises(Exception, msg=name):  # never random weights
                    load(models[name + ".snug"])
        finally:
            transformers.PreTrainedModel._load_pretrained_model = staticmethod(ours)
            auto.AUTO_QUANTIZER_MAPPING["snug"], auto.AUTO_QUANTIZATION_CONFIG_MAPPING["snug"] = \
                registered


class Save(Case):
    def test_plain(self):
        for name in ("llama", "tied", "qwen_moe"):
            folder = self.work / name
            load(models[name + ".snug"]).save_pretrained(folder, max_shard_size="2MB")
            self.assertNotIn("quantization_config", (folder / "config.json").read_text())
            self.assert_same(load(folder), load(models[name]))

    def test_a_model_with_compressed_layers(self):
        for name in ("llama", "tied", "qwen_moe"):
            model = load(models[name])
            snug.torch.compress_model(model)
            self.assertTrue(has_compressed(model))
            model.save_pretrained(self.work / "plain")
            self.assert_same(load(self.work / "plain"), load(models[name]))
            snug.transformers.save_pretrained(model, self.work / "packed")
            self.assert_same(load(self.work / "packed"), load(models[name]))

    def test_a_model_made_from_a_marked_config(self):
        config = AutoConfig.from_pretrained(models["llama.snug"])
        model = AutoModelForCausalLM.from_config(config)
        model.save_pretrained(self.work / "plain")
        self.assertNotIn("quantization_config", (self.work / "plain/config.json").read_text())
        snug.transformers.save_pretrained(model, self.work / "packed")
        self.assertIn("quantization_config", (self.work / "packed/config.json").read_text())
        self.assert_same(load(self.work / "packed"), load(self.work / "plain"))

    def test_compressed(self):
        for name in ("llama", "tied", "qwen_moe"):
            folder = self.work / name
            model = load(models[name + ".snug"])
            snug.transformers.save_pretrained(model, folder)
            for mine in ("mine.txt", "model.fp16.safetensors", "model_2.safetensors"):
                (folder / mine).write_text("mine")
            snug.transformers.save_pretrained(model, folder, max_shard_size="1MB")
            for mine in ("mine.txt", "model.fp16.safetensors", "model_2.safetensors"):
                self.assertEqual((folder / mine).read_text(), "mine")
                (folder / mine).unlink()
            self.assertFalse((folder / "model.safetensors").exists())
            for shard in folder.glob("*.safetensors"):
                with snug.Reader(shard) as reader:
                    self.assertTrue(reader.compressed)
            self.assertEqual([path for path in folder.iterdir() if path.is_dir()], [])
            self.assert_same(load(folder), load(models[name]))

    def test_other_processes_write_nothing(self):
        model, folder = load(models["llama.snug"]), self.work / "folder"
        snug.transformers.save_pretrained(model, folder)
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        snug.transformers.save_pretrained(model, folder, is_main_process=False,
                                          max_shard_size="1MB")
        self.assertEqual({path.name: path.read_bytes() for path in folder.iterdir()}, before)

    def test_adapters_are_refused(self):
        model = load(models["llama.snug"])
        model._hf_peft_config_loaded = True
        with self.assertRaisesRegex(ValueError, "adapters"):
            snug.transformers.save_pretrained(model, self.work / "x")
        self.assertFalse((self.work / "x").exists())

    def test_bad_arguments(self):
        model = load(models["llama.snug"])
        (self.work / "file").write_text("")
        with self.assertRaises(NotADirectoryError):
            snug.transformers.save_pretrained(model, self.work / "file")
        with self.assertRaises(ValueError):
            snug.transformers.save_pretrained(model, self.work / "x", codec="zip")
        with self.assertRaises(ValueError):
            snug.transformers.save_pretrained(model, self.work / "x", push_to_hub=True)
        self.assertFalse((self.work / "x").exists())


class StateDict(Case):
    """Other libraries take a state_dict."""

    def test_load_state_dict(self):
        config = AutoConfig.from_pretrained(models["llama"])
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        model.load_state_dict(snug.torch.load_file(models["llama.snug"]))
        self.assert_same(model, load(models["llama"]))


class Examples(Case):
    """examples/*.py, as a user runs them."""

    def test_each(self):
        examples = Path(__file__).parents[2] / "examples"
        for name, *arguments in (["load_with_transformers.py", models["llama.snug"]],
                                 ["load_state_dict.py"], ["distributed_checkpoint.py"]):
            done = subprocess.run([sys.executable, str(examples / name), *arguments],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex(done.stdout, "exactly|parameters")


class DistributedCheckpoint(Case):
    def test_other_formats_are_refused(self):
        from torch.distributed.checkpoint import filesystem
        formats = getattr(filesystem, "SerializationFormat", None)
        if formats is None:
            self.skipTest("this torch has just one format")
        with self.assertRaisesRegex(ValueError, "TORCH_SAVE"):
            snug.torch.dcp.FileSystemWriter(self.work, serialization_format=formats.SAFETENSORS)

    def state(self):
        torch.manual_seed(0)
        return {"w": (torch.randn(700, 1024) * 0.02).to(torch.bfloat16), "b": torch.zeros(4096),
                "e": torch.zeros(0), "f": torch.randn(300, 300), "step": 7}

    def test_round_trip(self):
        import torch.distributed.checkpoint as dcp
        state, into = self.state(), self.state()
        into["w"], into["f"], into["step"] = into["w"] * 0, into["f"] * 0, 0
        folder = self.work / "dcp"
        dcp.save(state, storage_writer=snug.torch.dcp.FileSystemWriter(folder), no_dist=True)
        stored = sum(path.stat().st_size for path in folder.glob("*.distcp"))
        self.assertLess(stored, 0.75 * 700 * 1024 * 2 + 0.95 * 4 * 300 * 300 + 20000)
        with self.assertRaises(BaseException):  # a CheckpointException is no Exception
            dcp.load(into, storage_reader=dcp.FileSystemReader(folder), no_dist=True)
        dcp.load(into, storage_reader=snug.torch.dcp.FileSystemReader(folder), no_dist=True)
        for name, value in state.items():
            self.assertTrue(torch.equal(torch.as_tensor(into[name]), torch.as_tensor(value)), name)
        data = bytearray((folder / "__0_0.distcp").read_bytes())
        data[len(data) // 2] ^= 1
        (folder / "__0_0.distcp").write_bytes(data)
        with self.assertRaises(BaseException):
            dcp.load(into, storage_reader=snug.torch.dcp.FileSystemReader(folder), no_dist=True)


if __name__ == "__main__":
    unittest.main()
