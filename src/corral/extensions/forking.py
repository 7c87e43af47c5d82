"""Forks: a new session whose log is a copy of another one's, up to any event of it."""

from datetime import datetime
from typing import Any, Final, LiteralString, Protocol

import msgspec

from corral.bus.hub import Bus, session_topic
from corral.extensions.log_copy import LogCopy, silence_webhooks
from corral.extensions.origins import write_origin
from corral.extensions.renaming import Renaming
from corral.inference.prices import PriceTable
from corral.resources.environments import Environments
from corral.session.chain import StoredEvent, Walk
from corral.session.records import locked
from corral.session.sealing import EVENT_COLUMNS
from corral.session.shown import Row, not_found
from corral.session.usage import UNUSED
from corral.store.database import Connection, Database
from corral.wire import metadata as meta
from corral.wire.environments import SelfHosted, check_reach
from corral.wire.errors import InvalidRequest
from corral.wire.forks import EVENTS, ForkSession
from corral.wire.ids import new_id

PAGE: Final = 500
_SOURCE: Final[LiteralString] = (
    "select id, title, metadata::text as metadata, environment_id, agent_id, agent_version,"
    " agent::text as agent, vault_ids, budget::text as budget, primary_thread_id, last_seq, created_at"
    " from sessions where id = %s"
)


class WorkItems(Protocol):
    """Who sees to it that a session has a work item; `corral.hands.work.WorkQueue` does."""

    async def ensure(self, session_id: str, environment_id: str) -> bool:
        """Queue an item unless the session has one."""
        ...


class Forking:
    """Forks sessions."""

    def __init__(
        self,
        database: Database,
        bus: Bus,
        *,
        environments: Environments,
        work: WorkItems,
        prices: PriceTable,
    ) -> None:
        self._database = database
        self._bus = bus
        self._environments = environments
        self._work = work
        self._prices = prices

    async def fork(self, session_id: str, params: ForkSession) -> Row:
        """The row of the new session: all of it is there afterwards, or nothing.

        Raises:
            NotFound: there is no such session. InvalidRequest: it has no such event in its log, the log is
            too long, or its environment is archived.
        """
        metadata = None if params.metadata is None else meta.created(params.metadata)
        async with self._database.transaction() as connection:
            source = await _source(connection, session_id)
            cut, at = await _cut(connection, source, params.event_id)
            environment = await self._environments.for_session(source["environment_id"])
            agent = await agent_at(connection, source, cut)
            check_reach(environment.config, agent)
            self_hosted = isinstance(environment.config, SelfHosted)
            forked, thread = new_id("sesn"), new_id("sthr")
            await _insert_session(connection, source, forked, thread, agent)
            renaming = await _renaming(connection, session_id, cut)
            renaming.names[source["primary_thread_id"]] = thread
            renaming.add((), "sthr")
            renaming.names[session_id] = forked
            left_out = await _copy_resources(connection, source, forked, at, renaming)
            copy = LogCopy(
                connection,
                forked,
                thread,
                renaming,
                self_hosted=self_hosted,
                agent=agent,
                prices=self._prices,
            )
            walk = await _copy_log(connection, session_id, cut, copy)
            changes = _changes(params, source, metadata, copy)
            origin = {
                "session_id": session_id,
                "event_id": walk.last_id,
                "seq": walk.seq,
                "head": walk.head.hex() if walk.seq else None,
            }
            ended = await copy.close({"kind": "fork", **origin}, await _now(connection), **changes)
            await copy.write_threads(await _archived(connection, session_id, renaming))
            await finish(connection, forked, copy, ended, changes)
            await write_origin(connection, forked, "fork", origin, left_out)
            await silence_webhooks(connection, forked)
            row = await locked(connection, forked)
        if self_hosted:
            await self._work.ensure(forked, environment.id)
        await self._bus.publish(session_topic(forked))
        return row


