"""Names of modules, and of what functions take. Needs nothing."""

import inspect


def is_below(name, names):
    """Whether the dotted name of a module is one of `names`, or that of something inside of one."""
    return any(name == other or name.startswith(other + ".") for other in names)


def missing_parameters(function, wanted):
    """Those of `wanted` that a function of another package does not have."""
    there = inspect.signature(function).parameters
    return [name for name in wanted if name not in there]
