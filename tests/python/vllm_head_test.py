"""Which LM heads snug.vllm packs, with stand-ins for vLLM's classes."""

import importlib
import logging
import sys
import types
import unittest
import unittest.mock

try:
    import torch
except ImportError:
    print("skipped: torch is not installed")
    sys.exit(77)

import snug.vllm

_LOG = "vllm.plugins.snug"
_MODULES = ("engine", "experts", "method")  # those that look vLLM's names up


def settings(**model):
    return types.SimpleNamespace(
        lora_config=None, additional_config={},
        load_config=types.SimpleNamespace(load_format="auto"),
        model_config=types.SimpleNamespace(dtype=torch.bfloat16, **model))


def fake_engine():
    """snug.vllm.engine over a vLLM whose classes are empty."""
    class Anything(types.ModuleType):
        __version__ = "9.9"

        def __getattr__(self, name):
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (), {"__init__": lambda self, *args, **kwargs: None})

    with unittest.mock.patch.object(importlib, "import_module", Anything):
        from snug.vllm import engine
    engine.init_logger = Log
    engine.current_platform = types.SimpleNamespace(is_cuda=lambda: False)
    return engine


class Log:
    def __init__(self, name):
        self._log = logging.getLogger(name)

    def __getattr__(self, name):
        return getattr(self._log, name.removesuffix("_once"))


class Heads(unittest.TestCase):
    def setUp(self):
        self.forget()
        self.addCleanup(self.forget)
        self.engine = fake_engine()
        from snug.vllm import method
        self.method = method

    def forget(self):
        for name in _MODULES:
            sys.modules.pop("snug.vllm." + name, None)
            vars(snug.vllm).pop(name, None)

    def method_of_head(self, config):
        """Its name, and what the log says."""
        self.engine.get_current_vllm_config = lambda: config
        options = self.method.Options(mode="run")
        with self.assertLogs(_LOG, logging.INFO) as logs:
            logging.getLogger(_LOG).info("the log has something")
            found = self.method.SnugConfig(options).get_quant_method(self.engine.ParallelLMHead(),
                                                                     "lm_head")
        return type(found).__name__, logs.output[-1]

    def test_a_head_of_the_type_of_the_model_is_packed(self):
        for config in (settings(), settings(head_dtype=torch.bfloat16)):  # older vLLM has none
            self.assertEqual(self.method_of_head(config)[0], "PackedHead")

    def test_a_head_of_another_type_stays_dense(self):
        name, text = self.method_of_head(settings(head_dtype=torch.float32))
        self.assertEqual(name, "UnquantizedEmbeddingMethod")
        self.assertIn("LM head stays dense, because vLLM multiplies it in torch.float32", text)

    def test_a_head_with_adapters_stays_dense(self):
        config = settings()
        config.lora_config = object()
        name, text = self.method_of_head(config)
        self.assertEqual(name, "UnquantizedEmbeddingMethod")
        self.assertIn("LM head stays dense, because vLLM's LoRA reads its weights", text)


if __name__ == "__main__":
    unittest.main()
