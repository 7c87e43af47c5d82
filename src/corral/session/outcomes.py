"""What became of a session's outcomes, read from the few events that tell (contract section 14). Pure."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

OUTCOME_EVENTS: Final = (
    "user.define_outcome",
    "span.outcome_evaluation_start",
    "span.outcome_evaluation_end",
)
"""The events that change what a session shows of its outcomes."""

TellingEvent = tuple[int, str, Mapping[str, Any], str]
"""Place in the log, type, body, and time as the API shows it."""


def evaluations(events: Iterable[TellingEvent], last_request: int | None) -> list[dict[str, Any]]:
    """The ``outcome_evaluations`` of a session, one for each outcome, the oldest first.

    `events` are those of `OUTCOME_EVENTS` in their order; `last_request` is the place of the last model
    request in the log: with it the agent has begun to work on whatever was defined before.
    """
    found: dict[str, dict[str, Any]] = {}
    for place, kind, body, at in events:
        outcome_id: str = body["outcome_id"]
        if kind == "user.define_outcome":
            found[outcome_id] = {
                "type": "outcome_evaluation",
                "outcome_id": outcome_id,
                "description": body["description"],
                "iteration": 0,
                "result": "running" if last_request is not None and last_request > place else "pending",
                "explanation": None,
                "completed_at": None,
            }
        elif (entry := found.get(outcome_id)) is not None:
            entry.update(_progress(kind, body, at))
    return list(found.values())


def is_active(kind: str, result: str | None) -> bool:
    """Whether an outcome is still worked on, by the last of the events that tell of outcomes."""
    return kind != "span.outcome_evaluation_end" or result == "needs_revision"


def _progress(kind: str, body: Mapping[str, Any], at: str) -> dict[str, Any]:
    iteration: int = body["iteration"]
    if kind == "span.outcome_evaluation_start":
        return {"iteration": iteration, "result": "evaluating"}
    if is_active(kind, body["result"]):
        return {"iteration": iteration + 1, "result": "running", "explanation": body["explanation"]}
    return {
        "iteration": iteration,
        "result": body["result"],
        "explanation": body["explanation"],
        "completed_at": at,
    }
