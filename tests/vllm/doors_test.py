"""snug.vllm in a real engine on the CPU: what compressed folders give is what plain ones give.

Run by `make doors-test`, with the Python of an environment that has vLLM for CPUs. SNUG_TEST_MODEL
names a folder with a BF16 model to use beside those that are made up here. Engines start in seconds
on an idle machine, so each test starts its own.
"""

import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import torch
import vllm
from safetensors.torch import load_file, save_file

from snug.vllm import engine

ROOT = Path(__file__).resolve().parents[2]
SNUG = os.environ.get("SNUG_CLI", str(ROOT / "build" / "snug"))
SIZES = dict(hidden_size=256, intermediate_size=640, num_attention_heads=4, num_key_value_heads=2,
             head_dim=64, num_hidden_layers=2, vocab_size=1024)
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
               "VLLM_TARGET_DEVICE": "cpu", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
               "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
RUN = {"SNUG_VLLM_MODE": "run"}  # packed weights, also on a CPU
EAGER = {"enforce_eager": True}
_scratch = None


def setUpModule():
    """An installed plugin is an entry point in the metadata of a distribution."""
    global _scratch
    _scratch = tempfile.TemporaryDirectory()
    metadata = Path(_scratch.name, "site", "snug_llm-0.1.0.dist-info")
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: snug-llm\nVersion: 0.1.0\n")
    found = re.search(r'entry-points."(vllm\.general_plugins)"\]\n(\w+) = "([\w.:]+)"',
                      (ROOT / "pyproject.toml").read_text())
    (metadata / "entry_points.txt").write_text("[{}]\n{} = {}\n".format(*found.groups()))


def tearDownModule():
    _scratch.cleanup()


def make_model(folder, seed, tied):
    """A Llama with random BF16 weights in two files."""
    torch.manual_seed(seed)
    sizes = dict(SIZES, architectures=["LlamaForCausalLM"], model_type="llama", rms_norm_eps=1e-5,
                 max_position_embeddings=1024, torch_dtype="bfloat16", tie_word_embeddings=tied,
                 hidden_act="silu", bos_token_id=0, eos_token_id=1, rope_theta=10000.0)
    hidden, inner, vocab = (SIZES[key] for key in ("hidden_size", "intermediate_size",
                                                   "vocab_size"))
    shapes = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    if not tied:
        shapes["lm_head.weight"] = vocab, hidden
    for i in range(SIZES["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        for name, shape in (("self_attn.q_proj", (256, hidden)), ("self_attn.k_proj", (128, hidden)),
                            ("self_attn.v_proj", (128, hidden)), ("self_attn.o_proj", (hidden, 256)),
                            ("mlp.gate_proj", (inner, hidden)), ("mlp.up_proj", (inner, hidden)),
                            ("mlp.down_proj", (hidden, inner)), ("input_layernorm", (hidden,)),
                            ("post_attention_layernorm", (hidden,))):
            shapes[f"{layer}{name}.weight"] = shape
    files = {"model-00001-of-00002.safetensors": {}, "model-00002-of-00002.safetensors": {}}
    for name, shape in shapes.items():
        weight = torch.randn(shape) * 0.05 + (1.0 if len(shape) == 1 else 0.0)
        file = list(files)[".1." in name or name == "lm_head.weight"]
        files[file][name] = weight.to(torch.bfloat16)
    folder.mkdir(parents=True)
    for file, tensors in files.items():
        save_file(tensors, folder / file, {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(sizes))
    (folder / "model.safetensors.index.json").write_text(json.dumps(
        {"metadata": {}, "weight_map": {n: f for f, ts in files.items() for n in ts}}))


def compressed(folder):
    target = folder.with_name(folder.name + ".snug")
    if not target.exists():
        subprocess.run([SNUG, "compress", folder, target], check=True, capture_output=True)
    return target


def make_adapter(folder):
    """A LoRA of rank 8 for all q_proj and down_proj."""
    torch.manual_seed(3)
    shapes = {"self_attn.q_proj": (256, 256), "mlp.down_proj": (256, 640)}
    tensors = {}
    for i in range(SIZES["num_hidden_layers"]):
        for name, (out, into) in shapes.items():
            prefix = f"base_model.model.model.layers.{i}.{name}."
            tensors[prefix + "lora_A.weight"] = torch.randn(8, into).to(torch.bfloat16)
            tensors[prefix + "lora_B.weight"] = 0.1 * torch.randn(out, 8).to(torch.bfloat16)
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "bias": "none",
         "target_modules": [name.split(".")[1] for name in shapes]}))


