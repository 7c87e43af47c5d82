"""What a session used and what that costs, in the form in which the API shows it (contract section 8.8)."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from corral.session.budget import SESSION_HOUR, cents, consumed
from corral.session.events import NewEvent
from corral.session.state import STATUSES, SessionState, active_micros
from corral.session.thread_state import ThreadState, Usage
from corral.session.thread_state import active_micros as thread_active_micros

UNUSED: Final[dict[str, Any]] = {
    "input_tokens": 0,
    "output_tokens": 0,
    "cache_read_input_tokens": 0,
    "cache_creation": None,
    "active_seconds": 0.0,
    "list_cost": {"amount": "0", "currency": "USD"},
    "server_tool_use": {"web_search_requests": 0, "web_fetch_requests": 0},
}
"""The usage of a session that has not run."""

_MODEL_COST: Final = "model_cost"
"""What the row keeps beside: the cost without running time, in cents, which is a thread's list cost."""


def usage_snapshot(state: SessionState, now: datetime, session_hour: int = SESSION_HOUR) -> dict[str, Any]:
    """The session's usage up to `now`. The cost is exact inside and in whole cents here."""
    used: Usage = state.usage
    return {
        "input_tokens": used.input_tokens,
        "output_tokens": used.output_tokens,
        "cache_read_input_tokens": used.cache_read_input_tokens,
        "cache_creation": {
            "ephemeral_5m_input_tokens": used.ephemeral_5m_input_tokens,
            "ephemeral_1h_input_tokens": used.ephemeral_1h_input_tokens,
        },
        "active_seconds": round(active_micros(state, now) / 1_000_000, 3),
        "list_cost": {"amount": cents(consumed(state, session_hour, now)), "currency": "USD"},
        "server_tool_use": {"web_search_requests": used.web_search_requests, "web_fetch_requests": 0},
    }


def thread_usage_snapshot(thread: ThreadState, now: datetime) -> dict[str, Any]:
    """A thread's usage up to `now`. Its cost leaves running time out, which is the session's."""
    used = thread.usage
    active = thread_active_micros(thread.running_since, thread.active, now)
    return {
        "input_tokens": used.input_tokens,
        "output_tokens": used.output_tokens,
        "cache_read_input_tokens": used.cache_read_input_tokens,
        "cache_creation": {
            "ephemeral_5m_input_tokens": used.ephemeral_5m_input_tokens,
            "ephemeral_1h_input_tokens": used.ephemeral_1h_input_tokens,
        },
        "active_seconds": round(active / 1_000_000, 3),
        "list_cost": {"amount": cents(used.cost_nanodollars), "currency": "USD"},
    }


def usage_private(state: SessionState) -> dict[str, Any]:
    """What a ``session.usage`` event keeps beside what it shows."""
    return {_MODEL_COST: cents(state.usage.cost_nanodollars)}


def usage_to_keep(events: Iterable[NewEvent]) -> dict[str, Any] | None:
    """What the session's row keeps of its usage after `events`: that of the usage event, if there is one."""
    for event in events:
        if event.type == "session.usage":
            return {**event.body["usage"], **(event.private or {})}
    return None


def status_to_keep(events: Iterable[NewEvent]) -> str | None:
    """What the session's row keeps of its status after `events`: what the last of them says, if one does."""
    status = None
    for event in events:
        if event.type.startswith(_STATUS):
            status = STATUSES[event.type.removeprefix(_STATUS)]
    return status


_STATUS: Final = "session.status_"


def shown_usage(kept: Mapping[str, Any]) -> dict[str, Any]:
    """The session's usage of what the row keeps."""
    return {name: value for name, value in kept.items() if name != _MODEL_COST}


def thread_usage(kept: Mapping[str, Any], session_usage: Mapping[str, Any]) -> dict[str, Any] | None:
    """The primary thread's usage; None until its first idle. A thread's cost leaves running time out."""
    if session_usage["cache_creation"] is None:
        return None
    cost = kept.get(_MODEL_COST)
    amount = session_usage["list_cost"] if cost is None else {"amount": cost, "currency": "USD"}
    shown = {name: value for name, value in session_usage.items() if name != "server_tool_use"}
    return {**shown, "list_cost": amount}
