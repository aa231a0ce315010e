"""What a user can choose of the transfer of KV pages. Needs neither torch nor SGLang."""

import json
import os
from typing import NamedTuple

VARIABLE = "SNUG_SGLANG_KV"
_ALL_ADDRESSES = ("0.0.0.0", "[::]")  # of this host; SGLang knows one that peers reach


class KvOptions(NamedTuple):
    host: str = ""            # where a decode instance listens; by default SGLang's own address
    port: int = 0             # worker n takes port + n; 0: any
    announce: str = ""        # HOST:PORT that prefill instances reach instead, worker n + n
    mode: str = "auto"        # of snug.wire: raw, fixed, entropy or auto
    timeout: float = 30.0     # seconds of silence, after which a peer counts as lost
    insecure: bool = False    # no token, no encryption, any user
    lanes: int = 0
    link: bool = True         # GPU memory to GPU memory, where both are on one host


def read(environment=os.environ):
    """None where nobody asks for it. "1" takes it as it is, an object of JSON changes options."""
    text = environment.get(VARIABLE, "").strip()
    if text in ("", "0"):
        return None
    try:
        given = {} if text == "1" else json.loads(text)
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise ValueError(f"{VARIABLE} is 1, 0 or an object of JSON, not {text!r}")
    for name, value in given.items():
        if name not in KvOptions._fields:
            raise ValueError(f"{VARIABLE} has no option {name}; it has "
                             f"{', '.join(KvOptions._fields)}")
        wanted = type(KvOptions._field_defaults[name])
        if type(value) is not wanted and not (wanted is float and type(value) is int):
            raise ValueError(f"{name} of {VARIABLE} is a {wanted.__name__}, not {value!r}")
    options = KvOptions(**given)
    if options.announce:
        _split(options.announce)
    return options


def listening(options, local_ip, worker):
    return address_of(options.host or local_ip, options.port + worker if options.port else 0)


def announced(options, bound, local_ip, worker):
    """The address that peers are told of a listener that is bound to `bound`."""
    if options.announce:
        host, port = _split(options.announce)
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
