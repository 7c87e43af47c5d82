"""Copies of whole memory stores: a store of its own with the same texts at the same paths."""

from typing import Final

from corral.resources.memory_stores import STORES
from corral.store.database import Connection
from corral.wire.ids import new_id

_LOCK: Final = "select pg_advisory_xact_lock(hashtext('corral memory stores'))"


class TooManyStores(Exception):
    """There are as many memory stores as there may be."""


async def copy_store(connection: Connection, store_id: str, session_id: str) -> str:
    """The id of a new store with what `store_id` holds now, in the name of a session.

    Name, description and metadata are the same; the history is not copied: it begins with this. The caller
    holds the store's row, so that nothing changes meanwhile.

    Raises:
        TooManyStores: the limit of stores is reached.
    """
    copy_id = new_id("memstore")
    await connection.execute(_LOCK)
    cursor = await connection.execute(
        "insert into memory_stores (id, name, description, metadata)"
        " select %s, name, description, metadata from memory_stores"
        " where id = %s and (select count(*) from memory_stores) < %s returning id",
        (copy_id, store_id, STORES),
    )
    if await cursor.fetchone() is None:
        raise TooManyStores
    cursor = await connection.execute("select id from memories where store_id = %s", (store_id,))
    ids = [row["id"] for row in await cursor.fetchall()]
    names = {
        "copy": copy_id,
        "session": session_id,
        "old": ids,
        "new": [new_id("mem") for _ in ids],
        "versions": [new_id("memver") for _ in ids],
    }
    await connection.execute(
        "insert into memory_versions (id, store_id, memory_id, operation, path, content, content_sha256,"
        " content_size_bytes, session_id)"
        " select c.version, %(copy)s, c.new, 'created', m.path, v.content, m.content_sha256,"
        " m.content_size_bytes, %(session)s"
        " from unnest(%(old)s::text[], %(new)s::text[], %(versions)s::text[]) as c (old, new, version)"
        " join memories m on m.id = c.old join memory_versions v on v.id = m.version_id",
        names,
    )
    await connection.execute(
        "insert into memories (id, store_id, path, content_sha256, content_size_bytes, version_id,"
        " created_at, updated_at)"
        " select v.memory_id, v.store_id, v.path, v.content_sha256, v.content_size_bytes, v.id, v.created_at,"
        " v.created_at from memory_versions v where v.store_id = %(copy)s",
        names,
    )
    return copy_id
