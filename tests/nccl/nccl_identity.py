#!/usr/bin/env python3
"""Collectives and a DDP training give the same bits with and without the plugin.

    tests/nccl/nccl_identity.py build [--ranks 2 4] [--steps 200]

Needs torch with NCCL and one GPU; `build` is the folder of libnccl-net-snug.so.
"""
import argparse
import glob
import json
import sys
import tempfile

from nccl_ranks import OPS, SOCKET_ENV, Group, plugin_env

SIZES = [1 << 10, 24 << 10, 200 << 10, 1 << 20, 16 << 20, 256 << 20]
DTYPES = ["bf16", "f16", "f32", "f8_e4m3", "f8_e5m2"]


def compare(ranks, plain, snug, steps, sizes=SIZES):
    """Both groups do the same; returns the number of differences."""
    answers = []
    for group in (plain, snug):
        version = group.connect()
        answer = {"identity": group.order("identity", ops=OPS, dtypes=DTYPES, sizes=sizes)}
        if steps:
            answer["train"] = group.order("train", steps=steps)
        answers.append(answer)
    cases = differences = refused = 0
    for without, with_plugin in zip(answers[0]["identity"], answers[1]["identity"]):
        for case, digest in without["digests"].items():
            cases += 1
            refused += isinstance(digest, str)
            if with_plugin["digests"][case] != digest:
                differences += 1
                print(f"DIFFERENT: {case}, {ranks} ranks")
    print(f"{ranks} ranks, NCCL {version}: {cases - refused} results of {len(OPS)} collectives in {len(DTYPES)} types, "
          f"{sizes[0]} to {sizes[-1]} bytes: {differences} differ ({refused} refused by torch itself)")
    if steps:
        same = answers[0]["train"] == answers[1]["train"]
        differences += not same
        end = answers[1]["train"][0]
        print(f"{ranks} ranks: {steps} steps of DDP, loss {end['first']:.4f} to {end['last']:.4f}: losses and weights "
              f"{'identical' if same else 'DIFFERENT'}")
    return differences


def bytes_through_plugin(folder):
    total = {"data_bytes": 0, "wire_bytes": 0, "entropy_chunks": 0, "gpu_chunks": 0}
    for path in glob.glob(folder + "/stats.*.json"):
        with open(path) as file:
            for row in json.load(file)["peers"]:
                if row["direction"] == "sent":
                    for key in total:
                        total[key] += row[key]
    return total


def have_torch():
    try:
        import torch
        return torch.cuda.is_available() and torch.distributed.is_nccl_available()
    except ImportError:
        return False


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plugin_folder")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--codec", default="auto", help="SNUG_NCCL_CODEC; entropy uses the GPU's workers most")
    arguments = parser.parse_args()
    if not have_torch():
        print("skipped: needs torch with NCCL and a GPU")
        return 77
    differences = 0
    with tempfile.TemporaryDirectory() as folder:
        for ranks in arguments.ranks:
            groups = [Group(ranks, SOCKET_ENV), Group(ranks, dict(plugin_env(arguments.plugin_folder, folder), SNUG_NCCL_CODEC=arguments.codec))]
            for group in groups:
                group.wait_until_ready()
            differences += compare(ranks, *groups, arguments.steps if ranks == arguments.ranks[0] else 0)
            for group in groups:
                group.close()
        total = bytes_through_plugin(folder)
    print(f"through the plugin: {total['data_bytes']} bytes of data as {total['wire_bytes']} on the wire, "
          f"{total['gpu_chunks']} of {total['entropy_chunks']} entropy-coded chunks by the GPU")
    return 1 if differences or total["data_bytes"] == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
