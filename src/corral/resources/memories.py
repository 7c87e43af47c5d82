"""Memories: texts at paths in a store (contract section 16.2).

Writers of one store take turns (its row is locked), so paths, limits and preconditions are judged on what is
there. Every change leaves a version; a change that changes nothing leaves none.
"""

from typing import Any, Final

from psycopg.rows import DictRow

from corral.resources import memory_stores
from corral.resources.memory_versions import Change, exists, record
from corral.store.database import Connection, Database
from corral.wire import pagination
from corral.wire.errors import InvalidRequest, MemoryPathConflict, MemoryPreconditionFailed, NotFound
from corral.wire.ids import new_id
from corral.wire.memories import (
    Actor,
    CreateMemory,
    Memory,
    MemoryPrefix,
    UpdateMemory,
    after_folder,
    ancestors,
    sha256_of,
)
from corral.wire.pagination import Cursor, Listing, Page
from corral.wire.times import to_wire

LIST: Final = "memories"
MEMORIES: Final = 2000
"""How many memories a store may have (contract section 16.1)."""
STORE_BYTES: Final = 100 * 1024 * 1024
"""How many bytes of content a store may have, the history not counted (contract section 16.1)."""

_COLUMNS: Final = (
    "m.id, m.store_id, m.path, m.content_sha256, m.content_size_bytes, m.version_id, m.created_at,"
    " m.updated_at, "
)
_FULL: Final = "(select v.content from memory_versions v where v.id = m.version_id) as content"
_BASIC: Final = "null::text as content"
# An index range; with depth 1 whatever lies deeper than the folder is rolled up into its next segment.
_LIST_ALL: Final = (
    " from (select *, path as entry from memories where store_id = %(store)s"
    " and path >= %(start)s and path < %(stop)s order by path limit %(limit)s) m order by m.entry"
)
_LIST_CHILDREN: Final = (
    " from (select distinct on (entry) * from (select *,"
    " case position('/' in substr(path, %(inside)s)) when 0 then path"
    " else left(path, %(inside)s - 1 + position('/' in substr(path, %(inside)s))) end as entry"
    " from memories where store_id = %(store)s and path >= %(start)s and path < %(stop)s) below"
    " order by entry, path limit %(limit)s) m order by m.entry"
)


class Memories:
    """The memories in a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, store_id: str, params: CreateMemory, by: Actor, *, full: bool = False) -> Memory:
        """Make a memory; it never replaces one.

        Raises:
            NotFound: there is no such store.
            InvalidRequest: the store is archived or full.
            MemoryPathConflict: the path is another memory's, or lies above or below one's.
        """
        async with self._database.transaction() as connection:
            return await create_in(connection, store_id, params, by, full=full)

    async def retrieve(self, store_id: str, memory_id: str, *, full: bool = True) -> Memory:
        """A memory.

        Raises:
            NotFound: there is no such memory in this store.
        """
        row = await self._database.fetch_one(
            "select " + _COLUMNS + (_FULL if full else _BASIC) + " from memories m"
            " where m.id = %s and m.store_id = %s",
            (memory_id, store_id),
        )
        return _shown(_found(row, memory_id))

    async def update(
        self, store_id: str, memory_id: str, params: UpdateMemory, by: Actor, *, full: bool = False
    ) -> Memory:
        """Change a memory's content, its path, or both; what is there already is success, whoever wrote it.

        Raises:
            NotFound: there is no such memory in this store.
            InvalidRequest: the store is archived or full.
            MemoryPreconditionFailed: the content is not the one that the precondition names.
            MemoryPathConflict: the new path is another memory's, or lies above or below one's.
        """
        async with self._database.transaction() as connection:
            return await update_in(connection, store_id, memory_id, params, by, full=full)

    async def delete(
        self, store_id: str, memory_id: str, by: Actor, *, expected_sha256: str | None = None
    ) -> None:
        """Remove a memory, from an archived store too; its history stays.

        Raises:
            NotFound: there is no such memory in this store.
            MemoryPreconditionFailed: the content is not the expected one.
        """
        async with self._database.transaction() as connection:
            await delete_in(connection, store_id, memory_id, by, expected_sha256=expected_sha256)

    async def list(
        self, store_id: str, page: Page, *, prefix: str = "/", children: bool = False, full: bool = False
    ) -> Listing:
        """The memories below a folder in the order of their paths' bytes.

        With `children` those deeper down appear as one `MemoryPrefix` for each folder, in the same order.

        Raises:
            NotFound: there is no such store.
        """
        rows = await self._database.fetch(
            "select m.entry, "
            + _COLUMNS
            + (_FULL if full else _BASIC)
            + (_LIST_CHILDREN if children else _LIST_ALL),
            {
                "store": store_id,
                "start": max(prefix, _start(page.after)),
                "stop": after_folder(prefix),
                "inside": len(prefix) + 1,
                "limit": page.limit + 1,
            },
        )
        if not rows:
            await exists(self._database, store_id)
        next_page = None
        if len(rows) > page.limit:
            rows = rows[: page.limit]
            next_page = pagination.encode(LIST, (rows[-1]["entry"],), order=page.order, scope=store_id)
        data: list[Any] = [
            _shown(row) if row["entry"] == row["path"] else MemoryPrefix(path=row["entry"]) for row in rows
        ]
        return Listing(data=data, next_page=next_page)


async def create_in(
    connection: Connection, store_id: str, params: CreateMemory, by: Actor, *, full: bool = False
) -> Memory:
    """See `Memories.create`; in the caller's transaction."""
    memory_id, content = new_id("mem"), params.content or ""
    await memory_stores.writable(connection, store_id)
    await _check_free(connection, store_id, params.path, memory_id)
    await _check_room(connection, store_id, memories=1, size=len(content.encode()))
    change = Change(store_id, memory_id, "created", params.path, content, by)
    version_id, moment = await record(connection, change)
    cursor = await connection.execute(
        "insert into memories as m (id, store_id, path, content_sha256, content_size_bytes,"
        " version_id, created_at, updated_at) values (%s, %s, %s, %s, %s, %s, %s, %s)"
        " returning " + _COLUMNS + (_FULL if full else _BASIC),
        (
            memory_id,
            store_id,
            params.path,
            sha256_of(content),
            len(content.encode()),
            version_id,
            moment,
            moment,
        ),
    )
    return _shown(_found(await cursor.fetchone(), memory_id))


