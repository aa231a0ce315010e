"""What two workers tell each other beside the pages: one JSON object in a note of the wire.

    who connects                                 who listens
    hello   version, layout, sender,
            host, gpu                   ------>
                                        <------  welcome  link

A decode worker connects to pull pages (client.py, server.py):

    pull    id, request, first, count   ------>
                                        <------  send     id, bytes    then message `id`: the pages
                                        <------  no       id, why      instead of both
    drop    id, request                 ------>  nobody will pull it
                                        <------  dropped  id

A prefill worker connects to push pages (push.py, inbox.py):

    place   id, request, area, segments ------>
                                        <------  go       id           it awaits message `id`
                                        <------  no       id, why      or not
    then message `id`: the pages        ------>

`id` is the tag of the wire's message. Who pulls counts blocks from the start of the request, so
that it can name no page of another request. Who pushes names addresses, (address, bytes) each, and
the decode worker takes those that await pages of this request. `sender` names who connects: its
next connection means that the last one is lost. Everything is answered, and little is asked at
once: a connection ends if more than 64 notes wait to be read, or more than 64 transfers to be made.
"""

import json

VERSION = 2
MAX_SEGMENTS = 1 << 12  # a GPU link takes so many of any size; their note has 1 MiB at most
MAX_TEXT = 4096
_NUMBER, _TEXT, _SEGMENTS = "a whole number", "a text", "a list of segments"
_FIELDS = {
    "hello": {"version": _NUMBER, "layout": _TEXT, "sender": _TEXT, "host": _TEXT,
              "gpu": _NUMBER},
    "welcome": {"link": _NUMBER},
    "pull": {"id": _NUMBER, "request": _TEXT, "first": _NUMBER, "count": _NUMBER},
    "send": {"id": _NUMBER, "bytes": _NUMBER},
    "no": {"id": _NUMBER, "why": _TEXT},
    "drop": {"id": _NUMBER, "request": _TEXT},
    "dropped": {"id": _NUMBER},
    "place": {"id": _NUMBER, "request": _TEXT, "area": _TEXT, "segments": _SEGMENTS},
    "go": {"id": _NUMBER},
}


class BadMessage(ValueError):
    """The peer does not speak this protocol."""


def pack(kind, **fields):
    if fields.keys() != _FIELDS[kind].keys():
        raise TypeError(f"{kind} has {', '.join(_FIELDS[kind])}, not {', '.join(fields)}")
    return json.dumps({"kind": kind, **fields}).encode()


def unpack(note):
    """(kind, fields) of a note; BadMessage if it is none of ours."""
    try:
        fields = json.loads(note)
    except (ValueError, RecursionError):
        raise BadMessage("the peer sent a note that is not JSON") from None
    kind = fields.pop("kind", None) if isinstance(fields, dict) else None
    expected = _FIELDS.get(kind) if isinstance(kind, str) else None
    if expected is None or fields.keys() != expected.keys():
        raise BadMessage("the peer sent an unknown note; both sides need the same Snug")
    for name, what in expected.items():
        if not _fits(fields[name], what):
            raise BadMessage(f"the peer sent {kind} whose {name} is not {what}")
    return kind, fields


def _fits(value, what):
    if what is _TEXT:
        return isinstance(value, str) and len(value) <= MAX_TEXT
    if what is _SEGMENTS:
        return (isinstance(value, list) and 0 < len(value) <= MAX_SEGMENTS
                and all(isinstance(pair, list) and len(pair) == 2
                        and all(_fits(number, _NUMBER) for number in pair) for pair in value))
    return type(value) is int and 0 <= value < 1 << 62
