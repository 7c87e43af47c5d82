"""The rows of sessions: create, retrieve, list, update, archive, delete (contract section 8).

Every write locks the session's row before anything else of the session, as the log's writer does, so that
no two writers can wait for each other.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, LiteralString

import msgspec

from corral.session.budget import SESSION_HOUR
from corral.session.chain import digests_of
from corral.session.columns import COLUMNS
from corral.session.crossposting import EVERYBODY
from corral.session.events import Input, NewEvent, new_event
from corral.session.shown import Row, not_found
from corral.session.shown import budget as budget_of
from corral.session.spending import Spending, spending_of
from corral.session.usage import UNUSED
from corral.store.database import Connection, Database
from corral.wire.errors import InvalidRequest
from corral.wire.ids import new_id

Attach = Callable[[Connection, str], Awaitable[None]]

_CREATE: Final[LiteralString] = (
    "with s as (insert into sessions (id, title, metadata, environment_id, deployment_id, agent_id,"
    " agent_version, agent, vault_ids, budget, primary_thread_id, usage, last_input, status, running_since)"
    " values (%(id)s, %(title)s, %(metadata)s, %(environment_id)s, %(deployment_id)s, %(agent_id)s,"
    " %(agent_version)s, %(agent)s, %(vault_ids)s, %(budget)s, %(thread_id)s, %(usage)s,"
    " cardinality(%(input_ids)s::text[]), case when %(starts)s then 'running' else 'idle' end,"
    " case when %(starts)s then now() end) returning *),"
    " queued as (insert into inputs (session_id, position, id, thread_id, type, body)"
    " select s.id, i.position, i.id, s.primary_thread_id, i.type, i.body::json from s,"
    " unnest(%(input_ids)s::text[], %(input_types)s::text[], %(input_bodies)b::text[])"
    " with ordinality as i (id, type, body, position)),"
    " called as (insert into wakes (session_id) select s.id from s where %(starts)s)"
    " select " + COLUMNS + " from s"
)
"""Makes a session with its queue, and shows it: one statement, since each costs a round trip."""


class NewSession(msgspec.Struct, frozen=True):
    """A session about to be made: references are resolved, the agent is the snapshot to keep."""

    environment_id: str
    agent_id: str
    agent_version: int
    agent: Mapping[str, Any]
    title: str | None = None
    metadata: Mapping[str, str] = {}
    deployment_id: str | None = None
    vault_ids: Sequence[str] = ()
    budget: Mapping[str, Any] | None = None


class SessionFilter(msgspec.Struct, frozen=True):
    """What a list of sessions is narrowed to (contract section 2.3); None does not narrow."""

    agent_id: str | None = None
    agent_version: int | None = None
    statuses: Sequence[str] | None = None
    environment_id: str | None = None
    deployment_id: str | None = None
    memory_store_id: str | None = None
    created_gt: datetime | None = None
    created_gte: datetime | None = None
    created_lt: datetime | None = None
    created_lte: datetime | None = None
    include_archived: bool = False


class SessionChange(msgspec.Struct, frozen=True):
    """What an update sets; UNSET keeps. ``metadata`` is the whole bag after the patch."""

    title: str | msgspec.UnsetType | None = msgspec.UNSET
    metadata: Mapping[str, str] | msgspec.UnsetType = msgspec.UNSET
    agent: Mapping[str, Any] | msgspec.UnsetType = msgspec.UNSET
    budget: Mapping[str, Any] | msgspec.UnsetType | None = msgspec.UNSET


class SessionRecords:
    """Sessions as rows. Events that a change of a row makes are appended in the same transaction."""

    def __init__(self, database: Database, session_hour: int = SESSION_HOUR) -> None:
        self._database = database
        self._session_hour = session_hour

    async def create(
        self,
        new: NewSession,
        inputs: Sequence[tuple[str, str, Mapping[str, Any]]],
        attach: Attach | None = None,
    ) -> Row:
        """Make a session, with the inputs ``(id, type, body)`` that it starts on already queued.

        An outcome is accepted with the session, so it is in the log from the start, not in the queue.
        With inputs the session is ``running`` from the start, and a brain is called (contract section 8.3).
        `attach` runs in the same transaction, on the session's id: what it raises undoes all.
        """
        session_id, thread_id = new_id("sesn"), new_id("sthr")
        outcomes = [entry for entry in inputs if entry[1] == "user.define_outcome"]
        queued = [entry for entry in inputs if entry[1] != "user.define_outcome"]
        values = _new_row(new, session_id, thread_id, queued, starts=bool(inputs))
        if attach is None and not outcomes:
            row = await self._database.fetch_one(_CREATE, values)
            assert row is not None
            return row
        async with self._database.transaction() as connection:
            await connection.execute(_CREATE, values)
            for event_id, kind, body in outcomes:
                kept = {name: value for name, value in body.items() if name not in ("id", "type")}
                event = NewEvent(event_id, kind, thread_id, kept)
                await append(connection, {"id": session_id}, event)
            if attach is not None:
                await attach(connection, session_id)
            return await locked(connection, session_id)

    async def retrieve(self, session_id: str) -> Row:
        """The row of a session; raises `NotFound`."""
        row = await self._database.fetch_one(
            "select " + COLUMNS + " from sessions s where s.id = %s", (session_id,)
        )
        if row is None:
            raise not_found(session_id)
        return row

    async def page(
        self, narrow: SessionFilter, *, after: tuple[datetime, str] | None, descending: bool, limit: int
    ) -> list[Row]:
        """Up to `limit` sessions beyond the position ``(created_at, id)``, in the given order."""
        direction: tuple[LiteralString, LiteralString] = ("<", "desc") if descending else (">", "asc")
        query: LiteralString = (
            "select " + COLUMNS + " from sessions s where"
            " (%(after_at)s::timestamptz is null or (s.created_at, s.id) "
            + direction[0]
            + " (%(after_at)s::timestamptz, %(after_id)s))"
            " and (%(agent_id)s::text is null or s.agent_id = %(agent_id)s)"
            " and (%(agent_version)s::int is null or s.agent_version = %(agent_version)s)"
            " and (%(environment_id)s::text is null or s.environment_id = %(environment_id)s)"
            " and (%(deployment_id)s::text is null or s.deployment_id = %(deployment_id)s)"
            " and (%(memory_store_id)s::text is null or s.id in (select r.session_id from session_resources r"
            " where r.type = 'memory_store' and r.body ->> 'memory_store_id' = %(memory_store_id)s))"
            " and (%(statuses)s::text[] is null or s.status = any(%(statuses)s))"
            " and (%(created_gt)s::timestamptz is null or s.created_at > %(created_gt)s)"
            " and (%(created_gte)s::timestamptz is null or s.created_at >= %(created_gte)s)"
            " and (%(created_lt)s::timestamptz is null or s.created_at < %(created_lt)s)"
            " and (%(created_lte)s::timestamptz is null or s.created_at <= %(created_lte)s)"
            " and (%(include_archived)s or s.archived_at is null)"
            " order by s.created_at " + direction[1] + ", s.id " + direction[1] + " limit %(limit)s"
        )
        values = msgspec.structs.asdict(narrow)
        statuses = None if narrow.statuses is None else list(narrow.statuses)
        place = (
            {"after_at": after[0], "after_id": after[1]} if after else {"after_at": None, "after_id": None}
        )
        return await self._database.fetch(query, {**values, "statuses": statuses, **place, "limit": limit})

    async def update(self, session_id: str, decide: Callable[[Row, Spending], SessionChange]) -> Row:
        """Change a session under its lock: `decide` sees the row and what was spent, and says what to set.

        A change of the budget calls a brain: what had paused at the old one may go on. A ``session.updated``
        event is appended if something changed, holding only what changed (contract section 8.5).
        """
        async with self._database.transaction() as connection:
            row = await locked(connection, session_id)
            change = decide(row, await self._spending(connection, row))
            changed = _changed(row, change)
            if not changed:
                return row
            if changed.get("metadata") == {}:
                del changed["metadata"]  # documented: absent when cleared to empty
            await connection.execute(
                "update sessions set title = %s, metadata = %s, agent = %s, budget = %s, updated_at = now()"
                " where id = %s",
                (
                    row["title"] if change.title is msgspec.UNSET else change.title,
                    row["metadata"] if change.metadata is msgspec.UNSET else _json(change.metadata),
                    row["agent"] if change.agent is msgspec.UNSET else _json(change.agent),
                    row["budget"] if change.budget is msgspec.UNSET else _json_or_null(change.budget),
                    session_id,
                ),
            )
            if "budget" in changed:
                await connection.execute(
                    "insert into wakes as w (session_id) values (%s)"
                    " on conflict (session_id) do update set due_at = least(w.due_at, excluded.due_at)",
                    (session_id,),
                )
            # So that what held at any moment can be told (`corral.extensions`).
            former = {name: msgspec.json.decode(row[name]) for name in ("agent", "budget") if name in changed}
            updated = new_event(
                "session.updated",
                row["primary_thread_id"],
                private={"former": former} if former else None,
                **changed,
            )
            await append(connection, row, updated)
            return await locked(connection, session_id)

    async def _spending(self, connection: Connection, row: Row) -> Spending:
        nothing = Spending(limit=None, consumed=0, unpriced=False, held=False, paused=False)
        if row["budget"] is None:
            return nothing
        return await spending_of(connection, row["id"], self._session_hour) or nothing

    async def report(self, session_id: str, kind: str, message: str, details: Mapping[str, Any]) -> bool:
        """See `append_error`, in a transaction of its own."""
        async with self._database.transaction() as connection:
            return await append_error(connection, session_id, kind, message, details)

    async def archive(self, session_id: str, attach: Attach | None = None) -> Row:
        """Archive a session: terminated, read-only, for good; archiving again changes nothing.

        `attach` runs in the same transaction, on the session's id: what it raises undoes all.

        Raises:
            InvalidRequest: it is running (contract section 8.7).
        """
        async with self._database.transaction() as connection:
            row = await locked(connection, session_id)
            if row["archived_at"] is not None:
                return row
            _refuse_while_running(row, "archive")
            # What was accepted stays to be seen, though nobody will act on it any more.
            for waiting in await _inputs(connection, session_id):
                await append(connection, row, waiting.taken())
            for thread_id, name in await _live_children(connection, session_id):
                await append(connection, row, thread_terminated(thread_id, name))
            await append(connection, row, new_event("session.status_terminated", row["primary_thread_id"]))
            await connection.execute(
                "update threads set status = 'terminated', running_since = null, updated_at = now(),"
                " archived_at = coalesce(archived_at, now()) where session_id = %s",
                (session_id,),
            )
            # A brain that was about to claim it finds another epoch.
            await connection.execute(
                "update sessions set archived_at = now(), status = 'terminated', running_since = null,"
                " epoch = epoch + 1, updated_at = now() where id = %s",
                (session_id,),
            )
            await connection.execute("delete from wakes where session_id = %s", (session_id,))
            await connection.execute("delete from inputs where session_id = %s", (session_id,))
            await connection.execute("delete from session_snapshots where session_id = %s", (session_id,))
            if attach is not None:
                await attach(connection, session_id)
            return await locked(connection, session_id)

    async def delete(self, session_id: str) -> None:
        """Remove a session with its log, inputs and work.

        Raises:
            InvalidRequest: it is running (contract section 8.7).
        """
        async with self._database.transaction() as connection:
            row = await locked(connection, session_id)
            _refuse_while_running(row, "delete")
            await connection.execute("delete from sessions where id = %s", (session_id,))


def _new_row(
    new: NewSession,
    session_id: str,
    thread_id: str,
    queued: Sequence[tuple[str, str, Mapping[str, Any]]],
    *,
    starts: bool,
) -> dict[str, Any]:
    """The parameters of `_CREATE`."""
    return {
        "id": session_id,
        "thread_id": thread_id,
        "title": new.title,
        "metadata": _json(new.metadata),
        "environment_id": new.environment_id,
        "deployment_id": new.deployment_id,
        "agent_id": new.agent_id,
        "agent_version": new.agent_version,
        "agent": _json(new.agent),
        "vault_ids": list(new.vault_ids),
        "budget": _json_or_null(new.budget),
        "usage": _json(UNUSED),
        "starts": starts,
        "input_ids": [event_id for event_id, _, _ in queued],
        "input_types": [kind for _, kind, _ in queued],
        "input_bodies": [_json(body) for _, _, body in queued],
    }


async def _live_children(connection: Connection, session_id: str) -> list[tuple[str, str]]:
    cursor = await connection.execute(
        "select id, agent ->> 'name' as name from threads where session_id = %s and status <> 'terminated'"
        " and parent_thread_id is not null order by created_at, id",
        (session_id,),
    )
    return [(row["id"], row["name"]) for row in await cursor.fetchall()]


def thread_terminated(thread_id: str, agent_name: str) -> NewEvent:
    """The end of a child thread, for all to see."""
    kind = "session.thread_status_terminated"
    ended = new_event(kind, thread_id, session_thread_id=thread_id, agent_name=agent_name)
    return msgspec.structs.replace(ended, crossposted=EVERYBODY)


async def locked(connection: Connection, session_id: str) -> Row:
    """The row of a session, locked until the transaction ends. Raises `NotFound`."""
    cursor = await connection.execute(
        "select " + COLUMNS + " from sessions s where s.id = %s for update", (session_id,)
    )
    row = await cursor.fetchone()
    if row is None:
        raise not_found(session_id)
    return row


async def append_error(
    connection: Connection, session_id: str, kind: str, message: str, details: Mapping[str, Any]
) -> bool:
    """Append a ``session.error`` that is retried and stops nothing; False if the session has ended.

    Raises:
        NotFound: there is no such session.
    """
    row = await locked(connection, session_id)
    if row["archived_at"] is not None or row["status"] == "terminated":
        return False
    error = {"type": kind, "message": message, **details, "retry_status": {"type": "retrying"}}
    await append(connection, row, new_event("session.error", row["primary_thread_id"], error=error))
    return True


async def append(connection: Connection, row: Row, event: NewEvent) -> None:
    """Append an event to the log of a session whose row is locked."""
    body, private = event.body_text(), event.private_text()
    await connection.execute(
        "with s as (update sessions set last_seq = last_seq + 1,"
        " last_event_at = greatest(clock_timestamp(), last_event_at) where id = %(session)s"
        " returning last_seq, last_event_at)"
        " insert into events"
        " (session_id, seq, id, thread_id, type, body, private, resolves, processed_at, crossposted, digest)"
        " select %(session)s, last_seq, %(id)s, %(thread)s, %(type)s, %(body)s::json, %(private)s::json,"
        " %(resolves)s, last_event_at, %(crossposted)s, decode(%(digest)s, 'hex') from s",
        {
            "session": row["id"],
            "id": event.id,
            "thread": event.thread_id,
            "type": event.type,
            "body": body,
            "private": private,
            "resolves": event.resolves,
            "crossposted": event.crossposted,
            "digest": digests_of([event], [(body, private)], None)[0],
        },
    )


async def _inputs(connection: Connection, session_id: str) -> list[Input]:
    cursor = await connection.execute(
        "select position, id, type, thread_id, body::text as body from inputs where session_id = %s"
        " order by position",
        (session_id,),
    )
    return [
        Input(row["position"], row["id"], row["type"], row["thread_id"], msgspec.json.decode(row["body"]))
        for row in await cursor.fetchall()
    ]


def _refuse_while_running(row: Row, verb: str) -> None:
    if row["status"] in ("running", "rescheduling"):
        raise InvalidRequest(
            f"Cannot {verb} session while it is running. Send an interrupt event or wait for the session to "
            "complete."
        )


def _changed(row: Row, change: SessionChange) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    if change.title is not msgspec.UNSET and change.title != row["title"]:
        changed["title"] = change.title
    if change.metadata is not msgspec.UNSET and change.metadata != msgspec.json.decode(row["metadata"]):
        changed["metadata"] = dict(change.metadata)
    if change.agent is not msgspec.UNSET and change.agent != msgspec.json.decode(row["agent"]):
        changed["agent"] = dict(change.agent)
    if change.budget is not msgspec.UNSET and _json_or_null(change.budget) != _json_or_null(budget_of(row)):
        changed["budget"] = change.budget
    return changed


def _json_or_null(value: object) -> str | None:
    return None if value is None else _json(value)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
