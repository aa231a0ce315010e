"""snug.kv and its doors without an engine: messages, held requests, the scheduler's accounts.
tests/doors has the trials with real engines."""

import enum
import importlib
import importlib.util
import sys
import types
import unittest
import unittest.mock

from snug.kv import messages
from snug.kv.held import HeldRequests


class Messages(unittest.TestCase):
    def test_round_trip(self):
        note = messages.pack("pull", id=7, request="cmpl-1", first=0, count=3)
        self.assertEqual(messages.unpack(note), ("pull", {"id": 7, "request": "cmpl-1", "first": 0,
                                                          "count": 3}))

    def test_bad_notes(self):
        for note in (b"", b"\xff\xfe", b"[1]", b"7", b'{"kind": "pull"}', b'{"kind": ["pull"]}',
                     b'{"kind": "drop", "id": 1, "request": 3}',
                     b'{"kind": "drop", "id": 1, "request": "r", "x": 1}',
                     b'{"kind": "send", "id": -1, "bytes": 1}',
                     b'{"kind": "send", "id": true, "bytes": 1}',
                     b'{"kind": "send", "id": 1.5, "bytes": 1}', b"[" * 100_000,
                     messages.pack("drop", id=1, request="r" * 5000)):
            with self.subTest(note[:40]), self.assertRaises(messages.BadMessage):
                messages.unpack(note)


class Held(unittest.TestCase):
    def setUp(self):
        self.now = 100.0
        self.held = HeldRequests(lambda: self.now)

    def test_sent_once(self):
        self.held.hold("r", [4, 5], 60)
        self.assertEqual(self.held.borrow("r"), [4, 5])
        self.assertEqual(self.held.take_ended(), set())
        self.held.give_back("r")
        self.assertIsNone(self.held.borrow("r"))
        self.assertEqual(self.held.take_ended(), {"r"})
        self.assertEqual(self.held.take_ended(), set())
        self.assertEqual(self.held.take_num_expired(), 0)

    def test_nobody_asks(self):
        self.held.hold("r", [4], 60)
        self.now += 59
        self.assertEqual(self.held.take_ended(), set())
        self.now += 2
        self.assertEqual(self.held.take_ended(), {"r"})
        self.assertEqual(self.held.take_num_expired(), 1)
        self.assertIsNone(self.held.borrow("r", 3600))  # it has gone: there is nothing to wait for

    def test_blocks_in_use_outlive_their_deadline(self):
        self.held.hold("r", [4], 60)
        self.held.borrow("r")
        self.now += 3600
        self.held.drop("r")
        self.assertEqual(self.held.take_ended(), set())
        self.held.give_back("r")
        self.assertEqual(self.held.take_ended(), {"r"})

    def test_not_wanted(self):
        self.held.hold("r", [4], 60)
        self.held.drop("r")
        self.held.drop("unknown")
        self.assertEqual(self.held.take_ended(), {"r"})
        self.assertEqual(self.held.take_num_expired(), 0)

    def test_not_wanted_before_it_is_held(self):
        self.held.drop("r")
        self.held.hold("r", [4], 60)
        self.assertIsNone(self.held.borrow("r"))
        self.assertEqual(self.held.take_ended(), {"r"})


class Doors(unittest.TestCase):
    def test_missing_engines(self):
        for package, module in (("vllm", "snug.vllm.kv_connector"), ("lmcache", "snug.lmcache"),
                                ("sglang", "snug.hicache")):
            if importlib.util.find_spec(package):
                continue
            with self.subTest(module), self.assertRaisesRegex(ImportError, "pip install"):
                importlib.import_module(module)


class Status(enum.Enum):
    FINISHED_LENGTH_CAPPED, FINISHED_STOPPED, FINISHED_ABORTED = range(3)


def scheduler_module():
    """snug.vllm.kv_scheduler over stand-ins for the few names of vLLM that it needs."""
    stubs = {name: types.ModuleType(name) for name in (
        "vllm", "vllm.logger", "vllm.v1", "vllm.v1.request", "vllm.distributed",
        "vllm.distributed.kv_transfer", "vllm.distributed.kv_transfer.kv_connector",
        "vllm.distributed.kv_transfer.kv_connector.v1",
        "vllm.distributed.kv_transfer.kv_connector.v1.base")}
    stubs["vllm.logger"].init_logger = lambda _: unittest.mock.Mock()
    stubs["vllm.v1.request"].RequestStatus = Status
    stubs["vllm.distributed.kv_transfer.kv_connector.v1.base"].KVConnectorMetadata = object
    with unittest.mock.patch.dict(sys.modules, stubs):
        sys.modules.pop("snug.vllm.kv_scheduler", None)
        return importlib.import_module("snug.vllm.kv_scheduler")


