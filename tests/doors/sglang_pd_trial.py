"""A prefill and a decode instance of SGLang on this machine, KV pages through Snug over TCP:

    python sglang_pd_trial.py MODEL [LOGS [PART,...]]

Every answer is compared, token by token, with that of one instance alone, and every page bit for
bit (sglang_shims.py). Pages are damaged, held back and lost on the way by a proxy. Needs
mooncake-transfer-engine-non-cuda and libibverbs1.
"""

import atexit
import itertools
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import Future
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent / "python"))
from kv_proxy import Proxy  # noqa: E402

COUNT, CAPACITY = 12, 2048  # tokens of an answer, and that a cache has room for
LARGE = 1200  # tokens of prompts of which a cache has room for one
TIMEOUT, WAITING_SECONDS, BOOTSTRAP_SECONDS = 12, 45, 30
OPTIONS = {"context_length": CAPACITY, "max_total_tokens": CAPACITY,
           "num_reserved_decode_tokens": 16,
           **json.loads(os.environ.get("SGLANG_ENGINE_OPTIONS", "{}"))}


class Engine:
    """Answers questions side by side."""

    def __init__(self, model, role, name, scratch, **environment):
        self.log = scratch.parent / f"sglang_{name}.log"
        options = {**OPTIONS, "port": free_port()}
        self.bootstrap_port = free_port()
        if role != "null":
            options.update(disaggregation_mode=role, disaggregation_transfer_backend="mooncake",
                           disaggregation_bootstrap_port=self.bootstrap_port)
        paths = ":".join(map(str, [scratch / "site", HERE, os.environ.get("PYTHONPATH", "")]))
        self._answers, self._ids = {}, itertools.count()
        self.ready = Future()
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "sglang_engine.py"), model, role, json.dumps(options)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=open(self.log, "w"), text=True,
            # Some virtual machines announce AMX and trap when it is used.
            env={"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", **os.environ, "PYTHONPATH": paths,
                 **environment},
            start_new_session=True)
        atexit.register(self.close)
        threading.Thread(target=self._read, daemon=True).start()

    def ask(self, prompt, room=None, prefill=None):
        """`prefill` is the engine that computes the prompt, if it is another."""
        return self._send(prompt=prompt, count=COUNT, room=room,
                          port=(prefill or self).bootstrap_port)

    def abort_all(self):
        return self._send(abort=True)

    def _send(self, **job):
        id, answer = next(self._ids), Future()
        self._answers[id] = answer
        self.process.stdin.write(json.dumps({"id": id, **job}) + "\n")
        self.process.stdin.flush()
        return answer

    def close(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def _read(self):
        for line in self.process.stdout:
            answer = json.loads(line)
            future = self.ready if answer == "ready" else self._answers.pop(answer["id"])
            future.set_result(answer)
        for future in (self.ready, *self._answers.values()):
            if not future.done():
                future.set_exception(SystemExit(f"an engine ended; its log is {self.log}"))


class Trial:
    def __init__(self, model, scratch):
        self.model, self.scratch = model, scratch
        self.random = random.Random(5)
        self.rooms = itertools.count(1)
        self.mixed = self.prompts([3, 16, 17, 127, 128, 300, 640, 1000, 1500])
        self.many = self.prompts([self.random.randrange(20, 200) for _ in range(8)])
        self.flipped, self.cut, self.large = self.prompts([600, 600, LARGE])
        self.plain = self.answers_alone([*self.mixed, self.flipped, self.cut, self.large])
        port = free_port()
        self.proxy = Proxy(f"127.0.0.1:{port}", of_client=True)
        self.hashes = scratch / "hashes"
        self.hashes.mkdir()
        common = {"SGLANG_HOST_IP": "127.0.0.1", "MOONCAKE_PROTOCOL": "tcp", "MC_FORCE_TCP": "1",
                  "SGLANG_TRIAL_HASHES": str(self.hashes),
                  "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": str(BOOTSTRAP_SECONDS),
                  "SGLANG_DISAGGREGATION_WAITING_TIMEOUT": str(WAITING_SECONDS)}
        snug = {"mode": "entropy", "timeout": TIMEOUT}
        self.environment = common
        self.prefill = Engine(model, "prefill", "prefill", scratch, **common,
                              SNUG_SGLANG_KV=json.dumps(snug))
        self.prefill.ready.result()
        snug.update(port=port, announce=self.proxy.address)
        self.decode = Engine(model, "decode", "decode", scratch, **common,
                             SNUG_SGLANG_KV=json.dumps(snug))
        self.decode.ready.result()

    def prompts(self, lengths):
        return [[self.random.randrange(4, 4000) for _ in range(length)] for length in lengths]

    def answers_alone(self, prompts):
        engine = Engine(self.model, "null", "alone", self.scratch)
        try:
            engine.ready.result()
            # One after the other: batches change the last bits.
            return {str(prompt): engine.ask(prompt).result()["tokens"] for prompt in prompts}
        finally:
            engine.close()

    def start(self, prompt, prefill=None, decode=None):
        """Both instances get a request at the same time, as from SGLang's router."""
        room, prefill, decode = next(self.rooms), prefill or self.prefill, decode or self.decode
        return room, prefill.ask(prompt, room), decode.ask(prompt, room, prefill)

    def run(self, prompt, **engines):
        _, first, second = self.start(prompt, **engines)
        return first.result(), second.result()

    def is_right(self, prompt, answer):
        return answer.get("tokens") == self.plain[str(prompt)]

    def checked(self, names=("*.checked",)):
        return [json.loads(path.read_text()) for name in names for path in self.hashes.glob(name)]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def check(what, is_true, note=""):
    print(f"{'ok  ' if is_true else 'FAIL'} {what} {note}", flush=True)
    if not is_true:
        raise SystemExit(1)


def mixed_lengths(trial):
    answers = [trial.run(prompt)[1] for prompt in trial.mixed]
    check("tokens identical to plain SGLang, prompts of 3 to 1500 tokens",
          all(map(trial.is_right, trial.mixed, answers)),
          [trial.is_right(*pair) for pair in zip(trial.mixed, answers)])
    checked = trial.checked()
    check("every page and all metadata bit-exact", len(checked) == len(trial.mixed)
          and all(one["rows"] == one["same"] for one in checked),
          f"{sum(one['rows'] for one in checked)} pieces")
    raw = sum(one["bytes"] for one in checked)
    check("they came through Snug, compressed", 0.5 < trial.proxy.num_passed / raw < 0.85,
          f"{raw} bytes, {trial.proxy.num_passed / raw:.3f} of them passed the proxy")


def many(trial):
    started = [trial.start(prompt) for prompt in trial.many]
    answers = [second.result() for _, _, second in started]
    # In batches the last bits are others, in SGLang alone as well: the pages tell.
    rows = trial.checked(f"{room}.checked" for room, _, _ in started)
    check("8 requests at once: all finish, pages bit-exact",
          all(len(answer.get("tokens", [])) == COUNT for answer in answers)
          and len(rows) == 8 and all(one["rows"] == one["same"] > 0 for one in rows))


def damaged(trial, fault, prompt):
    trial.proxy.harm(fault, 300_000)
    faults = trial.proxy.num_faults
    second = trial.run(prompt)[1]
    again = trial.run(trial.mixed[5])[1]
    check(f"{'a flipped bit' if fault == 'flip' else 'a connection that ends'}: pages are sent "
          "again, tokens identical, and so is the next request",
          trial.proxy.num_faults == faults + 1 and trial.is_right(prompt, second)
          and trial.is_right(trial.mixed[5], again))


def always_damaged(trial):
    prompt = trial.large
    trial.proxy.harm("flip", 100_000, None, each=True)
    started = time.monotonic()
    first, second = trial.run(prompt)
    trial.proxy.harm(None, 0)
    again = trial.run(prompt)[1]
    check("damaged each time: the request fails, the next one is right",
          "error" in first and "error" in second and trial.is_right(prompt, again),
          f"after {time.monotonic() - started:.1f} s; {second.get('error', '')[-160:]!r}")


def stall(trial):
    """Nobody acknowledges: the decode instance falls silent in the middle of a transfer. Both
    caches have no room for two such prompts."""
    trial.proxy.harm("stall", 300_000, None)
    started = time.monotonic()
    first, second = trial.run(*trial.prompts([LARGE]))
    seconds = time.monotonic() - started
    trial.proxy.harm(None, 0)
    check("a peer that falls silent: the request fails, nothing wrong is answered",
          "error" in first and "error" in second, f"after {seconds:.0f} s (timeout {TIMEOUT})")
    time.sleep(3)  # for as long a peer counts as lost
    room_again(trial, "blocks of a transfer that nobody acknowledges are given back")


def aborted(trial):
    """The user of a request leaves while its pages are on their way."""
    faults = trial.proxy.num_faults
    trial.proxy.harm("stall", 300_000, None)
    _, first, second = trial.start(*trial.prompts([LARGE]))
    while trial.proxy.num_faults == faults:
        time.sleep(0.05)
    trial.proxy.harm(None, 0)
    started = time.monotonic()
    trial.decode.abort_all().result()
    answers = first.result(), second.result()
    check("a request that is aborted while its pages are on their way ends at once",
          all("error" in answer for answer in answers)
          and time.monotonic() - started < TIMEOUT - 2, f"{time.monotonic() - started:.1f} s")
    room_again(trial, "its blocks are given back")


def no_decode(trial):
    started = time.monotonic()
    answer = trial.prefill.ask(*trial.prompts([LARGE]), next(trial.rooms)).result()
    check("a request that no decode instance asks for ends", "error" in answer,
          f"after {time.monotonic() - started:.0f} s (bootstrap timeout {BOOTSTRAP_SECONDS})")
    room_again(trial, "its blocks are given back")


def no_prefill(trial):
    started = time.monotonic()
    answer = trial.decode.ask(*trial.prompts([LARGE]), next(trial.rooms), trial.prefill).result()
    check("a request that no prefill instance sends ends", "error" in answer,
          f"after {time.monotonic() - started:.0f} s (waiting timeout {WAITING_SECONDS})")
    room_again(trial, "its blocks are given back")


def room_again(trial, what):
    started = time.monotonic()
    _, second = trial.run(trial.large)
    check(what, trial.is_right(trial.large, second),
          f"{LARGE} of {CAPACITY} tokens again, {time.monotonic() - started:.1f} s")


def without_snug(trial):
    """Each of the two with another instance that has no Snug."""
    for role in ("prefill", "decode"):
        other = Engine(trial.model, role, f"plain_{role}", trial.scratch, **trial.environment)
        try:
            other.ready.result()
            passed, num_checked = trial.proxy.num_passed, len(trial.checked())
            answers = [trial.run(prompt, **{role: other})[1] for prompt in trial.mixed[:6]]
            check(f"a {role} instance without Snug: SGLang's own transfer, tokens identical",
                  all(map(trial.is_right, trial.mixed, answers))
                  and trial.proxy.num_passed - passed < 2000
                  and len(trial.checked()) == num_checked)
        finally:
            other.close()
    said = re.findall("does not take KV through Snug", trial.prefill.log.read_text())
    check("the log says so once", len(said) == 1)


PARTS = {"lengths": mixed_lengths, "many": many,
         "flip": lambda trial: damaged(trial, "flip", trial.flipped),
         "cut": lambda trial: damaged(trial, "cut", trial.cut), "always": always_damaged,
         "stall": stall, "aborted": aborted, "nodecode": no_decode, "noprefill": no_prefill,
         "without": without_snug}


def install_plugins(folder):
    """An installed plugin is an entry point in the metadata of a distribution."""
    metadata = folder / "site" / "snug_llm-0.1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: snug-llm\nVersion: 0.1.0\n")
    group, name, function = re.search(
        r'entry-points."(sglang\.srt\.plugins)"\]\n(\w+) = "([\w.:]+)"',
        (ROOT / "pyproject.toml").read_text()).groups()
    (metadata / "entry_points.txt").write_text(
        f"[{group}]\n{name} = {function}\ntrial = sglang_shims:register\n")


def main():
    logs = sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp(prefix="sglang_trial.")
    scratch = Path(tempfile.mkdtemp(prefix="sglang.", dir=logs))
    install_plugins(scratch)
    trial = Trial(sys.argv[1], scratch)
    for part in sys.argv[3].split(",") if len(sys.argv) > 3 else PARTS:
        PARTS[part](trial)


if __name__ == "__main__":
    main()
