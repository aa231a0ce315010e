"""What a user can choose. Needs neither torch nor vLLM."""

import os

from .._mark import FORMAT, check_format
from .._names import is_below

POLICIES = ("memory", "speed", "twin")
MODES = ("auto", "run", "load")
_VARIABLE = "SNUG_VLLM_"


class Options:
    """Options of the quantization method, from config.json and the environment.

    policy  "memory": every BF16 layer that gets smaller is packed. "speed": of these, only layers
            that are surely faster packed at `batch` rows; they keep their dense weights, too, for
            steps that are faster from them, and need 1.75 times the memory. "twin": the same
            kernels from 16-bit weights, for tests: its results equal those of packed weights bit
            for bit.
    mode    "run": multiply from packed weights. "load": restore BF16 weights and use vLLM's own
            layers. "auto": "run" on an NVIDIA GPU, "load" elsewhere. Not from config.json, where
            transformers writes a `mode` of its own.
    batch   rows of a step that "speed" assumes.
    skip    names of layers that stay dense, with everything below them.
    """

    def __init__(self, policy="memory", mode="auto", batch=32, skip=()):
        _one_of("policy", policy, POLICIES)
        _one_of("mode", mode, MODES)
        if not isinstance(batch, int) or isinstance(batch, bool) or batch < 1:
            raise ValueError(f"batch of Snug's configuration is a number of rows, not {batch!r}")
        if (not isinstance(skip, (list, tuple))
                or not all(isinstance(name, str) for name in skip)):
            raise ValueError(f"skip of Snug's configuration is a list of names, not {skip!r}")
        self.policy, self.mode, self.batch, self.skip = policy, mode, batch, list(skip)

    @classmethod
    def read(cls, mark, environment=os.environ):
        """From `quantization_config` of config.json, which may have entries of others. Variables
        such as SNUG_VLLM_POLICY count more."""
        check_format(mark.get("format", FORMAT))
        known = {key: mark[key] for key in ("policy", "batch", "skip") if key in mark}
        for key in ("policy", "mode"):
            if environment.get(_VARIABLE + key.upper()):
                known[key] = environment[_VARIABLE + key.upper()]
        if environment.get(_VARIABLE + "BATCH"):
            known["batch"] = _number(environment[_VARIABLE + "BATCH"])
        if environment.get(_VARIABLE + "SKIP"):
            known["skip"] = [name.strip() for name in environment[_VARIABLE + "SKIP"].split(",")]
        return cls(**known)

    def skips(self, name):
        return is_below(name, self.skip)


def is_on(what, environment=os.environ):
    """Whether a part is wanted that is off unless SNUG_VLLM_<what> is 1: EXPERTS or HEAD."""
    value = environment.get(_VARIABLE + what) or "0"
    _one_of(_VARIABLE + what, value, ("0", "1"))
    return value == "1"


def _one_of(what, value, allowed):
    if value not in allowed:
        raise ValueError(f"unknown {what} {value!r} for Snug; one of: {', '.join(allowed)}")


def _number(text):
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{_VARIABLE}BATCH is a number of rows, not {text!r}") from None
