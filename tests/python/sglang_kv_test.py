"""snug.sglang's transfer of KV pages without SGLang: classes that look like its own.

tests/doors/sglang_pd_trial.py has the tests with real engines (make doors-test)."""

import json
import os
import subprocess
import sys
import types
import unittest
import unittest.mock
from concurrent.futures import ThreadPoolExecutor

try:
    import numpy
except ImportError:
    print("skipped: needs numpy")
    sys.exit(77)

from sglang_fakes import (CLASSES, NOTE, PAGE, Cache, Engine, HookRegistry, KVPoll, Manager, named,
                          original)
from snug.kv.channel import Options
from snug.sglang import kv_engine, kv_manager, kv_options, kv_transfer, plugin

LOGGER = "sglang.srt.plugins.snug"


def read(text):
    return kv_options.read({kv_options.VARIABLE: text})


def hooks_with(**options):
    return kv_transfer.Hooks(*read(json.dumps(options)))


class Registering(unittest.TestCase):
    def setUp(self):
        HookRegistry.hooks = {}
        modules = {"sglang": None, "sglang.srt.plugins.hook_registry": types.SimpleNamespace(
            HookRegistry=HookRegistry, HookType=types.SimpleNamespace(AROUND="around"))}
        for patch in (unittest.mock.patch.dict(sys.modules, modules),
                      unittest.mock.patch.dict(os.environ)):
            patch.start()
            self.addCleanup(patch.stop)
        os.environ.pop(kv_options.VARIABLE, None)

    def test_only_where_it_is_asked_for(self):
        for value, number in (("0", 0), ("1", 2), ('{"mode": "raw"}', 2)):
            os.environ[kv_options.VARIABLE] = value
            plugin.register()
            self.assertEqual(len(HookRegistry.hooks), number, value)
        self.assertEqual(set(HookRegistry.hooks), {
            "sglang.srt.disaggregation.utils.get_kv_class",
            "sglang.srt.disaggregation.utils.get_kv_transfer_buf_infos"})

    def test_never_raises(self):
        os.environ[kv_options.VARIABLE] = "yes"
        with self.assertLogs(LOGGER, "WARNING") as log:
            plugin.register()
        self.assertIn("KV travels by SGLang's own transfer", log.output[-1])
        self.assertEqual(HookRegistry.hooks, {})

    def test_imports_little(self):
        code = ("import sys; sys.modules['sglang'] = None; import snug.sglang.plugin as p; "
                "p.register(); print([m for m in ('torch', 'numpy', 'snug.kv') "
                "if m in sys.modules])")
        out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True,
                             text=True, env=dict(os.environ))
        self.assertEqual(out.stdout.strip(), "[]")


class Choosing(unittest.TestCase):
    def setUp(self):
        self.hooks = hooks_with()
        modules = {"sglang.srt.disaggregation.base.conn": types.SimpleNamespace(KVPoll=KVPoll)}
        patch = unittest.mock.patch.dict(sys.modules, modules)
        patch.start()
        self.addCleanup(patch.stop)

    def choose(self, kind, backend="mooncake", original=original):
        return self.hooks.choose(original, transfer_backend=named(backend), class_type=named(kind))

    def test_classes_of_mooncake(self):
        for kind in ("manager", "receiver"):
            found = self.choose(kind)
            self.assertTrue(issubclass(found, CLASSES[kind]) and found is not CLASSES[kind])
            self.assertIs(self.choose(kind), found)
        self.assertIs(self.choose("sender"), object)
        self.assertIsNone(self.choose("bootstrap_server"))

    def test_other_backends_are_left_alone(self):
        with self.assertLogs(LOGGER, "WARNING") as log:
            for kind in ("manager", "receiver", "manager"):
                self.assertIs(self.choose(kind, "nixl"), CLASSES[kind])
                self.assertIs(self.choose(kind, "fake"), CLASSES[kind])
        self.assertEqual(len(log.output), 1)
        self.assertIn("works with --disaggregation-transfer-backend mooncake, not nixl",
                      log.output[0])

    def test_another_sglang_is_left_alone(self):
        class Older:
            locals().update({name: value for name, value in vars(Manager).items()
                             if name not in ("transfer_worker", "__dict__", "__weakref__")})

            def update_status(self, room, status):
                pass

        with self.assertLogs(LOGGER, "WARNING") as log:
            found = self.choose("manager", original=lambda *_: Older)
        self.assertIs(found, Older)
        self.assertIn(f"(tested: {plugin.TESTED}), which lacks transfer_worker, parameters of "
                      "update_status", log.output[0])


