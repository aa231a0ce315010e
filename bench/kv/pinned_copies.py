"""How fast pinned host memory is copied to a GPU, in rows as large as compressed KV blocks:

    python3 bench/kv/pinned_copies.py

"host_ms" is the time of the calls.
"""

import json
import statistics
import time

import torch

ROWS, ROW_BYTES = 512, 1588 * 1024


def milliseconds(call, runs=7):
    """On the GPU, and of the calls."""
    device, host = [], []
    for _ in range(runs + 2):
        torch.cuda.synchronize()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        start = time.perf_counter()
        call()
        host.append(1e3 * (time.perf_counter() - start))
        end.record()
        end.synchronize()
        device.append(begin.elapsed_time(end))
    return statistics.median(device[2:]), statistics.median(host[2:])


def main():
    rows = torch.zeros(ROWS, ROW_BYTES, dtype=torch.uint8).pin_memory()
    room = torch.empty(16, ROW_BYTES, dtype=torch.uint8, device="cuda")
    everything = torch.empty(ROWS * ROW_BYTES, dtype=torch.uint8, device="cuda")
    order, streams = torch.randperm(ROWS).tolist(), [torch.cuda.Stream() for _ in range(2)]

    def one_stream():
        for i, row in enumerate(order):
            room[i % 16].copy_(rows[row], non_blocking=True)

    def two_streams():
        for stream in streams:
            stream.wait_stream(torch.cuda.current_stream())
        for i, row in enumerate(order):
            with torch.cuda.stream(streams[i // 8 % 2]):
                room[i % 16].copy_(rows[row], non_blocking=True)
        for stream in streams:
            torch.cuda.current_stream().wait_stream(stream)

    def one_copy():
        everything.copy_(rows.view(-1), non_blocking=True)

    for call in (one_stream, two_streams, one_copy):
        device, host = milliseconds(call)
        print(json.dumps({"way": call.__name__, "GBps": round(rows.numel() / device / 1e6, 1),
                          "ms": round(device, 3), "host_ms": round(host, 3)}), flush=True)


if __name__ == "__main__":
    main()
