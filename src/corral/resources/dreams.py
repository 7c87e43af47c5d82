"""Dreams as clients ask for them: create, look at, cancel, archive (contract section 21).

A dream is a row. What it does while it runs is the work of `corral.resources.dream_pipeline`.
"""

from collections.abc import Sequence
from typing import Any, Final, LiteralString

import msgspec
from psycopg import errors
from psycopg.rows import DictRow

from corral.bus.hub import DREAMS_TOPIC, Bus, session_topic
from corral.resources import listing
from corral.store.database import Connection, Database
from corral.wire.dreams import (
    CreateDream,
    CreateNew,
    Dream,
    DreamError,
    DreamModel,
    DreamOutput,
    DreamUsage,
    MemoryStoreInput,
    SessionsInput,
    UpdateExisting,
)
from corral.wire.errors import Conflict, InvalidRequest, NotFound
from corral.wire.ids import new_id
from corral.wire.pagination import Listing, Page, check_within
from corral.wire.query import TimeRange
from corral.wire.times import to_wire

LIST: Final = "dreams"

COLUMNS: Final[LiteralString] = (
    "d.id, d.status, d.input_store_id, d.session_ids, d.model, d.instructions, d.updates_input,"
    " d.output_store_id, d.session_id, d.usage, d.error_type, d.error_message, d.created_at, d.started_at,"
    " d.ended_at, d.stopped_at, d.archived_at"
)


class Dreams:
    """The dreams in a database."""

    def __init__(self, database: Database, bus: Bus) -> None:
        self._database = database
        self._bus = bus

    async def create(self, params: CreateDream) -> Dream:
        """Queue a dream.

        Raises:
            NotFound: the store or one of the sessions does not exist; the message names the field.
            InvalidRequest: the store is archived.
            Conflict: the dream would update its input, and another that does so has not stopped yet.
        """
        updates = isinstance(params.output_behavior, UpdateExisting)
        try:
            async with self._database.transaction() as connection:
                await _check_store(connection, params)
                await _check_sessions(connection, params)
                cursor = await connection.execute(
                    "insert into dreams as d (id, input_store_id, session_ids, model, instructions,"
                    " updates_input, usage) values (%s, %s, %s, %s::json, %s, %s, %s::json) returning "
                    + COLUMNS,
                    (
                        new_id("drm"),
                        params.store_id,
                        sorted(params.session_ids),
                        _json(params.model_config),
                        params.instructions,
                        updates,
                        _json(DreamUsage()),
                    ),
                )
                row = await cursor.fetchone()
                assert row is not None
        except errors.UniqueViolation:
            raise Conflict(
                f"Another dream that updates memory store {params.store_id} has not stopped yet. Wait until "
                "it has ended, or cancel it; one that was just canceled needs a moment to wind down."
            ) from None
        await self._bus.publish(DREAMS_TOPIC)
        return _shown(row)

    async def retrieve(self, dream_id: str) -> Dream:
        """A dream, archived or not.

        Raises:
            NotFound: there is no such dream.
        """
        return _shown(await self._row(dream_id))

    async def cancel(self, dream_id: str) -> Dream:
        """End a dream: from now on it changes nothing any more. Once canceled, again changes nothing.

        Raises:
            NotFound: there is no such dream.
            InvalidRequest: it has completed or failed.
        """
        await self._database.execute(
            "update dreams set status = 'canceled', ended_at = clock_timestamp(),"
            " stopped_at = case when status = 'pending' then clock_timestamp() end"
            " where id = %s and status in ('pending', 'running')",
            (dream_id,),
        )
        row = await self._row(dream_id)
        await self._bus.publish(DREAMS_TOPIC)
        if row["session_id"] is not None:
            await self._bus.publish(session_topic(row["session_id"]))  # a server may be following it
        if row["status"] != "canceled":
            raise InvalidRequest(f"Dream {dream_id} has {row['status']} and cannot be canceled any more.")
        return _shown(row)

    async def archive(self, dream_id: str) -> Dream:
        """Keep an ended dream out of lists; again changes nothing.

        Raises:
            NotFound: there is no such dream.
            InvalidRequest: it has not ended.
        """
        await self._database.execute(
            "update dreams set archived_at = clock_timestamp()"
            " where id = %s and archived_at is null and ended_at is not null",
            (dream_id,),
        )
        row = await self._row(dream_id)
        if row["archived_at"] is None:
            raise InvalidRequest(
                f"Dream {dream_id} is {row['status']}. Cancel it first, or wait for its end."
            )
        return _shown(row)

    async def list(
        self,
        page: Page,
        times: TimeRange,
        *,
        statuses: Sequence[str] | None = None,
        include_archived: bool = False,
    ) -> Listing:
        """Dreams, newest first; of `times`, ``gt`` and ``lt`` count.

        Raises:
            InvalidRequest: ``times`` excludes the position of the cursor.
        """
        check_within(page.after, times)
        moment, last = listing.start(page.after)
        rows = await self._database.fetch(
            "select " + COLUMNS + " from dreams d"
            " where (%(moment)s::timestamptz is null or (d.created_at, d.id) < (%(moment)s, %(last)s))"
            " and (%(statuses)s::text[] is null or d.status = any(%(statuses)s))"
            " and (%(archived)s or d.archived_at is null)"
            " and (%(gt)s::timestamptz is null or d.created_at > %(gt)s)"
            " and (%(lt)s::timestamptz is null or d.created_at < %(lt)s)"
            " order by d.created_at desc, d.id desc limit %(limit)s",
            {
                "moment": moment,
                "last": last,
                "statuses": None if statuses is None else [*statuses],
                "archived": include_archived,
                "gt": times.gt,
                "lt": times.lt,
                "limit": page.limit + 1,
            },
        )
        kept, next_page = listing.split(rows, page, LIST)
        return Listing(data=[_shown(row) for row in kept], next_page=next_page)

    async def _row(self, dream_id: str) -> DictRow:
        row = await self._database.fetch_one(
            "select " + COLUMNS + " from dreams d where d.id = %s", (dream_id,)
        )
        if row is None:
            raise NotFound(f"Dream {dream_id} not found.")
        return row


