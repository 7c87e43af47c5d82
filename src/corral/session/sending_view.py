"""What the rules for client events need to know of a session, read before a batch is checked."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from corral.session.calls import TOOL_USES
from corral.session.events import Event, Input, verdict_on
from corral.session.log import PostgresSessionLog
from corral.session.outcomes import is_active
from corral.session.spending import Spending, spending_of
from corral.store.database import Database
from corral.wire.errors import NotFound
from corral.wire.events import (
    ClientEvent,
    DefineOutcome,
    SystemMessage,
    UserCustomToolResult,
    UserInterrupt,
    UserToolConfirmation,
    UserToolResult,
)

_RESULTS: Final = (UserToolConfirmation, UserCustomToolResult, UserToolResult)
"""What a session takes whatever it has spent."""


class View(msgspec.Struct, frozen=True):
    """What the rules need to know of the session."""

    session_id: str
    thread_id: str
    status: str
    seq: int
    last_input: int
    self_hosted: bool
    model: str
    stop_type: str | None
    uses: Mapping[str, Event]
    settled: Mapping[str, Event]
    """Events by what they resolve: results by tool use, verdicts by `verdict_on`."""
    waiting: Sequence[Input]
    threads: Mapping[str, str] = {}
    """The statuses of child threads by id, if the batch touches any."""
    outcome_active: bool = False
    spending: Spending | None = None
    """Where the session stands against its budget, if it has one and the batch asks for it."""


class Views:
    """Reads views of sessions."""

    def __init__(self, database: Database, log: PostgresSessionLog, session_hour: int) -> None:
        self._database = database
        self._log = log
        self._session_hour = session_hour

    async def read(self, session_id: str, events: Sequence[ClientEvent]) -> View:
        """What the rules need to know to check `events`; raises `NotFound` if there is no such session."""
        row = await self._database.fetch_one(
            "select s.primary_thread_id, s.status, s.last_seq, s.last_input, e.config ->> 'type' as hosting,"
            " s.agent #>> '{model,id}' as model, s.budget is not null as budgeted"
            " from sessions s join environments e on e.id = s.environment_id where s.id = %s",
            (session_id,),
        )
        if row is None:
            raise NotFound(f"session {session_id} not found")
        named = [name for event in events if (name := _named_call(event)) is not None]
        uses: dict[str, Event] = {}
        settled: dict[str, Event] = {}
        waiting: Sequence[Input] = ()
        stop_type = None
        if named:
            # The inputs before the log: one that is taken up between the two is seen twice, never missed.
            waiting = await self._log.inputs(session_id)
            uses, settled = await self._calls(session_id, named)
        if any(isinstance(event, SystemMessage) for event in events):
            stop_type = await self._stop_type(session_id)
        outcome_active = False
        if any(isinstance(event, DefineOutcome) for event in events):
            outcome_active = await self._outcome_active(session_id)
        threads: dict[str, str] = {}
        named_threads = any(isinstance(event, UserInterrupt) and event.session_thread_id for event in events)
        if named_threads or any(use.thread_id != row["primary_thread_id"] for use in uses.values()):
            threads = await self._threads(session_id)
        spending = None
        if row["budgeted"] and any(not isinstance(event, _RESULTS) for event in events):
            async with self._database.connection() as connection:
                spending = await spending_of(connection, session_id, self._session_hour)
        return View(
            session_id=session_id,
            thread_id=row["primary_thread_id"],
            status=row["status"],
            seq=row["last_seq"],
            last_input=row["last_input"],
            self_hosted=row["hosting"] == "self_hosted",
            model=row["model"],
            stop_type=stop_type,
            uses=uses,
            settled=settled,
            waiting=waiting,
            threads=threads,
            outcome_active=outcome_active,
            spending=spending,
        )

    async def _threads(self, session_id: str) -> dict[str, str]:
        rows = await self._database.fetch(
            "select id, status from threads where session_id = %s", (session_id,)
        )
        return {row["id"]: row["status"] for row in rows}

    async def _outcome_active(self, session_id: str) -> bool:
        row = await self._database.fetch_one(
            # As the index `events_outcomes` has it.
            "select type, readable(body) ->> 'result' as result from events where session_id = %s and type in"
            " ('user.define_outcome', 'span.outcome_evaluation_start', 'span.outcome_evaluation_end')"
            " order by seq desc limit 1",
            (session_id,),
        )
        return row is not None and is_active(row["type"], row["result"])

    async def _calls(
        self, session_id: str, named: Sequence[str]
    ) -> tuple[dict[str, Event], dict[str, Event]]:
        found = await self._log.named_events(
            session_id, ids=named, resolves=[*named, *map(verdict_on, named)]
        )
        uses = {event.id: event for event, _ in found if event.type in TOOL_USES}
        settled = {resolves: event for event, resolves in found if resolves is not None}
        return uses, settled

    async def _stop_type(self, session_id: str) -> str | None:
        row = await self._database.fetch_one(
            "select body::text as body from events where session_id = %s and type in"
            " ('session.status_idle', 'session.status_running') order by seq desc limit 1",
            (session_id,),
        )
        return None if row is None else msgspec.json.decode(row["body"]).get("stop_reason", {}).get("type")


def _named_call(event: ClientEvent) -> str | None:
    match event:
        case UserToolConfirmation() | UserToolResult():
            return event.tool_use_id
        case UserCustomToolResult():
            return event.custom_tool_use_id
        case _:
            return None
