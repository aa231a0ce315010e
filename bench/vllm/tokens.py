#!/usr/bin/env python3
"""tokens.py MODE MODEL OUT.json: greedy tokens and log-probabilities of 64 prompts, 128 tokens each.

Two modes give equal files if and only if they compute the same: `cmp OUT1 OUT2`.
"""

import argparse
import json

from common import MODES, prompts, save, start


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("--options", default="{}", help="more options of vllm.LLM, as JSON")
    args = parser.parse_args()
    llm = start(args.mode, args.model, **json.loads(args.options))
    from vllm import SamplingParams
    params = SamplingParams(max_tokens=128, ignore_eos=True, temperature=0.0, logprobs=4,
                            detokenize=False)
    requests = [request for length in (7, 40, 130, 300)
                for request in prompts(16, length, vocabulary=4000)]
    outputs = llm.generate(requests, params, use_tqdm=False)
    save(args.out, [[[{token: entry.logprob for token, entry in step.items()}
                      for step in out.outputs[0].logprobs], list(out.outputs[0].token_ids)]
                    for out in outputs])
    print(f"{args.mode}: {sum(len(out.outputs[0].token_ids) for out in outputs)} tokens")


if __name__ == "__main__":
    main()
