"""Which workers of this machine are alive, told by file locks: a lock ends with its process, in any case.

A worker that is killed holds work items until their leases run out. Whoever starts next on the same
workspaces sees that it is gone, and can tell the server at once.
"""

import asyncio
import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Final, Self

_FOLDER: Final = ".workers"


class Presence:
    """This worker's lock in the folder of workspaces, held while the context is open."""

    def __init__(self, workspaces: Path, worker_id: str) -> None:
        self._folder = workspaces / _FOLDER
        self._worker_id = worker_id
        self._descriptor: int | None = None

    async def __aenter__(self) -> Self:
        self._descriptor = await asyncio.to_thread(self._enter)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.forget(self._worker_id)
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    async def the_dead(self) -> list[str]:
        """The workers that were here and ended without signing off."""
        return await asyncio.to_thread(self._the_dead)

    async def forget(self, worker_id: str) -> None:
        """Take a worker off the list."""
        await asyncio.to_thread((self._folder / worker_id).unlink, missing_ok=True)

    def _enter(self) -> int:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._folder / self._worker_id, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return descriptor

    def _the_dead(self) -> list[str]:
        return [path.name for path in self._folder.iterdir() if _is_free(path)]


def _is_free(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
