"""The history of memories: a version for each change, kept when the memory is gone (contract 16.3)."""

from datetime import datetime
from typing import Final

import msgspec
from psycopg.rows import DictRow

from corral.resources import listing, memory_stores
from corral.store.database import Connection, Database
from corral.wire.errors import InvalidRequest, NotFound
from corral.wire.ids import new_id
from corral.wire.memories import Actor, ApiActor, MemoryVersion, Operation, SessionActor, sha256_of
from corral.wire.pagination import Listing, Page, check_within
from corral.wire.query import TimeRange
from corral.wire.times import to_wire

LIST: Final = "memory_versions"

_COLUMNS: Final = (
    "id, store_id, memory_id, operation, path, content_sha256, content_size_bytes, created_at,"
    " session_id, api_key_id, redacted_at, redacted_by_api_key_id"
)
_FULL: Final = "content"
_BASIC: Final = "null::text as content"


class VersionFilter(msgspec.Struct, frozen=True, kw_only=True):
    """What a list of versions is narrowed to; None does not narrow. Of `times`, ``gte`` and ``lte`` count."""

    memory_id: str | None = None
    session_id: str | None = None
    api_key_id: str | None = None
    service_account_id: str | None = None
    operation: Operation | None = None
    times: TimeRange = TimeRange()


class MemoryVersions:
    """The versions in a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def retrieve(self, store_id: str, version_id: str, *, full: bool = True) -> MemoryVersion:
        """A version, redacted or not.

        Raises:
            NotFound: there is no such version in this store.
        """
        row = await self._database.fetch_one(
            "select " + _COLUMNS + ", " + (_FULL if full else _BASIC) + " from memory_versions"
            " where id = %s and store_id = %s",
            (version_id, store_id),
        )
        return _shown(_found(row, version_id))

    async def list(self, store_id: str, page: Page, narrow: VersionFilter, *, full: bool = False) -> Listing:
        """Versions of a store, newest first.

        Raises:
            NotFound: there is no such store. A memory that is unknown gives an empty list.
            InvalidRequest: the times exclude the cursor's position.
        """
        check_within(page.after, narrow.times)
        moment, last = listing.start(page.after)
        rows = await self._database.fetch(
            "select " + _COLUMNS + ", " + (_FULL if full else _BASIC) + " from memory_versions"
            " where store_id = %(store_id)s"
            " and (%(moment)s::timestamptz is null or (created_at, id) < (%(moment)s, %(last)s))"
            " and (%(memory_id)s::text is null or memory_id = %(memory_id)s)"
            " and (%(session_id)s::text is null or session_id = %(session_id)s)"
            " and (%(api_key_id)s::text is null or api_key_id = %(api_key_id)s)"
            # There are no service accounts here, so none has ever written anything.
            " and %(service_account_id)s::text is null"
            " and (%(operation)s::text is null or operation = %(operation)s)"
            " and (%(gte)s::timestamptz is null or created_at >= %(gte)s)"
            " and (%(lte)s::timestamptz is null or created_at <= %(lte)s)"
            " order by created_at desc, id desc limit %(limit)s",
            {
                **msgspec.structs.asdict(narrow),
                "times": None,
                "gte": narrow.times.gte,
                "lte": narrow.times.lte,
                "store_id": store_id,
                "moment": moment,
                "last": last,
                "limit": page.limit + 1,
            },
        )
        if not rows:
            await exists(self._database, store_id)
        kept, next_page = listing.split(rows, page, LIST, scope=store_id)
        return Listing(data=[_shown(row) for row in kept], next_page=next_page)

    async def redact(self, store_id: str, version_id: str, by: ApiActor) -> MemoryVersion:
        """Take content, path, size and hash out of a version for good; again changes nothing.

        Raises:
            NotFound: there is no such version in this store.
            InvalidRequest: it is the newest version of a memory that lives.
        """
        async with self._database.transaction() as connection:
            await memory_stores.locked(connection, store_id)
            head = await (
                await connection.execute(
                    "select id from memories where version_id = %s and store_id = %s", (version_id, store_id)
                )
            ).fetchone()
            if head is not None:
                raise InvalidRequest(
                    f"Memory version {version_id} holds the current content of memory {head['id']}. "
                    "Update or delete the memory first."
                )
            await connection.execute(
                "update memory_versions set path = null, content = null, content_sha256 = null,"
                " content_size_bytes = null, redacted_at = clock_timestamp(), redacted_by_api_key_id = %s"
                " where id = %s and store_id = %s and redacted_at is null",
                (by.api_key_id, version_id, store_id),
            )
            cursor = await connection.execute(
                "select " + _COLUMNS + ", " + _FULL + " from memory_versions where id = %s and store_id = %s",
                (version_id, store_id),
            )
            return _shown(_found(await cursor.fetchone(), version_id))


class Change(msgspec.Struct, frozen=True):
    """A change of a memory about to be recorded; ``content`` is None for a deletion."""

    store_id: str
    memory_id: str
    operation: Operation
    path: str
    content: str | None
    by: Actor


async def record(connection: Connection, change: Change) -> tuple[str, datetime]:
    """Append the version of a change; its id, and when it was made. The store is locked by the caller."""
    content = change.content
    cursor = await connection.execute(
        "insert into memory_versions (id, store_id, memory_id, operation, path, content, content_sha256,"
        " content_size_bytes, session_id, api_key_id) values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
        " returning id, created_at",
        (
            new_id("memver"),
            change.store_id,
            change.memory_id,
            change.operation,
            change.path,
            content,
            None if content is None else sha256_of(content),
            None if content is None else len(content.encode()),
            change.by.session_id if isinstance(change.by, SessionActor) else None,
            change.by.api_key_id if isinstance(change.by, ApiActor) else None,
        ),
    )
    row = await cursor.fetchone()
    assert row is not None
    return row["id"], row["created_at"]


async def exists(database: Database, store_id: str) -> None:
    """Return if there is such a store.

    Raises:
        NotFound: there is none.
    """
    if await database.fetch_one("select 1 as one from memory_stores where id = %s", (store_id,)) is None:
        raise memory_stores.not_found(store_id)


def _found(row: DictRow | None, version_id: str) -> DictRow:
    if row is None:
        raise NotFound(f"Memory version {version_id} not found.")
    return row


def _shown(row: DictRow) -> MemoryVersion:
    by: Actor | None = None
    if row["session_id"] is not None:
        by = SessionActor(row["session_id"])
    elif row["api_key_id"] is not None:
        by = ApiActor(row["api_key_id"])
    redacted, redactor = row["redacted_at"], row["redacted_by_api_key_id"]
    return MemoryVersion(
        id=row["id"],
        memory_id=row["memory_id"],
        memory_store_id=row["store_id"],
        operation=row["operation"],
        path=row["path"],
        content=row["content"],
        content_size_bytes=row["content_size_bytes"],
        content_sha256=row["content_sha256"],
        created_at=to_wire(row["created_at"]),
        created_by=by,
        redacted_at=to_wire(redacted) if redacted is not None else None,
        redacted_by=ApiActor(redactor) if redactor is not None else None,
    )
