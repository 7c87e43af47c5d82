"""Calls that the gateway makes for sessions: each once, from what the log says.

A call is made for an event that is in the log and has not been denied; so nobody has the gateway do what the
session's history does not show. What makes it depends on the tool: `corral.gateway.mcp` for tools of MCP
servers, `corral.gateway.web` for the web tools.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final, Protocol

import msgspec
import psycopg
import structlog
from psycopg_pool import PoolTimeout

from corral.gateway.mcp_outcomes import Outcomes
from corral.gateway.mcp_results import error_outcome
from corral.session.events import verdict_on
from corral.store.database import Database
from corral.vault.grants import GrantedSession
from corral.wire.errors import NotFound
from corral.wire.gateway import CallOutcome, CallRequest
from corral.wire.web_rules import WEB_TOOLS

INTERRUPTED: Final = "The call was interrupted before it was done. It may or may not have taken effect."
_UNKNOWN: Final = (
    "The outcome of this call is unknown: it was under way when what carries calls was stopped. It may or "
    "may not have taken effect; check before you repeat it."
)
_FAILED: Final = (
    "The gateway failed inside while it made this call; its log says why. The call may or may not have taken "
    "effect."
)
_LOOK_SECONDS: Final = 0.5
_MCP: Final = "agent.mcp_tool_use"

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class LoggedCall(msgspec.Struct, frozen=True):
    """What the log says of a call. `seq` is its place there."""

    event_id: str
    seq: int
    tool: str
    input: dict[str, Any]
    server_name: str | None
    """The MCP server of a call that goes to one."""
    agent: dict[str, Any] | None = None
    """The agent that made it, of a call on a child thread."""


class Maker(Protocol):
    """Makes the calls of one kind of tool."""

    async def make(self, session: GrantedSession, call: LoggedCall) -> CallOutcome:
        """What comes of a call. An outcome whatever happens, unless it is cancelled."""
        ...

    async def is_repeatable(self, session: GrantedSession, call: LoggedCall) -> bool:
        """Whether a call whose gateway died may simply be made again."""
        ...


class Calls:
    """The calls of one gateway. Close it with `close`."""

    def __init__(
        self, *, database: Database, outcomes: Outcomes, mcp: Maker, web: Maker, call_seconds: float
    ) -> None:
        self._database = database
        self._outcomes = outcomes
        self._mcp = mcp
        self._web = web
        self._call_seconds = call_seconds
        self._running: dict[str, asyncio.Task[CallOutcome]] = {}
        self._watching: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Cancel the calls under way. Nothing is recorded of them: this gateway is gone for the others."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def call(self, session: GrantedSession, asked: CallRequest) -> CallOutcome:
        """What comes of a call; if it is under way, here or elsewhere, or was made before: of that one.

        Raises:
            NotFound: the session's log has no such call that may run.
        """
        running = self._running.get(asked.event_id)
        if running is None:
            call = await self._logged(session.session_id, asked.event_id)
            granted = session
            session = granted if call.agent is None else granted.on_thread(call.agent)
            standing = await self._outcomes.begin(asked.event_id, session.session_id)
            while standing == "under_way" and asked.event_id not in self._running:
                await asyncio.sleep(_LOOK_SECONDS)
                standing = await self._outcomes.look(asked.event_id, session.session_id)
            if isinstance(standing, CallOutcome):
                return standing
            running = self._running.get(asked.event_id)
            if running is None and standing == "abandoned":
                if not await self._outcomes.take_over(asked.event_id, session.session_id):
                    return await self.call(granted, asked)
                if not await self._maker(call).is_repeatable(session, call):
                    outcome = error_outcome(_UNKNOWN)
                    await self._outcomes.keep(asked.event_id, outcome)
                    return outcome
            if running is None:
                running = self._start(session, call)
        # Whoever asked may go away; the call goes on, and its outcome is there for who asks next.
        return await asyncio.shield(running)

    async def cancel(self, session_id: str, event_id: str) -> None:
        """Stop a call. If another gateway makes it, that one finds the outcome settled, and stops it."""
        if not isinstance(await self._outcomes.look(event_id, session_id), str):
            return
        await self._outcomes.keep(event_id, error_outcome(INTERRUPTED))
        if (task := self._running.get(event_id)) is not None:
            task.cancel()

    def _maker(self, call: LoggedCall) -> Maker:
        return self._web if call.server_name is None else self._mcp

    def _start(self, session: GrantedSession, call: LoggedCall) -> asyncio.Task[CallOutcome]:
        task = asyncio.create_task(self._carry_out(session, call), name=f"call {call.event_id}")
        self._running[call.event_id] = task
        task.add_done_callback(lambda _: self._running.pop(call.event_id, None))
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch(), name="watch calls")
        return task

    async def _watch(self) -> None:
        """Stop what another gateway was told to cancel, as long as calls are under way here."""
        while self._running:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                settled = await self._outcomes.settled(list(self._running))
            except (psycopg.Error, PoolTimeout) as error:
                _log.warning("calls under way are not watched", reason=str(error))
                continue
            for event_id in settled:
                if (task := self._running.get(event_id)) is not None:
                    task.cancel()

    async def _carry_out(self, session: GrantedSession, call: LoggedCall) -> CallOutcome:
        try:
            outcome = await self._timed(session, call)
            await self._outcomes.keep(call.event_id, outcome)
        except asyncio.CancelledError:
            kept = await self._outcomes.look(call.event_id, session.session_id)
            if isinstance(kept, CallOutcome):
                return kept  # it was interrupted, and that is its outcome
            raise
        return outcome

    async def _timed(self, session: GrantedSession, call: LoggedCall) -> CallOutcome:
        try:
            async with asyncio.timeout(self._call_seconds):
                return await self._maker(call).make(session, call)
        except TimeoutError:
            return error_outcome(
                f"The call was given up after {self._call_seconds:g} s. It may or may not have taken effect."
            )
        except Exception:
            # Without an outcome whoever asks would wait for it for as long as this gateway lives.
            _log.exception("a call failed inside", session_id=session.session_id, call=call.event_id)
            return error_outcome(_FAILED)

    async def _logged(self, session_id: str, event_id: str) -> LoggedCall:
        """The call as the log has it. JSON is read here and not by the database, which stops at a NUL.

        Raises:
            NotFound: there is none, it may not run, or it is not the gateway's to make.
        """
        row = await self._database.fetch_one(
            "select u.seq, u.type, u.body::text as body, (select v.body::text from events v"
            " where v.session_id = u.session_id and v.resolves = %(verdict)s) as verdict,"
            " t.agent::text as agent from events u"
            " left join threads t on t.session_id = u.session_id and t.id = u.thread_id"
            " where u.session_id = %(session)s and u.id = %(event)s"
            " and u.type in ('agent.mcp_tool_use', 'agent.tool_use')",
            {"session": session_id, "event": event_id, "verdict": verdict_on(event_id)},
        )
        body: dict[str, Any] = {} if row is None else msgspec.json.decode(row["body"])
        if row is None or not _may_run(body, row["verdict"]) or not _is_ours(row["type"], body):
            raise NotFound(f"The session has no call {event_id} that may run.")
        server_name = body["mcp_server_name"] if row["type"] == _MCP else None
        agent = None if row["agent"] is None else msgspec.json.decode(row["agent"])
        return LoggedCall(event_id, row["seq"], body["name"], body["input"], server_name, agent)


def _may_run(body: Mapping[str, Any], verdict: str | None) -> bool:
    if body["evaluated_permission"] != "ask":
        return body["evaluated_permission"] == "allow"
    return verdict is not None and msgspec.json.decode(verdict)["result"] == "allow"


def _is_ours(kind: str, body: Mapping[str, Any]) -> bool:
    return kind == _MCP or body["name"] in WEB_TOOLS
