#!/usr/bin/env python3
"""Somebody on the path of `snug send`, thousands of times: make proxy-test.

Three network namespaces: a sender, a proxy, a receiver. The proxy reads every byte, and in most
transfers it flips bits, drops, repeats, exchanges or cuts what passes, or sends bytes of an earlier
session. Shown at the end: connections, bytes of plaintext seen, altered files accepted, and what a
sender with a wrong token was told. Needs root and ip (Debian: iproute2).

  proxy_trial.py SNUG [--connections 10000] [--seed 1]
"""
import argparse
import collections
import os
import pathlib
import random
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading

KINDS = ["read", "flip", "drop", "repeat", "exchange", "cut", "replay"]
LANES = 16
# How the greeting, an offer and a raw chunk begin: long enough not to occur by chance.
HEADERS = [b"SNUGWIRE", b"SNWC\2\0\0\0", b"SNWD\0\0\1\0"]
SENDER, PROXY_A, PROXY_B, RECEIVER = "10.78.1.1", "10.78.1.2", "10.78.2.2", "10.78.2.1"
PORT = 7000


class Proxy:
    """Relays connections; `fault` strikes one of the next LANES + 1, in one direction, once."""

    def __init__(self):
        self.listener = socket.create_server((PROXY_A, PORT), backlog=128)
        self.captured = []   # (towards the receiver, bytes) of every direction of every connection
        self.earlier = []    # what the transfers before have sent
        self.fault = ("read", 0, True, 0)
        self.num_connections = self.in_this_transfer = 0
        self.struck = False
        threading.Thread(target=self.run, daemon=True).start()

    def start(self, kind, connection, towards_receiver, at):
        self.earlier = ([bytes(b) for up, b in self.captured if up] + self.earlier)[:64]
        self.captured, self.in_this_transfer, self.struck = [], 0, False
        self.fault = (kind, connection, towards_receiver, at)

    def run(self):
        while True:
            client, _ = self.listener.accept()
            number, self.in_this_transfer = self.in_this_transfer, self.in_this_transfer + 1
            self.num_connections += 1
            threading.Thread(target=self.relay, args=(client, number, self.fault),
                             daemon=True).start()

    def relay(self, client, number, fault):
        kind, connection, towards_receiver, at = fault
        try:
            server = socket.create_connection((RECEIVER, PORT), timeout=10)
        except OSError:
            client.close()
            return
        ends = {client: (server, True), server: (client, False)}
        captured = {client: bytearray(), server: bytearray()}
        self.captured += [(True, captured[client]), (False, captured[server])]
        held = b""
        try:
            while True:
                for source in select.select(list(ends), [], [], 30)[0]:
                    target, up = ends[source]
                    data = source.recv(1 << 16)
                    if not data:
                        return
                    before = len(captured[source])
                    captured[source] += data
                    mine = number == connection and up == towards_receiver
                    if mine and not self.struck and before <= at < before + len(data):
                        self.struck = kind != "read"
                        if kind == "flip":
                            data = bytearray(data)
                            data[at - before] ^= 1 << random.randrange(8)
                        elif kind == "drop":
                            continue
                        elif kind == "repeat":
                            data = data + data
                        elif kind == "exchange":
                            held = data
                            continue
                        elif kind == "cut":
                            return
                        elif kind == "replay" and self.earlier:
                            old = random.choice(self.earlier)
                            data = old[before:before + len(data)] or old
                    target.sendall(data + held if mine else data)
                    if mine:
                        held = b""
        except OSError:
            pass
        finally:
            client.close()
            server.close()


def entropy_of(data):
    """Bits a byte; ciphertext has 8."""
    import math
    counts, n = collections.Counter(data), len(data)
    return -sum(c / n * math.log2(c / n) for c in counts.values())


def make_namespaces():
    names = [f"snug-{role}-{os.getpid()}" for role in ("send", "path", "recv")]
    for name in names:
        subprocess.run(["ip", "netns", "add", name], check=True)
    send, path, recv = names
    for near, far, near_ip, far_ip in ((send, path, SENDER, PROXY_A), (recv, path, RECEIVER, PROXY_B)):
        end = "a" if near == send else "b"
        subprocess.run(["ip", "link", "add", "v0", "netns", near, "type", "veth",
                        "peer", "name", "v" + end, "netns", far], check=True)
        for name, device, address in ((near, "v0", near_ip), (far, "v" + end, far_ip)):
            subprocess.run(["ip", "-n", name, "addr", "add", address + "/24", "dev", device],
                           check=True)
            subprocess.run(["ip", "-n", name, "link", "set", device, "up"], check=True)
            subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
    return names


