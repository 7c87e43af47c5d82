"""The session log: append, replay, read a slice, follow (DESIGN sections 3 and 4).

Events are read from the database always; the bus only says when to look.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final, LiteralString, Protocol

import msgspec

from corral.session.commit import Commit, Committed, Fence
from corral.session.events import Event, Input, NewEvent
from corral.store.database import Database

_REPLAY_PAGE: Final = 1_000
_EVENT_COLUMNS: Final[LiteralString] = (
    "seq, id, type, thread_id, body::text as body, private::text as private, processed_at"
)

WAITING: Final[LiteralString] = (
    "(select json_agg(json_build_array(i.position, i.id, i.type, i.thread_id, i.body) order by i.position)"
    " from inputs i where i.session_id = s.id)::text"
)
"""The inputs of a session, for a statement on the row ``s`` of it; `inputs_from` reads them."""


class SessionLog(Protocol):
    """The interface that outlives its implementations (DESIGN section 3)."""

    async def append(
        self, session_id: str, events: Sequence[NewEvent], *, fence: Fence | None
    ) -> list[Event]:
        """Append events in one commit; raises `CommitRefused` when `fence` does not hold."""
        ...

    def replay(self, session_id: str, *, after: int = 0) -> AsyncGenerator[Event]:
        """All events after position `after`, in order."""
        ...

    async def get_events(
        self, session_id: str, *, start: int, stop: int | None = None, types: Sequence[str] | None = None
    ) -> list[Event]:
        """The events with ``start <= seq < stop``, only of `types` if given."""
        ...


class CommitWriter(Protocol):
    """What writes commits: `corral.session.writer.LogWriter`, or something that goes through it."""

    async def commit(self, commit: Commit) -> Committed:
        """Write one commit; see `corral.session.writer.LogWriter.commit`."""
        ...


class PostgresSessionLog:
    """See `SessionLog`."""

    def __init__(self, database: Database, writer: CommitWriter) -> None:
        self._database = database
        self._writer = writer

    async def append(
        self, session_id: str, events: Sequence[NewEvent], *, fence: Fence | None
    ) -> list[Event]:
        """See `SessionLog.append`."""
        committed = await self.commit(Commit(session_id, fence or Fence(), tuple(events)))
        return located(events, committed)

    async def commit(self, commit: Commit) -> Committed:
        """Append events together with what goes with them; see `LogWriter.commit`."""
        return await self._writer.commit(commit)

    async def replay(self, session_id: str, *, after: int = 0) -> AsyncGenerator[Event]:
        """See `SessionLog.replay`. Read in pages, so that no connection is held while the caller works."""
        while True:
            page = await self.get_events(session_id, start=after + 1, limit=_REPLAY_PAGE)
            for event in page:
                yield event
            if len(page) < _REPLAY_PAGE:
                return
            after = page[-1].seq

    async def get_events(
        self,
        session_id: str,
        *,
        start: int,
        stop: int | None = None,
        types: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> list[Event]:
        """See `SessionLog.get_events`; `limit` bounds the number of events."""
        query: LiteralString = (
            "select " + _EVENT_COLUMNS + " from events where session_id = %(session)s and seq >= %(start)s"
            " and (%(stop)s::bigint is null or seq < %(stop)s)"
            " and (%(types)s::text[] is null or type = any(%(types)s))"
            " order by seq limit %(limit)s"
        )
        rows = await self._database.fetch(
            query,
            {
                "session": session_id,
                "start": start,
                "stop": stop,
                "types": None if types is None else list(types),
                "limit": limit,
            },
        )
        return [event_from_row(row) for row in rows]

    async def named_events(
        self, session_id: str, *, ids: Sequence[str], resolves: Sequence[str]
    ) -> list[tuple[Event, str | None]]:
        """The tool uses with one of `ids`, and the events that resolve one of `resolves`."""
        query: LiteralString = (
            "select "
            + _EVENT_COLUMNS
            + ", resolves from events where session_id = %(session)s and id = any(%(ids)s)"
            " and type in ('agent.tool_use', 'agent.mcp_tool_use', 'agent.custom_tool_use')"
            " union all select " + _EVENT_COLUMNS + ", resolves from events"
            " where session_id = %(session)s and resolves = any(%(resolves)s) and resolves is not null"
        )
        rows = await self._database.fetch(
            query, {"session": session_id, "ids": list(ids), "resolves": list(resolves)}
        )
        return [(event_from_row(row), row["resolves"]) for row in rows]

    async def inputs(self, session_id: str, *, after: int = 0) -> list[Input]:
        """The client events that wait, in the order of their acceptance, after queue position `after`."""
        rows = await self._database.fetch(
            "select position, id, type, thread_id, body::text as body from inputs"
            " where session_id = %s and position > %s order by position",
            (session_id, after),
        )
        return [
            Input(row["position"], row["id"], row["type"], row["thread_id"], msgspec.json.decode(row["body"]))
            for row in rows
        ]


def inputs_from(waiting: str | None) -> list[Input]:
    """The inputs that `WAITING` gave."""
    if waiting is None:
        return []
    rows = msgspec.json.decode(waiting, type=list[tuple[int, str, str, str, dict[str, Any]]])
    return [Input(*row) for row in rows]


def located(events: Sequence[NewEvent], committed: Committed) -> list[Event]:
    """The events of a commit with the places that they got in the log."""
    return [
        Event(
            committed.base + n,
            event.id,
            event.type,
            event.thread_id,
            {"id": event.id, "type": event.type, **event.body},
            committed.at,
            event.private,
        )
        for n, event in enumerate(events, 1)
    ]


def event_from_row(row: dict[str, Any]) -> Event:
    """An event as read from the ``events`` table with its JSON columns cast to text."""
    private = row["private"]
    return Event(
        row["seq"],
        row["id"],
        row["type"],
        row["thread_id"],
        msgspec.json.decode(row["body"]),
        row["processed_at"],
        None if private is None else msgspec.json.decode(private),
    )