def run(model, environment=(), reload=None, lora=None, **options):
    """The results of an engine and what it printed; results are None if it failed."""
    with tempfile.TemporaryDirectory(dir=_scratch.name) as folder:
        out, job = Path(folder, "out.json"), Path(folder, "job.json")
        job.write_text(json.dumps({"model": str(model), "options": {**EAGER, **options},
                                   "out": str(out), "reload": reload and str(reload),
                                   "lora": lora and str(lora)}))
        path = [str(ROOT / "python"), str(Path(_scratch.name, "site"))]
        done = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("engine_run.py")), str(job)],
            env={**os.environ, **ENVIRONMENT, **dict(environment),
                 "PYTHONPATH": os.pathsep.join(path)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0 or not out.exists():
            return None, done.stdout
        return json.loads(out.read_text()), done.stdout


class Doors(unittest.TestCase):
    models = {}
    plain = {}  # results of plain vLLM, by model and ranks

    @classmethod
    def setUpClass(cls):
        root = Path(_scratch.name)
        for name, tied in (("tied", True), ("untied", False)):
            make_model(root / name, 1, tied)
            make_model(root / (name + "-new"), 2, tied)
            cls.models[name] = root / name
        given = os.environ.get("SNUG_TEST_MODEL")
        if given:
            cls.models["given"] = root / "given"
            cls.models["given"].symlink_to(Path(given).resolve())

    def good(self, *args, **kwargs):
        results, log = run(*args, **kwargs)
        self.assertIsNotNone(results, log[-6000:])
        return results, log

    def plain_of(self, name, ranks=1):
        key = name, ranks
        if key not in self.plain:
            self.plain[key] = self.good(self.models[name], **self.divided(ranks))[0]
        return self.plain[key]

    def divided(self, ranks):
        if ranks == 1:
            return {}
        return {"tensor_parallel_size": ranks,
                "environment": {"VLLM_ENABLE_V1_MULTIPROCESSING": "1",
                                "VLLM_CPU_OMP_THREADS_BIND": "|".join(map(str, range(ranks)))}}

    def test_interfaces(self):
        self.assertEqual(engine.missing(), [], f"vLLM {vllm.__version__} lacks them")

    def test_compressed_folder(self):
        for name in self.models:
            with self.subTest(name):
                results, _ = self.good(compressed(self.models[name]))
                self.assertEqual(results, self.plain_of(name))

    def test_two_ranks(self):
        name = "given" if "given" in self.models else "untied"
        results, _ = self.good(compressed(self.models[name]), **self.divided(2))
        self.assertEqual(results, self.plain_of(name, 2))

    def test_online_without_gpu(self):
        results, log = self.good(self.models["untied"], quantization="snug")
        self.assertEqual(results, self.plain_of("untied"))
        self.assertIn("no NVIDIA GPU", log)

    def test_packed(self):
        """Packed weights give what 16-bit weights in the same order give, bit for bit."""
        for name in self.models:
            with self.subTest(name):
                packed, log = self.good(compressed(self.models[name]), RUN)
                self.assertIn("linear layers packed (policy memory)", log)
                twin, log = self.good(self.models[name], {**RUN, "SNUG_VLLM_POLICY": "twin"},
                                      quantization="snug")
                self.assertIn("linear layers packed (policy twin)", log)
                self.assertEqual(packed, twin)

    def test_packed_in_two_ranks(self):
        divided = self.divided(2)
        environment = {**divided.pop("environment"), **RUN}
        packed, _ = self.good(compressed(self.models["untied"]), environment, **divided)
        twin, _ = self.good(self.models["untied"], {**environment, "SNUG_VLLM_POLICY": "twin"},
                            quantization="snug", **divided)
        self.assertEqual(packed, twin)

    def test_compiled(self):
        """torch.compile takes the operator; policies do not share compiled graphs."""
        cache = {**RUN, "VLLM_CACHE_ROOT": str(Path(_scratch.name, "cache"))}
        packed, _ = self.good(compressed(self.models["untied"]), cache, enforce_eager=False)
        twin, _ = self.good(compressed(self.models["untied"]),
                            {**cache, "SNUG_VLLM_POLICY": "twin"}, enforce_eager=False)
        self.assertEqual(packed, twin)

    def test_new_weights(self):
        """After a reload the engine is one that started with the new weights."""
        for name in ("tied", "untied"):
            with self.subTest(name):
                new = self.models[name].with_name(name + "-new")
                fresh, _ = self.good(compressed(new), RUN)
                (before, after), _ = self.good(compressed(self.models[name]), RUN,
                                               reload=compressed(new))
                self.assertEqual([after], fresh)
                self.assertNotEqual(before, after)

    def test_adapter(self):
        adapter = Path(_scratch.name, "adapter")
        make_adapter(adapter)
        lora = dict(lora=adapter, enable_lora=True, max_lora_rank=8)
        packed, _ = self.good(compressed(self.models["untied"]), RUN, **lora)
        twin, _ = self.good(compressed(self.models["untied"]),
                            {**RUN, "SNUG_VLLM_POLICY": "twin"}, **lora)
        self.assertEqual(packed, twin)
        self.assertNotEqual(packed[0], packed[1])

    def test_options_of_the_command_line(self):
        mark = {"quant_method": "snug", "policy": "twin", "skip": ["lm_head"]}
        for folder in (self.models["untied"], compressed(self.models["untied"])):
            _, log = self.good(folder, RUN, hf_overrides={"quantization_config": mark})
            self.assertIn("8 of 8 linear layers packed (policy twin)", log)

    def bad(self, text, *args, **kwargs):
        results, log = run(*args, **kwargs)
        self.assertIsNone(results, log[-3000:])
        self.assertTrue(re.search(text, log), log[-3000:])

    def test_bad_input(self):
        file = r"model-00002-of-00002\.safetensors"  # vLLM names it itself since 0.32
        for name, text in (("damaged", r"q_proj.*snug verify"),
                           ("no shard", f"{file} is missing|missing: .*{file}"),
                           ("version", "install a newer snug-llm")):
            with self.subTest(name):
                folder = Path(_scratch.name, name)
                subprocess.run(["cp", "-r", compressed(self.models["untied"]), folder], check=True)
                first = folder / "model-00001-of-00002.safetensors"
                if name == "damaged":
                    damage(first, "model.layers.0.self_attn.q_proj.weight")
                elif name == "no shard":
                    (folder / "model-00002-of-00002.safetensors").unlink()
                else:
                    config = folder / "config.json"
                    config.write_text(config.read_text().replace('"format": 1', '"format": 7'))
                self.bad(text, folder)
                if name == "damaged":
                    self.bad(text, folder, **self.divided(2))

    def test_bad_options(self):
        self.bad("one of: memory, speed, twin", self.models["untied"],
                 {"SNUG_VLLM_POLICY": "fast"}, quantization="snug")

    def without(self, tensor, folder_name):
        """A folder that lacks one tensor, in its index, too."""
        folder = Path(_scratch.name, folder_name)
        subprocess.run(["cp", "-r", self.models["untied"], folder], check=True)
        index = folder / "model.safetensors.index.json"
        content = json.loads(index.read_text())
        file = folder / content["weight_map"].pop(tensor)
        index.write_text(json.dumps(content))
        tensors = load_file(file)
        del tensors[tensor]
        save_file(tensors, file, {"format": "pt"})
        return folder

    def test_missing_weights_of_a_layer(self):
        folder = self.without("model.layers.1.self_attn.k_proj.weight", "without k_proj")
        self.bad(r"model\.layers\.1\.self_attn\.qkv_proj: the checkpoint has \d+ of its", folder,
                 RUN, quantization="snug")

    def test_missing_tensor_outside_of_linear_layers(self):
        folder = self.without("model.norm.weight", "without norm")
        text = r"not initialized from checkpoint: \{'model\.norm\.weight'"
        self.bad(text, folder, RUN, quantization="snug")
        self.bad(text, compressed(folder))


def damage(path, name):
    data = bytearray(path.read_bytes())
    size, = struct.unpack("<Q", data[:8])
    first, last = json.loads(data[8:8 + size])[name]["data_offsets"]
    data[8 + size + (first + last) // 2] ^= 16
    path.write_bytes(data)


if __name__ == "__main__":
    unittest.main(verbosity=2)