def enter(name):
    import ctypes
    with open(f"/var/run/netns/{name}") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0) != 0:
            raise OSError(ctypes.get_errno(), "setns")


def run_trial(snug, num_connections, seed, work, names):
    send, path, recv = names
    rng = random.Random(seed)
    random.seed(seed)
    original = work / "model.safetensors"
    subprocess.run([snug, "sample", str(original), "--size", "1MB"], check=True,
                   stdout=subprocess.DEVNULL)
    plain = original.read_bytes()
    inbox = work / "in"
    inbox.mkdir()
    environment = dict(os.environ, SNUG_TOKEN="correct horse battery staple")
    receiver = subprocess.Popen(
        ["ip", "netns", "exec", recv, snug, "recv", str(inbox), "--force", "--timeout", "2",
         "--listen", f"{RECEIVER}:{PORT}"],
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    receiver.stderr.readline()  # listening
    threading.Thread(target=receiver.stderr.read, daemon=True).start()
    enter(path)
    proxy = Proxy()
    counts = collections.Counter()
    windows = {plain[i:i + 16] for i in range(4096, len(plain) - 16, 4099)}

    def transfer(token, mode):
        return subprocess.run(
            ["ip", "netns", "exec", send, snug, "send", str(original), f"{PROXY_A}:{PORT}", "-q",
             "--retries", "0", "--timeout", "1", "--lanes", str(LANES), "--chunk", "64KiB",
             "--mode", mode],
            env=dict(environment, SNUG_TOKEN=token), stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE).returncode

    while proxy.num_connections < num_connections:
        kind = rng.choice(KINDS)
        up = rng.random() < 0.75
        proxy.start(kind, rng.randrange(LANES + 1), up, rng.randrange(20_000 if up else 250))
        code = transfer("correct horse battery staple", rng.choice(["raw", "entropy"]))
        arrived = inbox / original.name
        counts["transfers"] += 1
        counts["struck"] += proxy.struck
        if code == 0:
            counts["accepted by the sender"] += 1
            counts["not equal"] += not arrived.exists() or arrived.read_bytes() != plain
        elif arrived.exists():  # only the last word to the sender was lost
            counts["not equal"] += arrived.read_bytes() != plain
        for found in inbox.iterdir():
            shutil.rmtree(found) if found.is_dir() else found.unlink()
        if kind == "read":
            seen = b"".join(bytes(b) for _, b in proxy.captured)
            counts["bytes read"] += len(seen)
            counts["windows of plaintext seen"] += sum(w in seen for w in windows)
            counts["headers seen"] += sum(map(seen.count, HEADERS))
            if len(seen) > 100_000 and entropy_of(seen) < 7.99:
                counts["streams that are not random"] += 1
    answers = set()
    for guess in range(50):
        proxy.start("read", 0, True, 0)
        if transfer(f"guess number {guess} of many", "raw") == 0:
            counts["wrong tokens let in"] += 1
        answers |= {bytes(b) for up, b in proxy.captured if not up}
    counts["connections"] = proxy.num_connections
    counts["different answers to wrong tokens"] = len(answers)
    counts["longest answer to a wrong token, bytes"] = max(map(len, answers))
    receiver.terminate()
    receiver.wait()
    return counts


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("snug")
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if os.geteuid() != 0 or shutil.which("ip") is None:
        print("skipped: network namespaces need root and ip")
        return 77
    names = make_namespaces()
    work = pathlib.Path(tempfile.mkdtemp(prefix="snug-door-"))
    try:
        counts = run_trial(os.path.abspath(args.snug), args.connections, args.seed, work, names)
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)
        shutil.rmtree(work)
    for name in ("connections", "transfers", "struck", "accepted by the sender", "bytes read",
                 "windows of plaintext seen", "headers seen", "streams that are not random",
                 "not equal", "wrong tokens let in", "different answers to wrong tokens",
                 "longest answer to a wrong token, bytes"):
        print(f"{counts[name]:>12,}  {name}")
    bad = ("windows of plaintext seen", "headers seen", "streams that are not random", "not equal",
           "wrong tokens let in")
    ok = all(counts[name] == 0 for name in bad) and counts["different answers to wrong tokens"] == 1
    print("passed" if ok else "FAILED")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
