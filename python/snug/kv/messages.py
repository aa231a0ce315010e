"""What two workers tell each other beside the pages: one JSON object in a note of the wire.

    decode worker                                prefill worker
    hello   version, layout, host, gpu  ------>
                                        <------  welcome  link
    pull    id, request, first, count   ------>
                                        <------  send     id, bytes    then message `id`: the pages
                                        <------  no       id, why      instead of both
    drop    request                     ------>

`id` is the tag of the wire's message. Blocks are counted from the start of the request, so that a
peer can name no page of another request.
"""

import json

VERSION = 1
_MAX_TEXT = 4096
_NUMBER, _TEXT = "a whole number", "a text"
_FIELDS = {
    "hello": {"version": _NUMBER, "layout": _TEXT, "host": _TEXT, "gpu": _NUMBER},
    "welcome": {"link": _NUMBER},
    "pull": {"id": _NUMBER, "request": _TEXT, "first": _NUMBER, "count": _NUMBER},
    "send": {"id": _NUMBER, "bytes": _NUMBER},
    "no": {"id": _NUMBER, "why": _TEXT},
    "drop": {"request": _TEXT},
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
        return isinstance(value, str) and len(value) <= _MAX_TEXT
    return type(value) is int and 0 <= value < 1 << 62
