"""Classes that look like those of SGLang, for tests without it."""

import ctypes
import queue
import types

import numpy

PAGE, NUM_PAGES, NUM_LAYERS, NOTE = 1 << 12, 16, 3, 40


class KVPoll:
    Failed, Bootstrapping, WaitingForInput, Transferring, Success = range(5)


class HookRegistry:
    hooks = {}

    @classmethod
    def register(cls, target, hook, kind):
        cls.hooks[target] = hook


def named(value):
    return types.SimpleNamespace(value=value)


class Engine:
    """Mooncake's: writes to memory."""

    def __init__(self):
        self.num_writes = 0

    def batch_transfer_sync(self, session, sources, targets, sizes):
        self.num_writes += 1
        for source, target, size in zip(sources, targets, sizes):
            ctypes.memmove(target, source, size)
        return 0

    def get_session_id(self):
        return "decode:1"


class Manager:
    """As much of MooncakeKVManager as matters here."""

    local_ip = "127.0.0.1"

    def __init__(self, args, mode, server_args=None):
        self.kv_args, self.disaggregation_mode = args, named(mode)
        self.server_args, self.dcp_size = server_args, 1
        self.request_status, self.failures = {}, []
        self.mail, self.chunks, self.results = queue.Queue(), queue.Queue(), queue.Queue()
        self.init_engine()
        self.receive = self._make_worker_recv(None)

    def init_engine(self):
        self.engine = Engine()

    def _make_worker_recv(self, socket, timeout_ms=500):
        return self.mail.get

    def transfer_worker(self, queue, executor, staging_buffer=None, worker_index=0):
        while (chunk := queue.get()) is not None:
            if chunk.by_executor:
                call = executor.submit(self.engine.batch_transfer_sync, *chunk.arguments)
                self.results.put(call.result())
            else:
                self.results.put(self.engine.batch_transfer_sync(*chunk.arguments))

    def build_receiver_registration_message(self):
        return [b"None", b"127.0.0.1", b"1", self.engine.get_session_id().encode()]

    def build_receiver_metadata_message(self, *, bootstrap_room, kv_indices, aux_index, is_dummy):
        return [str(bootstrap_room).encode()]

    def update_status(self, bootstrap_room, status):
        self.request_status[bootstrap_room] = status

    def conclude_failure(self, *, bootstrap_room, failure_reason, targets=None):
        self.failures.append((bootstrap_room, failure_reason))

    def teardown(self):
        pass


class Receiver:
    def __init__(self, manager, room):
        self.kv_mgr, self.bootstrap_room, self._owns_bootstrap_room = manager, room, True

    def clear(self):
        self.kv_mgr.request_status.pop(self.bootstrap_room, None)


CLASSES = {"manager": Manager, "receiver": Receiver, "sender": object}


def original(backend, kind):
    return CLASSES.get(kind.value)


class Cache:
    """A pool, and what SGLang tells its transfer of it."""

    def __init__(self, fill, dtype="bfloat16", device="cpu"):
        self.store_dtype, self.device = dtype, device
        random = numpy.random.default_rng(7)
        values = random.standard_normal((NUM_LAYERS, NUM_PAGES, PAGE // 2), numpy.float32)
        self.pages = (values.view(numpy.uint32) >> 16).astype(numpy.uint16) * fill
        self.notes = (random.integers(0, 200, (4, NOTE)) * fill).astype(numpy.uint8)

    def args(self):
        return types.SimpleNamespace(
            kv_data_ptrs=[0, *(layer.ctypes.data for layer in self.pages)],
            kv_data_lens=[0, *[NUM_PAGES * PAGE] * NUM_LAYERS],  # SGLang lists layers without pages
            kv_item_lens=[PAGE] * (NUM_LAYERS + 1), aux_data_ptrs=[self.notes.ctypes.data],
            aux_data_lens=[4 * NOTE], aux_item_lens=[NOTE], state_types=[], gpu_id=0)
