"""The outbox of webhooks: what is due, who attempts it, and what became of it (contract section 23).

The database's triggers fill it (migration 0010). An attempt is a lease on a row: whoever dies with it leaves
the row to be attempted again. Only the database's clock decides what is due.
"""

from datetime import datetime
from typing import Any, Final, LiteralString

import msgspec
from psycopg.rows import DictRow

from corral.resources import listing
from corral.store.database import Connection, Database
from corral.wire.pagination import Listing, Page
from corral.wire.times import to_wire
from corral.wire.webhooks import Delivery

LIST: Final = "webhook_deliveries"
_PRUNED: Final = 5_000
"""Most rows that one statement removes."""

_CLAIM: Final[LiteralString] = """
with due as (
    select d.event_id, d.endpoint_id
    from webhook_endpoints e
    cross join lateral (
        select w.event_id, w.endpoint_id, w.due_at from webhook_deliveries w
        where w.endpoint_id = e.id and w.state = 'waiting' and w.due_at <= statement_timestamp()
        order by w.due_at
        limit greatest(0, %(each)s::bigint - (
            select count(*) from webhook_deliveries f
            where f.endpoint_id = e.id and f.state = 'waiting' and f.leased_until > statement_timestamp()
        ))
    ) d
    where e.disabled_at is null
    order by d.due_at
    limit %(room)s
)
update webhook_deliveries w set
    attempts = w.attempts + 1,
    last_attempt_at = statement_timestamp(),
    leased_until = statement_timestamp() + %(lease)s * interval '1 second',
    due_at = statement_timestamp() + %(lease)s * interval '1 second'
from due, webhook_endpoints e
where w.event_id = due.event_id and w.endpoint_id = due.endpoint_id and e.id = w.endpoint_id
returning w.event_id, w.endpoint_id, w.type, w.subject, w.extra::text as extra, w.occurred_at, w.attempts,
    e.url, e.declared, e.secret,
    case when e.former_until > statement_timestamp() then e.former_secret end as former_secret
"""
_SETTLE: Final[LiteralString] = """
update webhook_deliveries set
    state = %(state)s,
    attempts = least(attempts, %(most)s::integer),
    leased_until = null,
    due_at = statement_timestamp() + %(delay)s * interval '1 second',
    last_status = %(status)s,
    last_error = %(error)s,
    settled_at = case when %(state)s <> 'waiting' then statement_timestamp() end
where event_id = %(event)s and endpoint_id = %(endpoint)s and attempts = %(attempts)s
    and (state = 'waiting' or (state = 'dropped' and %(state)s = 'delivered'))
"""


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery to attempt now, by whoever holds it."""

    event_id: str
    endpoint_id: str
    type: str
    subject: str
    extra: dict[str, str]
    occurred_at: datetime
    attempts: int
    """This attempt's number, from 1."""
    url: str
    declared: str | None
    secret: str | None
    former_secret: str | None


