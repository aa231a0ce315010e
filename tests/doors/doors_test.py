"""snug.vllm in a real engine on the CPU: what compressed folders give is what plain ones give.

Run by `make doors-test`, with the Python of an environment that has vLLM for CPUs. SNUG_TEST_MODEL
names a folder with a BF16 model to use beside those that are made up here. Engines start in seconds
on an idle machine, so each test starts its own.
"""

import dataclasses
import inspect
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import torch
import vllm
from safetensors.torch import load_file, save_file

from door_models import make_adapter, make_model, make_tokenizer
from snug.vllm import engine, weight_engine
from snug.vllm.trainer import Trainer

ROOT = Path(__file__).resolve().parents[2]
SNUG = os.environ.get("SNUG_CLI", str(ROOT / "build" / "snug"))
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
               "VLLM_TARGET_DEVICE": "cpu", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
               "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
RUN = {"SNUG_VLLM_MODE": "run", "SNUG_VLLM_EXPERTS": "1"}  # packed weights, also on a CPU
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


def compressed(folder):
    target = folder.with_name(folder.name + ".snug")
    if not target.exists():
        subprocess.run([SNUG, "compress", folder, target], check=True, capture_output=True)
    return target


def environment_with(variables):
    path = [str(ROOT / "python"), str(Path(_scratch.name, "site"))]
    return {**os.environ, **ENVIRONMENT, **dict(variables), "PYTHONPATH": os.pathsep.join(path)}


def run(model, environment=(), reload=None, lora=None, **options):
    """The results of an engine and what it printed; results are None if it failed."""
    with tempfile.TemporaryDirectory(dir=_scratch.name) as folder:
        out, job = Path(folder, "out.json"), Path(folder, "job.json")
        job.write_text(json.dumps({"model": str(model), "options": {**EAGER, **options},
                                   "out": str(out), "reload": reload and str(reload),
                                   "lora": lora and str(lora)}))
        done = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("engine_run.py")), str(job)],
            env=environment_with(environment), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True)
        if done.returncode != 0 or not out.exists():
            return None, done.stdout
        return json.loads(out.read_text()), done.stdout


