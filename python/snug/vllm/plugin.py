"""What vLLM calls at its start, in every process and maybe more than once."""

import logging

# vLLM shows the log lines of its own name space.
_log = logging.getLogger("vllm.plugins.snug")


def register():
    """Makes `--quantization snug` and compressed folders known to vLLM.

    Never raises: vLLM would not start, also for models that have nothing to do with Snug.
    """
    try:
        from . import engine
        missing = engine.missing()
        if missing:
            _log.warning("Snug does not fit vLLM %s (tested: %s), which lacks %s: install a newer "
                         "snug-llm; compressed models cannot be served", engine.version(),
                         " and ".join(engine.TESTED), ", ".join(missing))
            return
        from . import checkpoint, method
        method.register()
        checkpoint.register()
    except Exception as error:  # of any kind, in a vLLM that nobody has tried
        _log.warning("Snug's plugin cannot run, compressed models cannot be served: %s", error)
        return
    try:
        from . import head
        head.register()
    except Exception as error:
        _log.warning("Snug leaves LM heads of other methods as they are: %s", error)
    try:
        from . import weight_transfer
        weight_transfer.register()
    except Exception as error:
        _log.warning("Snug's weight transfer cannot run: %s", error)
