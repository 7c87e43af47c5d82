"""What one session's tool calls run with: its sandbox, and what is brought into it before each of them."""

import asyncio
import time
from dataclasses import dataclass
from typing import Final

import structlog

from corral.hands.sandbox.provider import DiskFull, SandboxLost, SandboxUnavailable, ToolOutput
from corral.hands.worker.answers import BegunCall, SessionState, WorkItem
from corral.hands.worker.client import WorkApi
from corral.hands.worker.failures import ApiFailure
from corral.hands.worker.furnishing import Furnishing, furnish
from corral.hands.worker.ledger import ToolCall
from corral.hands.worker.memory import SessionMemory, attached_stores
from corral.hands.worker.pace import Pace
from corral.hands.worker.repositories import RepositoryCache, SessionRepositories
from corral.hands.worker.results import Undelivered, error_output
from corral.hands.worker.sandboxes import Sandboxes
from corral.hands.worker.session_files import SessionFiles
from corral.hands.worker.skills import SessionSkills, SkillCache, attached_skills
from corral.wire.secret import Secret

_NO_SANDBOX: Final = (
    "No sandbox could be started, so the call was not run. The reason is in the worker's log; "
    "the operator has to see to it."
)
_NO_FILES: Final = (
    "The files of this session could not be brought into its sandbox, so the call was not run. Try again."
)
_SANDBOX_LOST: Final = (
    "The sandbox was lost while the call ran. Files in the workspace are kept; running processes, shell "
    "variables and files elsewhere are gone. What the call has done is unknown. The next call starts a new "
    "sandbox."
)

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Bench:
    """What all items of a worker share. idle_seconds: how long an idle session keeps its item."""

    api: WorkApi
    sandboxes: Sandboxes
    undelivered: Undelivered
    pace: Pace
    idle_seconds: float
    skills: SkillCache
    repositories: RepositoryCache


class SessionHands:
    """The session of an item, as its calls need it. key: what the item's requests are sent with."""

    def __init__(self, bench: Bench, item: WorkItem, key: Secret) -> None:
        self._bench = bench
        self._api = bench.api
        self._item = item
        self._key = key
        self._memory: SessionMemory | None = None
        self._skills: SessionSkills | None = None
        self._repositories: SessionRepositories | None = None
        self._begun = BegunCall()
        self.files: SessionFiles | None = None
        """The session's files, once `open` was called and if the server has the endpoints for them."""

    @property
    def _has_endpoints(self) -> bool:
        return self._api.is_corral and self._item.token is not None

    async def open(self) -> None:
        """Take up the session's files, if the server has the endpoints for them."""
        if not self._has_endpoints:
            return
        try:
            share = await self._bench.sandboxes.share(self._item.session_id)
        except OSError as error:
            _log.error("no folder for a session's files", reason=str(error))
            return
        self._repositories = SessionRepositories(
            self._api,
            self._bench.sandboxes,
            self._bench.repositories,
            share,
            self._item.session_id,
            self._key,
        )
        self.files = SessionFiles(self._api, share, self._item.session_id, self._key, self._bench.pace)

    async def attach(self, session: SessionState) -> None:
        """Take up what the session has attached, the first time that it has."""
        stores = attached_stores(session.resources)
        if stores and self._memory is None:
            share = await self._bench.sandboxes.share(self._item.session_id)
            self._memory = SessionMemory(self._api, share, stores, self._key)
        skills = attached_skills(session.agent)
        if skills and self._skills is None:
            folder = await self._bench.sandboxes.skills(self._item.session_id)
            self._skills = SessionSkills(
                self._api, self._bench.skills, folder, skills, self._key, self._bench.pace
            )

    def note_begun(self, begun: BegunCall) -> None:
        """Note what the server said of the call that is executed next."""
        self._begun = begun
        if self.files is not None:
            self.files.note_limit(begun.max_output_bytes)

    async def execute(self, call: ToolCall) -> ToolOutput:
        """Run a call in the session's sandbox, with all that the session has there. Whatever keeps it from
        running is a result too, in words for the model.
        """
        begun = time.monotonic()
        try:
            if self.files is not None:
                await self.files.bring(self._begun.files)
            if self._skills is not None:
                await self._skills.bring()
            if self._repositories is not None:
                await self._repositories.bring(self._begun.repositories)
            output = await self._run_call(call)
        except SandboxLost:
            return error_output(_SANDBOX_LOST)
        except DiskFull as error:
            return error_output(str(error))
        except (ApiFailure, OSError) as error:
            _log.error("no files for a call", tool_use_id=call.id, reason=str(error))
            return error_output(_NO_FILES)
        except SandboxUnavailable as error:
            _log.error("no sandbox for a call", tool_use_id=call.id, reason=str(error))
            return error_output(_NO_SANDBOX)
        _log.info(
            "call run",
            tool_use_id=call.id,
            tool=call.name,
            is_error=output.is_error,
            seconds=round(time.monotonic() - begun, 3),
        )
        return output

    async def _run_call(self, call: ToolCall) -> ToolOutput:
        sandboxes, session_id = self._bench.sandboxes, self._item.session_id
        if self._memory is None:
            return await sandboxes.execute(session_id, call.name, call.input, furnish=self._furnish)
        await self._memory.bring()
        binds = self._memory.binds
        output = await sandboxes.execute(session_id, call.name, call.input, binds, self._furnish)
        return await self._memory.saved(call.name, output)

    async def _furnish(self) -> Furnishing:
        if not self._has_endpoints:
            return Furnishing()
        doors = self._bench.sandboxes.doors
        return await furnish(self._api, doors, self._item.session_id, self._key)

    async def finish(self) -> None:
        """Send what the session has written: memories, then outputs."""
        if self._memory is not None:
            await self._memory.finish(self._bench.pace.farewell / 2)
        if self.files is not None:
            await self._collect_last(self.files)

    async def _collect_last(self, files: SessionFiles) -> None:
        try:
            async with asyncio.timeout(self._bench.pace.farewell / 2):
                await files.collect()
        except TimeoutError:
            _log.info("outputs are left to the next worker", session_id=self._item.session_id)
