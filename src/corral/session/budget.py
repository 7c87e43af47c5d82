"""A session's budget: what was consumed, exactly, and whether that reaches the limit (contract section 8.6).

Pure. The cost of model requests is in the log; running time is priced here, at the server's price of an hour.
Amounts are whole billionths of a US dollar; limits are whole cents, as the API has them.
"""

from datetime import datetime
from typing import Any, Final

from corral.session.state import SessionState, active_micros

SESSION_HOUR: Final = 80_000_000
"""The documented price of an hour in which a session runs, in nanodollars (contract section 25)."""
NANODOLLARS_A_CENT: Final = 10_000_000
_MICROS_AN_HOUR: Final = 3_600_000_000


def running_cost(micros: int, session_hour: int) -> int:
    """What so many microseconds of running cost, in nanodollars, rounded to the nearest."""
    return (micros * session_hour + _MICROS_AN_HOUR // 2) // _MICROS_AN_HOUR


def consumed(state: SessionState, session_hour: int, now: datetime) -> int:
    """The session's list cost up to `now`, in nanodollars."""
    return state.usage.cost_nanodollars + running_cost(active_micros(state, now), session_hour)


def at_budget(state: SessionState, session_hour: int, now: datetime) -> bool:
    """Whether no further model request may be made.

    A session that has paused stays so until its budget is changed, whatever became of prices meanwhile; and
    what has no list price cannot be held against a limit, so only the limit's removal lets it go on.
    """
    if state.budget is None:
        return False
    if state.budget_held or state.usage.unpriced_requests:
        return True
    return consumed(state, session_hour, now) >= state.budget * NANODOLLARS_A_CENT


def cents(nanodollars: int) -> str:
    """An amount in whole cents as the API shows it, rounded to the nearest."""
    return str((nanodollars + NANODOLLARS_A_CENT // 2) // NANODOLLARS_A_CENT)


def budget_object(limit: int | None) -> dict[str, Any] | None:
    """The budget as the API shows it, of a limit in cents; None without one."""
    if limit is None:
        return None
    return {"type": "limit", "max_list_cost": {"amount": str(limit), "currency": "USD"}}
