"""The sandboxes of a worker: one a session, from its first tool call until it has been idle for long."""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from corral.hands.sandbox.provider import (
    Bind,
    DiskFull,
    Limits,
    Recipe,
    Sandbox,
    SandboxLost,
    SandboxProvider,
    ToolOutput,
)
from corral.hands.worker.disk import DiskLimits, DiskWatch, Usage, free_bytes, measure
from corral.hands.worker.doors import Doors
from corral.hands.worker.furnishing import Furnish, Furnishing
from corral.hands.worker.workspaces import OUTPUTS_FOLDER, UPLOADS_FOLDER, Workspaces
from corral.wire.session_resources import OUTPUTS, UPLOADS

_NOTHING = Usage(0, 0)
_DISK_FULL = "The worker's disk is almost full. The sandbox was stopped; files are kept."

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Place:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    sandbox: Sandbox | None = None
    calls: int = 0
    last_used: float = 0.0
    usage: Usage = _NOTHING
    too_full: str | None = None


@dataclass(slots=True, eq=False)
class _Beside:
    sandbox: Sandbox
    too_full: bool = False


class Sandboxes:
    """Sandboxes by session.

    idle_seconds: a sandbox without a call for so long is stopped. most: beyond so many, the one that has been
    idle longest makes room for a new one. shows_files: whether sandboxes show a session's files and outputs.
    limits: of each sandbox. disk: of the sessions' files; kept only while `watch_disk` runs.
    """

    def __init__(
        self,
        provider: SandboxProvider,
        workspaces: Workspaces,
        *,
        idle_seconds: float,
        most: int,
        shows_files: bool,
        limits: Limits | None = None,
        disk: DiskLimits | None = None,
    ) -> None:
        self._provider = provider
        self._workspaces = workspaces
        self._idle_seconds = idle_seconds
        self._most = most
        self._shows_files = shows_files
        self._limits = limits or Limits()
        self._disk = DiskWatch(disk or DiskLimits())
        self.doors = Doors(workspaces.doors)
        self._places: dict[str, _Place] = {}
        self._beside: list[_Beside] = []
        self._used = asyncio.Event()

    async def execute(
        self,
        session_id: str,
        name: str,
        input: Mapping[str, Any],
        binds: Sequence[Bind] = (),
        furnish: Furnish | None = None,
    ) -> ToolOutput:
        """Run a tool call in the session's sandbox, which is started if there is none.

        binds: what it shows besides the workspace, uploads and outputs; the same for all calls of a session.
        furnish: says what else it is to have.

        Raises:
            SandboxUnavailable: none could be started; the call was not run.
            SandboxLost: it died under the call. The next call gets another one on the same workspace.
            DiskFull: the session or the machine has no room left.
        """
        place = self._places.setdefault(session_id, _Place())
        place.calls += 1
        try:
            sandbox = await self._ready(session_id, place, binds, furnish)
            return await sandbox.execute(name, input)
        except SandboxLost:
            _log.warning("sandbox lost", session_id=session_id, tool=name)
            if place.too_full is not None:
                raise DiskFull(place.too_full) from None
            raise
        finally:
            place.calls -= 1
            place.last_used = time.monotonic()
            self._used.set()

    async def share(self, session_id: str) -> Path | None:
        """The folder of a session's uploads and outputs; None where sandboxes do not show them."""
        return await self._workspaces.share(session_id) if self._shows_files else None

    async def skills(self, session_id: str) -> Path:
        """The folder that a session's sandbox shows as its skills, if it is there when the sandbox starts."""
        return await self._workspaces.skills(session_id)

    @property
    def limits(self) -> Limits:
        """The limits of each sandbox."""
        return self._limits

    async def workspace(self, session_id: str) -> Path:
        """The workspace of a session, noted as in use now."""
        return await self._workspaces.take(session_id)

    @asynccontextmanager
    async def apart(self, recipe: Recipe) -> AsyncGenerator[Sandbox]:
        """A sandbox beside the session's own, for as long as this lasts.

        Raises:
            SandboxUnavailable: none could be started.
            DiskFull: the disk is almost full, or was before the sandbox had ended, which is stopped then.
        """
        await self._check_disk(recipe.session_id)
        beside = _Beside(await self._provider.provision(recipe))
        self._beside.append(beside)
        try:
            yield beside.sandbox
        except SandboxLost:
            if beside.too_full:
                raise DiskFull(_DISK_FULL) from None
            raise
        finally:
            self._beside.remove(beside)
            await beside.sandbox.stop()

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
            await self.doors.close(session_id)

    async def discard(self, session_id: str) -> None:
        """Stop the session's sandbox and remove its workspace: the session is gone."""
        await self.stop(session_id)
        await self._workspaces.remove(session_id)
        self._disk.forget(session_id)
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

    async def watch_disk(self) -> None:
        """Stop sandboxes whose sessions hold too much, for ever. Cancel it to end it."""
        while True:
            begun = time.monotonic()
            grown: list[tuple[int, int, str, _Place]] = []
            for session_id, place in list(self._places.items()):
                if place.sandbox is None or not place.sandbox.alive:
                    continue
                before, place.usage = place.usage, await self._measured(session_id)
                why = self._disk.judge(session_id, place.usage)
                if why is not None:
                    await self._stop_full(session_id, place, why)
                else:
                    grown.append((place.usage.bytes - before.bytes, place.calls, session_id, place))
            free = await asyncio.to_thread(free_bytes, self._workspaces.directory)
            if free < self._disk.limits.free_bytes and self._beside:
                # What they bring can be brought again.
                for beside in list(self._beside):
                    beside.too_full = True
                    await beside.sandbox.stop()
            elif free < self._disk.limits.free_bytes and grown:
                _, _, session_id, place = max(grown, key=lambda entry: entry[:2])
                await self._stop_full(session_id, place, _DISK_FULL)
            # A look at many files takes its time: no more than a part of a processor is spent on it.
            await asyncio.sleep(max(self._disk.limits.watch_seconds, 10 * (time.monotonic() - begun)))

    async def _stop_full(self, session_id: str, place: _Place, why: str) -> None:
        if place.sandbox is None:
            return
        place.too_full = why
        await place.sandbox.stop()
        # Until then it went on writing, which is not held against the next one.
        self._disk.stopped(session_id, await self._measured(session_id))
        _log.warning("sandbox stopped for what it keeps on the disk", session_id=session_id, reason=why)

    async def _measured(self, session_id: str) -> Usage:
        most = Usage(self._disk.limits.session_bytes, self._disk.limits.session_entries)
        return await asyncio.to_thread(lambda: measure(self._workspaces.writable(session_id), most))

    async def _check_disk(self, session_id: str) -> None:
        if self._disk.is_barred(session_id):
            self._disk.recheck(session_id, await self._measured(session_id))
        why = await asyncio.to_thread(self._disk.refusal, session_id, self._workspaces.directory)
        if why is not None:
            raise DiskFull(why)

    async def _ready(
        self, session_id: str, place: _Place, binds: Sequence[Bind], furnish: Furnish | None
    ) -> Sandbox:
        async with place.lock:
            if place.sandbox is not None and place.sandbox.alive:
                return place.sandbox
            lost, place.sandbox = place.sandbox, None
            if lost is not None:
                await lost.stop()
            place.too_full = None
            await self._check_disk(session_id)
            await self._make_room()
            begun = time.monotonic()
            workspace = await self._workspaces.take(session_id)
            shown = (*await self._binds(session_id), *binds)
            skills = await self._workspaces.skills(session_id)
            furnishing = Furnishing() if furnish is None else await furnish()
            recipe = Recipe(
                env=furnishing.variables,
                egress=furnishing.egress,
                session_id=session_id,
                workspace=workspace,
                binds=shown,
                limits=self._limits,
                skills=skills if await asyncio.to_thread(skills.is_dir) else None,
            )
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
