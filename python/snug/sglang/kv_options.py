"""What a user can choose of the transfer of KV pages. Needs neither torch nor SGLang."""

import json
import os
from typing import NamedTuple

VARIABLE = "SNUG_SGLANG_KV"
_ALL_ADDRESSES = ("0.0.0.0", "[::]")  # of this host; SGLang knows one that peers reach


class KvOptions(NamedTuple):
    """Beside those of all doors, snug.kv.channel's."""
    host: str = ""      # where a decode instance listens; by default SGLang's own address
    port: int = 0       # worker n takes port + n; 0: any
    announce: str = ""  # HOST:PORT that prefill instances reach instead, worker n + n


def read(environment=os.environ):
    """(KvOptions, Options), or None where nobody asks for it. "1" takes them as they are, an object
    of JSON changes some."""
    text = environment.get(VARIABLE, "").strip()
    if text in ("", "0"):
        return None
    try:
        given = {} if text == "1" else json.loads(text)
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise ValueError(f"{VARIABLE} is 1, 0 or an object of JSON, not {text!r}")
    from ..kv.channel import read_options  # only where it is asked for
    chosen, options = read_options(given, KvOptions, VARIABLE)
    if chosen.announce:
        _split(chosen.announce)
    return chosen, options


def listening(chosen, local_ip, worker):
    return address_of(chosen.host or local_ip, chosen.port + worker if chosen.port else 0)


def announced(chosen, bound, local_ip, worker):
    """The address that peers are told of a listener that is bound to `bound`."""
    if chosen.announce:
        host, port = _split(chosen.announce)
        return address_of(host, port + worker)
    host, _, port = bound.rpartition(":")
    return address_of(local_ip if host in _ALL_ADDRESSES else host, port)


def address_of(host, port=0):
    return f"[{host}]:{port}" if ":" in host and host[0] != "[" else f"{host}:{port}"


def _split(address):
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"announce of {VARIABLE} is HOST:PORT, not {address!r}")
    return host, int(port)
