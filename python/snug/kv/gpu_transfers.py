"""Blocks of a KV cache in GPU memory to slots in pinned host memory and back.

A block is one frame: the GPU gathers its pages, encodes them into a buffer, and a copy of fixed
size takes that to the slot, so that nothing waits for the size of the frame. Two lanes, a stream
and a buffer each, take turns: one encodes or decodes while the other's copy is on the bus.
"""

import ctypes
import time
from ctypes import byref

import numpy
import torch

from .._library import (CODECS, DTYPES, CudaOptions, CudaResult, Status, check, library,
                        number_of)
from ..torch.on_gpu import require_cuda
from .frames import bound_bytes

_TURN = 8  # blocks that a lane takes at once: changing streams takes time in Python
_RESULT_BYTES = ctypes.sizeof(CudaResult)


class _Lane:
    def __init__(self, device, frame_bytes, workspace_bytes):
        self.stream = torch.cuda.Stream(device)
        self.frame = torch.empty(frame_bytes, dtype=torch.uint8, device=device)
        self.workspace = torch.empty(workspace_bytes, dtype=torch.uint8, device=device)


class _Job:
    """What a job needs until its work on the GPU has ended."""

    def __init__(self, is_store, blocks, slots, table, results):
        self.is_store, self.blocks, self.slots = is_store, blocks, slots
        self.table, self.results = table, results
        self.host_results, self.event = None, None
        self.start = time.monotonic()

    def outcomes(self):
        return [CudaResult.from_buffer_copy(row.tobytes()) for row in self.host_results.numpy()]


class GpuTransfers:
    """`pages` has a tensor of num_blocks x page_bytes bytes for each layer, all on one GPU."""

    def __init__(self, pages, dtype, codec, store):
        require_cuda()
        self._pages, self._store, self._device = pages, store, pages[0].device
        self._bases = numpy.array([page.data_ptr() for page in pages], numpy.uint64)
        self._strides = numpy.array([page.stride(0) for page in pages], numpy.uint64)
        self._sizes = numpy.array([page.shape[1] for page in pages], numpy.uint64)
        self._raw_bytes = int(self._sizes.sum())
        self._options = CudaOptions(number_of(DTYPES, dtype, "dtype"),
                                    number_of(CODECS, codec, "codec"))
        frame_bytes = max(store.slot_bytes, bound_bytes(self._raw_bytes, dtype, codec))
        self._workspace_bytes = library.snug_cuda_paged_workspace_bytes(
            self._raw_bytes, len(pages), byref(self._options))
        with torch.cuda.device(self._device):
            self._lanes = [_Lane(self._device, frame_bytes, self._workspace_bytes)
                           for _ in range(2)]
        self._jobs, self._ended = {}, []

    def submit(self, job, is_store, blocks, slots):
        """Waits for what is on the current stream: kernels that write or read these blocks."""
        blocks, slots = [int(b) for b in blocks], [int(s) for s in slots]
        with torch.cuda.device(self._device):
            self._jobs[job] = self._enqueue(is_store, blocks, slots)

    def take_finished(self):
        """(job, bytes, seconds) of jobs that have ended; raises what went wrong."""
        self._end([name for name, job in self._jobs.items() if job.event.query()])
        ended, self._ended = self._ended, []
        return ended

    def wait(self, jobs):
        """After this the blocks of a store may be overwritten."""
        here = [name for name in jobs if name in self._jobs]
        for name in here:
            self._jobs[name].event.synchronize()
        self._end(here)

    def shutdown(self):
        for job in self._jobs.values():
            job.event.synchronize()

    def _end(self, names):
        for name in names:
            self._ended.append((name, *self._finish(self._jobs.pop(name))))

    def _enqueue(self, is_store, blocks, slots):
        first, before = self._lanes[0], torch.cuda.current_stream(self._device)
        table = torch.from_numpy(self._table(blocks).view(numpy.int64)).pin_memory()
        with torch.cuda.stream(first.stream):
            segments = table.to(self._device, non_blocking=True)
            results = torch.zeros(len(blocks), _RESULT_BYTES, dtype=torch.uint8,
                                  device=self._device)
        job = _Job(is_store, blocks, slots, (table, segments), results)
        for lane in self._lanes:
            lane.stream.wait_stream(before)
        self._lanes[1].stream.wait_stream(first.stream)
        move = self._save if is_store else self._load
        row_bytes = 16 * len(self._pages)
        for turn, start in enumerate(range(0, len(blocks), _TURN)):
            lane = self._lanes[turn % 2]
            with torch.cuda.stream(lane.stream):
                for i in range(start, min(start + _TURN, len(blocks))):
                    move(lane, segments.data_ptr() + i * row_bytes,
                         results.data_ptr() + i * _RESULT_BYTES, slots[i])
        first.stream.wait_stream(self._lanes[1].stream)
        with torch.cuda.stream(first.stream):
            job.host_results = torch.empty(results.shape, dtype=torch.uint8, pin_memory=True)
            job.host_results.copy_(results, non_blocking=True)
            job.event = first.stream.record_event()
        return job

    def _table(self, blocks):
        """Rows (address, bytes) of all pages of each block."""
        table = numpy.empty((len(blocks), len(self._bases), 2), numpy.uint64)
        table[:, :, 0] = self._bases + numpy.array(blocks, numpy.uint64)[:, None] * self._strides
        table[:, :, 1] = self._sizes
        return table

    def _save(self, lane, segments, result, slot):
        self._encode(lane, segments, result)
        self._store.rows[slot].copy_(lane.frame[:self._store.slot_bytes], non_blocking=True)

    def _load(self, lane, segments, result, slot):
        frame, status = self._store.frame(slot), Status()
        lane.frame[:len(frame)].copy_(frame, non_blocking=True)
        check(library.snug_cuda_decode_paged(
            lane.frame.data_ptr(), len(frame), segments, len(self._pages), self._raw_bytes,
            lane.workspace.data_ptr(), self._workspace_bytes, result, byref(self._options),
            lane.stream.cuda_stream, byref(status)), status)

    def _encode(self, lane, segments, result):
        status = Status()
        check(library.snug_cuda_encode_paged(
            segments, len(self._pages), self._raw_bytes, lane.frame.data_ptr(),
            lane.frame.numel(), lane.workspace.data_ptr(), self._workspace_bytes, result,
            byref(self._options), lane.stream.cuda_stream, byref(status)), status)

    def _finish(self, job):
        status = Status()
        for i, outcome in enumerate(job.outcomes()):
            check(library.snug_cuda_status(byref(outcome), byref(status)), status)
            if not job.is_store:
                continue
            if self._store.fits(outcome.num_bytes):
                self._store.keep(job.slots[i], outcome.num_bytes)
            else:
                self._store.keep_apart(job.slots[i], self._encode_again(job, i, outcome.num_bytes))
        return len(job.blocks) * self._raw_bytes, time.monotonic() - job.start

    def _encode_again(self, job, i, num_bytes):
        """The whole frame of a block that the slot cannot hold. vLLM keeps the block until the
        job is reported."""
        lane = self._lanes[0]
        with torch.cuda.device(self._device), torch.cuda.stream(lane.stream):
            self._encode(lane, job.table[1].data_ptr() + i * 16 * len(self._pages),
                         job.results.data_ptr() + i * _RESULT_BYTES)
            frame = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
            frame.copy_(lane.frame[:num_bytes], non_blocking=True)
            lane.stream.synchronize()
        return frame
