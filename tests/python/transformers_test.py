"""snug.transformers: compressed folders in transformers, on the CPU and, where there is one, the
GPU. SNUG_TEST_MODEL names a folder with a model to use beside those that are made up here."""

import copy
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
import warnings
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import safetensors.torch
    import torch
    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM
except ImportError as error:
    print(f"skipped: {error.name} is not installed")
    sys.exit(77)
try:
    import accelerate
except ImportError:
    accelerate = None

import snug
import snug.torch
import snug.torch.dcp
from snug import saving
from snug._library import has_cuda

# Before snug.transformers registers its quantizer: see Unregistered.
_load_pretrained_model = transformers.PreTrainedModel._load_pretrained_model
import snug.transformers  # noqa: E402
from snug.transformers import SnugConfig, SnugQuantizer  # noqa: E402

HAS_GPU = has_cuda and torch.cuda.is_available()
SIZES = dict(vocab_size=1024, hidden_size=512, intermediate_size=1024, num_hidden_layers=2,
             num_attention_heads=8, num_key_value_heads=2, head_dim=64,
             max_position_embeddings=256)
IDS = torch.arange(5, 45)[None]
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
warnings.filterwarnings("ignore")
if not HAS_GPU:
    torch.cuda.is_current_stream_capturing = lambda: False  # some builds of torch crash in it


def load(path, **options):
    return AutoModelForCausalLM.from_pretrained(path, **options)


def logits(model):
    with torch.no_grad():
        return model(IDS.to(model.device)).logits.cpu()


def compress(source, target):
    saving.compress_path(os.fsencode(source), os.fsencode(target), 3, 1)


