#!/usr/bin/env python3
"""mount_bench.py SNUG [--size 1GiB] [--runs 5] [--threads 2] [--folder DIR]: rates of a mount.

Reads one compressed file through `snug mount`, in order, next to the codec's own rate (`snug
bench`, in memory, as many threads) and to the plain file. All of them take turns, and the best of
all runs counts: other programs on the machine can only make a run slower. CPU time, of the mount's
process and of the reader together, hardly depends on them. Needs the right to mount.
"""
import argparse
import json
import mmap
import os
import random
import subprocess
import tempfile
import time
from pathlib import Path

PIECE = 1 << 20


def forget(path):
    """Drops a file's pages from the kernel's cache."""
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def read_rate(path):
    buffer = bytearray(PIECE)
    buffer[::4096] = bytes(len(buffer) // 4096)
    fd, total, start = os.open(path, os.O_RDONLY), 0, time.perf_counter()
    while got := os.readv(fd, [buffer]):
        total += got
    seconds = time.perf_counter() - start
    os.close(fd)
    return total / seconds / 1e9


def map_rate(path):
    """Touches every page of a mapping, in order."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
        start = time.perf_counter()
        for at in range(0, len(view), PIECE):
            view[at:at + PIECE:4096]
        return len(view) / (time.perf_counter() - start) / 1e9


def fault_milliseconds(path, count=300):
    """The median time of a page fault at a random place, with the kernel's own read-around off."""
    rng, times = random.Random(1), []
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
        view.madvise(mmap.MADV_RANDOM)
        for _ in range(count):
            at = rng.randrange(len(view))
            start = time.perf_counter()
            view[at]
            times.append(time.perf_counter() - start)
    return sorted(times)[count // 2] * 1e3


class Mounted:
    def __init__(self, snug, source, folder, *options):
        self.folder = folder
        done = subprocess.run([snug, "mount", "--background", "--json", source, folder, *options],
                              check=True, capture_output=True, text=True)
        self.pid = json.loads(done.stdout)["pid"]

    def cpu_seconds(self):
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        subprocess.run(["umount", self.folder], check=True)
        while Path(f"/proc/{self.pid}").exists():
            time.sleep(0.01)


def codec_rate(snug, path, threads):
    done = subprocess.run([snug, "bench", path, "--json", "--runs", "3", "--limit", "64MiB", "-t",
                           str(threads)],
                          check=True, capture_output=True, text=True)
    row = next(row for row in json.loads(done.stdout)["results"] if row["name"] == "snug entropy")
    return row["decompress_bytes_per_s"][1] / 1e9


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("snug")
    parser.add_argument("--size", default="1GiB")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", help="where to put the files; default: the system's")
    args = parser.parse_args()
    best, cpu, faults = {}, {}, []

    def note(name, rate, mounted=None):
        """Calls rate() and keeps the best result, and the least CPU time."""
        before = time.process_time() + (mounted.cpu_seconds() if mounted else 0)
        value = rate()
        used = time.process_time() + (mounted.cpu_seconds() if mounted else 0) - before
        best[name] = max(best.get(name, value), value)
        cpu[name] = min(cpu.get(name, used), used)

    with tempfile.TemporaryDirectory(dir=args.folder) as scratch:
        plain, target = Path(scratch, "m.safetensors"), Path(scratch, "dir")
        packed, shown = Path(scratch, "m.snug.safetensors"), target / "m.safetensors"
        target.mkdir()
        subprocess.run([args.snug, "sample", plain, "--size", args.size], check=True,
                       capture_output=True)
        subprocess.run([args.snug, "compress", plain, "-q"], check=True)
        options = ["-t", str(args.threads)]
        large = ["--cache", str(2 * plain.stat().st_size)]
        for _ in range(args.runs):
            note("codec in memory", lambda: codec_rate(args.snug, plain, args.threads))
            with Mounted(args.snug, packed, target, *options) as mounted:
                note("read, nothing cached", lambda: read_rate(shown), mounted)
            with Mounted(args.snug, packed, target, *options) as mounted:
                note("mapped, nothing cached", lambda: map_rate(shown), mounted)
            with Mounted(args.snug, packed, target, *options, *large) as mounted:
                read_rate(shown)
                forget(shown)
                note("read, blocks cached", lambda: read_rate(shown), mounted)
                forget(shown)
                note("mapped, blocks cached", lambda: map_rate(shown), mounted)
                note("read, in the kernel's cache", lambda: read_rate(shown), mounted)
            with Mounted(args.snug, packed, target, *options):
                faults.append(fault_milliseconds(shown))
            note("plain file, in the kernel's cache", lambda: read_rate(plain))
        num_bytes = plain.stat().st_size
    print(f"| {args.size}, {args.threads} threads, best of {args.runs} | GB/s | of the codec "
          "| CPU seconds a GB |")
    print("|---|---|---|---|")
    for name, value in best.items():
        used = "" if name == "codec in memory" else f"{cpu[name] / num_bytes * 1e9:.2f}"
        print(f"| {name} | {value:.2f} | {value / best['codec in memory']:.0%} | {used} |")
    print(f"\nA page fault at a random place takes {min(faults):.2f} ms (median of 300).")


if __name__ == "__main__":
    main()
