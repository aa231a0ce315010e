#!/usr/bin/env python3
"""ZipNN's rates on the data of cpu_codec_bench: Gaussian BF16 rows, one thread.

Needs the packages zipnn and numpy (pip install zipnn numpy). Prints one line
that can stand beside cpu_codec_bench's table.
"""
import sys
import time

import numpy as np
from zipnn import ZipNN


def gaussian_bf16(num_bytes):
    rng = np.random.default_rng(1)
    rows = min(num_bytes, 32 << 20) // 2 // 4096
    scale = 0.02 * np.exp(0.15 * rng.standard_normal((rows, 1)))
    values = (scale * rng.standard_normal((rows, 4096))).astype(np.float32)
    bits = values.view(np.uint32)
    part = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16).tobytes()
    return (part * (num_bytes // len(part) + 1))[:num_bytes]


def main():
    mib = int(sys.argv[1]) if len(sys.argv) > 1 else 256
    raw = gaussian_bf16(mib << 20)
    copy_s, encode_s, decode_s = [], [], []
    size = 0
    for _ in range(5):
        # ZipNN overwrites its input while it compresses.
        given = bytearray(raw)
        start = time.perf_counter()
        np.copyto(np.empty(len(raw), np.uint8), np.frombuffer(raw, np.uint8))
        copy_s.append(time.perf_counter() - start)
        codec = ZipNN(bytearray_dtype="bfloat16", input_format="byte", threads=1)
        start = time.perf_counter()
        packed = codec.compress(given)
        encode_s.append(time.perf_counter() - start)
        size = len(packed)
        start = time.perf_counter()
        back = ZipNN(bytearray_dtype="bfloat16", input_format="byte", threads=1).decompress(packed)
        decode_s.append(time.perf_counter() - start)
        assert bytes(back) == raw, "ZipNN gave other bytes back"
    gb = len(raw) / 1e9
    median = lambda times: sorted(times)[len(times) // 2]
    print(f"| ZipNN, 1 thread | {size / len(raw):.4f} | {gb / median(encode_s):.2f} | "
          f"| {gb / median(decode_s):.2f} | |")


if __name__ == "__main__":
    main()