class Outbox:
    """The deliveries in a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def claim(self, *, room: int, each: int, lease: float) -> list[Claimed]:
        """Take up to `room` deliveries that are due, so that no endpoint has more than `each` under way.

        They are this caller's for `lease` seconds.
        """
        async with self._database.transaction() as connection:
            # One at a time: how many an endpoint has under way must not change between counting and taking.
            await connection.execute("select pg_advisory_xact_lock(hashtext('corral webhooks'))")
            cursor = await connection.execute(_CLAIM, {"room": room, "each": each, "lease": lease})
            return [_claimed(row) for row in await cursor.fetchall()]

    async def delivered(self, claimed: Claimed, status: int) -> None:
        """An endpoint has taken the message, and so is not failing."""
        async with self._database.transaction() as connection:
            await _settle(connection, claimed, "delivered", status=status)
            await connection.execute(
                "update webhook_endpoints set failing_since = null"
                " where id = %s and failing_since is not null",
                (claimed.endpoint_id,),
            )

    async def failed(
        self,
        claimed: Claimed,
        *,
        status: int | None,
        error: str,
        retry_in: float | None,
        patience: float,
        most: int,
    ) -> bool:
        """An attempt has failed: try again after `retry_in` seconds, or give up where that is None.

        `most` is how many attempts there may be; one beyond them was not made and is not counted.

        True if the endpoint has now been failing for `patience` seconds without a break.
        """
        async with self._database.transaction() as connection:
            state = "failed" if retry_in is None else "waiting"
            await _settle(
                connection, claimed, state, status=status, error=error, delay=retry_in or 0.0, most=most
            )
            cursor = await connection.execute(
                "update webhook_endpoints"
                " set failing_since = coalesce(failing_since, statement_timestamp())"
                " where id = %s and url = %s and disabled_at is null"
                " returning failing_since <= statement_timestamp() - %s * interval '1 second' as enough",
                (claimed.endpoint_id, claimed.url, patience),
            )
            row = await cursor.fetchone()
            return row is not None and row["enough"]

    async def disable(self, claimed: Claimed, reason: str, *, status: int | None, error: str) -> bool:
        """Disable the endpoint of an attempt for `reason` and drop what it waits for; this one has failed.

        False if it is disabled already, or has another URL by now.
        """
        async with self._database.transaction() as connection:
            await _settle(connection, claimed, "failed", status=status, error=error)
            cursor = await connection.execute(
                "update webhook_endpoints set disabled_at = now(), disabled_reason = %s, updated_at = now()"
                " where id = %s and url = %s and disabled_at is null returning id",
                (reason, claimed.endpoint_id, claimed.url),
            )
            if await cursor.fetchone() is None:
                return False
            await drop_waiting(connection, claimed.endpoint_id)
            return True

    async def prune(self, keep: float) -> int:
        """Remove what was settled more than `keep` seconds ago, and what is for endpoints that are gone."""
        removed = 0
        while True:
            count = await self._database.execute(
                "delete from webhook_deliveries where (event_id, endpoint_id) in ("
                " select d.event_id, d.endpoint_id from webhook_deliveries d"
                " where (d.state <> 'waiting'"
                " and d.settled_at < statement_timestamp() - %s * interval '1 second')"
                " or not exists (select from webhook_endpoints e where e.id = d.endpoint_id)"
                " limit %s for update skip locked)",
                (keep, _PRUNED),
            )
            removed += count
            if count < _PRUNED:
                return removed

    async def recent(self, endpoint_id: str, page: Page) -> Listing:
        """What was to be delivered to an endpoint, newest first."""
        moment, last = listing.start(page.after)
        rows = await self._database.fetch(
            "select event_id, endpoint_id, type, subject, state, attempts, last_status, last_error,"
            " occurred_at, occurred_at as created_at, settled_at, due_at from webhook_deliveries"
            " where endpoint_id = %(endpoint)s and (%(moment)s::timestamptz is null"
            " or (occurred_at, event_id) < (%(moment)s, %(last)s))"
            " order by occurred_at desc, event_id desc limit %(limit)s",
            {"endpoint": endpoint_id, "moment": moment, "last": last, "limit": page.limit + 1},
        )
        kept, next_page = listing.split(rows, page, LIST, scope=endpoint_id, key="event_id")
        return Listing(data=[_shown(row) for row in kept], next_page=next_page)


async def drop_waiting(connection: Connection, endpoint_id: str) -> None:
    """Give up what waits for an endpoint: a disabled one is told nothing, not even later."""
    await connection.execute(
        "update webhook_deliveries set state = 'dropped', leased_until = null, settled_at = now()"
        " where endpoint_id = %s and state = 'waiting'",
        (endpoint_id,),
    )


async def _settle(
    connection: Connection,
    claimed: Claimed,
    state: str,
    *,
    status: int | None = None,
    error: str | None = None,
    delay: float = 0.0,
    most: int | None = None,
) -> None:
    await connection.execute(
        _SETTLE,
        {
            "state": state,
            "delay": delay,
            "most": most,
            "status": status,
            "error": error,
            "event": claimed.event_id,
            "endpoint": claimed.endpoint_id,
            "attempts": claimed.attempts,
        },
    )


def _claimed(row: DictRow) -> Claimed:
    fields: dict[str, Any] = dict(row)
    extra = fields.pop("extra")
    return Claimed(**fields, extra={} if extra is None else msgspec.json.decode(extra, type=dict[str, str]))


def _shown(row: DictRow) -> Delivery:
    settled = row["settled_at"]
    return Delivery(
        event_id=row["event_id"],
        webhook_id=row["endpoint_id"],
        event_type=row["type"],
        subject_id=row["subject"],
        state=row["state"],
        attempts=row["attempts"],
        last_status=row["last_status"],
        last_error=row["last_error"],
        occurred_at=to_wire(row["occurred_at"]),
        next_attempt_at=to_wire(row["due_at"]) if row["state"] == "waiting" else None,
        settled_at=None if settled is None else to_wire(settled),
    )
