"""Calls of MCP and web tools by the event that asked for them: each is made once, and its outcome is kept.

Whoever inserts a call's row makes the call. A gateway holds an advisory lock on a connection of its own for
as long as it lives, so a row without an outcome whose gateway is gone is a call that nobody will finish.
"""

import secrets
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Literal, Self, TypeAlias

import msgspec

from corral.store.database import Connection, Database
from corral.wire.gateway import CallOutcome

Standing: TypeAlias = Literal["new", "under_way", "abandoned"]
"""Of a call without an outcome: this gateway may make it, one is at it, or the one that was is dead."""

_ALIVE: Final = (
    "exists (select 1 from gateways g join pg_locks l on l.locktype = 'advisory' and l.objsubid = 1"
    " and (l.classid::bigint << 32 | l.objid::bigint) = g.lock_key where g.id = o.gateway_id)"
)


class Outcomes:
    """The calls in a database. Open with ``async with``; it holds one connection of its own."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: Connection | None = None
        self.gateway_id: Final = "gateway_" + secrets.token_hex(12)

    async def __aenter__(self) -> Self:
        lock_key = secrets.randbits(62)
        connection = await self._database.dedicated()
        try:
            await connection.execute("select pg_advisory_lock(%s)", (lock_key,))
            await connection.execute("delete from gateways where seen_at < now() - interval '30 days'")
            await connection.execute(
                "insert into gateways (id, lock_key) values (%s, %s)", (self.gateway_id, lock_key)
            )
        except BaseException:
            await connection.close()
            raise
        self._connection = connection
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connection is not None:
            await self._connection.close()

    async def begin(self, event_id: str, session_id: str) -> CallOutcome | Standing:
        """Take a call up: its outcome if there is one, else how it stands. ``new``: the caller makes it.

        Outcomes of the session that its log has by now are removed.
        """
        inserted = await self._database.execute(
            "with settled as (delete from mcp_outcomes o using events e"
            " where o.session_id = %(session)s and e.session_id = o.session_id and e.resolves = o.event_id"
            " and o.event_id <> %(event)s)"
            " insert into mcp_outcomes (event_id, session_id, gateway_id)"
            " values (%(event)s, %(session)s, %(gateway)s) on conflict do nothing",
            {"event": event_id, "session": session_id, "gateway": self.gateway_id},
        )
        return "new" if inserted else await self.look(event_id, session_id)

    async def look(self, event_id: str, session_id: str) -> CallOutcome | Standing:
        """How a call stands that was taken up before."""
        row = await self._database.fetch_one(
            "select o.outcome::text as outcome, " + _ALIVE + " as alive from mcp_outcomes o"
            " where o.event_id = %s and o.session_id = %s",
            (event_id, session_id),
        )
        if row is None:
            return "abandoned"
        if row["outcome"] is not None:
            return msgspec.json.decode(row["outcome"], type=CallOutcome)
        return "under_way" if row["alive"] else "abandoned"

    async def take_over(self, event_id: str, session_id: str) -> bool:
        """Make a call of a dead gateway this one's; False if another was quicker."""
        taken = await self._database.execute(
            "update mcp_outcomes o set gateway_id = %s where o.event_id = %s and o.session_id = %s"
            " and o.outcome is null and not " + _ALIVE,
            (self.gateway_id, event_id, session_id),
        )
        return taken == 1

    async def settled(self, event_ids: Sequence[str]) -> set[str]:
        """Those of the calls that have an outcome."""
        rows = await self._database.fetch(
            "select event_id from mcp_outcomes where event_id = any(%s) and outcome is not null",
            (list(event_ids),),
        )
        return {row["event_id"] for row in rows}

    async def keep(self, event_id: str, outcome: CallOutcome) -> None:
        """Record what came of a call of this gateway; the first outcome of a call stays."""
        await self._database.execute(
            "update mcp_outcomes set outcome = %s::json where event_id = %s and outcome is null",
            (msgspec.json.encode(outcome).decode(), event_id),
        )