async def _source(connection: Connection, session_id: str) -> Row:
    # Against its being deleted while it is copied; it may be written to meanwhile.
    cursor = await connection.execute(_SOURCE + " for key share", (session_id,))
    row = await cursor.fetchone()
    if row is None:
        raise not_found(session_id)
    return row


async def _cut(connection: Connection, source: Row, event_id: str | None) -> tuple[int, datetime]:
    """The place of the last event to copy, and its time."""
    if event_id is None:
        seq = source["last_seq"]
        cursor = await connection.execute(
            "select seq, processed_at from events where session_id = %s and seq = %s", (source["id"], seq)
        )
    else:
        cursor = await connection.execute(
            "select seq, processed_at from events where session_id = %s and id = %s", (source["id"], event_id)
        )
    row = await cursor.fetchone()
    if row is None and event_id is not None:
        raise InvalidRequest(f"event_id: {event_id} is not in the log of session {source['id']}")
    if row is None:
        return 0, source["created_at"]
    if row["seq"] > EVENTS:
        raise InvalidRequest(f"event_id: a fork has at most {EVENTS} events")
    return row["seq"], row["processed_at"]


async def agent_at(connection: Connection, source: Row, cut: int) -> dict[str, Any]:
    """The session's agent as it was after event `cut`: the next change after it tells what it changed."""
    cursor = await connection.execute(
        "select readable(private) #> '{former,agent}' as agent from events where session_id = %s and seq > %s"
        " and type = 'session.updated' and readable(private) #> '{former,agent}' is not null"
        " order by seq limit 1",
        (source["id"], cut),
    )
    row = await cursor.fetchone()
    return msgspec.json.decode(source["agent"]) if row is None else row["agent"]


async def _insert_session(
    connection: Connection, source: Row, session_id: str, thread_id: str, agent: dict[str, Any]
) -> None:
    await connection.execute(
        "insert into sessions (id, title, metadata, environment_id, agent_id, agent_version, agent,"
        " vault_ids, budget, primary_thread_id, usage) values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
        (
            session_id,
            source["title"],
            source["metadata"],
            source["environment_id"],
            agent["id"],
            agent["version"],
            msgspec.json.encode(agent).decode(),
            source["vault_ids"],
            source["budget"],
            thread_id,
            msgspec.json.encode(UNUSED).decode(),
        ),
    )


async def _renaming(connection: Connection, session_id: str, cut: int) -> Renaming:
    renaming = Renaming()
    cursor = await connection.execute(
        "select id,"
        " case when type = 'session.thread_created' then readable(body) ->> 'session_thread_id' end"
        " as thread,"
        " case when type = 'user.define_outcome' then readable(body) ->> 'outcome_id' end as outcome"
        " from events where session_id = %s and seq <= %s",
        (session_id, cut),
    )
    rows = await cursor.fetchall()
    renaming.add([row["id"] for row in rows], "sevt")
    renaming.add([row["outcome"] for row in rows if row["outcome"]], "outc")
    renaming.add([row["thread"] for row in rows if row["thread"]], "sthr")
    return renaming


