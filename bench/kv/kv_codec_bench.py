"""The codec alone on pages of a KV cache in GPU memory, one call for all pages of a request:

    SNUG_LIBRARY=build/libsnug_c.so PYTHONPATH=python \
        python3 bench/kv/kv_codec_bench.py --data kv.safetensors

Pages of 16 and 32 tokens with K and V of 8 or 128 heads, shuffled; requests of 1 to 256 MB. Times
are those of CUDA events around the call; GB/s counts bytes of the cache.
"""

import argparse
import ctypes
import json
import statistics
from ctypes import byref

import numpy
import torch

from kv_transfer_bench import DIM, sample_of
from snug._library import (CODECS, DTYPES, CudaOptions, CudaResult, EncodeOptions, Status, check,
                           library)


class Request:
    """`num_bytes` in shuffled pages, and what a call needs."""

    def __init__(self, rows, page, heads, num_bytes, codec):
        page_bytes = 2 * page * heads * DIM * 2
        count = max(1, num_bytes // page_bytes)
        index = torch.arange(count * page * heads, device="cuda") * 7
        parts = [side.cuda()[index % len(side)].view(count, page, heads, DIM) for side in rows]
        self.cache = torch.stack(parts, 1).contiguous()
        order = torch.randperm(count, generator=torch.Generator().manual_seed(3)).numpy()
        table = numpy.empty((count, 2), numpy.uint64)
        table[:, 0] = self.cache.data_ptr() + order.astype(numpy.uint64) * page_bytes
        table[:, 1] = page_bytes
        self.count, self.raw_bytes = count, count * page_bytes
        self.table = torch.from_numpy(table.view(numpy.int64)).cuda()
        number = DTYPES["bf16"]
        self.options = CudaOptions(number, CODECS[codec])
        bound = library.snug_encode_bound_bytes(self.raw_bytes, byref(
            EncodeOptions(number, CODECS[codec], 12, 0)))
        self.frame = torch.empty(bound, dtype=torch.uint8, device="cuda")
        self.workspace_bytes = library.snug_cuda_paged_workspace_bytes(
            self.raw_bytes, count, byref(self.options))
        self.workspace = torch.empty(self.workspace_bytes, dtype=torch.uint8, device="cuda")
        self.result = torch.zeros(ctypes.sizeof(CudaResult), dtype=torch.uint8, device="cuda")
        self.frame_bytes = bound

    def encode(self):
        status = Status()
        check(library.snug_cuda_encode_paged(
            self.table.data_ptr(), self.count, self.raw_bytes, self.frame.data_ptr(),
            self.frame.numel(), self.workspace.data_ptr(), self.workspace_bytes,
            self.result.data_ptr(), byref(self.options),
            torch.cuda.current_stream().cuda_stream, byref(status)), status)

    def decode(self):
        status = Status()
        check(library.snug_cuda_decode_paged(
            self.frame.data_ptr(), self.frame_bytes, self.table.data_ptr(), self.count,
            self.raw_bytes, self.workspace.data_ptr(), self.workspace_bytes,
            self.result.data_ptr(), byref(self.options),
            torch.cuda.current_stream().cuda_stream, byref(status)), status)

    def outcome(self):
        outcome = CudaResult.from_buffer_copy(self.result.cpu().numpy().tobytes())
        status = Status()
        check(library.snug_cuda_status(byref(outcome), byref(status)), status)
        return outcome.num_bytes


def milliseconds(call, runs=15):
    times = []
    for _ in range(runs + 3):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times[3:])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data")
    rows = sample_of(parser.parse_args().data)
    for page in (16, 32):
        for heads in (8, 128):
            for megabytes in (1, 8, 64, 256):
                for codec in ("entropy", "fixed"):
                    request = Request(rows, page, heads, megabytes * 10**6, codec)
                    encode = milliseconds(request.encode)
                    request.frame_bytes = request.outcome()
                    before = request.cache.clone()
                    request.cache.zero_()
                    decode = milliseconds(request.decode)
                    request.outcome()
                    if not torch.equal(before.view(torch.int16), request.cache.view(torch.int16)):
                        raise SystemExit("pages differ")
                    print(json.dumps({
                        "page": page, "heads": heads, "MB": round(request.raw_bytes / 1e6, 2),
                        "pages": request.count, "codec": codec,
                        "ratio": round(request.frame_bytes / request.raw_bytes, 4),
                        "encode_GBps": round(request.raw_bytes / encode / 1e6),
                        "decode_GBps": round(request.raw_bytes / decode / 1e6)}), flush=True)


if __name__ == "__main__":
    main()
