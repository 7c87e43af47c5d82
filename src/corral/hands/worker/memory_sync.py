"""One memory store of a session, kept in step with its folder on this machine (contract section 16.4).

What both sides had at the last exchange is on record, so it is known which side has changed since. Only one
has: the other follows, under a precondition. Both have: the store wins and the agent is told. A file that was
changed here and deleted there is made anew, being the only copy. What the store refuses stays here until the
file changes, and the agent is told why.
"""

import asyncio
import os
from contextlib import aclosing
from pathlib import Path
from typing import Final
from uuid import uuid4

import msgspec
import structlog

from corral.hands.worker.failures import ApiFailure
from corral.hands.worker.memory_client import MemoryApi, Remembered
from corral.hands.worker.memory_folder import Local, MemoryFolder
from corral.wire.errors import InvalidRequest

_FETCHED_AT_ONCE: Final = 8
_ELSEWHERE: Final = "it was changed elsewhere too, and that change counts: the file now has its content"

_NOT_DELETED: Final = "it was changed elsewhere meanwhile, so it was not deleted; it is back"

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Known(msgspec.Struct, frozen=True):
    """A memory that both sides had alike at the last exchange."""

    id: str
    sha: str


class StoreSync:
    """One store; calls must not overlap.

    name: the path by which the agent knows the folder. record: a file outside of the folder.
    """

    def __init__(
        self, api: MemoryApi, folder: MemoryFolder, record: Path, name: str, *, read_only: bool
    ) -> None:
        self._api = api
        self._folder = folder
        self._record = record
        self._name = name
        self._read_only = read_only
        self._known: dict[str, Known] | None = None
        self._refused: dict[str, str] = {}
        self._notes: list[str] = []
        self._gone = False

    def notes(self) -> list[str]:
        """What the agent must be told, once."""
        notes, self._notes = self._notes, []
        return notes

    async def exchange(self) -> None:
        """Bring both sides in step.

        Raises:
            ApiFailure: the store cannot be reached now; nothing is lost by trying again.
            OSError: the folder cannot be used.
        """
        known = await self._opened()
        local = await asyncio.to_thread(self._folder.look)
        try:
            remote = await self._listed(local)
        except ApiFailure as failure:
            if failure.status != 404:
                raise
            self._gone = True
            return
        pulls: list[Remembered] = []
        pushes: list[str] = []
        for path in sorted({*remote, *local.files, *known}):
            theirs, ours, base = remote.get(path), local.files.get(path), known.get(path)
            if theirs is not None and theirs.content_sha256 == ours:
                known[path] = Known(theirs.id, theirs.content_sha256)
            elif (theirs.content_sha256 if theirs else None) == (base.sha if base else None):
                pushes.append(path)  # the store is as it was
            elif theirs is not None:
                self._tell_of_loss(path, ours, base)
                pulls.append(theirs)
            elif base is not None and ours in (None, base.sha):
                await asyncio.to_thread(self._folder.remove, path)
                del known[path]
            else:
                known.pop(path, None)
                pushes.append(path)
        await self._pull(pulls)
        await self._push(pushes, local)
        await self._save()

    async def _listed(self, local: Local) -> dict[str, Remembered]:
        """The store's memories by path. The first time they come with their contents, which are placed."""
        known = await self._opened()
        first, remote = not known, dict[str, Remembered]()
        async with aclosing(self._api.listed(full=first)) as memories:
            async for memory in memories:
                if first and memory.path not in local.files:
                    await self._place(memory)
                    if memory.path in known:
                        local.files[memory.path] = memory.content_sha256
                remote[memory.path] = msgspec.structs.replace(memory, content=None)
        return remote

    async def write_back(self) -> None:
        """Send what has changed in the folder; the store is not looked at unless something has.

        Raises:
            OSError: the folder cannot be read, so nothing was sent.
        """
        if self._read_only:
            return
        known = await self._opened()
        local = await asyncio.to_thread(self._folder.look)
        changed = [
            path
            for path in sorted({*local.files, *known})
            if local.files.get(path) != (known[path].sha if path in known else None)
        ]
        await self._push(changed, local)
        if changed:
            await self._save()

    async def _push(self, paths: list[str], local: Local) -> None:
        if self._read_only:
            return
        for path, reason in local.unfit.items():
            if self._refused.get(path) != reason:
                self._refused[path] = reason
                self._tell(path, reason)
        # A deletion may make room for what follows.
        for path in sorted(paths, key=lambda path: (path in local.files, path)):
            sha = local.files.get(path, "")
            if path in local.unfit or (sha and self._refused.get(path) == sha):
                continue
            if self._gone and sha:
                self._refuse(path, sha, "the memory store has been deleted")
            if self._gone:
                continue
            try:
                await (self._send(path, sha) if sha else self._delete(path))
            except ApiFailure as failure:
                if failure.status not in (400, 403, 413):
                    _log.warning("memory not saved yet", path=path, folder=self._name, reason=str(failure))
                    self._tell(path, f"{failure}; it and what follows is tried again with the next tool call")
                    return
                self._refuse(path, sha, str(failure))

    async def _send(self, path: str, sha: str) -> None:
        known = await self._opened()
        content = await asyncio.to_thread(self._folder.read, path)
        if content is None:
            return  # gone again: the next look will tell
        try:
            text = content.decode()
        except UnicodeDecodeError:
            self._refuse(path, sha, "it is not UTF-8 text")
            return
        base = known.get(path)
        try:
            if base is not None:
                saved = await self._api.update(base.id, text, expected=base.sha)
            else:
                saved = await self._api.create(path, text)
        except ApiFailure as failure:
            if base is not None and failure.status == 404:
                del known[path]  # deleted there: this is the only copy
                await self._send(path, sha)
                return
            if failure.status != 409:
                raise
            await self._yield(path, sha, base, failure)
            return
        known[path] = Known(saved.id, saved.content_sha256)
        self._refused.pop(path, None)

    async def _yield(self, path: str, sha: str, base: Known | None, failure: ApiFailure) -> None:
        """Give way to what the store has."""
        memory_id = base.id if base is not None else str(failure.details.get("conflicting_memory_id") or "")
        if not memory_id:
            raise failure
        theirs = await self._api.read(memory_id)
        if theirs.path != path:
            # Renamed there, or one of the two would be a folder of the other's.
            self._refuse(path, sha, str(failure))
            return
        if theirs.content_sha256 != sha:
            self._tell(path, _ELSEWHERE)
        await self._place(theirs)

    async def _delete(self, path: str) -> None:
        known = await self._opened()
        base = known.get(path)
        if base is None:
            return
        try:
            await self._api.delete(base.id, expected=base.sha)
        except ApiFailure as failure:
            if failure.status == 409:
                self._tell(path, _NOT_DELETED)
                await self._place(await self._api.read(base.id))
                return
            if failure.status != 404:
                raise
        known.pop(path, None)

    async def _pull(self, memories: list[Remembered]) -> None:
        gate = asyncio.Semaphore(_FETCHED_AT_ONCE)

        async def fetch(memory: Remembered) -> None:
            async with gate:
                try:
                    await self._place(await self._api.read(memory.id))
                except ApiFailure as failure:
                    if failure.status != 404:
                        raise
                    # Deleted since it was listed: the next exchange will tell.

        outcomes = await asyncio.gather(*map(fetch, memories), return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    async def _place(self, memory: Remembered) -> None:
        known = await self._opened()
        try:
            await asyncio.to_thread(self._folder.write, memory.path, (memory.content or "").encode())
        except (OSError, InvalidRequest) as error:
            if self._refused.get(memory.path) != memory.content_sha256:
                self._refuse(memory.path, memory.content_sha256, f"it could not be brought here ({error})")
            return
        known[memory.path] = Known(memory.id, memory.content_sha256)

    def _refuse(self, path: str, sha: str, reason: str) -> None:
        self._refused[path] = sha
        _log.warning("memory not exchanged", path=path, folder=self._name, reason=reason)
        self._tell(path, reason)

    def _tell_of_loss(self, path: str, ours: str | None, base: Known | None) -> None:
        """Say so if what was done here gives way to what was done there."""
        if self._read_only or ours == (base.sha if base is not None else None):
            return
        self._tell(path, _NOT_DELETED if ours is None else _ELSEWHERE)

    def _tell(self, path: str, reason: str) -> None:
        self._notes.append(f"{self._name}{path}: {reason}")

    async def _opened(self) -> dict[str, Known]:
        """What is on record; without a record the folder is emptied, since nobody knows what is in it."""
        if self._known is None:
            self._known = await asyncio.to_thread(self._open)
        return self._known

    def _open(self) -> dict[str, Known]:
        self._folder.make()
        try:
            return msgspec.json.decode(self._record.read_bytes(), type=dict[str, Known])
        except FileNotFoundError:
            pass
        except msgspec.MsgspecError:
            _log.warning("the record of a memory store cannot be read; it is brought anew", folder=self._name)
        self._folder.clear()
        return {}

    async def _save(self) -> None:
        assert self._known is not None
        await asyncio.to_thread(_write_record, self._record, msgspec.json.encode(self._known))


def _write_record(record: Path, content: bytes) -> None:
    draft = record.with_name(f"record-{uuid4().hex}")
    draft.write_bytes(content)
    os.replace(draft, record)
