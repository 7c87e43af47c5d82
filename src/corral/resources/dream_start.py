"""The start of a dream: its session, its output store, and the change to running, in one transaction."""

from dataclasses import dataclass
from typing import Final

import msgspec
from psycopg.rows import DictRow

from corral.resources.dream_agent import AGENT_ID, VERSION, Material, agent_for, first_message
from corral.resources.dream_judging import Ended, unavailable_store
from corral.resources.memory_copies import TooManyStores, copy_store
from corral.resources.memory_stores import STORES
from corral.session.records import NewSession
from corral.session.service import Sessions
from corral.store.database import Connection, Database
from corral.wire.content import TextBlock
from corral.wire.environments import merge_config
from corral.wire.events import UserMessage

ENVIRONMENT_ID: Final = "env_corral_dreams"
"""Where dreams' sessions are: an environment of the server's own, archived from the beginning, so that lists
leave it out and nobody else's session gets onto it. No sandbox is ever needed there."""


class _NotStarted(Exception):
    """There is no room for the dream, or it is not pending any more."""


class _Refused(Exception):
    """The dream cannot be started."""

    def __init__(self, ended: Ended) -> None:
        super().__init__(ended.message)
        self.ended = ended


@dataclass(frozen=True, slots=True)
class DreamLimits:
    """How many dreams run at once over all servers, for how long (seconds), and on how large a store."""

    concurrency: int
    timeout: float
    store_bytes: int
    reading: int
    """How many characters the agent of a dream is given to read in all."""


class DreamStart:
    """Starts dreams, as many as may run at once over all servers of the database."""

    def __init__(self, database: Database, sessions: Sessions, limits: DreamLimits) -> None:
        self._database = database
        self._sessions = sessions
        self._limits = limits

    async def start(self, row: DictRow) -> Ended | bool:
        """Start a pending dream. True if it runs now, False if it has to wait, or why it cannot."""
        if not await self._has_room():
            return False
        material = await self._material(row)
        if isinstance(material, Ended):
            return material
        await self._have_environment()
        new = NewSession(
            environment_id=ENVIRONMENT_ID,
            agent_id=AGENT_ID,
            agent_version=VERSION,
            agent=agent_for(row["model"]["id"]),
            title=f"Dream about {material.store_name}"[:500],
            metadata={"dream_id": row["id"]},
        )
        message = UserMessage(content=[TextBlock(text=first_message(material))])

        async def attach(connection: Connection, session_id: str) -> None:
            await self._run(connection, row, session_id)

        try:
            await self._sessions.create(new, [message], attach)
        except _NotStarted:
            return False
        except _Refused as refused:
            return refused.ended
        return True

    async def _has_room(self) -> bool:
        row = await self._database.fetch_one(
            "select count(*) < %s as room from dreams where status = 'running'", (self._limits.concurrency,)
        )
        return row is not None and bool(row["room"])

    async def _material(self, row: DictRow) -> Material | Ended:
        store = await self._database.fetch_one(
            "select name, description, (select count(*) from memories m where m.store_id = s.id) as memories"
            " from memory_stores s where id = %s",
            (row["input_store_id"],),
        )
        if store is None:
            return unavailable_store(row)
        return Material(
            store_name=store["name"],
            store_description=store["description"],
            memories=store["memories"],
            sessions=len(row["session_ids"]),
            updates_input=row["updates_input"],
            reading=self._limits.reading,
            instructions=row["instructions"],
        )

    async def _have_environment(self) -> None:
        await self._database.execute(
            "insert into environments (id, name, description, config, archived_at)"
            " values (%s, 'Dreams', 'The sessions of dreams; they use no sandbox.', %s::json, now())"
            " on conflict (id) do nothing",
            (ENVIRONMENT_ID, msgspec.json.encode(merge_config(None, None)).decode()),
        )

    async def _run(self, connection: Connection, row: DictRow, session_id: str) -> None:
        """Take the dream for the session that is being made.

        Raises:
            _NotStarted: somebody else has, or it was canceled, or others have taken the room.
            _Refused: what it needs is not there.
        """
        # Whoever counts the running ones must not count at the same time as another.
        await connection.execute("select pg_advisory_xact_lock(hashtext('corral dreams'))")
        await self._check_inputs(connection, row)
        output = row["input_store_id"]
        if not row["updates_input"]:
            try:
                output = await copy_store(connection, output, session_id)
            except TooManyStores:
                message = (
                    f"there are {STORES} memory stores, which is the limit; delete those no longer needed"
                )
                raise _Refused(Ended("failed", "memory_store_org_limit_exceeded", message)) from None
        cursor = await connection.execute(
            "update dreams set status = 'running', started_at = clock_timestamp(), session_id = %s,"
            " output_store_id = %s where id = %s and status = 'pending'"
            " and (select count(*) from dreams where status = 'running') < %s returning id",
            (session_id, output, row["id"], self._limits.concurrency),
        )
        if await cursor.fetchone() is None:
            raise _NotStarted

    async def _check_inputs(self, connection: Connection, row: DictRow) -> None:
        # Held until the copy is made, so that it is a copy of one moment.
        cursor = await connection.execute(
            "select archived_at from memory_stores where id = %s for share", (row["input_store_id"],)
        )
        store = await cursor.fetchone()
        if store is None or store["archived_at"] is not None:
            raise _Refused(unavailable_store(row))
        cursor = await connection.execute(
            "select coalesce(sum(content_size_bytes), 0)::bigint as size,"
            " (select count(*) from sessions where id = any(%s)) as sessions"
            " from memories where store_id = %s",
            (row["session_ids"], row["input_store_id"]),
        )
        found = await cursor.fetchone()
        assert found is not None
        if found["sessions"] < len(row["session_ids"]):
            message = "one of the input sessions was deleted"
            raise _Refused(Ended("failed", "input_session_unavailable", message))
        limit = self._limits.store_bytes
        if found["size"] > limit:
            message = f"the input memory store holds {found['size']} bytes; a dream takes at most {limit}"
            raise _Refused(Ended("failed", "input_memory_store_too_large", message))
