"""The connector in vLLM's scheduler: which requests hold blocks, and which load them.

A router sends a request to a prefill instance with kv_transfer_params {"do_remote_decode": true}
and max_tokens 1. What the instance returns as kv_transfer_params goes to a decode instance with the
same prompt.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata
from vllm.logger import init_logger
from vllm.v1.request import RequestStatus

logger = init_logger(f"vllm.{__name__}")  # vLLM shows what is below its own name
_PARAMS = ("remote_request_id", "remote_workers", "remote_num_tokens")


class Source(NamedTuple):
    """A request at the instance that computed its prompt."""
    request: str
    workers: dict    # "pp,tp": address


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
        self._computed = {}  # of requests that may load: tokens that were there already
        self._next = SnugMetadata()

    def set_workers(self, addresses):
        self._workers = {f"{pp},{tp}": address for (pp, tp), address in addresses.items()}

    def num_new_matched_tokens(self, request, num_computed_tokens):
        source = _source_of(request)
        if source is None:
            return 0, False
        count = self._num_tokens(request) - num_computed_tokens
        if count <= 0:
            return 0, False
        self._computed[request.request_id] = num_computed_tokens
        return count, True

    def after_alloc(self, request, blocks, num_external_tokens):
        source = _source_of(request)
        if source is None:
            return
        request.kv_transfer_params["do_remote_prefill"] = False  # once only
        num_computed = self._computed.pop(request.request_id, 0)
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
        self._computed.pop(request.request_id, None)
        source = _source_of(request)
        if source is not None:  # it ended before it was scheduled
            request.kv_transfer_params["do_remote_prefill"] = False
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
                      "remote_num_tokens": num_tokens}

    def _num_tokens(self, request):
        return min(int(request.kv_transfer_params["remote_num_tokens"]), request.num_prompt_tokens)


def _source_of(request):
    """Where a request's blocks are, or None if it has to compute them."""
    params = request.kv_transfer_params or {}
    if not params.get("do_remote_prefill"):
        return None
    if any(name not in params for name in _PARAMS):
        logger.warning_once("A request came without %s in kv_transfer_params, and computes its "
                            "prompt here. Pass on what the prefill instance returned.",
                            " or ".join(_PARAMS))
        params["do_remote_prefill"] = False
        return None
    return Source(str(params["remote_request_id"]), dict(params["remote_workers"]))
