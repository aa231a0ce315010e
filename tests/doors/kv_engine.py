"""One vLLM engine for kv_vllm_trial.py: answers lines of JSON on its standard output."""

import json
import os
import sys


def main():
    model, role, extra = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever vLLM prints is log
    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig
    options = json.loads(os.environ.get("KV_ENGINE_OPTIONS", "{}"))
    llm = LLM(model=model, enforce_eager=True, disable_log_stats=False,
              kv_transfer_config=KVTransferConfig(
                  kv_connector="SnugConnector", kv_connector_module_path=os.environ.get(
                      "KV_TRIAL_CONNECTOR", "snug.vllm.kv_connector"),
                  kv_role=role, kv_load_failure_policy="recompute",
                  kv_connector_extra_config=extra), **options)

    def generate(jobs):
        """Jobs are [prompt, number of tokens, kv_transfer_params]; all run at the same time."""
        sampling = [SamplingParams(max_tokens=count, temperature=0, ignore_eos=True,
                                   detokenize=False,
                                   extra_args={"kv_transfer_params": params} if params else None)
                    for _, count, params in jobs]
        outs = llm.generate([{"prompt_token_ids": prompt} for prompt, _, _ in jobs], sampling,
                            use_tqdm=False)
        return [{"tokens": list(out.outputs[0].token_ids), "params": out.kv_transfer_params}
                for out in outs]

    def metrics():
        generate([[[5, 6], 1, None]])  # LLM reads what the engine counted only while it generates
        return {metric.name: metric.value for metric in llm.get_metrics()
                if metric.name.startswith("vllm:snug_kv_")}

    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        word, argument = json.loads(line)
        result = generate(argument) if word == "generate" else metrics()
        print(json.dumps(result), file=answers, flush=True)


if __name__ == "__main__":
    main()
