"""The stores that a session works with, as they were when the session was made (contract section 16.4).

They are rows of `session_resources` like whatever else is attached to a session. A store may be archived or
deleted under a session, which then still shows what it was.
"""

from collections.abc import Sequence

import msgspec

from corral.store.database import Connection, Database
from corral.wire.errors import InvalidRequest, NotFound
from corral.wire.ids import new_id
from corral.wire.memory_stores import Access, MountedStore, mount_path
from corral.wire.session_resources import MemoryStoreParams


class MemoryMounts:
    """Which session has which stores."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def access(self, session_id: str, store_id: str) -> Access | None:
        """What a session may do with a store; None where the store is not one of the session's."""
        row = await self._database.fetch_one(
            "select body ->> 'access' as access from session_resources"
            " where session_id = %s and type = 'memory_store' and body ->> 'memory_store_id' = %s",
            (session_id, store_id),
        )
        return None if row is None else row["access"]


async def attach(
    connection: Connection, session_id: str, params: MemoryStoreParams, taken: Sequence[str], where: str
) -> str:
    """Attach a store to a session that is being made; the path of its folder, which is none of `taken`.

    Raises:
        NotFound: there is no such store; `where` goes before the field.
        InvalidRequest: it is archived.
    """
    # Held until the session is there, so that no store is attached after it was archived.
    cursor = await connection.execute(
        "select name, description, archived_at from memory_stores where id = %s for share",
        (params.memory_store_id,),
    )
    store = await cursor.fetchone()
    if store is None:
        raise NotFound(f"{where}memory_store_id: memory store {params.memory_store_id} not found")
    if store["archived_at"] is not None:
        raise InvalidRequest(
            f"{where}memory_store_id: memory store {params.memory_store_id} is archived; attach another"
        )
    mounted = MountedStore(
        memory_store_id=params.memory_store_id,
        access=params.access or "read_write",
        instructions=params.instructions,
        name=store["name"],
        description=store["description"],
        mount_path=mount_path(store["name"], taken),
    )
    await connection.execute(
        "insert into session_resources (id, session_id, type, mount_path, body)"
        " values (%s, %s, 'memory_store', %s, %s)",
        (new_id("sesrsc"), session_id, mounted.mount_path, msgspec.json.encode(mounted).decode()),
    )
    return mounted.mount_path