class Parsing(unittest.TestCase):
    def test_options(self):
        self.assertIsNone(kv_options.read({}))
        plain, options = read("1")
        self.assertEqual((plain, options), (kv_options.KvOptions(), Options()))
        chosen, options = read('{"timeout": 5, "port": 9000, "announce": "gate:7000"}')
        self.assertEqual((options.timeout, chosen.port, options.mode), (5, 9000, "auto"))
        self.assertEqual(kv_options.announced(chosen, "0.0.0.0:9003", "10.0.0.1", 3), "gate:7003")
        self.assertEqual(kv_options.announced(plain, "0.0.0.0:9003", "10.0.0.1", 3),
                         "10.0.0.1:9003")
        self.assertEqual(kv_options.listening(chosen, "10.0.0.1", 3), "10.0.0.1:9003")
        self.assertEqual(kv_options.listening(kv_options.KvOptions(host="0.0.0.0"), "10.0.0.1", 3),
                         "0.0.0.0:0")
        self.assertEqual(kv_options.listening(plain, "fd00::1", 3), "[fd00::1]:0")
        self.assertEqual(kv_options.announced(plain, "[::]:9003", "fd00::1", 3),
                         "[fd00::1]:9003")
        for bound in ("192.168.7.1:9003", "[fd00::2]:9003"):  # of another network, by `host`
            self.assertEqual(kv_options.announced(plain, bound, "10.0.0.1", 3), bound)

    def test_bad_values(self):
        for text, what in (("yes", "1, 0 or an object"), ("[]", "1, 0 or an object"),
                           ('{"ports": 1}', "no option ports; it has host, port"),
                           ('{"port": "1"}', "port of SNUG_SGLANG_KV is a int"),
                           ('{"insecure": "false"}', "insecure of"), ('{"lanes": 99}', "0 to 16"),
                           ('{"mode": "fast"}', "unknown mode"), ('{"device": 1}', "no option"),
                           ('{"port": true}', "port of"),
                           ('{"announce": "gate"}', "HOST:PORT, not 'gate'")):
            with self.assertRaisesRegex(ValueError, what):
                read(text)

    def test_registrations(self):
        plain = [b"None", b"h", b"1", b"s:1", b"more"]
        self.assertEqual(kv_engine.take_offer(list(plain)), ("s:1", None))
        message = [*plain, kv_engine.offer_of("h:2")]
        self.assertEqual(kv_engine.take_offer(message), ("s:1", "h:2"))
        self.assertEqual(message, plain)  # SGLang sees what it knows
        for other in ([b"12", b"h", b"1", b"s:1"], [b"ABORT", b"1"], [b"None"]):
            self.assertIsNone(kv_engine.take_offer(other))


