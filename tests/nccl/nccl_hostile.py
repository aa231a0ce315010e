#!/usr/bin/env python3
"""GPU workers beside programs that have made other plugins hang; results are checked.

    tests/nccl/nccl_hostile.py build [--ranks 2] [--times 10] [--seconds 60]

Needs torch with NCCL 2.28 or later and one GPU; `build` is the folder of libnccl-net-snug.so and
libnccl-snug-workers.so. A group of ranks that takes longer than --seconds counts as hung.
"""
import argparse
import sys
import tempfile
import threading

from nccl_identity import bytes_through_plugin, have_torch
from nccl_ranks import HABITS, Group, plugin_env

SETTINGS = {"defaults": {}, "one hardware queue": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}}


def run(folder, stats, name, extra, arguments):
    """Returns the number of failures."""
    env = dict(plugin_env(folder, stats), SNUG_NCCL_CODEC="entropy", SNUG_NCCL_SMS="8", **extra)
    group = Group(arguments.ranks, env)
    hung = []
    watch = threading.Timer(arguments.seconds, lambda: hung.append(True) or [rank.kill() for rank in group.ranks])
    watch.start()
    failures = 0
    habit = "start"
    try:
        group.wait_until_ready()
        group.connect()
        for habit in HABITS:
            wrong = sum(answer["wrong"] for answer in
                        group.order("hostile", habit=habit, num_bytes=arguments.mib << 20, times=arguments.times))
            failures += wrong
            print(f"{name}: {habit}: {'right' if wrong == 0 else f'{wrong} WRONG'}", flush=True)
    except RuntimeError as error:
        failures += 1
        print(f"{name}: {habit}: {'HUNG' if hung else error}", flush=True)
    watch.cancel()
    group.close()
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plugin_folder")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--mib", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=60)
    arguments = parser.parse_args()
    if not have_torch():
        print("skipped: needs torch with NCCL and a GPU")
        return 77
    failures = 0
    with tempfile.TemporaryDirectory() as stats:
        for name, extra in SETTINGS.items():
            failures += run(arguments.plugin_folder, stats, name, extra, arguments)
        total = bytes_through_plugin(stats)
    print(f"{total['gpu_chunks']} chunks sent by GPU workers of {total['entropy_chunks']} compressed")
    return 1 if failures or total["gpu_chunks"] == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
