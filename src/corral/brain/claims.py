"""Claiming sessions that need a brain, keeping them, and noticing brains that died.

A claim moves the session to a new fencing epoch; whatever an earlier brain still writes is refused from then
on. A brain's process holds an advisory lock on a connection of its own: when it dies the lock is gone, and
its sessions can be taken at once. A process that is cut off keeps its lock for a while; then the lease, by
the database's clock, decides.

Lock order: the session's row before its row in the wake queue, as everywhere; where that cannot be, rows that
others hold are skipped. Who merely needs the session to stay (a snapshot, or a row that refers to it, being
written) holds up no claim.
"""

import secrets
from collections.abc import Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Final, LiteralString, Self

import msgspec
import psycopg
import structlog
from psycopg.rows import DictRow

from corral.store.database import Connection, Database
from corral.wire.ids import new_id
from corral.wire.memory_stores import MountedStore
from corral.wire.skills import SessionSkill

_DUE: Final[LiteralString] = """
with due as materialized (
    select s.id from wakes w join sessions s on s.id = w.session_id
    where w.due_at <= now() and (w.brain_id is null or w.lease_until < now())
    order by w.due_at limit %(limit)s
        for no key update of s skip locked for update of w skip locked
),
"""
# Sessions beyond their environment's bound are passed over, whoever has waited for how long.
_DUE_WITHIN_BOUNDS: Final[LiteralString] = """
with busy as (
    select s.environment_id, count(*) as sessions from wakes w join sessions s on s.id = w.session_id
    where w.brain_id is not null and w.lease_until >= now() group by s.environment_id
),
ranked as (
    select w.session_id, coalesce((%(single)s::jsonb ->> e.id)::int, (%(single)s::jsonb ->> e.name)::int,
            nullif(%(every)s, 0)) as most,
        row_number() over (partition by e.id order by w.due_at, w.session_id)
            + coalesce(b.sessions, 0) as place
    from wakes w join sessions s on s.id = w.session_id join environments e on e.id = s.environment_id
        left join busy b on b.environment_id = e.id
    where w.due_at <= now() and (w.brain_id is null or w.lease_until < now())
),
due as materialized (
    select s.id from wakes w join sessions s on s.id = w.session_id
        join ranked r on r.session_id = w.session_id
    where w.due_at <= now() and (w.brain_id is null or w.lease_until < now())
        and (r.most is null or r.place <= r.most)
    order by w.due_at limit %(limit)s
        for no key update of s skip locked for update of w skip locked
),
"""
_CLAIM: Final[LiteralString] = """
leased as (
    update wakes w set brain_id = %(brain)s, lease_until = now() + %(lease)s * interval '1 second'
    from due where w.session_id = due.id
)
update sessions s set epoch = s.epoch + 1 from due, environments e
where s.id = due.id and e.id = s.environment_id
returning s.id, s.epoch, s.last_seq, s.primary_thread_id, s.environment_id, s.agent::text as agent,
    e.config ->> 'type' as hosting, clock_timestamp() as at,
    (s.budget #>> '{max_list_cost,amount}')::numeric as budget,
    (select json_agg(r.body order by r.position) from session_resources r
        where r.session_id = s.id and r.type = 'memory_store') as memory,
    (select json_agg(json_build_object('version_id', k.version_id, 'name', k.name,
        'description', k.description) order by k.position)
        from session_skills k where k.session_id = s.id) as skills,
    -- Attached in the transaction that made the session, so at the same moment.
    (select array_agg(r.mount_path order by r.position) from session_resources r
        where r.session_id = s.id and r.file_id is not null and r.created_at = s.created_at) as uploads
"""
_RENEW: Final[LiteralString] = """
with held as materialized (
    select session_id from wakes where brain_id = %(brain)s and session_id = any(%(sessions)s)
    for update skip locked
)
update wakes w set lease_until = now() + %(lease)s * interval '1 second'
from held where w.session_id = held.session_id
"""
_RELEASE: Final[LiteralString] = """
with held as materialized (
    select session_id from wakes where brain_id = %(brain)s and session_id <> all(%(kept)s)
    for update skip locked
)
update wakes w set brain_id = null, lease_until = null
from held where w.session_id = held.session_id
"""
_FREE_THE_DEAD: Final[LiteralString] = """
with dead as materialized (
    select w.session_id from wakes w
    where w.brain_id is not null and w.brain_id not in (
        select b.id from brains b join pg_locks l on l.locktype = 'advisory' and l.objsubid = 1
            and (l.classid::bigint << 32 | l.objid::bigint) = b.lock_key
    )
    for update skip locked
)
update wakes w set brain_id = null, lease_until = null
from dead where w.session_id = dead.session_id
"""

_CLAIMING: Final = 0x636F7272616C_0001
"""The key of the lock under which brains claim where environments have bounds."""

_log = structlog.get_logger(__name__)


