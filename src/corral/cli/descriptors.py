"""How many files and connections a process may have open at the same time."""

import sys
from typing import Final

_WANTED: Final = 65_536


def take_descriptors() -> None:
    """Raise this process's soft limit as far as its hard one lets it.

    Many systems give a process 1024, which the connections of a few sandboxes would use up for all.
    """
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _WANTED if hard == resource.RLIM_INFINITY else min(hard, _WANTED)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (ValueError, OSError):
        return  # macOS has a bound of its own, which it does not tell
