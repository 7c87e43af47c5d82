"""The disk under the workspaces: what each session may keep there, and what must stay free.

No kernel bounds the size of a folder everywhere, so it is watched: while sandboxes run, their folders are
measured every few seconds, and a sandbox whose session holds too much is stopped. One that holds too much may
shrink, and is stopped again when it grows; after three times no more is started until somebody has made room.
What is written between two looks is not held back, nor is what a deleted but open file holds: for both there
is the space that must stay free, below which the sandboxes that grow are stopped one after another.
"""

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

_STRIKES: Final = 3
_MIB: Final = 1024 * 1024
_BLOCK: Final = 512


@dataclass(frozen=True, slots=True)
class DiskLimits:
    """session_bytes, session_entries: what one session may keep (space on the disk; files and folders).
    free_bytes: what must stay free. watch_seconds: between two looks."""

    session_bytes: int = 20 * 1024 * _MIB
    session_entries: int = 2_000_000
    free_bytes: int = 1024 * _MIB
    watch_seconds: float = 2.0


class Usage(NamedTuple):
    """What a session keeps on the disk."""

    bytes: int
    entries: int


@dataclass(slots=True)
class _Record:
    usage: Usage
    strikes: int = 0


@dataclass(slots=True)
class DiskWatch:
    """Judges what was measured. One for all sandboxes of a worker."""

    limits: DiskLimits
    _over: dict[str, _Record] = field(default_factory=dict[str, _Record])

    def judge(self, session_id: str, usage: Usage) -> str | None:
        """Why the session's sandbox must stop now, in words for the model; None if it may go on."""
        if self._fits(usage):
            self._over.pop(session_id, None)
            return None
        record = self._over.get(session_id)
        if record is not None and usage.bytes <= record.usage.bytes and usage.entries <= record.usage.entries:
            record.usage = usage
            return None
        strikes = 1 if record is None else record.strikes + 1
        self._over[session_id] = _Record(usage, strikes)
        return (
            f"The session's files hold {self._words(usage)}, and no more than {self._allowance()} are "
            "allowed. The sandbox was stopped; running processes are gone, files are kept. Remove files "
            f"before anything else: if they grow again{_once_more(strikes)}, no more commands are run."
        )

    def stopped(self, session_id: str, usage: Usage) -> None:
        """What a stopped session holds once nothing of it writes any more: it may shrink from there."""
        if (record := self._over.get(session_id)) is not None:
            record.usage = usage

    def refusal(self, session_id: str, folder: Path) -> str | None:
        """Why no sandbox may be started now, in words for the model; None if one may. Blocking."""
        record = self._over.get(session_id)
        if record is not None and record.strikes >= _STRIKES:
            return (
                f"The session's files hold {self._words(record.usage)}, and no more than {self._allowance()} "
                "are allowed. The call was not run. Somebody with access to the worker must make room."
            )
        free = free_bytes(folder)
        if free < self.limits.free_bytes:
            return (
                f"The worker's disk has only {free // _MIB} MiB left. The call was not run. Somebody with "
                "access to the worker must make room."
            )
        return None

    def recheck(self, session_id: str, usage: Usage) -> None:
        """Forget that a session held too much if that is no longer so."""
        if self._fits(usage):
            self._over.pop(session_id, None)

    def is_barred(self, session_id: str) -> bool:
        """Whether `refusal` would refuse the session for what it holds."""
        record = self._over.get(session_id)
        return record is not None and record.strikes >= _STRIKES

    def forget(self, session_id: str) -> None:
        """The session is gone."""
        self._over.pop(session_id, None)

    def _fits(self, usage: Usage) -> bool:
        return usage.bytes <= self.limits.session_bytes and usage.entries <= self.limits.session_entries

    def _words(self, usage: Usage) -> str:
        return f"{usage.bytes // _MIB} MiB in {usage.entries} files and folders"

    def _allowance(self) -> str:
        return f"{self.limits.session_bytes // _MIB} MiB in {self.limits.session_entries}"


def _once_more(strikes: int) -> str:
    left = _STRIKES - strikes
    return "" if left <= 1 else f" {left} times"


def free_bytes(folder: Path) -> int:
    """Space that an ordinary user may still take on the file system of `folder`. Blocking."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    found = os.statvfs(there)
    return found.f_bavail * found.f_frsize


def measure(folders: Iterable[Path], most: Usage) -> Usage:
    """Measure what is below `folders`, and stop where it is more than `most`. Blocking.

    A file counts once, whatever links there are to it, and a sparse one with what it takes. Links are not
    followed. What cannot be looked into (too deep to have a path, closed to the worker) counts as a folder.
    """
    size = entries = 0
    linked: set[tuple[int, int]] = set()
    waiting = [os.fspath(folder) for folder in folders]
    while waiting:
        try:
            listing = os.scandir(waiting.pop())
        except OSError:
            continue
        with listing:
            for entry in listing:
                entries += 1
                try:
                    found = entry.stat(follow_symlinks=False)
                except OSError:
                    continue  # gone meanwhile
                if stat.S_ISDIR(found.st_mode):
                    waiting.append(entry.path)
                elif found.st_nlink > 1:
                    identity = (found.st_dev, found.st_ino)
                    if identity in linked:
                        continue
                    linked.add(identity)
                size += found.st_blocks * _BLOCK
                if size > 2 * most.bytes or entries > 2 * most.entries:
                    return Usage(size, entries)
    return Usage(size, entries)
