"""What SGLang calls at its start, in every process."""

import importlib
import logging

TESTED = "0.5.23"

# SGLang shows the log lines of its own name space.
_log = logging.getLogger("sglang.srt.plugins.snug")
_PARTS = {"weights": "compressed models cannot be served",
          "kv_transfer": "KV travels by SGLang's own transfer"}


def register():
    """Makes every part known to SGLang. Never raises: what does not fit this SGLang is logged."""
    for name, loss in _PARTS.items():
        try:
            importlib.import_module("." + name, __package__).register()
        except Exception as error:  # of any kind, in an SGLang that nobody has tried
            _log.warning("Snug: %s: %s", loss, error)
