"""engine_run.py JOB.json: starts a vLLM engine and writes tokens and log-probabilities.

JOB has `model`, `options` (of vllm.LLM), `out`, and maybe `lora`, a folder with an adapter, or
`reload`, a folder whose weights take the place of the first: then there is a second output with it.
The quantization `other` is a method that leaves the LM head to vLLM, as FP8 does.
"""

import json
import sys


def register_other():
    import torch
    from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
    from vllm.model_executor.layers.quantization import register_quantization_config
    from vllm.model_executor.layers.quantization.base_config import QuantizationConfig

    @register_quantization_config("other")
    class Other(QuantizationConfig):
        get_name = staticmethod(lambda: "other")
        get_supported_act_dtypes = staticmethod(lambda: [torch.bfloat16])
        get_min_capability = staticmethod(lambda: 0)
        get_config_filenames = staticmethod(lambda: [])
        from_config = classmethod(lambda cls, config: cls())

        def get_quant_method(self, layer, prefix):
            return UnquantizedLinearMethod() if isinstance(layer, LinearBase) else None


def answers(llm, **options):
    from vllm import SamplingParams
    sampling = SamplingParams(max_tokens=16, temperature=0, ignore_eos=True, logprobs=2,
                              detokenize=False)
    prompts = [{"prompt_token_ids": [(7 * i + 13 * j + 3) % 1000 for j in range(20 + 17 * i)]}
               for i in range(6)]
    outputs = llm.generate(prompts, sampling, use_tqdm=False, **options)
    return [[list(out.outputs[0].token_ids),
             [sorted((token, entry.logprob) for token, entry in step.items())
              for step in out.outputs[0].logprobs]] for out in outputs]


def main():
    with open(sys.argv[1]) as file:
        job = json.load(file)
    from vllm import LLM
    if job["options"].get("quantization") == "other":
        register_other()
    llm = LLM(model=job["model"], max_model_len=512, enable_prefix_caching=False,
              skip_tokenizer_init=True, disable_log_stats=True, seed=0, **job["options"])
    results = [answers(llm)]
    if job.get("reload"):
        llm.collective_rpc("reload_weights", kwargs={"weights_path": job["reload"]})
        results.append(answers(llm))
    if job.get("lora"):
        from vllm.lora.request import LoRARequest
        results.append(answers(llm, lora_request=LoRARequest("adapter", 1, job["lora"])))
    with open(job["out"], "w") as file:
        json.dump(results, file)


if __name__ == "__main__":
    main()
