"""A prefill and a decode instance of vLLM on this machine, KV pages through SnugConnector over TCP:

    python kv_vllm_trial.py MODEL [LOGS [PART,...]]

Every answer is compared, token by token, with that of the decode instance alone. Pages are damaged,
held back and lost on the way by a proxy.

GPU kernels give a token other last bits in other batches. There, two ways make answers comparable:
VLLM_BATCH_INVARIANT=1, or "scheduler_cls": "kv_checked.LastTokenScheduler" in KV_ENGINE_OPTIONS.
With KV_TRIAL_CONNECTOR=kv_checked the pages themselves are compared, too.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "python"))
from kv_proxy import Proxy  # noqa: E402

COUNT = int(os.environ.get("KV_TRIAL_COUNT", "12"))
MOST, NUM_REQUESTS = map(int, os.environ.get("KV_TRIAL_MANY", "1500,12").split(","))
HOLD_SECONDS, TIMEOUT = map(int, os.environ.get("KV_TRIAL_SECONDS", "40,25").split(","))


class Engine:
    def __init__(self, model, role, logs):
        extra = {"hold_seconds": HOLD_SECONDS, "timeout": TIMEOUT, "mode": "entropy",
                 **json.loads(os.environ.get("KV_TRIAL_EXTRA", "{}"))}
        self.log = Path(logs) / f"{role}.log"
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "kv_engine.py"), model, role, json.dumps(extra)], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=open(self.log, "w"),
            env=dict(os.environ, PYTHONPATH=f"{HERE}:{os.environ.get('PYTHONPATH', '')}"),
            start_new_session=True)

    def wait(self):
        line = self.process.stdout.readline()
        if not line:
            tail = "".join(open(self.log).readlines()[-25:])
            raise SystemExit(f"{tail}\nthe engine ended; its log is {self.log}")
        return json.loads(line)

    def start(self, word, argument=None):
        self.process.stdin.write(json.dumps([word, argument]) + "\n")
        self.process.stdin.flush()

    def ask(self, word, argument=None):
        self.start(word, argument)
        return self.wait()

    def metric(self, name):
        return self.ask("metrics").get(f"vllm:snug_kv_{name}", 0)

    def kill(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


class Trial:
    def __init__(self, model, logs):
        self.prefill, self.decode = Engine(model, "kv_producer", logs), Engine(
            model, "kv_consumer", logs)
        self.random = random.Random(5)
        self.hashes = os.environ.get("KV_TRIAL_HASHES")

    def ready(self):
        return self.prefill.wait(), self.decode.wait()

    def prompts(self, lengths):
        return [[self.random.randrange(4, 4000) for _ in range(length)] for length in lengths]

    def handed(self, prompts):
        jobs = [[p, 1, {"do_remote_decode": True}] for p in prompts]
        return [self.prefill.ask("generate", [job])[0]["params"] for job in jobs]

    def alone(self, prompts):
        """One after the other, as everything that is compared: batches change the last bits. GPUs
        need VLLM_BATCH_INVARIANT=1 too: they compute one token in another way than many."""
        return self.decoded(prompts, [None] * len(prompts))

    def decoded(self, prompts, params):
        return [self.decode.ask("generate", [[p, COUNT, q]])[0] for p, q in zip(prompts, params)]

    def both(self, prompt):
        """The answer of the decode instance alone, while the other computes the prompt."""
        self.prefill.start("generate", [[prompt, 1, {"do_remote_decode": True}]])
        plain = self.decode.ask("generate", [[prompt, COUNT, None]])[0]
        return plain, self.prefill.wait()[0]["params"]

    def close(self):
        self.prefill.kill()
        self.decode.kill()


def through(params, proxy):
    return [dict(p, remote_workers={rank: proxy.address for rank in p["remote_workers"]})
            for p in params]


def check(what, is_true, note=""):
    print(f"{'ok  ' if is_true else 'FAIL'} {what} {note}", flush=True)
    if not is_true:
        raise SystemExit(1)


def same(plain, got):
    return all(a["tokens"] == b["tokens"] for a, b in zip(plain, got))


def mixed_lengths(trial):
    prompts = trial.prompts([16, 17, 127, 128, 129, 300, 640, 1000, 1500])
    plain = trial.alone(prompts)
    got = trial.decoded(prompts, trial.handed(prompts))
    check("tokens identical, 16 to 1500 tokens", same(plain, got),
          [a["tokens"] == b["tokens"] for a, b in zip(plain, got)])
    loads, failed = trial.decode.metric("loads"), trial.decode.metric("failed_loads")
    raw, wired = trial.decode.metric("received_bytes"), trial.decode.metric("received_wire_bytes")
    check("every prompt was loaded by every worker", loads > 0 and loads % 9 == 0 and failed == 0,
          f"{loads} loads, {raw} bytes, {wired / raw:.3f} of them on the wire")


def many(trial):
    """Lengths from 16 to MOST, short ones as often as long ones on a scale of doubling."""
    loads = trial.decode.metric("loads")
    lengths = [16, MOST] + [round(16 * (MOST / 16) ** trial.random.random())
                            for _ in range(NUM_REQUESTS - 2)]
    different = []
    for prompt in trial.prompts(lengths):
        plain, params = trial.both(prompt)
        got = trial.decoded([prompt], [params])[0]
        if got["tokens"] != plain["tokens"]:
            different.append(len(prompt))
    loads, failed = trial.decode.metric("loads") - loads, trial.decode.metric("failed_loads")
    check("all of them were loaded", loads >= NUM_REQUESTS and failed == 0,
          f"{loads} loads, {failed} failed")
    if trial.hashes:
        compare_pages(trial, loads)
    check(f"tokens identical: {NUM_REQUESTS} requests of 16 to {MOST} tokens, {COUNT} tokens each",
          not different, f"different with lengths {different}" if different else "")


def compare_pages(trial, num_loads):
    notes = {"left": {}, "arrived": {}}
    for name in os.listdir(trial.hashes):
        for line in open(f"{trial.hashes}/{name}"):
            note = json.loads(line)
            notes[note["what"]][note["request"], note["worker"]] = note["hash"], note["blocks"]
    same = sum(notes["left"][key] == note for key, note in notes["arrived"].items())
    blocks = sum(blocks for _, blocks in notes["arrived"].values())
    check("pages arrived as they left", same == len(notes["arrived"]) >= num_loads,
          f"SHA-256 of {blocks} blocks of {same} requests")


def damage(trial, fault, after=150_000):
    prompts = trial.prompts([1300])
    plain = trial.alone(prompts)
    failed = trial.decode.metric("failed_loads")
    params = trial.handed(prompts)
    address = next(iter(params[0]["remote_workers"].values()))
    proxy = Proxy(address, fault, after)
    start = time.monotonic()
    got = trial.decoded(prompts, through(params, proxy))
    check(f"tokens identical by recomputation: {fault}", same(plain, got),
          f"{time.monotonic() - start:.1f} s")
    failed = trial.decode.metric("failed_loads") - failed
    check("the load was counted as failed", failed == 1 and proxy.num_faults > 0,
          f"{failed} loads, {proxy.num_faults} faults")
    proxy.close()


def wrong_params(trial):
    prompts = trial.prompts([300, 300])
    plain, (first, second) = trial.alone(prompts), trial.handed(prompts)
    junk = dict(first, remote_num_tokens="many", remote_workers=[1])
    check("parameters of another prompt, and junk: tokens identical by recomputation",
          same(plain, trial.decoded(prompts, [second, junk])))


def nobody_asks(trial):
    trial.handed(trial.prompts([500]))
    start = time.monotonic()
    while trial.prefill.metric("expired_requests") == 0:
        if time.monotonic() - start > 10 * HOLD_SECONDS:
            check("blocks of a request that nobody asks for are given back", False)
        time.sleep(0.5)
    check("blocks of a request that nobody asks for are given back", True,
          f"after {time.monotonic() - start:.0f} s (hold_seconds {HOLD_SECONDS})")


def too_late(trial):
    prompts = trial.prompts([400])
    params = trial.handed(prompts)
    time.sleep(HOLD_SECONDS + 2)
    check("a request that comes too late is computed again",
          same(trial.alone(prompts), trial.decoded(prompts, params)))


def killed(trial):
    prompts = trial.prompts([16, 700, 1200])
    plain = trial.alone(prompts)
    params = trial.handed(prompts)
    trial.prefill.kill()
    start = time.monotonic()
    got = trial.decoded(prompts, params)
    check("a killed prefill instance: requests finish, tokens identical", same(plain, got),
          f"{time.monotonic() - start:.1f} s")


PARTS = {"lengths": mixed_lengths, "many": many, "flip": lambda trial: damage(trial, "flip"),
         "cut": lambda trial: damage(trial, "cut"), "stall": lambda trial: damage(trial, "stall"),
         "nobody": nobody_asks, "late": too_late, "params": wrong_params, "killed": killed}


def main():
    model = sys.argv[1]
    logs = sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp(prefix="kv_trial.")
    trial = Trial(model, logs)
    try:
        trial.ready()
        for part in sys.argv[3].split(",") if len(sys.argv) > 3 else PARTS:
            PARTS[part](trial)
    finally:
        trial.close()


if __name__ == "__main__":
    main()