async def _copy_resources(
    connection: Connection, source: Row, session_id: str, at: datetime, renaming: Renaming
) -> list[str]:
    """Attach what was attached to the source by then; says what could not come along."""
    cursor = await connection.execute(
        "select r.id, r.type, r.mount_path, r.file_id, r.body, r.created_at = s.created_at as from_start,"
        " f.blob_id, f.filename, f.mime_type, f.size_bytes, f.expires_at,"
        " exists (select from session_repository_secrets x where x.resource_id = r.id) as has_token,"
        " (f.expires_at is not null and (f.blob_id is null or f.expires_at <= now())) as expired"
        " from session_resources r join sessions s on s.id = r.session_id"
        " left join files f on f.id = r.file_id"
        " where r.session_id = %s and r.created_at <= greatest(%s, s.created_at) order by r.position"
        " for share of r",
        (source["id"], at),
    )
    left_out: list[str] = []
    for row in await cursor.fetchall():
        if row["type"] == "file":
            if row["expired"]:
                left_out.append(f"{row['mount_path']}: the file has expired")
                continue
            renaming.add([row["file_id"]], "file")
            await connection.execute(
                "insert into files (id, blob_id, filename, mime_type, size_bytes, session_id, expires_at)"
                " values (%s, %s, %s, %s, %s, %s, %s)",
                (
                    renaming.name(row["file_id"]),
                    row["blob_id"],
                    row["filename"],
                    row["mime_type"],
                    row["size_bytes"],
                    session_id,
                    row["expires_at"],
                ),
            )
        if row["has_token"]:
            left_out.append(f"{row['mount_path']}: the token of the repository; give it one anew")
        renaming.add([row["id"]], "sesrsc")
        body = renaming.value(row["body"])
        await connection.execute(
            "insert into session_resources (id, session_id, type, mount_path, file_id, body, created_at)"
            # What a session began with is told to its model: it has to be told the same.
            " values (%s, %s, %s, %s, %s, %s, case when %s then now() else clock_timestamp() end)",
            (
                renaming.name(row["id"]),
                session_id,
                row["type"],
                row["mount_path"],
                None if row["file_id"] is None else renaming.name(row["file_id"]),
                msgspec.json.encode(body).decode(),
                row["from_start"],
            ),
        )
    for table, columns in _COPIED.items():
        await connection.execute(
            "insert into "
            + table
            + " (session_id, "
            + columns
            + ") select %s, "
            + columns
            + " from "
            + table
            + " where session_id = %s",
            (session_id, source["id"]),
        )
    return left_out


_COPIED: Final[dict[LiteralString, LiteralString]] = {
    "session_skills": "position, skill_id, version_id, name, description",
    "session_mcp_tools": "server_name, url, tools, listed_at",
}


async def _copy_log(connection: Connection, session_id: str, cut: int, copy: LogCopy) -> Walk:
    walk, after = Walk(session_id), 0
    while after < cut:
        cursor = await connection.execute(
            "select " + EVENT_COLUMNS + " from events where session_id = %s and seq > %s and seq <= %s"
            " order by seq limit %s",
            (session_id, after, cut, PAGE),
        )
        events = [StoredEvent(**row) for row in await cursor.fetchall()]
        if not events:
            break
        for event in events:
            walk.add(event)
        await copy.add(events)
        after = events[-1].seq
    return walk


def _changes(
    params: ForkSession, source: Row, metadata: dict[str, str] | None, copy: LogCopy
) -> dict[str, Any]:
    """What is changed by the fork, in the words of ``session.updated``."""
    changes: dict[str, Any] = {}
    if not isinstance(params.title, msgspec.UnsetType):
        changes["title"] = params.title
    if metadata is not None:
        changes["metadata"] = metadata
    budget = None if source["budget"] is None else msgspec.json.decode(source["budget"])
    if budget is not None or copy.state.budget is not None:
        # It counts from here, whatever the log said before of it.
        changes["budget"] = budget
    return changes


async def _archived(connection: Connection, session_id: str, renaming: Renaming) -> frozenset[str]:
    cursor = await connection.execute(
        "select id from threads where session_id = %s and archived_at is not null", (session_id,)
    )
    return frozenset(renaming.name(row["id"]) for row in await cursor.fetchall())


async def _now(connection: Connection) -> datetime:
    cursor = await connection.execute("select clock_timestamp() as at")
    row = await cursor.fetchone()
    assert row is not None
    return row["at"]


async def finish(
    connection: Connection, session_id: str, copy: LogCopy, ended: datetime, changes: dict[str, Any]
) -> None:
    """Bring the new session's row in line with its log."""
    await connection.execute(
        "update sessions set last_seq = %s, last_event_at = %s, status = 'idle',"
        " title = case when %s then %s else title end, metadata = coalesce(%s::json, metadata) where id = %s",
        (
            copy.state.seq,
            ended,
            "title" in changes,
            changes.get("title"),
            None if "metadata" not in changes else msgspec.json.encode(changes["metadata"]).decode(),
            session_id,
        ),
    )
