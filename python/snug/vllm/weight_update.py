"""A weight update on the wire, and when an engine may apply it. Needs neither torch nor vLLM.

A *piece* is the part of one checkpoint tensor that one worker holds. The worker lists its pieces,
in an order of its own, with the hash of what it holds (docs/delta.md), or None where it cannot
read that back. Both sides name the state of all pieces by one *version*.

    trainer -> worker   {"update": 1, "number": of the update, "base": version}
                        {"batch": [[piece, form, bytes, target hash], ...]}, then their bytes; ...
                        {"end": number of entries, "target": version}
    worker -> trainer   {"staged": number}, or {"error": why not} and the end of the connection

`form` is "delta", for the piece whose hash the trainer knows, or "whole", a frame (docs/format.md).
"""

import hashlib
import json
import struct
from typing import NamedTuple

PROTOCOL = 1
ALIGN = 16  # of every entry within the bytes of its batch: GPUs read deltas there
FORMS = ("delta", "whole")
_MAX_NOTE_BYTES = 1 << 19
_MAX_TEXT_BYTES = 1 << 28
_TEXT_TAG = 1
BATCH_TAG = 2


class Refused(ValueError):
    """An update that this engine must not apply. Its weights are unchanged."""


class Entry(NamedTuple):
    piece: int
    form: str
    num_bytes: int
    target_hash: int


def version_of(hashes):
    """Names the state of all pieces of a worker."""
    digest = hashlib.sha256()
    for number in hashes:
        digest.update(b"?" if number is None else b"=" + struct.pack("<Q", number))
    return digest.hexdigest()[:16]


def padded(num_bytes):
    return -(-num_bytes // ALIGN) * ALIGN


def send_text(connection, value):
    """Any JSON value. A note holds 1 MiB; the lists of a large model do not fit."""
    text = json.dumps(value, separators=(",", ":")).encode()
    if len(text) <= _MAX_NOTE_BYTES:
        connection.send_note(text)
        return
    connection.send_note(json.dumps({"text_bytes": len(text)}))
    connection.send(_TEXT_TAG, text).wait()


def recv_text(connection, seconds):
    value = _parsed(connection.recv_note(seconds))
    if not isinstance(value, dict) or "text_bytes" not in value:
        return value
    num_bytes = value["text_bytes"]
    if not _is_count(num_bytes) or num_bytes > _MAX_TEXT_BYTES:
        raise Refused(f"the peer announced a list of {num_bytes} bytes")
    text = bytearray(num_bytes)
    connection.recv(_TEXT_TAG, text).wait(seconds)
    return _parsed(bytes(text))


class Stage:
    """Collects one update. Nothing of it is applied before `end` has returned."""

    def __init__(self, raw_bytes, hashes):
        """Of each piece: its size, and the hash of what the engine serves."""
        self._raw_bytes, self.hashes = raw_bytes, list(hashes)
        self.entries = []
        self._seen = set()
        self._has_begun = False

    def begin(self, header):
        if (not isinstance(header, dict) or header.get("update") != PROTOCOL
                or not isinstance(header.get("number"), str)):
            raise Refused("the trainer speaks another protocol: install the same Snug on both "
                          "sides")
        mine = version_of(self.hashes)
        if header.get("base") != mine:
            raise Refused(f"the update is for version {header.get('base')}, but this engine "
                          f"serves version {mine}; connect the trainer again, and it will "
                          "send what this engine lacks")
        self._has_begun = True

    def batch(self, message):
        """Checks what a batch claims; returns its entries."""
        listed = message.get("batch") if isinstance(message, dict) else None
        if not self._has_begun or not isinstance(listed, list):
            raise Refused(f"the trainer sent {str(message)[:80]!r} where a batch belongs")
        entries = [self._checked(item) for item in listed]
        self.entries += entries
        return entries

    def end(self, message):
        """Checks that everything came, and leads to the version that the trainer names."""
        if message.get("end") != len(self.entries):
            raise Refused(f"the update has {message.get('end')} entries, {len(self.entries)} came")
        found = version_of(self.new_hashes())
        if found != message.get("target"):
            raise Refused(f"the update leads to version {found}, not to {message.get('target')} "
                          "as its trainer says")

    def new_hashes(self):
        hashes = list(self.hashes)
        for entry in self.entries:
            hashes[entry.piece] = entry.target_hash
        return hashes

    def _checked(self, item):
        if not (isinstance(item, list) and len(item) == 4 and item[1] in FORMS
                and all(_is_count(item[i]) for i in (0, 2, 3))):
            raise Refused(f"{str(item)[:80]!r} describes no entry of an update")
        entry = Entry(*item)
        if entry.piece >= len(self._raw_bytes) or entry.piece in self._seen:
            raise Refused(f"piece {entry.piece} is unknown or was sent twice")
        raw_bytes = self._raw_bytes[entry.piece]
        if entry.num_bytes > 2 * raw_bytes + 4096:
            raise Refused(f"piece {entry.piece} has {raw_bytes} bytes, and {entry.num_bytes} are "
                          "announced for it")
        if entry.form == "delta" and self.hashes[entry.piece] is None:
            raise Refused(f"a delta came for piece {entry.piece}, which has no base here")
        self._seen.add(entry.piece)
        return entry


def receive(connection, stage, memory, seconds):
    """Fills `stage`, which has begun; returns [(entry, its bytes)].

    memory(num_bytes) allocates a writable buffer that can be cut into slices.
    """
    received = []
    while True:
        message = recv_text(connection, seconds)
        if isinstance(message, dict) and "end" in message:
            stage.end(message)
            return received
        entries = stage.batch(message)
        buffer = memory(sum(padded(entry.num_bytes) for entry in entries))
        connection.recv(BATCH_TAG, buffer).wait(seconds)
        at = 0
        for entry in entries:
            received.append((entry, buffer[at:at + entry.num_bytes]))
            at += padded(entry.num_bytes)


def _parsed(text):
    try:
        return json.loads(text)
    except ValueError:
        raise Refused("the peer sent a note that is not JSON") from None


def _is_count(value):
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64