class EnvironmentBounds(msgspec.Struct, frozen=True):
    """How many sessions of one environment all brains together may have at the same moment.

    ``every`` holds for each environment (0: no bound), unless ``single`` has a number for its id or name.
    """

    every: int = 0
    single: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self.every or self.single)


class Claim(msgspec.Struct, frozen=True):
    """A session that this process may write as its brain, until the epoch moves on."""

    session_id: str
    epoch: int
    thread_id: str
    environment_id: str
    agent: dict[str, Any]
    self_hosted: bool
    at: datetime
    memory: list[MountedStore]
    uploads: list[str]
    """Where the files are mounted that the session began with."""
    budget: int | None = None
    """The limit on the session's list cost, in cents."""
    skills: list[SessionSkill] = []
    """The skills of the session, over all its agents."""
    last_seq: int = 0
    """How long the log was, at least."""


class Claims:
    """One process's claims. Open with ``async with``; it holds one connection of its own."""

    def __init__(
        self, database: Database, *, lease_seconds: float, bounds: EnvironmentBounds | None = None
    ) -> None:
        self._database = database
        self._lease = lease_seconds
        self._bounds = bounds or EnvironmentBounds()
        self._connection: Connection | None = None
        self.brain_id = ""

    async def __aenter__(self) -> Self:
        await self._register()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connection is not None:
            await self._connection.close()
        try:
            await self._database.execute("delete from brains where id = %s", (self.brain_id,))
        except psycopg.Error as problem:
            _log.warning("could not sign off; the lease will run out instead", error=str(problem))

    async def claim(self, limit: int) -> list[Claim]:
        """Claim up to `limit` sessions that are due, none beyond the bounds of its environment."""
        values = {"limit": limit, "brain": self.brain_id, "lease": self._lease}
        if self._bounds:
            rows = await self._claim_within_bounds(values)
        else:
            rows = await self._database.fetch(_DUE + _CLAIM, values)
        return [
            Claim(
                row["id"],
                row["epoch"],
                row["primary_thread_id"],
                row["environment_id"],
                msgspec.json.decode(row["agent"]),
                row["hosting"] == "self_hosted",
                row["at"],
                msgspec.convert(row["memory"] or [], list[MountedStore]),
                row["uploads"] or [],
                None if row["budget"] is None else int(row["budget"]),
                msgspec.convert(row["skills"] or [], list[SessionSkill]),
                row["last_seq"],
            )
            for row in rows
        ]

    async def _claim_within_bounds(self, values: dict[str, Any]) -> list[DictRow]:
        single = msgspec.json.encode(self._bounds.single).decode()
        async with self._database.transaction() as connection:
            # One at a time among all brains, or two would each take the last place. A statement of its own,
            # since the next one has to see what the holder before has committed.
            await connection.execute("select pg_advisory_xact_lock(%s)", (_CLAIMING,))
            cursor = await connection.execute(
                _DUE_WITHIN_BOUNDS + _CLAIM, {**values, "every": self._bounds.every, "single": single}
            )
            return await cursor.fetchall()

    async def renew(self, sessions: Sequence[str]) -> None:
        """Renew the leases of `sessions` in one statement; others of this process are left to run out."""
        values = {"brain": self.brain_id, "lease": self._lease, "sessions": list(sessions)}
        await self._database.execute(_RENEW, values)

    async def release(self, *, kept: Sequence[str]) -> int:
        """Give all claims but those of `kept` back, for others to take at once; how many there were.

        Whoever calls this has ended those sessions' turns. One whose last commit is just being written is
        left out: it is freed when this brain has signed off.
        """
        return await self._database.execute(_RELEASE, {"brain": self.brain_id, "kept": list(kept)})

    async def free_the_dead(self) -> int:
        """Free the claims of brains whose process is gone; how many there were."""
        return await self._database.execute(_FREE_THE_DEAD)

    async def alive(self) -> bool:
        """Whether this process still holds its lock; if not, it has signed on anew under another name.

        After False every claim made before is void: others may have taken the sessions already.
        """
        try:
            if self._connection is not None and not self._connection.closed:
                await self._connection.execute(
                    "update brains set seen_at = now() where id = %s", (self.brain_id,)
                )
                return True
        except psycopg.Error as error:
            _log.warning("lost the brain's connection; its sessions are up for others", error=str(error))
        await self._register()
        return False

    async def _register(self) -> None:
        if self._connection is not None:
            await self._connection.close()
        self.brain_id = new_id("req").replace("req_", "brain_")
        lock_key = secrets.randbits(62)
        connection = await self._database.dedicated()
        await connection.execute("select pg_advisory_lock(%s)", (lock_key,))
        await connection.execute("delete from brains where seen_at < now() - interval '1 day'")
        await connection.execute(
            "insert into brains (id, lock_key) values (%s, %s)", (self.brain_id, lock_key)
        )
        self._connection = connection