class Scheduler(unittest.TestCase):
    """vLLM's calls, with blocks of 16 tokens."""

    def setUp(self):
        module = scheduler_module()
        self.prefill, self.decode = module.SchedulerSide(16, True), module.SchedulerSide(16, False)
        self.prefill.set_workers({(0, 0): "10.0.0.1:7000", (0, 1): "10.0.0.1:7001"})

    def request(self, name, tokens, params, status=Status.FINISHED_LENGTH_CAPPED):
        return types.SimpleNamespace(request_id=name, num_prompt_tokens=tokens, status=status,
                                     num_computed_tokens=tokens, kv_transfer_params=params,
                                     prompt_token_ids=list(range(100, 100 + tokens)))

    def handed(self, tokens=40, blocks=(7, 3, 9)):
        holds, params = self.prefill.finished(
            self.request("p", tokens, {"do_remote_decode": True}), list(blocks))
        self.assertTrue(holds)
        return params

    def allocated(self, request, blocks, num_computed):
        count, is_async = self.decode.num_new_matched_tokens(request, num_computed)
        self.decode.after_alloc(request, types.SimpleNamespace(
            get_block_ids=lambda: (list(blocks),)), count)
        return count, is_async, self.decode.take_metadata()

    def test_hand_over(self):
        params = self.handed()
        self.assertEqual(self.prefill.take_metadata().holds, {"p": [7, 3, 9]})
        self.assertEqual(params["remote_workers"], {"0,0": "10.0.0.1:7000", "0,1": "10.0.0.1:7001"})
        request = self.request("d", 40, params)
        count, is_async, metadata = self.allocated(request, [5, 6, 8, 11], 0)
        self.assertEqual((count, is_async), (40, True))
        load = metadata.loads["d"]
        self.assertEqual((load.source.request, load.first, load.blocks), ("p", 0, [5, 6, 8]))
        self.assertEqual(self.decode.num_new_matched_tokens(request, 0), (0, False))  # once only
        self.assertEqual(self.decode.finished(request, [5, 6, 8]), (False, None))
        self.assertEqual(self.decode.take_metadata().drops, [])

    def test_a_prefix_that_is_there(self):
        request = self.request("d", 40, self.handed())
        count, _, metadata = self.allocated(request, [5, 6, 8], 32)
        self.assertEqual((count, metadata.loads["d"].first, metadata.loads["d"].blocks),
                         (8, 2, [8]))

    def test_nothing_to_load(self):
        request = self.request("d", 40, self.handed())
        count, _, metadata = self.allocated(request, [5, 6, 8], 40)
        self.assertEqual((count, metadata.loads), (0, {}))
        self.assertEqual([source.request for source in metadata.drops], ["p"])

    def test_ended_before_it_began(self):
        request = self.request("d", 40, self.handed(), Status.FINISHED_ABORTED)
        self.assertEqual(self.decode.finished(request, []), (False, None))
        self.assertEqual([source.request for source in self.decode.take_metadata().drops], ["p"])

    def test_nothing_is_held(self):
        for params, status in (({"do_remote_decode": True}, Status.FINISHED_ABORTED),
                               ({}, Status.FINISHED_STOPPED), (None, Status.FINISHED_STOPPED)):
            request = self.request("p", 40, params, status)
            self.assertEqual(self.prefill.finished(request, [7, 3, 9]), (False, None))

    def assert_computes(self, request):
        """Nothing is loaded, and nobody is told."""
        count, is_async, metadata = self.allocated(request, [5, 6, 8], 0)
        self.assertEqual((count, is_async, metadata.loads, metadata.drops), (0, False, {}, []))
        self.assertEqual(self.decode.finished(request, []), (False, None))

    def test_params_of_others(self):
        self.assert_computes(self.request("d", 40, {"do_remote_prefill": True,
                                                    "remote_block_ids": [1]}))
        for name, value in (("remote_num_tokens", "many"), ("remote_num_tokens", -1),
                            ("remote_num_tokens", True), ("remote_workers", [1]),
                            ("remote_workers", {"0,0": 5}), ("remote_request_id", None),
                            ("remote_request_id", "r" * 5000)):
            with self.subTest(name, value=value):
                self.assert_computes(self.request("d", 40, {**self.handed(), name: value}))

    def test_a_long_name(self):
        params = {**self.handed(), "remote_request_id": "r" * messages.MAX_TEXT}
        self.assertEqual(self.decode.num_new_matched_tokens(self.request("d", 40, params), 0),
                         (40, True))

    def test_another_prompt(self):
        request = self.request("d", 40, self.handed())
        request.prompt_token_ids[7] += 1
        self.assert_computes(request)
        longer = self.request("e", 60, self.handed())  # what follows may differ
        self.assertEqual(self.decode.num_new_matched_tokens(longer, 0), (40, True))
        shorter = self.request("f", 20, self.handed())
        self.assert_computes(shorter)
        lie = self.request("g", 40, {**self.handed(), "remote_num_tokens": 1 << 40})
        self.assertEqual(self.decode.num_new_matched_tokens(lie, 0), (40, True))

    def test_nothing_stays_behind(self):
        for params in (self.handed(), {"do_remote_prefill": True}, None):
            request = self.request("d", 40, params)
            self.decode.num_new_matched_tokens(request, 0)
            self.decode.finished(request, [])
        self.assertEqual((self.decode._sources, self.decode._computed), ({}, {}))


if __name__ == "__main__":
    unittest.main()
