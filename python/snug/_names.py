"""Dotted names of modules. Needs nothing."""


def is_below(name, names):
    """Whether a name is one of `names`, or that of something inside of one."""
    return any(name == other or name.startswith(other + ".") for other in names)
