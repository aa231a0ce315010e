"""snug.transformers with mode="run": layers stay compressed."""

import copy
import shutil
import unittest

# First: without torch or transformers it ends the test.
from transformers_support import HAS_GPU, IDS, Case, accelerate, load, logits, models

import safetensors.torch
import torch
import transformers

import snug
import snug.torch
import snug.transformers
from snug.transformers import SnugConfig, SnugQuantizer


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

    def test_cross_attention_is_not_fused(self):
        config = transformers.BartConfig(
            vocab_size=256, d_model=256, max_position_embeddings=64, encoder_layers=1,
            decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4,
            encoder_ffn_dim=256, decoder_ffn_dim=256)
        made = transformers.BartForConditionalGeneration(config).to(torch.bfloat16)
        made.save_pretrained(self.work / "bart")
        model = transformers.BartForConditionalGeneration.from_pretrained(
            self.work / "bart", quantization_config=SnugConfig(mode="run"))
        layer = model.model.decoder.layers[0]
        self.assertIsInstance(layer.self_attn.q_proj, snug.torch.linear.FusedPart)
        self.assertIsInstance(layer.encoder_attn.q_proj, snug.torch.CompressedLinear)

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


if __name__ == "__main__":
    unittest.main()
