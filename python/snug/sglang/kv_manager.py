"""What Snug adds to Mooncake's classes in SGLang. Bootstrap, rooms, metadata and failures are
SGLang's own; only bytes travel in another way. Nothing here imports SGLang: kv_transfer.py does."""

import os

from .. import wire
from ..kv.areas import Area
from ..kv.frames import dtype_name
from ..kv.inbox import PageInbox
from ..kv.push import PagePusher
from .._library import has_link, no_cuda
from .kv_engine import PushEngine, RoomExecutor, RoomQueue, offer_of
from .kv_options import address_of, announced, listening

_HOST_AREAS = ("metadata",)
_YES = ("1", "true", "yes", "y")  # SGLang's


class Memory:
    """What two workers must have in common, and what keeps the pages alive."""

    def __init__(self, dtype, cache):
        # FP8 is stored as bytes, whichever format it has: the pool's own dtype tells.
        values = getattr(cache, "dtype", cache.store_dtype)
        self.dtype, self.cache = dtype, cache
        self.fingerprint = f"pages of SGLang, {dtype}, {values}"


class ManagerPart:
    """To be put before MooncakeKVManager. `snug` has what the user has chosen (chosen and options),
    log, failed and success (KVPoll's), and cache(), the pool whose buffers SGLang transfers."""

    _inbox, _pusher = None, None

    def init_engine(self):
        super().init_engine()
        try:
            self._start_snug()
        except Exception as error:  # of any kind: SGLang's own transfer still works
            self.snug.log.warning("KV travels by SGLang's own transfer: %s", error)

    def _start_snug(self):
        cache, args = self.snug.cache(), self.kv_args
        why = why_not(self, cache)
        if why:
            raise ValueError(why)
        dtype = dtype_name([cache.store_dtype])
        memory, areas = Memory(dtype, cache), _areas(args)
        chosen = self.snug.chosen
        options = self.snug.options.of_pages(
            dtype, args.gpu_id if str(cache.device).startswith("cuda") else None)
        if self.disaggregation_mode.value == "prefill":
            # What cannot listen, without a token for instance, cannot connect either.
            wire.listen(address_of(self.local_ip), **options.of_wire()).close()
            self._pusher = PagePusher(memory, options, lambda moved: self.engine.record(moved),
                                      self.snug.log.warning)
            self.engine = PushEngine(
                self.engine, self._pusher,
                {name: (area, name in _HOST_AREAS) for name, area in areas.items()},
                self._has_ended, self._fail_room, self.snug.log)
        else:
            self._inbox = PageInbox(listening(chosen, self.local_ip, args.gpu_id), memory, areas,
                                    _HOST_AREAS, options, self.snug.log.warning)
            self.snug.log.info("KV pages come through Snug at %s, mode %s", self._inbox.address,
                               options.mode)

    # Of a prefill instance.

    def _make_worker_recv(self, *arguments, **named):
        receive = super()._make_worker_recv(*arguments, **named)
        if self._pusher is None:
            return receive

        def receive_and_note():
            message = receive()
            if message is not None:
                self.engine.note_registration(message)
            return message

        return receive_and_note

    def transfer_worker(self, queue, executor, *rest):
        if self._pusher is not None:
            queue, executor = RoomQueue(queue), RoomExecutor(executor)
        super().transfer_worker(queue, executor, *rest)

    def _has_ended(self, room):
        return self.request_status.get(room) in (None, self.snug.failed)

    def _fail_room(self, room, why):
        self.conclude_failure(bootstrap_room=room, failure_reason=why)

    # Of a decode instance.

    def build_receiver_registration_message(self):
        message = super().build_receiver_registration_message()
        if self._inbox is None:
            return message
        return [*message, offer_of(announced(self.snug.chosen, self._inbox.address, self.local_ip,
                                             self.kv_args.gpu_id))]

    def build_receiver_metadata_message(self, **named):
        if self._inbox is not None and not named["is_dummy"]:
            aux = named["aux_index"]
            self._inbox.expect(str(named["bootstrap_room"]), pages=named["kv_indices"],
                               metadata=[] if aux is None else [aux])
        return super().build_receiver_metadata_message(**named)

    def update_status(self, bootstrap_room, status):
        """SGLang gives pages back, or uses them, when it sees that a room has ended."""
        if self._inbox is not None and status == self.snug.failed:
            self._inbox.cancel(str(bootstrap_room))
        elif self._inbox is not None and status == self.snug.success:
            self._inbox.finish(str(bootstrap_room))
        super().update_status(bootstrap_room, status)

    def teardown(self):
        super().teardown()
        for part in (self._inbox, self._pusher):
            if part is not None:
                part.close()


class ReceiverPart:
    """To be put before MooncakeKVReceiver: not every end of a request has a status."""

    def clear(self):
        inbox = getattr(self.kv_mgr, "_inbox", None)
        if inbox is not None and self._owns_bootstrap_room:
            inbox.cancel(str(self.bootstrap_room))
        super().clear()


def why_not(manager, cache, environment=os.environ):
    """A reason why this instance's pages cannot travel through Snug, or ""."""
    if cache is None or not hasattr(cache, "store_dtype"):
        return "SGLang did not say of which type its KV cache is"
    args, server = manager.kv_args, manager.server_args
    device = str(cache.device).partition(":")[0]
    for is_so, why in (
            (device not in ("cpu", "cuda"), f"Snug cannot read memory of the device {device}"),
            (device == "cuda" and not has_link, no_cuda),
            (any(args.state_types), "this model keeps other states beside KV pages"),
            (manager.dcp_size > 1, "Snug knows no decode context parallelism"),
            (getattr(server, "enable_hisparse", False), "Snug knows no HiSparse"),
            (environment.get("SGLANG_DISAGG_STAGING_BUFFER", "").lower() in _YES,
             "Snug needs no staging buffer (SGLANG_DISAGG_STAGING_BUFFER)"),
            (environment.get("SGLANG_MOONCAKE_CUSTOM_MEM_POOL"),
             "Snug needs no memory pool of Mooncake (SGLANG_MOONCAKE_CUSTOM_MEM_POOL)")):
        if is_so:
            return why or "Snug was built without CUDA"
    return ""


def _areas(args):
    return {"pages": _area(args.kv_data_ptrs, args.kv_data_lens, args.kv_item_lens),
            "metadata": _area(args.aux_data_ptrs, args.aux_data_lens, args.aux_item_lens)}


def _area(addresses, num_bytes, item_bytes):
    """Without buffers of no bytes: of layers whose pages are elsewhere."""
    kept = [row for row in zip(addresses, num_bytes, item_bytes) if row[1]]
    return Area(*zip(*kept))
