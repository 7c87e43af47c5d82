"""The memory stores of a session while its work item is served: brought at the first call, saved after each.

What changes in a store meanwhile is brought before a call, though not more often than every 15 seconds. A
store's folder stays beside the workspace between work items; the record with it tells what was saved.
"""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from corral.hands.sandbox.provider import Bind, ToolOutput
from corral.hands.worker.calls import READERS
from corral.hands.worker.client import WorkApi
from corral.hands.worker.failures import ApiFailure
from corral.hands.worker.memory_client import MemoryApi, checked_id
from corral.hands.worker.memory_folder import MemoryFolder
from corral.hands.worker.memory_sync import StoreSync
from corral.wire.memory_stores import FOLDER
from corral.wire.secret import Secret

_EXCHANGE_SECONDS: Final = 15.0
_NOT_SHOWN: Final = (
    "This session's memory stores cannot be shown in this kind of sandbox, so their folders are missing."
)

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class AttachedStore(msgspec.Struct, frozen=True):
    """A store of a session, as the session shows it."""

    memory_store_id: str
    mount_path: str
    access: str = "read_write"


def attached_stores(resources: Sequence[dict[str, Any]]) -> list[AttachedStore]:
    """The memory stores among a session's resources.

    Raises:
        ApiFailure: one of them cannot be used as it is.
    """
    stores: list[AttachedStore] = []
    for resource in resources:
        if resource.get("type") != "memory_store":
            continue
        try:
            store = msgspec.convert(
                {**resource, "access": resource.get("access") or "read_write"}, AttachedStore
            )
        except msgspec.ValidationError as error:
            raise ApiFailure(
                f"the server sent a memory store that cannot be read: {error}", status=400
            ) from None
        name = store.mount_path.removeprefix(f"{FOLDER}/")
        if name in (store.mount_path, "", ".", "..") or "/" in name:
            raise ApiFailure(
                f"the server sent a mount path that is none: {store.mount_path[:200]!r}", status=400
            )
        checked_id(store.memory_store_id)
        stores.append(store)
    return stores


class SessionMemory:
    """The stores of one session. `share`: the folder beside its workspace; None where none can be shown."""

    def __init__(
        self, api: WorkApi, share: Path | None, stores: Sequence[AttachedStore], key: Secret
    ) -> None:
        self._lock = asyncio.Lock()
        self._exchanged: float | None = None
        self._notes: list[str] = []
        self._syncs: list[StoreSync] = []
        self.binds: tuple[Bind, ...] = ()
        """What the session's sandbox has to show."""
        if share is None:
            self._notes.append(_NOT_SHOWN)
            return
        for store in stores:
            root = share / f"memory-{store.memory_store_id}"
            read_only = store.access == "read_only"
            memories = MemoryApi(api, store.memory_store_id, key)
            record = share / f"{root.name}.json"
            self._syncs.append(
                StoreSync(memories, MemoryFolder(root), record, store.mount_path, read_only=read_only)
            )
            self.binds += (Bind(root, store.mount_path, writable=not read_only),)

    async def bring(self) -> None:
        """See to it that the folders are there and not long behind their stores.

        Raises:
            ApiFailure: a store could not be had, the first time; later the folders stay as they are.
            OSError: a folder cannot be used.
        """
        async with self._lock:
            now = time.monotonic()
            if self._exchanged is not None and now - self._exchanged < _EXCHANGE_SECONDS:
                return
            outcomes = await asyncio.gather(
                *(sync.exchange() for sync in self._syncs), return_exceptions=True
            )
            for outcome in outcomes:
                if isinstance(outcome, ApiFailure) and self._exchanged is not None:
                    _log.warning("a memory store is not up to date", reason=str(outcome))
                elif outcome is not None:
                    raise outcome
            self._exchanged = now

    async def saved(self, tool: str, output: ToolOutput) -> ToolOutput:
        """Save what a call has changed; its output, with what the agent must know about that."""
        async with self._lock:
            if tool not in READERS:
                await self._write_back()
            notes, self._notes = self._notes, []
            for sync in self._syncs:
                notes += sync.notes()
        if not notes:
            return output
        text = "\n".join(["About this session's memory:", *notes])
        return ToolOutput([*output.content, {"type": "text", "text": text}], output.is_error)

    async def finish(self, seconds: float) -> None:
        """Save what is left, in so many seconds at most; what is not is saved when the session goes on."""
        if self._exchanged is None:
            return
        try:
            async with asyncio.timeout(seconds), self._lock:
                await self._write_back()
        except TimeoutError:
            _log.warning("changes in memory stores wait for the session's next work item")

    async def _write_back(self) -> None:
        for sync in self._syncs:
            try:
                await sync.write_back()
            except OSError as error:
                _log.warning("a memory store's folder cannot be read", reason=str(error))
                self._notes.append(f"A folder could not be read, so nothing in it was saved ({error}).")