def usage_of(session_usage: dict[str, Any]) -> DreamUsage:
    """A dream's tokens, from its session's usage as the API shows that."""
    written: dict[str, int] = session_usage["cache_creation"] or {}
    return DreamUsage(
        input_tokens=session_usage["input_tokens"],
        output_tokens=session_usage["output_tokens"],
        cache_read_input_tokens=session_usage["cache_read_input_tokens"],
        cache_creation_input_tokens=sum(written.values()),
    )


async def _check_store(connection: Connection, params: CreateDream) -> None:
    cursor = await connection.execute(
        "select archived_at from memory_stores where id = %s for share", (params.store_id,)
    )
    store = await cursor.fetchone()
    if store is None:
        raise NotFound(f"{params.store_path}: memory store {params.store_id} not found")
    if store["archived_at"] is not None:
        raise InvalidRequest(f"{params.store_path}: memory store {params.store_id} is archived; use another")


async def _check_sessions(connection: Connection, params: CreateDream) -> None:
    cursor = await connection.execute("select id from sessions where id = any(%s)", (params.session_ids,))
    found = {row["id"] for row in await cursor.fetchall()}
    for session_id in params.session_ids:
        if session_id not in found:
            raise NotFound(f"{params.session_path(session_id)}: session {session_id} not found")


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _shown(row: DictRow) -> Dream:
    output, ended, archived = row["output_store_id"], row["ended_at"], row["archived_at"]
    error = None
    if row["error_type"] is not None:
        error = DreamError(type=row["error_type"], message=row["error_message"])
    return Dream(
        id=row["id"],
        status=row["status"],
        inputs=[
            MemoryStoreInput(memory_store_id=row["input_store_id"]),
            SessionsInput(session_ids=row["session_ids"]),
        ],
        outputs=[] if output is None else [DreamOutput(memory_store_id=output)],
        model=msgspec.convert(row["model"], DreamModel),
        instructions=row["instructions"],
        output_behavior=UpdateExisting(memory_store_id=row["input_store_id"])
        if row["updates_input"]
        else CreateNew(),
        session_id=row["session_id"],
        error=error,
        usage=msgspec.convert(row["usage"], DreamUsage),
        created_at=to_wire(row["created_at"]),
        ended_at=None if ended is None else to_wire(ended),
        archived_at=None if archived is None else to_wire(archived),
    )