class Doors(unittest.TestCase):
    models = {}
    plain = {}  # results of plain vLLM, by model and ranks

    @classmethod
    def setUpClass(cls):
        root = Path(_scratch.name)
        for name, tied, experts in (("tied", True, 0), ("untied", False, 0), ("experts", False, 8)):
            make_model(root / name, 1, tied, experts)
            make_model(root / (name + "-new"), 2, tied, experts)
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

    def test_trainers_behind_both_interfaces_take_the_same(self):
        try:
            from snug.vllm.trainer_engine import SnugTrainerInitInfo
        except ImportError:
            self.skipTest("vLLM has no trainers before 0.32")
        fields = {field.name for field in dataclasses.fields(SnugTrainerInitInfo)}
        self.assertEqual(fields, set(inspect.signature(Trainer).parameters)
                         - {"client", "source", "metadata"})

    def test_updates_process_no_other_layers(self):
        """Layers without a bias do not share it with a packed layer, which has no `weight`."""
        class Method:
            calls = 0

            def process_weights_after_loading(self, layer):
                self.calls += 1

        layers = torch.nn.ModuleList([torch.nn.Module(), torch.nn.Module(), torch.nn.Module()])
        weight = torch.nn.Parameter(torch.zeros(2))
        for layer, own in zip(layers, (None, weight, weight)):
            layer.register_parameter("weight", own)
            layer.quant_method = Method()
        for written, calls in ((0, [0, 0, 0]), (1, [0, 0, 1])):
            parameter = mock.Mock(module=layers[written])
            parameter.tensor.return_value = layers[written].weight
            weight_engine._Layers(layers).process_tied([parameter])
            self.assertEqual([layer.quant_method.calls for layer in layers], calls)

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
                self.assertIn("layers packed (policy memory)", log)
                twin, log = self.good(self.models[name], {**RUN, "SNUG_VLLM_POLICY": "twin"},
                                      quantization="snug")
                self.assertIn("layers packed (policy twin)", log)
                self.assertEqual(packed, twin)

    def test_packed_in_two_ranks(self):
        for name in ("untied", "experts"):
            with self.subTest(name):
                divided = self.divided(2)
                environment = {**divided.pop("environment"), **RUN}
                packed, _ = self.good(compressed(self.models[name]), environment, **divided)
                twin, _ = self.good(self.models[name], {**environment, "SNUG_VLLM_POLICY": "twin"},
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
        for name in ("tied", "untied", "experts"):
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
            self.assertIn("8 of 8 layers packed (policy twin)", log)

    def test_example_of_updates(self):
        """examples/rl_updates.py, as a user runs it."""
        folder = Path(_scratch.name, "example")
        make_model(folder, 1, tied=False)
        make_tokenizer(folder)
        for processes in ("0", "1"):
            done = subprocess.run(
                [sys.executable, str(ROOT / "examples" / "rl_updates.py"), str(folder)],
                env=environment_with({"VLLM_ENABLE_V1_MULTIPROCESSING": processes}),
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            self.assertEqual(done.returncode, 0, done.stdout[-6000:])
            self.assertRegex(done.stdout, "step 2: .* 16 deltas, 0 whole tensors")

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

    def without(self, tensor, folder_name, model="untied"):
        """A folder that lacks one tensor, in its index, too."""
        folder = Path(_scratch.name, folder_name)
        subprocess.run(["cp", "-r", self.models[model], folder], check=True)
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
        folder = self.without("model.layers.1.mlp.experts.5.up_proj.weight", "without an expert",
                              "experts")
        self.bad(r"model\.layers\.1\.mlp\.experts\S*: the checkpoint has \d+ of its", folder, RUN,
                 quantization="snug")

    def test_experts_that_stay_dense(self):
        """vLLM's LoRA brings kernels of its own for experts. On a CPU they do not run."""
        _, log = run(self.models["experts"], RUN, quantization="snug", enable_lora=True)
        self.assertIn("experts of mixture-of-experts layers stay dense: vLLM's LoRA", log)
        _, log = self.good(self.models["experts"], {**RUN, "SNUG_VLLM_EXPERTS": "0"},
                           quantization="snug")
        self.assertIn("stay dense: SNUG_VLLM_EXPERTS=1 packs them", log)

    def test_head_of_another_method(self):
        environment = {**RUN, "SNUG_VLLM_HEAD": "1"}
        packed, log = self.good(self.models["untied"], environment, quantization="other")
        self.assertIn("1 of 1 layers packed (policy memory)", log)
        twin, _ = self.good(self.models["untied"], {**environment, "SNUG_VLLM_POLICY": "twin"},
                            quantization="other")
        self.assertEqual(packed, twin)
        tied, log = self.good(self.models["tied"], environment, quantization="other")
        self.assertNotIn("layers packed", log)
        self.assertEqual([answer[0] for answer in tied[0]],
                         [answer[0] for answer in self.plain_of("tied")[0]])

    def test_head_in_fp32(self):
        """vLLM takes no other than dense weights for it."""
        head = dict(hf_overrides={"head_dtype": "float32"})
        _, log = self.good(compressed(self.models["untied"]), RUN, **head)
        self.assertIn("LM head stays dense, because vLLM multiplies it in torch.float32", log)
        self.assertIn("8 of 8 layers packed (policy memory)", log)
        _, log = self.good(self.models["untied"], {**RUN, "SNUG_VLLM_HEAD": "1"},
                           quantization="other", **head)
        self.assertNotIn("layers packed", log)

    def test_an_unknown_choice_for_heads_stops_nothing_else(self):
        _, log = self.good(self.models["untied"], {**RUN, "SNUG_VLLM_HEAD": "yes"},
                           quantization="snug")
        self.assertIn("leaves LM heads of other methods as they are: unknown SNUG_VLLM_HEAD", log)
        self.assertNotIn("cannot be served", log)

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
