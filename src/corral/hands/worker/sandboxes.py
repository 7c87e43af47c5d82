"""The sandboxes of a worker: one a session, from its first tool call until it has been idle for long."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from corral.hands.sandbox.provider import Bind, Recipe, Sandbox, SandboxLost, SandboxProvider, ToolOutput
from corral.hands.worker.workspaces import OUTPUTS_FOLDER, UPLOADS_FOLDER, Workspaces
from corral.wire.session_resources import OUTPUTS, UPLOADS

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Place:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    sandbox: Sandbox | None = None
    calls: int = 0
    last_used: float = 0.0


class Sandboxes:
    """Sandboxes by session.

    idle_seconds: a sandbox without a call for so long is stopped. most: beyond so many, the one that has been
    idle longest makes room for a new one. shows_files: whether sandboxes show a session's files and outputs.
    """

    def __init__(
        self,
        provider: SandboxProvider,
        workspaces: Workspaces,
        *,
        idle_seconds: float,
        most: int,
        shows_files: bool,
    ) -> None:
        self._provider = provider
        self._workspaces = workspaces
        self._idle_seconds = idle_seconds
        self._most = most
        self._shows_files = shows_files
        self._places: dict[str, _Place] = {}
        self._used = asyncio.Event()

    async def execute(
        self, session_id: str, name: str, input: Mapping[str, Any], binds: Sequence[Bind] = ()
    ) -> ToolOutput:
        """Run a tool call in the session's sandbox, which is started if there is none.

        binds: what it shows besides the workspace, uploads and outputs; the same for all calls of a session.

        Raises:
            SandboxUnavailable: none could be started; the call was not run.
            SandboxLost: it died under the call. The next call gets another one on the same workspace.
        """
        place = self._places.setdefault(session_id, _Place())
        place.calls += 1
        try:
            sandbox = await self._ready(session_id, place, binds)
            return await sandbox.execute(name, input)
        except SandboxLost:
            _log.warning("sandbox lost", session_id=session_id, tool=name)
            raise
        finally:
            place.calls -= 1
            place.last_used = time.monotonic()
            self._used.set()

    async def share(self, session_id: str) -> Path | None:
        """The folder of a session's uploads and outputs; None where sandboxes do not show them."""
        return await self._workspaces.share(session_id) if self._shows_files else None

    async def begin_call(self, session_id: str, call_id: str) -> bool:
        """Note that a call is about to run; False if it had begun before on this machine."""
        return await self._workspaces.begin_call(session_id, call_id)

    async def stop(self, session_id: str) -> None:
        """Stop the session's sandbox if it has one. The workspace stays."""
        place = self._places.get(session_id)
        if place is None:
            return
        async with place.lock:
            if place.calls == 0 and self._places.get(session_id) is place:
                del self._places[session_id]
            sandbox, place.sandbox = place.sandbox, None
            if sandbox is not None:
                await sandbox.stop()
                _log.info("sandbox stopped", session_id=session_id)

    async def discard(self, session_id: str) -> None:
        """Stop the session's sandbox and remove its workspace: the session is gone."""
        await self.stop(session_id)
        await self._workspaces.remove(session_id)
        _log.info("workspace removed", session_id=session_id)

    async def reap(self) -> None:
        """Stop sandboxes as their idle time runs out, for ever. Cancel it to end it."""
        while True:
            now = time.monotonic()
            for session_id, place in self._idle():
                if now - place.last_used >= self._idle_seconds:
                    await self.stop(session_id)
            left = [place.last_used + self._idle_seconds for _, place in self._idle()]
            self._used.clear()
            try:
                async with asyncio.timeout(min(left) - time.monotonic() if left else None):
                    await self._used.wait()
            except TimeoutError:
                continue

    async def _ready(self, session_id: str, place: _Place, binds: Sequence[Bind]) -> Sandbox:
        async with place.lock:
            if place.sandbox is not None and place.sandbox.alive:
                return place.sandbox
            lost, place.sandbox = place.sandbox, None
            if lost is not None:
                await lost.stop()
            await self._make_room()
            begun = time.monotonic()
            workspace = await self._workspaces.take(session_id)
            shown = (*await self._binds(session_id), *binds)
            recipe = Recipe(session_id=session_id, workspace=workspace, binds=shown)
            place.sandbox = await self._provider.provision(recipe)
            _log.info("sandbox started", session_id=session_id, seconds=round(time.monotonic() - begun, 3))
            return place.sandbox

    async def _binds(self, session_id: str) -> tuple[Bind, ...]:
        share = await self.share(session_id)
        if share is None:
            return ()
        return (
            Bind(share / UPLOADS_FOLDER, UPLOADS),
            Bind(share / OUTPUTS_FOLDER, OUTPUTS, writable=True),
        )

    async def _make_room(self) -> None:
        while sum(place.sandbox is not None for place in self._places.values()) >= self._most:
            idle = [entry for entry in self._idle() if entry[1].sandbox is not None]
            if not idle:
                return
            oldest, _ = min(idle, key=lambda entry: entry[1].last_used)
            await self.stop(oldest)

    def _idle(self) -> list[tuple[str, _Place]]:
        return [entry for entry in self._places.items() if entry[1].calls == 0]
