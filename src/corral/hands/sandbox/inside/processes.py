"""Finding and killing every process that the agent's commands left, whatever they did to get away."""

from __future__ import annotations

import os
import sys
import time

from .quick import SIGKILL, allocate_lock

_SET_CHILD_SUBREAPER = 36  # prctl
_GRACE_SECONDS = 5.0
_PAUSE_SECONDS = 0.005


class Descendants:
    """All processes below this program.

    own_namespace: this program and its parent, process 1, are the only others in the process namespace, so
    everything else belongs to the agent and one system call kills it all, with no race against `fork`.
    Otherwise orphans are made children of this program (Linux), and the tree below it is killed until it is
    empty. Without /proc only the shell's process group can be killed.

    still: held while everything is killed. Who starts a process takes it, so that a new one is not hit by a
    kill that began before it.
    """

    def __init__(self, own_namespace: bool) -> None:
        self._own_namespace = own_namespace and os.getppid() == 1
        if own_namespace and not self._own_namespace:
            raise RuntimeError("this program must be a child of process 1 in a process namespace of its own")
        if not self._own_namespace and sys.platform.startswith("linux"):
            import ctypes  # costs time, and a sandbox with its own namespace has no use for it

            ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.still = allocate_lock()

    def kill(self, shell: int | None) -> None:
        """Kill everything; returns when it is gone, or after 5 s if the kernel holds on to something.

        shell: process id of the shell, if there is one.
        """
        with self.still:
            self._kill_until_gone(shell, time.monotonic() + _GRACE_SECONDS)

    def _kill_until_gone(self, shell: int | None, deadline: float) -> None:
        while time.monotonic() < deadline:
            if self._own_namespace:
                _signal(-1)
            elif os.path.isdir("/proc/self"):
                for pid in self._living():
                    _signal(pid)
            else:
                if shell is not None:
                    _signal(-shell)
                return
            if not self._living():
                return
            time.sleep(_PAUSE_SECONDS)

    def reap(self, known: set[int]) -> None:
        """Take the exit status of adopted orphans, so that none stays as a zombie. `known` are left alone."""
        if self._own_namespace:
            return  # process 1 does it
        for pid, (parent, state) in _table().items():
            if parent == os.getpid() and state == "Z" and pid not in known:
                try:
                    os.waitpid(pid, os.WNOHANG)
                except ChildProcessError:
                    continue  # somebody else waited for it first

    def _living(self) -> list[int]:
        table = {pid: parent for pid, (parent, state) in _table().items() if state not in "ZX"}
        me = os.getpid()
        if self._own_namespace:
            return [pid for pid in table if pid not in (1, me)]
        mine: set[int] = {me}
        while True:
            found = {pid for pid, parent in table.items() if parent in mine} - mine
            if not found:
                return sorted(mine - {me})
            mine |= found


def first_to_go(pid: int) -> None:
    """Have process `pid`, and what it starts, ended before this program when memory runs out."""
    try:
        with open(f"/proc/{pid}/oom_score_adj", "wb", buffering=0) as out:
            out.write(b"500")
    except OSError:
        return  # it has ended, or there is no such thing here: then whoever is largest goes first


def _table() -> dict[int, tuple[int, str]]:
    """Return process id -> (parent, state letter) for what /proc shows."""
    table: dict[int, tuple[int, str]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as source:
                # The name, in brackets, may hold anything, so read what follows the last bracket.
                fields = source.read().rpartition(b")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        table[int(name)] = (int(fields[1]), fields[0].decode("ascii"))
    return table


def _signal(pid: int) -> None:
    try:
        os.kill(pid, SIGKILL)
    except (ProcessLookupError, PermissionError):
        return  # already gone, or not ours: `_living` decides whether anything is left
