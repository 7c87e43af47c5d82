"""What a session used and what that costs, in the form in which the API shows it (contract section 8.8)."""

from datetime import datetime
from typing import Any, Final

from corral.session.state import SessionState, Usage, active_seconds

_NANODOLLARS_A_CENT: Final = 10_000_000
_NANODOLLARS_A_SECOND: Final = 80_000_000 / 3_600
"""Running time: 0.08 US dollars an hour (contract section 25)."""

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


def usage_snapshot(state: SessionState, now: datetime) -> dict[str, Any]:
    """The session's usage up to `now`. The cost is exact inside and in whole cents here."""
    used: Usage = state.usage
    seconds = active_seconds(state, now)
    return {
        "input_tokens": used.input_tokens,
        "output_tokens": used.output_tokens,
        "cache_read_input_tokens": used.cache_read_input_tokens,
        "cache_creation": {
            "ephemeral_5m_input_tokens": used.ephemeral_5m_input_tokens,
            "ephemeral_1h_input_tokens": used.ephemeral_1h_input_tokens,
        },
        "active_seconds": round(seconds, 3),
        "list_cost": {"amount": _cents(used.cost_nanodollars, seconds), "currency": "USD"},
        "server_tool_use": {"web_search_requests": 0, "web_fetch_requests": 0},
    }


def _cents(nanodollars: int, seconds: float) -> str:
    return str(round((nanodollars + seconds * _NANODOLLARS_A_SECOND) / _NANODOLLARS_A_CENT))
