"""What lets kv_vllm_trial.py compare bit for bit inside vLLM.

SnugConnector here notes a hash of each request's pages, as they left and as they arrived, in the
folder KV_TRIAL_HASHES. LastTokenScheduler lets an instance compute the last token of a prompt in a
step of its own. A decode instance does that anyway, since it loads the others, and GPU kernels give
one token other last bits than many: with this scheduler an instance alone takes the same steps.
"""

import hashlib
import json
import os

import torch
from vllm.v1.core.sched.scheduler import Scheduler

from snug.vllm import kv_connector
from snug.vllm.kv_worker import WorkerSide


class CheckedWorker(WorkerSide):
    def register(self, caches, num_blocks, *arguments):
        self._caches, self._num_blocks = list(caches.values()), num_blocks
        super().register(caches, num_blocks, *arguments)

    def start(self, metadata):
        for request, blocks in metadata.holds.items():
            self._note("left", request, blocks)
        super().start(metadata)

    def _pull(self, load, ready):
        super()._pull(load, ready)
        self._note("arrived", load.source.request, load.blocks)

    def _note(self, what, request, blocks):
        line = {"what": what, "request": request, "worker": self._rank.name, "blocks": len(blocks),
                "hash": self._hash(blocks)}
        with open(f"{os.environ['KV_TRIAL_HASHES']}/{os.getpid()}", "a") as file:
            file.write(json.dumps(line) + "\n")

    def _hash(self, blocks):
        """Of these blocks in all layers; reading them waits for the kernels before."""
        digest = hashlib.sha256()
        for cache in self._caches:
            axis = next(axis for axis in (0, 1) if cache.shape[axis] >= self._num_blocks)
            parts = cache.shape[axis] // self._num_blocks
            rows = torch.tensor([block * parts + part for block in blocks for part in range(parts)])
            pages = cache.index_select(axis, rows.to(cache.device)).cpu().contiguous()
            digest.update(pages.view(-1).view(torch.uint8).numpy())
        return digest.hexdigest()


class SnugConnector(kv_connector.SnugConnector):
    def __init__(self, vllm_config, role, kv_cache_config):
        kv_connector.WorkerSide = CheckedWorker
        super().__init__(vllm_config, role, kv_cache_config)


class LastTokenScheduler(Scheduler):
    def schedule(self, *arguments, **named):
        lengths = [request.num_prompt_tokens for request in self.requests.values()
                   if not request.is_finished()]
        self.scheduler_config.long_prefill_token_threshold = max([1, *(n - 1 for n in lengths)])
        return super().schedule(*arguments, **named)

