"""Looking at the host's processes from a test, without waiting for a guess of how long things take."""

import asyncio
import os
import select
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


def seconds(base: int) -> str:
    """Return a time to sleep that no other test run here uses, so that the process can be found."""
    return f"{base}.{os.getpid()}"


def running(marker: str) -> list[int]:
    """Return the host process ids of all processes with `marker` in their command line, but this one."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if marker.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def outer_uids(pid: int) -> set[int]:
    """Return the real, effective, saved and file system user of a process, as the host sees them."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("Uid:"):
            return {int(word) for word in line.split()[1:]}
    raise LookupError(pid)


class Watched:
    """Processes held by descriptor, so that their ids cannot be reused."""

    def __init__(self, descriptors: list[int]) -> None:
        self._descriptors = descriptors

    def have_ended(self, within_seconds: float = 0) -> bool:
        """Tell whether all have ended, at the latest after the given time."""
        for descriptor in self._descriptors:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            if not poll.poll(within_seconds * 1000):
                return False
        return True


@contextmanager
def watching(pids: list[int]) -> Generator[Watched]:
    assert pids, "nothing to watch: the processes were never there"
    descriptors = [os.pidfd_open(pid) for pid in pids]
    try:
        yield Watched(descriptors)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def is_ours(pid: int) -> bool:
    """Tell whether a process was started by this one, or by one that was."""
    while pid > 1:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
        except OSError:
            return False
        if pid == os.getpid():
            return True
    return False


async def until_running(marker: str, count: int = 1) -> list[int]:
    """Return our processes with `marker` in their command line, once there are `count` of them."""
    while True:
        found = [pid for pid in await asyncio.to_thread(running, marker) if is_ours(pid)]
        if len(found) >= count:
            return found