class Transfers(unittest.TestCase):
    def setUp(self):
        modules = {"sglang.srt.disaggregation.base.conn": types.SimpleNamespace(KVPoll=KVPoll)}
        patch = unittest.mock.patch.dict(sys.modules, modules)
        patch.start()
        self.addCleanup(patch.stop)
        self.there, self.here = Cache(1), Cache(0)

    def manager(self, mode, cache, **options):
        hooks = hooks_with(timeout=10, **options)
        self.assertEqual(hooks.see(lambda pool: ("seen", pool), cache), ("seen", cache))
        manager = hooks.choose(original, named("mooncake"), named("manager"))(cache.args(), mode)
        self.addCleanup(manager.teardown)
        return manager

    def pair(self):
        prefill = self.manager("prefill", self.there)
        decode = self.manager("decode", self.here)
        message = decode.build_receiver_registration_message()
        self.assertEqual(len(message), 5)
        prefill.mail.put(message)
        self.assertEqual(len(prefill.receive()), 4)
        executor = ThreadPoolExecutor(1)
        worker = ThreadPoolExecutor(1)
        worker.submit(prefill.transfer_worker, prefill.chunks, executor, None, 0)
        self.addCleanup(prefill.chunks.put, None)
        return prefill, decode

    def expect(self, decode, room, pages, note):
        decode.build_receiver_metadata_message(bootstrap_room=room, kv_indices=numpy.array(
            pages, numpy.int32), aux_index=note, is_dummy=False)

    def send(self, prefill, room, rows, by_executor=False):
        prefill.request_status.setdefault(room, KVPoll.WaitingForInput)
        prefill.chunks.put(types.SimpleNamespace(
            room=room, by_executor=by_executor, arguments=("decode:1", *map(list, zip(*rows)))))
        return prefill.results.get(timeout=60)

    def page_rows(self, pairs):
        return [(there.ctypes.data + source * PAGE, here.ctypes.data + target * PAGE, PAGE)
                for there, here in zip(self.there.pages, self.here.pages)
                for source, target in pairs]

    def assert_moved(self, pairs):
        expected = numpy.zeros_like(self.there.pages)
        for source, target in pairs:
            expected[:, target] = self.there.pages[:, source]
        self.assertTrue((self.here.pages == expected).all())

    def test_pages_and_metadata_of_a_room(self):
        prefill, decode = self.pair()
        self.expect(decode, 5, [4, 9], 2)
        self.assertEqual(self.send(prefill, 5, self.page_rows([(1, 4)])), 0)
        self.assertEqual(self.send(prefill, 5, self.page_rows([(2, 9)]), by_executor=True), 0)
        note = (self.there.notes.ctypes.data + NOTE, self.here.notes.ctypes.data + 2 * NOTE, NOTE)
        self.assertEqual(self.send(prefill, 5, [note]), 0)
        decode.update_status(5, KVPoll.Success)
        self.assert_moved([(1, 4), (2, 9)])
        self.assertEqual(self.here.notes[2].tolist(), self.there.notes[1].tolist())
        self.assertEqual((prefill.engine._engine.num_writes, prefill.failures), (0, []))
        self.assertEqual(decode.request_status[5], KVPoll.Success)

    def test_pages_that_a_room_does_not_await(self):
        """Of a room that ended, in each way that SGLang has, and of another room."""
        prefill, decode = self.pair()
        ends = (lambda room: decode.update_status(room, KVPoll.Failed),
                lambda room: decode.update_status(room, KVPoll.Success),
                lambda room: kv_transfer_receiver(decode, room).clear(), lambda room: None)
        for room, end in enumerate(ends):
            self.expect(decode, room, [2 * room], None)
            end(room)
            target = 2 * room if room < 3 else 15
            self.assertEqual(self.send(prefill, room, self.page_rows([(1, target)])), 0)
            self.assertEqual(prefill.failures[-1][0], room)
            self.assertIn("does not await these pages", prefill.failures[-1][1])
        self.assertEqual(len(prefill.failures), 4)
        self.assertFalse(self.here.pages.any())

    def test_a_dummy_rank_expects_nothing(self):
        _, decode = self.pair()
        decode.build_receiver_metadata_message(bootstrap_room=1, kv_indices=None, aux_index=None,
                                               is_dummy=True)
        self.assertEqual(len(decode._inbox), 0)

    def test_a_room_that_has_ended_here(self):
        prefill, decode = self.pair()
        self.expect(decode, 1, [1], None)
        prefill.request_status[1] = KVPoll.Failed
        self.assertEqual(self.send(prefill, 1, self.page_rows([(1, 1)])), 0)
        self.assertFalse(self.here.pages.any())

    def test_no_room(self):
        prefill, _ = self.pair()
        with self.assertLogs(LOGGER, "ERROR"):
            self.assertEqual(prefill.engine.batch_transfer_sync("decode:1", [1], [1], [1]), -1)

    def test_other_memory(self):
        prefill, decode = self.pair()
        self.expect(decode, 1, [1], None)
        other = numpy.zeros(PAGE, numpy.uint8)
        rows = [(other.ctypes.data, self.here.pages.ctypes.data + PAGE, PAGE)]
        self.assertEqual(self.send(prefill, 1, rows), 0)
        self.assertIn("neither a KV page nor metadata", prefill.failures[0][1])

    def test_a_decode_instance_that_is_not_there(self):
        prefill, decode = self.pair()
        decode.teardown()
        with self.assertLogs(LOGGER, "ERROR"):
            self.assertEqual(self.send(prefill, 1, self.page_rows([(1, 1)])), -1)

    def test_a_decode_instance_without_snug(self):
        prefill, _ = self.pair()
        prefill.mail.put([b"None", b"127.0.0.1", b"1", b"decode:1"])  # it has been started again
        with self.assertLogs(LOGGER, "WARNING") as log:
            prefill.receive()
        self.assertIn("Decode instance decode:1 does not take KV through Snug", log.output[0])
        self.assertEqual(self.send(prefill, 1, self.page_rows([(3, 7)])), 0)
        self.assertEqual(prefill.engine._engine.num_writes, 1)
        self.assert_moved([(3, 7)])
        self.assertEqual(prefill.engine.get_session_id(), "decode:1")  # what else it can do

    def test_what_cannot_work_is_left_to_sglang(self):
        for cache, options, what in ((Cache(0, device="npu:1"), {}, "memory of the device npu"),
                                     (object(), {}, "of which type its KV cache is"),
                                     (self.here, {"host": "0.0.0.0"}, "token")):
            args = self.here.args()
            hooks = hooks_with(**options)
            hooks.see(lambda pool: None, cache)
            made = hooks.choose(original, named("mooncake"), named("manager"))
            with unittest.mock.patch.dict(os.environ), self.assertLogs(LOGGER, "WARNING") as log:
                os.environ.pop("SNUG_TOKEN", None)
                decode = made(args, "decode")
            self.assertEqual(len(log.output), 1)
            self.assertRegex(log.output[0], f"KV travels by SGLang's own transfer: .*{what}")
            self.assertEqual(len(decode.build_receiver_registration_message()), 4)
            self.expect(decode, 1, [1], None)
            decode.update_status(1, KVPoll.Success)
            self.assertEqual(decode.request_status, {1: KVPoll.Success})

    def test_a_prefill_instance_without_a_token(self):
        """It leaves all to SGLang at its start, instead of failing every request."""
        hooks = hooks_with()
        hooks.see(lambda pool: None, self.there)
        made = hooks.choose(original, named("mooncake"), named("manager"))
        with unittest.mock.patch.dict(os.environ), \
                unittest.mock.patch.object(Manager, "local_ip", "0.0.0.0"), \
                self.assertLogs(LOGGER, "WARNING") as log:
            os.environ.pop("SNUG_TOKEN", None)
            prefill = made(self.there.args(), "prefill")
        self.assertEqual(len(log.output), 1)
        self.assertRegex(log.output[0], "KV travels by SGLang's own transfer: .*token")
        self.assertIsInstance(prefill.engine, Engine)

    def test_reasons(self):
        manager = types.SimpleNamespace(kv_args=self.here.args(), server_args=None, dcp_size=1)
        self.assertEqual(kv_manager.why_not(manager, self.here, {}), "")
        for variable in ("SGLANG_DISAGG_STAGING_BUFFER", "SGLANG_MOONCAKE_CUSTOM_MEM_POOL"):
            self.assertIn(variable, kv_manager.why_not(manager, self.here, {variable: "True"}))
        manager.dcp_size = 2
        self.assertIn("context parallelism", kv_manager.why_not(manager, self.here, {}))
        manager.kv_args.state_types = ["mamba"]
        self.assertIn("other states", kv_manager.why_not(manager, self.here, {}))

    def test_formats_of_fp8(self):
        """The pool stores all of them as bytes."""
        caches = []
        for dtype in ("float8_e4m3fn", "float8_e5m2", "float8_e5m2"):
            caches.append(Cache(0, "uint8"))
            caches[-1].dtype = dtype
        one, other, same = (kv_manager.Memory("i8", cache).fingerprint for cache in caches)
        self.assertNotEqual(one, other)
        self.assertEqual(other, same)

    def test_types_that_do_not_shrink_travel_raw(self):
        for dtype, mode in (("bfloat16", "auto"), ("uint8", "raw"), ("float8_e4m3fn", "raw")):
            cache = Cache(0, dtype)
            decode = self.manager("decode", cache)
            self.assertEqual(decode._inbox._options.mode, mode)


def kv_transfer_receiver(decode, room):
    hooks = hooks_with()
    return hooks.choose(original, named("mooncake"), named("receiver"))(decode, room)


if __name__ == "__main__":
    unittest.main()
