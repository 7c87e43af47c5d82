"""The rows of sessions: create, retrieve, list, update, archive, delete (contract section 8).

Every write locks the session's row before anything else of the session, as the log's writer does, so that
no two writers can wait for each other.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, LiteralString

import msgspec

from corral.session.events import Input, NewEvent, new_event
from corral.session.usage import UNUSED
from corral.store.database import Connection, Database
from corral.wire.errors import InvalidRequest, NotFound
from corral.wire.ids import new_id
from corral.wire.session_resources import resource_object
from corral.wire.times import from_wire, to_wire

Row = dict[str, Any]
Attach = Callable[[Connection, str], Awaitable[None]]

_COLUMNS: Final[LiteralString] = (
    "s.id, s.created_at, s.updated_at, s.archived_at, s.title, s.metadata::text as metadata,"
    " s.environment_id, s.deployment_id, s.agent_id, s.agent_version, s.agent::text as agent, s.vault_ids,"
    " s.primary_thread_id, s.status, s.usage::text as usage, s.running_since, s.last_seq, s.last_input,"
    " s.epoch, now() as read_at,"
    " (select json_agg(json_build_array(r.id, r.type, r.body, r.created_at, r.updated_at)"
    " order by r.position) from session_resources r where r.session_id = s.id) as resources"
)


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


class SessionRecords:
    """Sessions as rows. Events that a change of a row makes are appended in the same transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(
        self,
        new: NewSession,
        inputs: Sequence[tuple[str, str, Mapping[str, Any]]],
        attach: Attach | None = None,
    ) -> Row:
        """Make a session, with the inputs ``(id, type, body)`` that it starts on already queued.

        With inputs the session is ``running`` from the start, and a brain is called (contract section 8.3).
        `attach` runs in the same transaction, on the session's id: what it raises undoes all.
        """
        session_id, thread_id = new_id("sesn"), new_id("sthr")
        async with self._database.transaction() as connection:
            await connection.execute(
                "insert into sessions (id, title, metadata, environment_id, deployment_id, agent_id,"
                " agent_version, agent, vault_ids, primary_thread_id, usage, last_input, status,"
                " running_since)"
                " values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s::bigint,"
                " case when %s::bigint > 0 then 'running' else 'idle' end,"
                " case when %s::bigint > 0 then now() end)",
                (
                    session_id,
                    new.title,
                    _json(new.metadata),
                    new.environment_id,
                    new.deployment_id,
                    new.agent_id,
                    new.agent_version,
                    _json(new.agent),
                    list(new.vault_ids),
                    thread_id,
                    _json(UNUSED),
                    len(inputs),
                    len(inputs),
                    len(inputs),
                ),
            )
            if attach is not None:
                await attach(connection, session_id)
            for position, (input_id, kind, body) in enumerate(inputs, 1):
                await connection.execute(
                    "insert into inputs (session_id, position, id, thread_id, type, body)"
                    " values (%s, %s, %s, %s, %s, %s)",
                    (session_id, position, input_id, thread_id, kind, _json(body)),
                )
            if inputs:
                await connection.execute("insert into wakes (session_id) values (%s)", (session_id,))
            return await _locked(connection, session_id)

    async def retrieve(self, session_id: str) -> Row:
        """The row of a session; raises `NotFound`."""
        row = await self._database.fetch_one(
            "select " + _COLUMNS + " from sessions s where s.id = %s", (session_id,)
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
            "select " + _COLUMNS + " from sessions s where"
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

    async def update(self, session_id: str, decide: Callable[[Row], SessionChange]) -> Row:
        """Change a session under its lock: `decide` sees the row and says what to set.

        A ``session.updated`` event is appended if something changed, holding only what changed
        (contract section 8.5).
        """
        async with self._database.transaction() as connection:
            row = await _locked(connection, session_id)
            change = decide(row)
            changed = _changed(row, change)
            if not changed:
                return row
            if changed.get("metadata") == {}:
                del changed["metadata"]  # documented: absent when cleared to empty
            await connection.execute(
                "update sessions set title = %s, metadata = %s, agent = %s, updated_at = now() where id = %s",
                (
                    row["title"] if change.title is msgspec.UNSET else change.title,
                    row["metadata"] if change.metadata is msgspec.UNSET else _json(change.metadata),
                    row["agent"] if change.agent is msgspec.UNSET else _json(change.agent),
                    session_id,
                ),
            )
            await _append(connection, row, new_event("session.updated", row["primary_thread_id"], **changed))
            return await _locked(connection, session_id)

    async def archive(self, session_id: str) -> Row:
        """Archive a session: terminated, read-only, for good; archiving again changes nothing.

        Raises:
            InvalidRequest: it is running (contract section 8.7).
        """
        async with self._database.transaction() as connection:
            row = await _locked(connection, session_id)
            if row["archived_at"] is not None:
                return row
            _refuse_while_running(row, "archive")
            # What was accepted stays to be seen, though nobody will act on it any more.
            for waiting in await _inputs(connection, session_id):
                await _append(connection, row, waiting.taken())
            await _append(connection, row, new_event("session.status_terminated", row["primary_thread_id"]))
            # A brain that was about to claim it finds another epoch.
            await connection.execute(
                "update sessions set archived_at = now(), status = 'terminated', running_since = null,"
                " epoch = epoch + 1, updated_at = now() where id = %s",
                (session_id,),
            )
            await connection.execute("delete from wakes where session_id = %s", (session_id,))
            await connection.execute("delete from inputs where session_id = %s", (session_id,))
            return await _locked(connection, session_id)

    async def delete(self, session_id: str) -> None:
        """Remove a session with its log, inputs and work.

        Raises:
            InvalidRequest: it is running (contract section 8.7).
        """
        async with self._database.transaction() as connection:
            row = await _locked(connection, session_id)
            _refuse_while_running(row, "delete")
            await connection.execute("delete from sessions where id = %s", (session_id,))


def not_found(session_id: str) -> NotFound:
    """The error for a session that does not exist, or not for this credential."""
    return NotFound(f"session {session_id} not found")


def session_object(row: Row) -> dict[str, Any]:
    """The session as the API shows it (contract section 8.1)."""
    now: datetime = row["read_at"]
    usage = msgspec.json.decode(row["usage"])
    if row["running_since"] is not None:
        running = max(0.0, (now - row["running_since"]).total_seconds())
        usage["active_seconds"] = round(usage["active_seconds"] + running, 3)
    end: datetime = row["archived_at"] or now
    return {
        "id": row["id"],
        "type": "session",
        "status": row["status"],
        "title": row["title"],
        "metadata": msgspec.json.decode(row["metadata"]),
        "environment_id": row["environment_id"],
        "deployment_id": row["deployment_id"],
        "agent": msgspec.json.decode(row["agent"]),
        "resources": _resources(row),
        "vault_ids": row["vault_ids"],
        "outcome_evaluations": [],
        "budget": None,
        "stats": {
            "active_seconds": usage["active_seconds"],
            "duration_seconds": round((end - row["created_at"]).total_seconds(), 3),
        },
        "usage": usage,
        "created_at": to_wire(row["created_at"]),
        "updated_at": to_wire(row["updated_at"]),
        "archived_at": None if row["archived_at"] is None else to_wire(row["archived_at"]),
    }


def _resources(row: Row) -> list[dict[str, Any]]:
    return [
        resource_object(id, type, body, to_wire(from_wire(created)), to_wire(from_wire(updated)))
        for id, type, body, created, updated in row["resources"] or ()
    ]


def thread_object(row: Row) -> dict[str, Any]:
    """The primary thread of a session as the API shows it (contract section 11.2)."""
    session = session_object(row)
    agent = {name: value for name, value in session["agent"].items() if name != "multiagent"}
    ran = row["last_seq"] > 0
    kept = ("input_tokens", "output_tokens", "cache_read_input_tokens", "active_seconds", "list_cost")
    usage = {name: session["usage"][name] for name in (*kept, "cache_creation")}
    return {
        "type": "session_thread",
        "id": row["primary_thread_id"],
        "session_id": row["id"],
        "parent_thread_id": None,
        "agent": agent,
        "status": session["status"],
        "workflow_run_id": None,
        "stats": {**session["stats"], "startup_seconds": 0.0} if ran else None,
        "usage": usage if session["usage"]["cache_creation"] is not None else None,
        "created_at": session["created_at"],
        "updated_at": session["updated_at"],
        "archived_at": session["archived_at"],
    }


async def _locked(connection: Connection, session_id: str) -> Row:
    cursor = await connection.execute(
        "select " + _COLUMNS + " from sessions s where s.id = %s for update", (session_id,)
    )
    row = await cursor.fetchone()
    if row is None:
        raise not_found(session_id)
    return row


async def _append(connection: Connection, row: Row, event: NewEvent) -> None:
    await connection.execute(
        "with s as (update sessions set last_seq = last_seq + 1,"
        " last_event_at = greatest(clock_timestamp(), last_event_at) where id = %(session)s"
        " returning last_seq, last_event_at)"
        " insert into events (session_id, seq, id, thread_id, type, body, resolves, processed_at)"
        " select %(session)s, last_seq, %(id)s, %(thread)s, %(type)s, %(body)s::json, %(resolves)s,"
        " last_event_at from s",
        {
            "session": row["id"],
            "id": event.id,
            "thread": event.thread_id,
            "type": event.type,
            "body": event.body_text(),
            "resolves": event.resolves,
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
    return changed


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
