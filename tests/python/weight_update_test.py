"""Weight updates for vLLM without torch and vLLM: versions, staging, what is refused."""

import http.server
import json
import sys
import threading
import unittest
import unittest.mock

import snug
import snug.wire
from snug.vllm import clients, weight_transfer, weight_update
from snug.vllm.weight_update import Entry, Refused, Stage, padded, version_of

TOKEN = "a long enough secret"


class Versions(unittest.TestCase):
    def test_every_piece_counts(self):
        base = version_of([1, 2, None])
        others = [[1, 2], [1, 2, 3], [2, 1, None], [1, 2, 0], [1, None, 2], [1, 2, None, None]]
        self.assertEqual(len({base, *map(version_of, others)}), 1 + len(others))
        self.assertEqual(base, version_of([1, 2, None]))


class Staging(unittest.TestCase):
    def stage(self):
        stage = Stage([100, 200, 300], [1, 2, None])
        stage.begin({"update": 1, "number": "a", "base": version_of([1, 2, None])})
        return stage

    def refuses(self, words, function, *arguments):
        with self.assertRaisesRegex(Refused, words):
            function(*arguments)

    def test_a_whole_update(self):
        stage = self.stage()
        entries = stage.batch({"batch": [[0, "delta", 64, 5], [2, "whole", 280, 6]]})
        self.assertEqual(entries, [Entry(0, "delta", 64, 5), Entry(2, "whole", 280, 6)])
        stage.end({"end": 2, "target": version_of([5, 2, 6])})
        self.assertEqual(stage.new_hashes(), [5, 2, 6])
        self.assertEqual(stage.hashes, [1, 2, None])

    def test_another_version(self):
        stage = Stage([100], [1])
        self.refuses("is for version 0123, but this engine serves version", stage.begin,
                     {"update": 1, "number": "a", "base": "0123"})
        self.refuses("where a batch belongs", stage.batch, {"batch": []})

    def test_another_protocol(self):
        for header in ({"update": 2, "number": "a", "base": ""}, {"update": 1}, {}, [], "update", None):
            self.refuses("another protocol", Stage([100], [1]).begin, header)

    def test_entries_that_do_not_fit(self):
        cases = {"unknown": [3, "whole", 1, 1], "has 100 bytes": [0, "delta", 10_000, 1],
                 "no base": [2, "delta", 10, 1], "describes no entry": [0, "delta", -1, 1]}
        for words, item in cases.items():
            self.refuses(words, self.stage().batch, {"batch": [item]})
        for item in ([0, "other", 1, 1], [0, "delta", 1], None, [0, "delta", 1.5, 1],
                     [0, "delta", 1, 1 << 64], [True, "delta", 1, 1]):
            self.refuses("describes no entry", self.stage().batch, {"batch": [item]})

    def test_a_piece_comes_once(self):
        stage = self.stage()
        stage.batch({"batch": [[0, "delta", 64, 5]]})
        self.refuses("twice", stage.batch, {"batch": [[0, "delta", 64, 5]]})

    def test_what_is_missing_at_the_end(self):
        stage = self.stage()
        stage.batch({"batch": [[0, "delta", 64, 5]]})
        self.refuses("has 2 entries, 1 came", stage.end, {"end": 2})
        self.refuses("leads to version", stage.end, {"end": 1, "target": version_of([6, 2, None])})


class OverTheWire(unittest.TestCase):
    def setUp(self):
        self.listener = snug.wire.listen(token=TOKEN)
        accepted = []
        thread = threading.Thread(target=lambda: accepted.append(self.listener.accept()))
        thread.start()
        self.worker = snug.wire.connect(self.listener.address, token=TOKEN)
        thread.join()
        self.trainer = accepted[0]

    def tearDown(self):
        for handle in (self.trainer, self.worker, self.listener):
            handle.close()

    def receive(self):
        """On another thread, as in a worker; the result is in a list."""
        outcome = []

        def run():
            try:
                stage = Stage([100, 50], [1, 2])
                stage.begin(weight_update.recv_text(self.worker, 60))
                outcome.append(weight_update.receive(self.worker, stage,
                                                     lambda n: memoryview(bytearray(n)), 60))
            except Exception as error:
                outcome.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread, outcome

    def begin(self):
        weight_update.send_text(self.trainer, {"update": 1, "number": "a",
                                               "base": version_of([1, 2])})
        weight_update.send_text(self.trainer, {"batch": [[0, "delta", 70, 8], [1, "whole", 3, 9]]})

    def test_an_update_arrives(self):
        thread, outcome = self.receive()
        self.begin()
        data = bytes(range(70)) + bytes(padded(70) - 70) + b"abc" + bytes(padded(3) - 3)
        self.trainer.send(weight_update.BATCH_TAG, data).wait(60)
        weight_update.send_text(self.trainer, {"end": 2, "target": version_of([8, 9])})
        thread.join()
        self.assertEqual([(entry.piece, bytes(part)) for entry, part in outcome[0]],
                         [(0, bytes(range(70))), (1, b"abc")])

    def test_a_trainer_that_dies(self):
        thread, outcome = self.receive()
        self.begin()
        self.trainer.close()
        thread.join()
        self.assertIsInstance(outcome[0], snug.SnugError)

    def test_notes_that_are_no_json(self):
        thread, outcome = self.receive()
        self.trainer.send_note(b"\xff{")
        thread.join()
        self.assertIsInstance(outcome[0], Refused)

    def test_lists_larger_than_a_note(self):
        value = [[f"model.layers.{i}.weight", "bfloat16", [4096, 4096]] for i in range(30_000)]
        thread = threading.Thread(target=weight_update.send_text, args=(self.trainer, value))
        thread.start()
        self.assertEqual(weight_update.recv_text(self.worker, 60), value)
        thread.join()


class Server(http.server.BaseHTTPRequestHandler):
    """Answers as vLLM does, and notes what it was asked."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.calls.append((self.path, body))
        is_known = self.path != "/update_weights"
        self.send_response(200 if is_known else 500)
        self.end_headers()
        self.wfile.write(b"{}" if is_known else b"nothing is staged")

    def log_message(self, *_):
        pass


class OverHttp(unittest.TestCase):
    def test_all_servers_are_called(self):
        servers = [http.server.HTTPServer(("127.0.0.1", 0), Server) for _ in range(2)]
        for server in servers:
            server.calls = []
            threading.Thread(target=server.serve_forever, daemon=True).start()
        client = clients.HTTPClient(*(f"http://127.0.0.1:{s.server_port}/" for s in servers))
        client.init_weight_transfer_engine({"address": "here"})
        client.start_weight_update()
        with self.assertRaisesRegex(RuntimeError, "update_weights: nothing is staged"):
            client.update_weights({"commit": "7"})
        client.finish_weight_update()
        for server in servers:
            self.assertEqual(server.calls, [
                ("/init_weight_transfer_engine", {"init_info": {"address": "here"}}),
                ("/start_weight_update", {"is_checkpoint_format": False}),
                ("/update_weights", {"update_info": {"commit": "7"}}),
                ("/finish_weight_update", {})])
            server.shutdown()
            server.server_close()


class WithoutVllm(unittest.TestCase):
    def test_register_says_what_is_missing(self):
        hidden = {"vllm": None, "vllm.distributed.weight_transfer": None}
        with unittest.mock.patch.dict(sys.modules, hidden):
            with self.assertRaisesRegex(ImportError, "needs vLLM 0.24 or newer"):
                weight_transfer.register()
        self.assertNotIn("torch", sys.modules)


if __name__ == "__main__":
    unittest.main()
