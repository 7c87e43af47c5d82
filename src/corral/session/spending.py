"""What a session with a budget has consumed, read from its log for whoever has no folded state at hand.

The brain decides by the same figures (`corral.session.budget`); this is for the API, which judges requests by
them (contract section 8.6).
"""

from datetime import datetime
from typing import Any, Final, LiteralString

import msgspec

from corral.session.budget import NANODOLLARS_A_CENT, running_cost
from corral.session.state import limit_cents
from corral.store.database import Connection

SETTLING: Final = ("user.tool_confirmation", "user.tool_result", "user.custom_tool_result", "user.interrupt")
"""What a session at its budget still takes: events that settle work which has begun."""

_SPENT: Final[LiteralString] = """
select s.budget::text as budget, s.usage::text as usage, s.running_since, s.status, clock_timestamp() as at,
    spent.cost, spent.unpriced,
    (
        select e.type from events e where e.session_id = s.id and (
            (e.type = 'session.status_idle' and readable(e.body) #>> '{stop_reason,type}' = 'budget_reached')
            -- A null in the event is a JSON null here: the budget was removed.
            or (e.type = 'session.updated' and readable(e.body) -> 'budget' is not null)
        ) order by e.seq desc limit 1
    ) as last_change,
    (
        select readable(e.body) #>> '{stop_reason,type}' from events e
        where e.session_id = s.id and e.type in ('session.status_idle', 'session.status_running')
        order by e.seq desc limit 1
    ) as stop_type
from sessions s, lateral (
    select coalesce(sum((readable(e.private) #>> '{usage,cost_nanodollars}')::numeric), 0) as cost,
        coalesce(sum((readable(e.private) #>> '{usage,unpriced_requests}')::numeric), 0) as unpriced
    from events e where e.session_id = s.id
        -- The result of a web tool has what its search cost, and so have the steps of an evaluation.
        and e.type in (
            'span.model_request_end', 'agent.tool_result',
            'span.outcome_evaluation_ongoing', 'span.outcome_evaluation_end'
        ) and e.private is not null
) spent
where s.id = %s
"""


class Spending(msgspec.Struct, frozen=True):
    """A session's standing against its budget."""

    limit: int | None
    """In cents; None without a budget."""
    consumed: int
    """Its list cost so far, exactly, in nanodollars."""
    unpriced: bool
    """Whether it has used a model that has no list price."""
    held: bool
    """Whether it has paused at its budget, and the budget has not been changed since."""
    paused: bool
    """Whether it rests there now, with nothing that a client could still settle."""

    @property
    def reached(self) -> bool:
        """Whether no further work may begin."""
        if self.limit is None:
            return False
        return self.held or self.unpriced or self.covers(self.limit)

    def covers(self, limit: int) -> bool:
        """Whether what has been consumed is as much as a limit in cents, or more."""
        return self.consumed >= limit * NANODOLLARS_A_CENT


async def spending_of(connection: Connection, session_id: str, session_hour: int) -> Spending | None:
    """The standing of a session, at `session_hour` nanodollars an hour of running; None if there is none."""
    cursor = await connection.execute(_SPENT, (session_id,))
    row = await cursor.fetchone()
    if row is None:
        return None
    held = row["last_change"] == "session.status_idle"
    return Spending(
        limit=limit_cents(None if row["budget"] is None else msgspec.json.decode(row["budget"])),
        consumed=int(row["cost"]) + running_cost(_running_micros(row), session_hour),
        unpriced=row["unpriced"] > 0,
        held=held,
        paused=held and row["status"] == "idle" and row["stop_type"] == "budget_reached",
    )


def _running_micros(row: dict[str, Any]) -> int:
    micros = round(msgspec.json.decode(row["usage"])["active_seconds"] * 1_000_000)
    since: datetime | None = row["running_since"]
    return (
        micros if since is None else micros + max(0, round((row["at"] - since).total_seconds() * 1_000_000))
    )
