"""SGLang's prefill-decode transfer through Snug: what get_kv_class returns, with Snug in it."""

import functools
import importlib
import logging
import types

from .._names import missing_parameters
from . import kv_options
from .plugin import TESTED

_UTILS = "sglang.srt.disaggregation.utils."
_log = logging.getLogger("sglang.srt.plugins.snug")  # SGLang shows what is below its own name
# Methods that are overridden or called, and the parameters that they must have.
_NEEDED = {
    "manager": {"init_engine": [], "_make_worker_recv": ["socket"],
                "transfer_worker": ["queue", "executor"], "teardown": [],
                "build_receiver_registration_message": [],
                "build_receiver_metadata_message": ["bootstrap_room", "kv_indices", "aux_index",
                                                    "is_dummy"],
                "update_status": ["bootstrap_room", "status"],
                "conclude_failure": ["bootstrap_room", "failure_reason"]},
    "receiver": {"clear": []},
}


def register():
    found = kv_options.read()
    if found is None:
        return
    registry = importlib.import_module("sglang.srt.plugins.hook_registry")
    hooks = Hooks(*found)
    around = registry.HookType.AROUND
    registry.HookRegistry.register(_UTILS + "get_kv_class", hooks.choose, around)
    registry.HookRegistry.register(_UTILS + "get_kv_transfer_buf_infos", hooks.see, around)


class Hooks:
    def __init__(self, chosen, options):
        self._chosen, self._options, self._cache = chosen, options, None
        self._with_snug = functools.cache(self._subclass)

    def see(self, original, pool):
        """SGLang hands addresses to its transfer; their type and device are only here."""
        self._cache = pool
        return original(pool)

    def choose(self, original, transfer_backend, class_type):
        found, kind = original(transfer_backend, class_type), class_type.value
        if found is None or kind not in _NEEDED or transfer_backend.value == "fake":
            return found
        return self._with_snug(found, kind, transfer_backend.value)

    def _subclass(self, found, kind, backend):
        """Runs once for each class, so that each reason is logged once."""
        lacks = _missing(found, _NEEDED[kind])
        if backend != "mooncake":
            why = f"Snug works with --disaggregation-transfer-backend mooncake, not {backend}"
        elif lacks:
            why = (f"Snug does not fit this SGLang (tested: {TESTED}), which lacks "
                   f"{', '.join(lacks)}: install a newer snug-llm")
        else:
            return self._add(found, kind)
        if kind == "manager":
            _log.warning("KV travels by SGLang's own transfer: %s", why)
        return found

    def _add(self, found, kind):
        from . import kv_manager
        if kind == "receiver":
            return type("SnugKVReceiver", (kv_manager.ReceiverPart, found), {})
        poll = importlib.import_module("sglang.srt.disaggregation.base.conn").KVPoll
        setup = types.SimpleNamespace(chosen=self._chosen, options=self._options, log=_log,
                                      cache=lambda: self._cache, failed=poll.Failed,
                                      success=poll.Success)
        return type("SnugKVManager", (kv_manager.ManagerPart, found), {"snug": setup})


def _missing(found, needed):
    lacks = []
    for name, parameters in needed.items():
        method = getattr(found, name, None)
        if method is None:
            lacks.append(name)
        elif missing_parameters(method, parameters):
            lacks.append(f"parameters of {name}")
    return lacks
