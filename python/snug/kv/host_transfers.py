"""Blocks of a KV cache in host memory to slots and back, on a thread of their own."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy

from . import frames


class HostTransfers:
    """`pages` has an array of num_blocks x page_bytes bytes for each layer."""

    def __init__(self, pages, dtype, codec, store):
        self._pages, self._store, self._dtype, self._codec = pages, store, dtype, codec
        self._raw = numpy.empty(sum(page.shape[1] for page in pages), numpy.uint8)
        self._frame = numpy.empty(frames.bound_bytes(self._raw.nbytes, dtype, codec), numpy.uint8)
        self._thread, self._jobs = ThreadPoolExecutor(1, "snug.kv.offload"), {}

    def submit(self, job, is_store, blocks, slots):
        self._jobs[job] = self._thread.submit(self._run, is_store, list(blocks), list(slots))

    def take_finished(self):
        """(job, bytes, seconds) of jobs that have ended; raises what went wrong."""
        done = [job for job, future in self._jobs.items() if future.done()]
        return [(job, *self._jobs.pop(job).result()) for job in done]

    def wait(self, jobs):
        for job in jobs:
            if job in self._jobs:
                self._jobs[job].result()

    def shutdown(self):
        self._thread.shutdown(wait=True)

    def _run(self, is_store, blocks, slots):
        start = time.monotonic()
        for block, slot in zip(blocks, slots):
            (self._save if is_store else self._load)(int(block), int(slot))
        return len(blocks) * self._raw.nbytes, time.monotonic() - start

    def _save(self, block, slot):
        numpy.concatenate([page[block] for page in self._pages], out=self._raw)
        size = frames.encode(self._raw, self._frame, self._dtype, self._codec)
        if self._store.fits(size):
            self._store.rows[slot][:size] = self._frame[:size]
            self._store.keep(slot, size)
        else:
            self._store.keep_apart(slot, self._frame[:size].copy())

    def _load(self, block, slot):
        frames.decode(self._store.frame(slot), self._raw, self._dtype)
        start = 0
        for page in self._pages:
            page[block] = self._raw[start:start + page.shape[1]]
            start += page.shape[1]
