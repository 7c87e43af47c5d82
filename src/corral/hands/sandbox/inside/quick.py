"""The few functions for threads and signals that this program needs before its first call.

They are the standard library's, taken from where its modules `threading`, `queue` and `signal` take them:
these three bring `enum`, `functools` and `collections` along, which together take longer to import than the
interpreter takes to start.
"""

from __future__ import annotations

from _thread import allocate_lock, start_new_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from queue import SimpleQueue
    from typing import cast
else:
    import _signal as signal

    try:
        from _queue import SimpleQueue
    except ImportError:
        from queue import SimpleQueue

    def cast(_kind, value):
        """`typing.cast`, for as little as it does."""
        return value


SIGCHLD = int(signal.SIGCHLD)
SIGKILL = int(signal.SIGKILL)
SIGPIPE = int(signal.SIGPIPE)
SIGTERM = int(signal.SIGTERM)
SIGXFSZ = int(signal.SIGXFSZ)
SIG_IGN = signal.SIG_IGN
handle = signal.signal
set_wakeup_fd = signal.set_wakeup_fd

__all__ = [
    "SIGCHLD",
    "SIGKILL",
    "SIGPIPE",
    "SIGTERM",
    "SIGXFSZ",
    "SIG_IGN",
    "SimpleQueue",
    "allocate_lock",
    "cast",
    "handle",
    "set_wakeup_fd",
    "start_new_thread",
]
