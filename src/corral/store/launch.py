"""Becomes another program, bound to the life of whoever started it and, if asked, without root's rights.

Run as ``python -I -S launch.py UID GID SIGNAL PROGRAM [ARGUMENT...]``; it ends in ``exec``, so the process id
stays. UID and GID of -1 keep the present user. SIGNAL is what the kernel sends the program when its parent
dies, so that ``kill -9`` of the parent leaves no process behind (Linux; elsewhere the next start clears up).
Standard library alone: it runs under an interpreter without site packages.
"""

import ctypes
import os
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def launch(uid: int, gid: int, death_signal: int, command: list[str]) -> None:
    """Drop to ``uid`` and ``gid``, ask for ``death_signal`` at the parent's death, and exec ``command``."""
    parent = os.getppid()
    if uid >= 0:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    if sys.platform == "linux":
        # After the change of user: the kernel forgets the wish when credentials change.
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
        if os.getppid() != parent:
            sys.exit("the parent process died before its child had started")
    os.execv(command[0], command)  # noqa: S606 - an argument list, no shell


if __name__ == "__main__":
    launch(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
