#!/usr/bin/env python3
"""Collectives over a shaped link, compressed and not, and NCCL's own sockets, in one run.

    bench/nccl/nccl_speed.py build --data grad=grad.safetensors --data weights=a.safetensors,b.safetensors

`build` is the folder of libnccl-net-snug.so. Ranks share a machine; the link is
loopback, held down by SNUG_NCCL_PACE_GBPS where a speed is given. Medians.
"""
import argparse
import json
import os
import statistics
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/nccl"))
from nccl_identity import SIZES, compare  # noqa: E402
from nccl_ranks import SOCKET_ENV, Group, plugin_env  # noqa: E402

OPS = ("send_recv", "broadcast", "all_gather", "all_reduce")


class Bench:
    def __init__(self, arguments):
        self.arguments = arguments
        self.files = dict(item.split("=", 1) for item in arguments.data) or {"gaussian": "gaussian"}
        self.files["random"] = "random"
        self.rows = []

    def measure(self, group, label, data, ops=OPS):
        group.connect()
        for name in data:
            group.order("load", name=name, path=self.files[name], num_bytes=self.arguments.num_bytes)
            for op in ops:
                answer = group.order("speed", op=op, data=name, warm_up=self.arguments.warm_up, runs=self.arguments.runs)
                seconds = statistics.median(answer[0]["seconds"])
                row = {"label": label, "op": op, "data": name, "seconds": seconds, "all": answer[0]["seconds"],
                       "gb_per_s": self.arguments.num_bytes / seconds / 1e9}
                self.rows.append(row)
                print(f"{label:24s} {op:10s} {name:10s} {seconds * 1e3:9.2f} ms {row['gb_per_s']:7.3f} GB/s", flush=True)
        if self.arguments.json:
            with open(self.arguments.json, "w") as file:
                json.dump(self.rows, file, indent=1)

    def seconds(self, label, op, data):
        for row in self.rows:
            if (row["label"], row["op"], row["data"]) == (label, op, data):
                return row["seconds"]
        return float("nan")

    def print_ratios(self, fast, slow, data):
        for name in data:
            ratios = "  ".join(f"{op} {self.seconds(slow, op, name) / self.seconds(fast, op, name):.3f}x" for op in OPS)
            print(f"{fast} over {slow}, {name}: {ratios}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plugin_folder")
    parser.add_argument("--data", action="append", default=[], help="NAME=FILE[,FILE...] with BF16 tensors")
    parser.add_argument("--num-bytes", type=int, default=256 << 20)
    parser.add_argument("--gbps", type=float, nargs="*", default=[10, 25])
    parser.add_argument("--warm-up", type=int, default=2)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", help="write every figure there, too")
    parser.add_argument("--identity-ranks", type=int, nargs="*", default=[],
                        help="also compare results with NCCL's own, with so many ranks")
    parser.add_argument("--identity-sizes", type=int, nargs="*", default=SIZES)
    parser.add_argument("--stats-folder")
    arguments = parser.parse_args()
    bench = Bench(arguments)
    names = [name for name in bench.files if name != "random"]

    # All ranks of all settings start at once and wait for their turn.
    folder, stats = arguments.plugin_folder, arguments.stats_folder
    settings = {"Snug off": {"SNUG_NCCL_CODEC": "off"}, "Snug": {}}
    for gbps in arguments.gbps:
        pace = {"SNUG_NCCL_PACE_GBPS": f"{gbps:g}"}
        settings[f"Snug off, {gbps:g} Gbit/s"] = {**pace, "SNUG_NCCL_CODEC": "off"}
        settings[f"Snug, {gbps:g} Gbit/s"] = pace
    groups = {"NCCL sockets": Group(2, SOCKET_ENV)}
    groups |= {label: Group(2, {**plugin_env(folder, stats), **env}) for label, env in settings.items()}
    others = {n: (Group(n, SOCKET_ENV), Group(n, plugin_env(folder, stats))) for n in arguments.identity_ranks if n != 2}
    everyone = [*groups.values(), *(group for pair in others.values() for group in pair)]
    for group in everyone:
        group.wait_until_ready()

    def data_of(label):
        if "Gbit" not in label:
            return names[:1] + ["random"]
        return names + ["random"] if label.endswith(f", {max(arguments.gbps):g} Gbit/s") else names

    bench.measure(groups["NCCL sockets"], "NCCL sockets", names[:1])
    for label in settings:
        bench.measure(groups[label], label, data_of(label))
    print()
    bench.print_ratios("Snug off", "NCCL sockets", names[:1])
    bench.print_ratios("Snug", "Snug off", names[:1] + ["random"])
    for gbps in arguments.gbps:
        label = f"Snug, {gbps:g} Gbit/s"
        bench.print_ratios(label, f"Snug off, {gbps:g} Gbit/s", data_of(label))

    differences = 0
    for n in arguments.identity_ranks:
        pair = (groups["NCCL sockets"], groups["Snug"]) if n == 2 else others[n]
        differences += compare(n, *pair, steps=200 if n == 2 else 0, sizes=arguments.identity_sizes)
    for group in everyone:
        group.close()
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
