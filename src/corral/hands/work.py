"""The work queue: which session needs hands, and whose it is at the moment (contract section 12).

An item is one session that needs a sandbox. It is offered, claimed by a poll, acknowledged, held by
heartbeats and stopped. What must stay true:

- a session has at most one item that can be claimed (an index sees to it);
- each poll that hands out an item gives it a new token, and only the newest one is good: whoever has an
  earlier one is told so at its next heartbeat, and can do nothing else;
- an item whose lease has run out is offered again, whoever held it; only the database's clock decides that;
- an item that stops while its session still needs hands is followed by another.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, LiteralString

import msgspec

from corral.bus.hub import Bus
from corral.hands import work_sql as sql
from corral.hands.work_lease import beaten, extended
from corral.hands.work_token import TokenHash, new_secret, token_hash
from corral.store.database import Database
from corral.wire import metadata as meta
from corral.wire import pagination
from corral.wire.errors import Conflict, InvalidRequest, NotFound
from corral.wire.ids import new_id
from corral.wire.pagination import Listing, Page
from corral.wire.times import to_wire
from corral.wire.work import (
    ACKNOWLEDGED_SECONDS,
    BLOCK_MS,
    POOL_BLOCK_MS,
    RECLAIM_MS,
    SessionHands,
    SessionWork,
    Work,
    WorkHeartbeat,
    WorkStats,
)

LIST: Final = "work"
POOL_TOPIC: Final = "work:pool"
# The name under which the workers of the pool are counted.
POOL: Final = "pool"
# Leases run out without anybody saying so; a waiting poll looks again after this many seconds.
_LOOK_AGAIN: Final = 5.0


def topic(environment_id: str) -> str:
    """The bus topic on which new work of an environment is announced."""
    return f"work:{environment_id}"


class Claim(msgspec.Struct, frozen=True):
    """Whose token it is: one work item, its session and its environment."""

    work_id: str
    session_id: str
    environment_id: str
    token_hash: TokenHash


class WorkQueue:
    """The queue in a database; ``bus`` wakes the polls that wait."""

    def __init__(self, database: Database, bus: Bus) -> None:
        self._database = database
        self._bus = bus

    async def ensure(self, session_id: str, environment_id: str) -> bool:
        """See to it that the session has an item on offer or in hand; True if one was queued.

        An item that is being stopped counts until its lease has run out: when it ends, another follows.
        """
        row = await self._database.fetch_one(
            sql.ENSURE, {"id": new_id("work"), "session": session_id, "environment": environment_id}
        )
        if row is None:
            return False
        await self._bus.publish(topic(environment_id), POOL_TOPIC)
        return True

    async def poll(
        self,
        environment_id: str | None,
        *,
        worker_id: str | None = None,
        block_ms: int | None = None,
        reclaim_older_than_ms: int | None = None,
    ) -> Work | None:
        """Claim the oldest item on offer: of one environment, or of every ``cloud`` one where it is None.

        Waits up to ``block_ms`` (absent: not at all) and holds no database connection meanwhile. The item's
        ``secret`` carries a token that is good until the next poll claims the item, or it is stopped.

        Raises:
            NotFound: there is no such environment.
            InvalidRequest: ``block_ms`` is out of bounds.
        """
        most = POOL_BLOCK_MS if environment_id is None else BLOCK_MS
        if block_ms is not None and not 1 <= block_ms <= most:
            raise InvalidRequest(f"block_ms: must be between 1 and {most}")
        if environment_id is not None:
            await self._check_environment(environment_id)
        if worker_id is not None:
            await self._database.execute(
                sql.SEEN, {"environment": environment_id or POOL, "worker": worker_id[:128]}
            )
        reclaim = RECLAIM_MS if reclaim_older_than_ms is None else reclaim_older_than_ms
        until = time.monotonic() + (block_ms or 0) / 1000
        announced = POOL_TOPIC if environment_id is None else topic(environment_id)
        async with self._bus.subscribe(announced) as subscription:
            while True:
                subscription.take()
                item = await self._claim(environment_id, worker_id, reclaim)
                left = until - time.monotonic()
                if item is not None or left <= 0:
                    return item
                await subscription.wait(min(left, _LOOK_AGAIN))

    async def _claim(self, environment_id: str | None, worker_id: str | None, reclaim_ms: int) -> Work | None:
        await self._reap(environment_id)
        secret, digest = new_secret()
        row = await self._database.fetch_one(
            sql.CLAIM_POOL if environment_id is None else sql.CLAIM,
            {"environment": environment_id, "worker": worker_id, "hash": digest, "reclaim": reclaim_ms},
        )
        return None if row is None else _shown(row, secret)

    async def _reap(self, environment_id: str | None) -> None:
        """Stop the items whose worker vanished while it was stopping them, and queue what must follow."""
        for row in await self._database.fetch(sql.REAP, {"environment": environment_id}):
            await self._follow(row)

    async def _follow(self, stopped: Mapping[str, Any]) -> None:
        """Queue another item where the session of a stopped one still needs hands.

        Where the stopped one lived but briefly the next one is held back for the time of a reclaim, so that a
        worker that fails at once does not spin.
        """
        row = await self._database.fetch_one(
            sql.FOLLOW, {"id": new_id("work"), "session": stopped["session_id"], "work": stopped["id"]}
        )
        if row is not None:
            await self._bus.publish(topic(row["environment_id"]), POOL_TOPIC)

    async def acknowledge(self, environment_id: str, work_id: str) -> Work:
        """Take the item off the queue; it must be heartbeaten within a minute. Repeating it changes nothing.

        Raises:
            NotFound: there is no such item in the environment.
            Conflict: the item is stopped.
        """
        row = await self._database.fetch_one(
            sql.ACKNOWLEDGE,
            {"work": work_id, "environment": environment_id, "seconds": ACKNOWLEDGED_SECONDS},
        )
        if row is None:
            item = await self.retrieve(environment_id, work_id)
            if item.state == "stopped":
                raise Conflict(f"Work item {work_id} is stopped.")
            return item
        return _shown(row)

    async def heartbeat(
        self,
        environment_id: str,
        work_id: str,
        *,
        expected_last_heartbeat: str | None,
        desired_ttl_seconds: int | None,
        former: bool = False,
    ) -> WorkHeartbeat:
        """Extend the lease (contract section 12.3); never for the token of a former claim.

        Raises:
            NotFound: there is no such item in the environment.
            PreconditionFailed: ``heartbeat_precondition_failed``; somebody else holds the lease.
            Conflict: the item was never acknowledged.
        """
        async with self._database.transaction() as connection:
            cursor = await connection.execute(sql.LOCK, {"work": work_id, "environment": environment_id})
            row = await cursor.fetchone()
            if row is None:
                raise _unknown(work_id)
            answer = beaten(row, expected_last_heartbeat, desired_ttl_seconds, former=former)
            if extended(answer):
                await connection.execute(
                    sql.EXTEND,
                    {"work": work_id, "last": answer.last_heartbeat, "ttl": answer.ttl_seconds},
                )
        return answer

    async def stop(
        self, environment_id: str, work_id: str, *, force: bool = False, by: str | None = None
    ) -> Work:
        """Ask the worker to finish, or end the item at once by ``force`` or where nobody holds it.

        `by` says who wants it, for whoever asks later why it ended; None is the worker that holds it.

        Raises:
            NotFound: there is no such item in the environment.
            Conflict: the item is stopped already.
        """
        row = await self._database.fetch_one(
            sql.STOP, {"work": work_id, "environment": environment_id, "force": force, "by": by}
        )
        if row is None:
            await self.retrieve(environment_id, work_id)
            raise Conflict(f"Work item {work_id} is already stopped.")
        if row["state"] == "stopped":
            await self._follow(row)
        return _shown(row)

    async def stats(self, environment_id: str) -> WorkStats:
        """The environment's queue in numbers.

        Raises:
            NotFound: there is no such environment.
        """
        await self._check_environment(environment_id)
        row = await self._database.fetch_one(sql.STATS, {"environment": environment_id, "pool": POOL})
        assert row is not None
        oldest = row["oldest"]
        return WorkStats(
            depth=row["depth"],
            pending=row["pending"],
            oldest_queued_at=to_wire(oldest) if oldest is not None else None,
            workers_polling=row["workers"],
        )

    async def list(self, environment_id: str, page: Page) -> Listing:
        """The environment's items, newest first.

        Raises:
            NotFound: there is no such environment.
        """
        await self._check_environment(environment_id)
        cursor = page.after
        rows = await self._database.fetch(
            sql.LIST,
            {
                "environment": environment_id,
                "moment": pagination.moment_of(cursor) if cursor else None,
                "last": cursor.position[1] if cursor else None,
                "limit": page.limit + 1,
            },
        )
        kept = rows[: page.limit]
        next_page = None
        if len(rows) > page.limit:
            position = pagination.time_position(kept[-1]["created_at"], kept[-1]["id"])
            next_page = pagination.encode(LIST, position, order=page.order, scope=environment_id)
        return Listing(data=[_shown(row) for row in kept], next_page=next_page)

    async def of_session(self, session_id: str) -> Sequence[SessionHands]:
        """The session's newest items: who held each, and why it ended."""
        rows = await self._database.fetch(sql.OF_SESSION, {"session": session_id})
        return [
            SessionHands(
                work_id=row["id"],
                state=row["state"],
                worker_id=row["worker_id"],
                stop_reason=row["stop_reason"],
                created_at=to_wire(row["created_at"]),
                stopped_at=None if row["stopped_at"] is None else to_wire(row["stopped_at"]),
            )
            for row in rows
        ]

    async def retrieve(self, environment_id: str, work_id: str) -> Work:
        """One item.

        Raises:
            NotFound: there is no such item in the environment.
        """
        row = await self._database.fetch_one(sql.RETRIEVE, {"work": work_id, "environment": environment_id})
        if row is None:
            raise _unknown(work_id)
        return _shown(row)

    async def update(self, environment_id: str, work_id: str, patch: Mapping[str, Any] | None) -> Work:
        """Patch the item's metadata.

        Raises:
            NotFound: there is no such item in the environment.
            InvalidRequest: ``invalid_metadata``.
        """
        async with self._database.transaction() as connection:
            cursor = await connection.execute(sql.LOCK, {"work": work_id, "environment": environment_id})
            row = await cursor.fetchone()
            if row is None:
                raise _unknown(work_id)
            merged = meta.patched(row["metadata"], patch)
            cursor = await connection.execute(
                sql.SET_METADATA, {"work": work_id, "metadata": msgspec.json.encode(merged).decode()}
            )
            row = await cursor.fetchone()
            assert row is not None
            return _shown(row)

    async def release(self, environment_id: str | None, worker_id: str) -> int:
        """Offer again at once what a worker holds that is gone; how many items there were.

        The worker that takes its place says so (it alone can know); otherwise the lease has to run out.
        """
        rows = await self._database.fetch(sql.RELEASE, {"environment": environment_id, "worker": worker_id})
        if rows:
            await self._bus.publish(POOL_TOPIC, *{topic(row["environment_id"]) for row in rows})
        return len(rows)

    async def is_held(self, session_id: str) -> bool:
        """Whether a worker holds a live lease on the session's item."""
        return await self._database.fetch_one(sql.HELD, {"session": session_id}) is not None

    async def verify_token(self, token: str) -> Claim | None:
        """Whose token this is, or None: unknown, replaced by a later claim, or of a stopped item."""
        return await self._claim_of(sql.HOLDER, token)

    async def verify_former_token(self, token: str) -> Claim | None:
        """Whose token this was before a later claim or the item's end, or None."""
        return await self._claim_of(sql.FORMER_HOLDER, token)

    async def _claim_of(self, statement: LiteralString, token: str) -> Claim | None:
        digest = token_hash(token)
        row = await self._database.fetch_one(statement, {"hash": digest})
        if row is None:
            return None
        return Claim(row["id"], row["session_id"], row["environment_id"], digest)

    async def begin_call(self, claim: Claim, tool_use_id: str) -> bool:
        """Record that this claim is about to run a tool call; True if it may.

        The same claim may ask again. False if another claim had begun the call, or it has its answer: then
        it must be answered, not run (a call that had begun is never silently run twice).

        Raises:
            NotFound: the claim's session has no such tool call.
        """
        row = await self._database.fetch_one(
            sql.BEGIN_CALL,
            {
                "session": claim.session_id,
                "tool_use": tool_use_id,
                "work": claim.work_id,
                "hash": claim.token_hash,
            },
        )
        if row is None:
            raise NotFound(f"Tool use {tool_use_id} not found.")
        return not row["answered"] and bytes(row["token_hash"]) == claim.token_hash

    async def _check_environment(self, environment_id: str) -> None:
        row = await self._database.fetch_one("select 1 from environments where id = %s", (environment_id,))
        if row is None:
            raise NotFound(f"Environment {environment_id} not found.", error_code="environment_not_found")


def _unknown(work_id: str) -> NotFound:
    return NotFound(f"Work item {work_id} not found.")


def _shown(row: Mapping[str, Any], secret: str | None = None) -> Work:
    def when(field: str) -> str | None:
        moment = row[field]
        return to_wire(moment) if moment is not None else None

    return Work(
        id=row["id"],
        environment_id=row["environment_id"],
        data=SessionWork(id=row["session_id"]),
        state=row["state"],
        metadata=row["metadata"],
        secret=secret,
        created_at=to_wire(row["created_at"]),
        acknowledged_at=when("acknowledged_at"),
        started_at=when("started_at"),
        latest_heartbeat_at=when("latest_heartbeat_at"),
        stop_requested_at=when("stop_requested_at"),
        stopped_at=when("stopped_at"),
    )
