"""vLLM's KV offload with Snug's slots: python kv_offload_trial.py MODEL [REQUESTS [CODEC]]

Prompts come again and again in random order. vLLM's own prefix cache is emptied before each, so
that what is reused comes from the slots, which have room for about half of the prompts. Answers
must be those of the first time. A small slot_ratio lets many blocks be kept apart.
"""

import json
import os
import random
import sys

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
OPTIONS = json.loads(os.environ.get("KV_ENGINE_OPTIONS", '{"max_model_len": 2048}'))


def engine(model, codec, ratio):
    from vllm import LLM
    from vllm.config import KVTransferConfig
    extra = {"spec_name": "SnugOffloadingSpec", "spec_module_path": "snug.vllm.kv_offload",
             "cpu_bytes_to_use": 12 << 20, "codec": codec}
    if ratio:
        extra["slot_ratio"] = ratio
    options = {**OPTIONS, "enable_prefix_caching": True}
    return LLM(model=model, enforce_eager=True, kv_transfer_config=KVTransferConfig(
        kv_connector="OffloadingConnector", kv_role="kv_both", kv_connector_extra_config=extra),
        **options)


def trial(llm, num_requests):
    from vllm import SamplingParams
    rng = random.Random(4)
    prompts = [[rng.randrange(4, 4000) for _ in range(rng.randrange(300, 1600))]
               for _ in range(12)]
    sampling = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True, detokenize=False)
    expected, num_reused, num_tokens = {}, 0, 0
    for i in range(num_requests):
        which = i if i < len(prompts) else rng.randrange(len(prompts))
        llm.reset_prefix_cache()
        out = llm.generate([{"prompt_token_ids": prompts[which]}], sampling, use_tqdm=False)[0]
        tokens = list(out.outputs[0].token_ids)
        if expected.setdefault(which, tokens) != tokens:
            raise SystemExit(f"FAIL request {i}: {tokens}, first {expected[which]}")
        num_reused += bool(out.num_cached_tokens)
        num_tokens += out.num_cached_tokens or 0
    again = num_requests - len(prompts)
    if num_reused == 0:
        raise SystemExit(f"FAIL none of {again} prompts came from slots")
    print(f"ok   tokens identical: {num_requests} requests, {num_reused} of {again} found blocks "
          f"in slots, {num_tokens} tokens", flush=True)


def main():
    codec = sys.argv[3] if len(sys.argv) > 3 else "fixed"
    ratio = float(os.environ.get("KV_TRIAL_RATIO", "0"))
    trial(engine(sys.argv[1], codec, ratio), int(sys.argv[2]) if len(sys.argv) > 2 else 40)


if __name__ == "__main__":
    main()
