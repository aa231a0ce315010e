"""The connector in vLLM's scheduler: which requests hold blocks, and which load them.

A router sends a request to a prefill instance with kv_transfer_params {"do_remote_decode": true}
and max_tokens 1. What the instance returns as kv_transfer_params goes to a decode instance with the
same prompt.
"""

import hashlib
import json
from dataclasses import dataclass, field
from typing import NamedTuple

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata
from vllm.logger import init_logger
from vllm.v1.request import RequestStatus

from ..kv.messages import MAX_TEXT

logger = init_logger(f"vllm.{__name__}")  # vLLM shows what is below its own name


class Source(NamedTuple):
    """A request at the instance that computed its prompt."""
    request: str
    workers: dict    # "pp,tp": address
    num_tokens: int  # of the prompt, from its start


class Load(NamedTuple):
    source: Source
    first: int       # block of the request
    blocks: list     # here


@dataclass
class SnugMetadata(KVConnectorMetadata):
    """From the scheduler to the workers, for one step."""
    holds: dict = field(default_factory=dict)   # request: blocks
    loads: dict = field(default_factory=dict)   # request: Load
    drops: list = field(default_factory=list)   # Source


class SchedulerSide:
    def __init__(self, block_size, is_producer):
        self._block_size, self._is_producer = block_size, is_producer
        self._workers = {}
        self._sources = {}   # of requests that wait for blocks; None: nothing can be loaded
        self._computed = {}  # of the same: tokens that were there already
        self._next = SnugMetadata()

    def set_workers(self, addresses):
        self._workers = {f"{pp},{tp}": address for (pp, tp), address in addresses.items()}

    def num_new_matched_tokens(self, request, num_computed_tokens):
        source = self._source_of(request)
        count = 0 if source is None else source.num_tokens - num_computed_tokens
        if count <= 0:
            return 0, False
        self._computed[request.request_id] = num_computed_tokens
        return count, True

    def after_alloc(self, request, blocks, num_external_tokens):
        source, num_computed = self._take(request)
        if source is None:
            return
        if num_external_tokens <= 0:
            self._next.drops.append(source)
            return
        first = num_computed // self._block_size
        end = -(-(num_computed + num_external_tokens) // self._block_size)
        self._next.loads[request.request_id] = Load(source, first,
                                                    list(blocks.get_block_ids()[0][first:end]))

    def take_metadata(self):
        metadata, self._next = self._next, SnugMetadata()
        return metadata

    def finished(self, request, blocks):
        """As request_finished of the connector."""
        source, _ = self._take(request)
        if source is not None:  # it ended before it was scheduled
            self._next.drops.append(source)
            return False, None
        params = request.kv_transfer_params or {}
        is_complete = request.status in (RequestStatus.FINISHED_LENGTH_CAPPED,
                                         RequestStatus.FINISHED_STOPPED)
        if not (self._is_producer and params.get("do_remote_decode") and is_complete and blocks):
            return False, None
        num_tokens = min(request.num_computed_tokens, request.num_prompt_tokens)
        held = list(blocks[:-(-num_tokens // self._block_size)])
        self._next.holds[request.request_id] = held
        return True, {"do_remote_prefill": True, "do_remote_decode": False,
                      "remote_request_id": request.request_id, "remote_workers": self._workers,
                      "remote_num_tokens": num_tokens,
                      "remote_prompt": _digest_of(request, num_tokens)}

    def _source_of(self, request):
        """Where a request's blocks are, or None if it has to compute them."""
        if not (request.kv_transfer_params or {}).get("do_remote_prefill"):
            return None
        if request.request_id not in self._sources:  # asked for in every step, until it has blocks
            self._sources[request.request_id] = _parse(request)
        return self._sources[request.request_id]

    def _take(self, request):
        """The source, once only, and the number of tokens that need none."""
        source = self._source_of(request)
        self._sources.pop(request.request_id, None)
        if request.kv_transfer_params:
            request.kv_transfer_params["do_remote_prefill"] = False
        return source, self._computed.pop(request.request_id, 0)


def _parse(request):
    """The parameters come from outside. Bad ones must stop no engine, and load no wrong pages."""
    params = request.kv_transfer_params
    name, workers, num_tokens, prompt = (params.get(key) for key in (
        "remote_request_id", "remote_workers", "remote_num_tokens", "remote_prompt"))
    is_sound = (isinstance(name, str) and len(name) <= MAX_TEXT and type(num_tokens) is int
                and num_tokens >= 0 and isinstance(workers, dict)
                and all(isinstance(text, str) for pair in workers.items() for text in pair))
    if not is_sound:
        logger.warning_once("A request came with kv_transfer_params that are not those of "
                            "SnugConnector, and computes its prompt here. Pass on what the prefill "
                            "instance returned, unchanged.")
        return None
    if prompt != _digest_of(request, num_tokens):
        logger.warning("Request %s has another prompt than at the prefill instance, and computes "
                       "it here. Send both instances the same request.", request.request_id)
        return None
    return Source(name, workers, min(num_tokens, request.num_prompt_tokens))


def _digest_of(request, num_tokens):
    """Of the prompt's tokens. Images and embeddings are not compared."""
    tokens = (request.prompt_token_ids or [])[:num_tokens]
    return hashlib.sha256(json.dumps(tokens).encode()).hexdigest()[:32]