class Models:
    """Folders with small random models, plain and compressed."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        root = Path(self.folder.name)
        torch.manual_seed(0)
        llama = transformers.LlamaConfig(**SIZES)
        tied = transformers.LlamaConfig(**SIZES, tie_word_embeddings=True, attention_bias=True)
        experts = dict(moe_intermediate_size=256, num_experts=4, num_experts_per_tok=2)
        qwen = transformers.Qwen3MoeConfig(**{**SIZES, **experts, "hidden_size": 256})
        mixtral = transformers.MixtralConfig(**{**SIZES, "hidden_size": 128,
                                                "intermediate_size": 96, "num_local_experts": 4})
        for name, config, shard in (("llama", llama, "2MB"), ("tied", tied, "5GB"),
                                    ("qwen_moe", qwen, "1MB"), ("mixtral", mixtral, "5GB")):
            model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
            model.save_pretrained(root / name, max_shard_size=shard)
        self.names = ["llama", "tied", "qwen_moe", "mixtral"]
        if os.environ.get("SNUG_TEST_MODEL"):
            shutil.copytree(os.environ["SNUG_TEST_MODEL"], root / "given")
            self.names.append("given")
        for name in self.names:
            compress(root / name, root / f"{name}.snug")

    def __getitem__(self, name):
        return os.path.join(self.folder.name, name)


def setUpModule():
    global models
    models = Models()


def tearDownModule():
    models.folder.cleanup()


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.work = Path(folder.name)

    def assert_same(self, model, other):
        first, second = dict(model.named_parameters()), dict(other.named_parameters())
        self.assertEqual(first.keys(), second.keys())
        for name, tensor in first.items():
            self.assertEqual(tensor.dtype, second[name].dtype, name)
            self.assertTrue(torch.equal(tensor.cpu(), second[name].cpu()), name)
        self.assertTrue(torch.equal(logits(model), logits(other)))

    def damaged(self, name, change):
        """A copy of a compressed folder; change(data) of its first shard."""
        folder = self.work / "damaged"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(models[name + ".snug"], folder)
        shard = sorted(folder.glob("*.safetensors"))[0]
        data = bytearray(shard.read_bytes())
        changed = change(data)
        shard.write_bytes(data if changed is None else changed)
        return folder


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
        transformers.PreTrainedModel._load_pretrained_model = staticmethod(_load_pretrained_model)
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
        with self.assertRaisesRegex(ValueError, "newer Snug"):
            load(folder)

    def test_a_config_without_the_mark(self):
        config = AutoConfig.from_pretrained(models["llama"])
        with self.assertRaises(RuntimeError):
            load(models["llama.snug"], config=config)
        with self.assertRaisesRegex(ValueError, "the folder is compressed"):
            load(models["llama.snug"], config=config, ignore_mismatched_sizes=True)

    def test_other_entries_of_the_mark(self):
        config = SnugConfig.from_dict({"quant_method": "snug", "format": 1, "note": "of another"})
        self.assertEqual(config.mode, "load")
        with self.assertRaisesRegex(ValueError, "newer Snug"):
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


class Run(Case):
    """On a CPU, compressed layers restore their matrices on every call: slow, but the same."""

    def setUp(self):
        super().setUp()
        if not HAS_GPU:
            snug.transformers._RUN_ON.add("cpu")
            self.addCleanup(snug.transformers._RUN_ON.discard, "cpu")

    def load_to_run(self, name, **options):
        return load(models[name], quantization_config=SnugConfig(mode="run", **options))

    def twin(self, name):
        model = load(models[name])
        model = model.cuda() if HAS_GPU else model
        snug.torch.compress_model(model, "twin")
        return model

    def test_same_bits_as_the_twin(self):
        for name in ("llama", "tied", *(["given"] if "given" in models.names else [])):
            with self.subTest(name):
                model, twin = self.load_to_run(name + ".snug"), self.twin(name)
                report = model.hf_quantizer.report
                self.assertLess(report.num_bytes, 0.85 * report.dense_bytes, report)
                self.assertIn("compressed", str(report))
                self.assertTrue(torch.equal(logits(model), logits(twin)))
                ids = IDS.to(model.device)
                options = dict(max_new_tokens=8, do_sample=False)
                self.assertTrue(torch.equal(model.generate(ids, **options),
                                            twin.generate(ids, **options)))

    def test_plain_folders_are_compressed_while_loading(self):
        self.assertTrue(torch.equal(logits(self.load_to_run("llama")),
                                    logits(self.load_to_run("llama.snug"))))

    def test_what_stays_dense_is_said(self):
        text = str(self.load_to_run("tied.snug", skip=["model.layers.0.mlp"]).hf_quantizer.report)
        self.assertIn("lm_head (1024 x 512) stays dense: shares its weights", text)
        self.assertIn("model.layers.0.mlp.down_proj (512 x 1024) stays dense: asked to skip", text)

    def test_experts_run_compressed(self):
        model = self.load_to_run("qwen_moe.snug", skip=["model.layers.0.mlp"])
        banks = [name for name, module in model.named_modules()
                 if isinstance(module, snug.torch.CompressedExperts)]
        self.assertEqual(banks, ["model.layers.1.mlp.experts"])
        self.assertIn("layers.0.mlp.experts (3072 x 256) stays dense: asked to skip",
                      str(model.hf_quantizer.report))
        dense = load(models["qwen_moe"])
        want, got = logits(dense).float(), logits(model).float()
        self.assertLess(float((got - want).norm() / want.norm()), 0.02)
        model.save_pretrained(self.work / "plain")
        self.assert_same(load(self.work / "plain"), dense)

    def test_experts_on_another_device_stay_dense(self):
        snug.transformers._RUN_ON.discard("cpu")
        quantizer = SnugQuantizer(SnugConfig(mode="run"))
        quantizer._finish(load(models["qwen_moe"]))
        self.assertIn("layers.1.mlp.experts (3072 x 256) stays dense: it is on the device cpu",
                      str(quantizer.report))

    def test_a_tied_head_that_was_saved(self):
        shutil.copytree(models["tied"], self.work, dirs_exist_ok=True)
        path = self.work / "model.safetensors"
        tensors = snug.torch.load_file(path)
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})
        model = load(self.work, quantization_config=SnugConfig(mode="run"))
        self.assertIs(model.lm_head.weight, model.model.embed_tokens.weight)
        self.assertIn("lm_head (1024 x 512) stays dense: shares its weights",
                      str(model.hf_quantizer.report))
        self.assertTrue(torch.equal(logits(model), logits(self.load_to_run("tied.snug"))))

    def test_weights_that_the_folder_lacks(self):
        shutil.copytree(models["llama.snug"], self.work, dirs_exist_ok=True)
        config = self.work / "config.json"
        config.write_text(config.read_text().replace('"attention_bias": false',
                                                     '"attention_bias": true'))
        model = load(self.work, quantization_config=SnugConfig(mode="run", fuse=False))
        text = str(model.hf_quantizer.report)
        self.assertIn("q_proj (512 x 512) stays dense: weights are not loaded", text)
        self.assertNotIn("shares its weights", text)
        biases = [tensor for name, tensor in model.named_parameters() if name.endswith(".bias")]
        self.assertEqual(len(biases), 8)
        for bias in biases:
            self.assertEqual(bias.abs().max(), 0)  # as transformers initializes them

    @unittest.skipIf(accelerate is None, "accelerate is not installed")
    def test_layers_on_the_disk_stay_dense(self):
        main = "cuda" if HAS_GPU else "cpu"
        parts = {"model.embed_tokens": main, "lm_head": main, "model.norm": main,
                 "model.rotary_emb": main, "model.layers.0": "disk", "model.layers.1": main}
        model = load(models["llama.snug"], device_map=parts, offload_folder=self.work / "off",
                     quantization_config=SnugConfig(mode="run"))
        self.assertIn("model.layers.0.mlp.down_proj (512 x 1024) stays dense: it is on the disk",
                      str(model.hf_quantizer.report))
        self.assertTrue(hasattr(model.model.layers[1].mlp.down_proj, "decompress"))
        self.assertEqual(logits(model).shape, (1, 40, 1024))

    def test_other_dtypes_are_refused(self):
        with self.assertRaisesRegex(ValueError, "BF16"):
            load(models["llama.snug"], dtype=torch.float32,
                 quantization_config=SnugConfig(mode="run"))

    def test_save_and_restore(self):
        dense = load(models["tied"])
        model = self.load_to_run("tied.snug")
        model.save_pretrained(self.work / "plain")
        snug.transformers.save_pretrained(model, self.work / "packed")
        for folder in ("plain", "packed"):
            self.assert_same(load(self.work / folder), dense)
        again = copy.deepcopy(model).dequantize()
        for name, tensor in dense.named_parameters():
            self.assertTrue(torch.equal(again.get_parameter(name).cpu(), tensor), name)

    def test_damage_is_never_loaded(self):
        def change(data):
            data[int(len(data) * 0.6)] ^= 4
        with self.assertRaises((snug.SnugError, RuntimeError)):
            load(self.damaged("llama", change), quantization_config=SnugConfig(mode="run"))

    @unittest.skipUnless(HAS_GPU, "no GPU")
    def test_gpu_memory_stays_small(self):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        model = self.load_to_run("given.snug" if "given" in models.names else "llama.snug")
        dense = sum(tensor.numel() for tensor in load(models["llama"]).parameters()) * 2
        print(f"peak {torch.cuda.max_memory_allocated() - before} bytes, "
              f"resident {torch.cuda.memory_allocated() - before}, dense llama {dense}; "
              f"{model.hf_quantizer.report}")


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
