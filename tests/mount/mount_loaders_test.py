"""Programs that know nothing of Snug load a compressed model from a mount."""

import importlib.util
import sys

import mount_common
from mount_common import MountTest

MISSING = [name for name in ("torch", "safetensors", "transformers")
           if importlib.util.find_spec(name) is None]


class Loaders(MountTest):
    def test_safetensors(self):
        from safetensors import safe_open
        name = "model-00001-of-00002.safetensors"
        with self.mounted():
            with safe_open(self.plain / name, framework="pt") as want, \
                 safe_open(self.target / name, framework="pt") as got:
                self.assertEqual(list(want.keys()), list(got.keys()))
                for key in want.keys():
                    self.assertTrue(want.get_tensor(key).equal(got.get_tensor(key)), key)

    def test_transformers(self):
        import torch
        from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
        torch.manual_seed(1)
        config = LlamaConfig(vocab_size=256, hidden_size=128, intermediate_size=256,
                             num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
        dense, compressed = self.root / "llama", self.root / "llama.snug"
        LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(dense, max_shard_size="300KB")
        mount_common.compress(dense, compressed)
        tokens = torch.arange(20)[None]
        want = AutoModelForCausalLM.from_pretrained(dense)(tokens).logits
        with self.mounted(source=compressed):
            got = AutoModelForCausalLM.from_pretrained(self.target)(tokens).logits
            self.assert_same(dense, self.target)
        self.assertTrue(want.equal(got))


if __name__ == "__main__":
    if MISSING:
        print(f"skipped: no {', '.join(MISSING)}")
        sys.exit(mount_common.SKIPPED)
    mount_common.main()
