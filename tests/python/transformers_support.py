"""What the tests of snug.transformers share: folders with small models, plain and compressed.

Without torch and transformers they are skipped. SNUG_TEST_MODEL names a folder with a model to use
beside those that are made up here.
"""

import os
import shutil
import sys
import tempfile
import unittest
import warnings
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import torch
    import transformers
    from transformers import AutoModelForCausalLM
except ImportError as error:
    print(f"skipped: {error.name} is not installed")
    sys.exit(77)
try:
    import accelerate
except ImportError:
    accelerate = None

from snug import saving
from snug._library import has_cuda

# Before snug.transformers registers its quantizer: see Unregistered.
unregistered_load = transformers.PreTrainedModel._load_pretrained_model
import snug.transformers  # noqa: E402, F401

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


models = Models()  # deleted when the process ends


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
