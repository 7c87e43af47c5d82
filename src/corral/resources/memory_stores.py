"""Memory stores: the containers (contract section 16.1). Their memories: `corral.resources.memories`."""

from typing import Final

import msgspec
from psycopg.rows import DictRow

from corral.resources import listing
from corral.store.database import Connection, Database
from corral.wire import metadata as meta
from corral.wire.errors import InvalidRequest, NotFound
from corral.wire.fields import UNSET
from corral.wire.ids import new_id
from corral.wire.memory_stores import CreateMemoryStore, MemoryStore, UpdateMemoryStore
from corral.wire.pagination import Listing, Page, check_within
from corral.wire.query import TimeRange
from corral.wire.times import to_wire

LIST: Final = "memory_stores"
STORES: Final = 1000
"""How many stores there may be, archived ones included (contract section 16.1)."""

_COLUMNS: Final = "id, name, description, metadata, created_at, updated_at, archived_at"


class MemoryStores:
    """The memory stores in a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, params: CreateMemoryStore) -> MemoryStore:
        """Make an empty store; names need not be unique.

        Raises:
            InvalidRequest: the metadata is out of bounds, or there are 1,000 stores already.
        """
        metadata = meta.created(params.metadata)
        async with self._database.transaction() as connection:
            # Whoever counts must not count at the same time as another.
            await connection.execute("select pg_advisory_xact_lock(hashtext('corral memory stores'))")
            cursor = await connection.execute(
                "insert into memory_stores (id, name, description, metadata)"
                " select %s, %s, %s, %s::json where (select count(*) from memory_stores) < %s"
                " returning " + _COLUMNS,
                (new_id("memstore"), params.name, params.description or "", _json(metadata), STORES),
            )
            row = await cursor.fetchone()
            if row is None:
                raise InvalidRequest(
                    f"There are {STORES} memory stores, which is the limit. Delete those no longer needed."
                )
            return _shown(row)

    async def retrieve(self, store_id: str) -> MemoryStore:
        """A store, archived or not.

        Raises:
            NotFound: there is no such store.
        """
        row = await self._database.fetch_one(
            "select " + _COLUMNS + " from memory_stores where id = %s", (store_id,)
        )
        if row is None:
            raise not_found(store_id)
        return _shown(row)

    async def update(self, store_id: str, params: UpdateMemoryStore) -> MemoryStore:
        """Change a store; sessions that have it already keep the name and description of when they began.

        Raises:
            NotFound: there is no such store.
            InvalidRequest: it is archived, or the metadata is out of bounds.
        """
        async with self._database.transaction() as connection:
            stored = _shown(await writable(connection, store_id))
            new = msgspec.structs.replace(
                stored,
                name=stored.name if params.name is None else params.name,
                description=(stored.description if params.description is UNSET else params.description or ""),
                metadata=meta.patched(stored.metadata, params.metadata),
            )
            if new == stored:
                return stored
            cursor = await connection.execute(
                "update memory_stores set name = %s, description = %s, metadata = %s::json,"
                " updated_at = now() where id = %s returning " + _COLUMNS,
                (new.name, new.description, _json(new.metadata), store_id),
            )
            row = await cursor.fetchone()
            assert row is not None
            return _shown(row)

    async def archive(self, store_id: str) -> MemoryStore:
        """Make a store read-only for good, and keep it from new sessions; again changes nothing.

        Raises:
            NotFound: there is no such store.
        """
        await self._database.execute(
            "update memory_stores set archived_at = now(), updated_at = now()"
            " where id = %s and archived_at is null",
            (store_id,),
        )
        return await self.retrieve(store_id)

    async def delete(self, store_id: str) -> None:
        """Remove a store with all its memories and versions.

        Raises:
            NotFound: there is no such store.
        """
        if not await self._database.execute("delete from memory_stores where id = %s", (store_id,)):
            raise not_found(store_id)

    async def list(
        self, page: Page, times: TimeRange | None = None, *, include_archived: bool = False
    ) -> Listing:
        """Stores, newest first; of `times`, ``gte`` and ``lte`` count.

        Raises:
            InvalidRequest: the times exclude the cursor's position.
        """
        times = times or TimeRange()
        check_within(page.after, times)
        moment, last = listing.start(page.after)
        rows = await self._database.fetch(
            "select " + _COLUMNS + " from memory_stores"
            " where (%(moment)s::timestamptz is null or (created_at, id) < (%(moment)s, %(last)s))"
            " and (%(gte)s::timestamptz is null or created_at >= %(gte)s)"
            " and (%(lte)s::timestamptz is null or created_at <= %(lte)s)"
            " and (%(archived)s or archived_at is null)"
            " order by created_at desc, id desc limit %(limit)s",
            {
                "moment": moment,
                "last": last,
                "gte": times.gte,
                "lte": times.lte,
                "archived": include_archived,
                "limit": page.limit + 1,
            },
        )
        kept, next_page = listing.split(rows, page, LIST)
        return Listing(data=[_shown(row) for row in kept], next_page=next_page)


async def locked(connection: Connection, store_id: str) -> DictRow:
    """The row of a store, locked: writers of one store take turns, so that each sees what is there.

    Raises:
        NotFound: there is no such store.
    """
    cursor = await connection.execute(
        "select " + _COLUMNS + " from memory_stores where id = %s for no key update", (store_id,)
    )
    row = await cursor.fetchone()
    if row is None:
        raise not_found(store_id)
    return row


async def writable(connection: Connection, store_id: str) -> DictRow:
    """The row of a store that is not archived, locked as by `locked`.

    Raises:
        NotFound: there is no such store.
        InvalidRequest: it is archived.
    """
    row = await locked(connection, store_id)
    if row["archived_at"] is not None:
        raise InvalidRequest(f"Memory store {store_id} is archived and can only be read. Use another store.")
    return row


def not_found(store_id: str) -> NotFound:
    """The error for a store that does not exist, or not for this credential."""
    return NotFound(f"Memory store {store_id} not found.")


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _shown(row: DictRow) -> MemoryStore:
    archived = row["archived_at"]
    return MemoryStore(
        id=row["id"],
        name=row["name"],
        description=row["description"],
        metadata=row["metadata"],
        created_at=to_wire(row["created_at"]),
        updated_at=to_wire(row["updated_at"]),
        archived_at=to_wire(archived) if archived is not None else None,
    )
