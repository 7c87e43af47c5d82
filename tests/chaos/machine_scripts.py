"""What the model plays in the state machine's sessions: strategies for scripts of a few steps."""

from typing import Any, Final

from hypothesis import strategies
from hypothesis.strategies import SearchStrategy

from tests.chaos.machine_server import ATTEMPTS

Step = dict[str, Any]

CALLED: Final = ["bash", "bash", "read", "grep", "look_up", "look_up", "unknown"]
"""Allowed, asked for, disabled, the client's own, and one that the agent has not."""

_calls: SearchStrategy[list[str]] = strategies.lists(strategies.sampled_from(CALLED), min_size=1, max_size=3)
_held: SearchStrategy[bool] = strategies.booleans()
_times: SearchStrategy[int] = strategies.integers(1, ATTEMPTS)
_where: SearchStrategy[str] = strategies.sampled_from(["start", "mid", "cut"])
_status: SearchStrategy[int] = strategies.sampled_from([408, 409, 429, 500, 503, 529])
_odd: SearchStrategy[Step] = strategies.sampled_from(
    [
        {"text": ""},
        {"text": "no", "refusal": {"category": "cyber"}},
        {"text": "too long a text for the limit", "max_tokens_cut": True},
        {"text": "refused", "error": {"status": 400, "times": 1}},
        {"thinking": "hm", "text": "NUL \x00 and more"},
    ]
)


@strategies.composite
def _texts(draw: strategies.DrawFn) -> Step:
    return {
        "text": "so it is",
        "hold": draw(_held),
        "hold_at": draw(strategies.sampled_from(["start", "mid"])),
    }


@strategies.composite
def _tools(draw: strategies.DrawFn) -> Step:
    thought: Step = {"thinking": "hm"} if draw(_held) else {}
    return {**thought, "tools": draw(_calls), "hold": draw(_held)}


@strategies.composite
def _errors(draw: strategies.DrawFn) -> Step:
    error = {"at": draw(_where), "status": draw(_status), "times": draw(_times)}
    return {"text": "after all", "error": error}


scripts: Final[SearchStrategy[list[Step]]] = strategies.lists(
    strategies.one_of(_tools(), _tools(), _tools(), _tools(), _texts(), _errors(), _odd),
    min_size=1,
    max_size=4,
)
maybe_scripts: Final[SearchStrategy[list[Step] | None]] = strategies.one_of(
    scripts, scripts, scripts, strategies.none()
)