async def update_in(
    connection: Connection,
    store_id: str,
    memory_id: str,
    params: UpdateMemory,
    by: Actor,
    *,
    full: bool = False,
) -> Memory:
    """See `Memories.update`; in the caller's transaction."""
    await memory_stores.writable(connection, store_id)
    row = await _row(connection, store_id, memory_id)
    path = row["path"] if params.path is None else params.path
    content = row["content"] if params.content is None else params.content
    if (path, content) == (row["path"], row["content"]):
        return _shown(row, full=full)
    if params.precondition is not None:
        _check_precondition(row, params.precondition.content_sha256)
    if path != row["path"]:
        await _check_free(connection, store_id, path, memory_id)
    size = len(content.encode())
    if size > row["content_size_bytes"]:
        await _check_room(connection, store_id, memories=0, size=size - row["content_size_bytes"])
    change = Change(store_id, memory_id, "modified", path, content, by)
    version_id, moment = await record(connection, change)
    cursor = await connection.execute(
        "update memories m set path = %s, content_sha256 = %s, content_size_bytes = %s,"
        " version_id = %s, updated_at = %s where id = %s"
        " returning " + _COLUMNS + (_FULL if full else _BASIC),
        (path, sha256_of(content), size, version_id, moment, memory_id),
    )
    return _shown(_found(await cursor.fetchone(), memory_id))


async def delete_in(
    connection: Connection, store_id: str, memory_id: str, by: Actor, *, expected_sha256: str | None = None
) -> None:
    """See `Memories.delete`; in the caller's transaction."""
    await memory_stores.locked(connection, store_id)
    row = await _row(connection, store_id, memory_id)
    if expected_sha256 is not None:
        _check_precondition(row, expected_sha256)
    await connection.execute("delete from memories where id = %s", (memory_id,))
    await record(connection, Change(store_id, memory_id, "deleted", row["path"], None, by))


def _start(cursor: Cursor | None) -> str:
    """The lowest path that can come after a cursor's entry."""
    if cursor is None:
        return "/"
    entry = str(cursor.position[0])
    # No path has a character below U+0020, so nothing lies between an entry and the entry with U+0001.
    return after_folder(entry) if entry.endswith("/") else entry + "\x01"


async def _row(connection: Connection, store_id: str, memory_id: str) -> DictRow:
    cursor = await connection.execute(
        "select " + _COLUMNS + _FULL + " from memories m where m.id = %s and m.store_id = %s for update",
        (memory_id, store_id),
    )
    return _found(await cursor.fetchone(), memory_id)


async def _check_free(connection: Connection, store_id: str, path: str, memory_id: str) -> None:
    cursor = await connection.execute(
        "select id, path from memories where store_id = %(store)s and id <> %(id)s"
        " and (path = any(%(above)s) or (path >= %(below)s and path < %(behind)s)) order by path limit 1",
        {
            "store": store_id,
            "id": memory_id,
            "above": [path, *ancestors(path)],
            "below": path + "/",
            "behind": after_folder(path + "/"),
        },
    )
    other = await cursor.fetchone()
    if other is None:
        return
    if other["path"] == path:
        message = (
            f"path: {path} is the path of memory {other['id']}. Update that memory, or choose another path."
        )
    else:
        message = (
            f"path: {path} cannot be used beside {other['path']} (memory {other['id']}), since one would lie "
            "below the other. Choose another path."
        )
    raise MemoryPathConflict(message, memory_id=other["id"], path=other["path"])


async def _check_room(connection: Connection, store_id: str, *, memories: int, size: int) -> None:
    cursor = await connection.execute(
        "select count(*) as memories, coalesce(sum(content_size_bytes), 0)::bigint as size"
        " from memories where store_id = %s",
        (store_id,),
    )
    row = await cursor.fetchone()
    assert row is not None
    if row["memories"] + memories > MEMORIES:
        raise InvalidRequest(
            f"Memory store {store_id} has {MEMORIES} memories, which is the limit. Delete some first."
        )
    if row["size"] + size > STORE_BYTES:
        raise InvalidRequest(
            f"Memory store {store_id} would exceed {STORE_BYTES} bytes of content, which is the limit. "
            "Delete some memories first."
        )


def _check_precondition(row: DictRow, expected: str) -> None:
    if row["content_sha256"] != expected:
        raise MemoryPreconditionFailed(
            f"The content_sha256 of memory {row['id']} is {row['content_sha256']}, not {expected}. "
            "Read the memory again and decide anew."
        )


def _found(row: DictRow | None, memory_id: str) -> DictRow:
    if row is None:
        raise NotFound(f"Memory {memory_id} not found.")
    return row


def _shown(row: DictRow, *, full: bool = True) -> Memory:
    return Memory(
        id=row["id"],
        memory_store_id=row["store_id"],
        memory_version_id=row["version_id"],
        path=row["path"],
        content=row["content"] if full else None,
        content_size_bytes=row["content_size_bytes"],
        content_sha256=row["content_sha256"],
        created_at=to_wire(row["created_at"]),
        updated_at=to_wire(row["updated_at"]),
    )
