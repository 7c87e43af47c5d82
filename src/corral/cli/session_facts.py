"""What a session is doing, or why it stopped, in plain words. Pure.

The events must reach back to the newest model request at least: all open calls come after it.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, Literal

import msgspec

from corral.cli.api_client import Event

CALLS: Final = frozenset({"agent.tool_use", "agent.mcp_tool_use", "agent.custom_tool_use"})
_ANSWERED: Final = {
    "agent.tool_result": "tool_use_id",
    "user.tool_result": "tool_use_id",
    "agent.mcp_tool_result": "mcp_tool_use_id",
    "user.custom_tool_result": "custom_tool_use_id",
}
_STARTED: Final = frozenset({"session.status_running"})

Need = Literal["approval", "answer", "worker"]
"""What an open call waits for: a yes or no, a result by hand, or the hands that run it."""


class OpenCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call without a result."""

    id: str
    name: str
    input: dict[str, Any]
    need: Need
    since: str
    """RFC 3339: when the model made it, or a person allowed it."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to tell about a session's present state."""

    story: str
    """One sentence or two: what it does, or why it stopped."""
    advice: str | None
    calls: tuple[OpenCall, ...]
    queued: int
    """Messages that the agent has not read yet."""
    interrupt_waits: bool
    """An interrupt was sent, and no server has taken it up."""


def answered_call(event: Event) -> str | None:
    """The id of the call that this event answers."""
    field = _ANSWERED.get(event["type"])
    return None if field is None else event[field]


def open_calls(events: Sequence[Event]) -> tuple[OpenCall, ...]:
    """The calls among these events that have no result yet, in the model's order."""
    calls: dict[str, OpenCall] = {}
    for event in events:
        if event["type"] in CALLS:
            calls[event["id"]] = OpenCall(
                id=event["id"],
                name=event["name"],
                input=event["input"],
                need=_need(event),
                since=event["processed_at"],
            )
        elif event["type"] == "user.tool_confirmation" and event["tool_use_id"] in calls:
            call = calls[event["tool_use_id"]]
            since = event["processed_at"] or call.since
            calls[call.id] = msgspec.structs.replace(call, need="worker", since=since)
        elif (answered := answered_call(event)) is not None:
            calls.pop(answered, None)
    return tuple(calls.values())


def _need(event: Event) -> Need:
    if event["type"] == "agent.custom_tool_use":
        return "answer"
    return "approval" if event.get("evaluated_permission") == "ask" else "worker"


def facts_of(session: Mapping[str, Any], events: Sequence[Event], now: datetime) -> Facts:
    """The facts of a session, from its object and its newest events."""
    calls = open_calls(events)
    waiting = [event for event in events if event.get("processed_at", "") is None]
    queued = sum(event["type"] == "user.message" for event in waiting)
    match session["status"]:
        case "terminated":
            story, advice = _ended(session, events), None
        case "running":
            story, advice = _running(calls, events, now), "`corral session follow ID` shows it live."
        case "rescheduling":
            story, advice = _rescheduling(events), "`corral session stop ID` ends it."
        case _:
            story, advice = _stopped(calls, events, queued)
    return Facts(
        story=story,
        advice=None if advice is None else advice.replace("ID", session["id"]),
        calls=calls,
        queued=queued,
        interrupt_waits=any(event["type"] == "user.interrupt" for event in waiting),
    )


def _ended(session: Mapping[str, Any], events: Sequence[Event]) -> str:
    if session["archived_at"] is not None:
        return "It was archived: its history can be read, and nothing more can be sent."
    return f"It ended for good{_cause(events)}."


def _running(calls: Sequence[OpenCall], events: Sequence[Event], now: datetime) -> str:
    at_work = [call for call in calls if call.need == "worker"]
    if at_work:
        call = at_work[0]
        more = f", and {len(at_work) - 1} more" if len(at_work) > 1 else ""
        return f"{call.name} has been with the worker for {_since(call.since, now)}{more}."
    started = next(
        (event for event in reversed(events) if event["type"].startswith("span.model_request")), None
    )
    if started is not None and is_open(started):
        return f"The model has been answering for {_since(started['processed_at'], now)}."
    return "It is between two steps."


def is_open(span: Event) -> bool:
    """Whether a span event is a start; the newest of its kind being one, its request is under way."""
    return str(span["type"]).endswith("_start")


def _rescheduling(events: Sequence[Event]) -> str:
    return f"The model request failed{_cause(events)}; the server tries again by itself."


def _stopped(calls: Sequence[OpenCall], events: Sequence[Event], queued: int) -> tuple[str, str | None]:
    idle = next((event for event in reversed(events) if event["type"] == "session.status_idle"), None)
    if idle is None:
        if queued:
            return "A message has come and no server has begun on it.", "`corral doctor` checks the servers."
        return "It has not been given anything to do yet.", "`corral chat --session ID` talks to it."
    reason = idle["stop_reason"]["type"]
    if reason == "requires_action":
        return _needs(calls), "`corral chat --session ID` asks you for each."
    interrupted = reason == "end_turn" and _interrupted(events)
    story = "It was interrupted." if interrupted else stopped_in_words(idle, events)
    return story, "`corral chat --session ID` carries on."


def _needs(calls: Sequence[OpenCall]) -> str:
    words = {
        "approval": "your yes or no",
        "answer": "a result that a client (or you, by hand) must give",
        "worker": "a worker of its environment",
    }
    parts: list[str] = []
    for need, what in words.items():
        count = sum(call.need == need for call in calls)
        if count:
            parts.append(
                f"{count} tool call{'s' if count > 1 else ''} wait{'' if count > 1 else 's'} for {what}"
            )
    return "; ".join(parts)[:1].upper() + "; ".join(parts)[1:] + "." if parts else "It waits for answers."


def _interrupted(events: Sequence[Event]) -> bool:
    for event in reversed(events):
        if event["type"] == "user.interrupt":
            return True
        if event["type"] in _STARTED:
            return False
    return False


def stopped_in_words(idle: Event, events: Sequence[Event] = ()) -> str:
    """Why a session went idle, from the event that says so; ``events`` may hold the error behind it."""
    match idle["stop_reason"]["type"]:
        case "end_turn":
            return "The agent has finished its turn."
        case "requires_action":
            return "The agent waits for answers."
        case "retries_exhausted":
            return f"The turn died{_cause(events)}."
        case "refusal":
            details: dict[str, Any] = idle.get("stop_details") or {}
            category = details.get("category")
            return f"The model refused to answer{f' ({category})' if category else ''}."
        case "budget_reached":
            return "The session has reached its budget."
        case other:
            return f"The session stopped: {other}."


def _cause(events: Sequence[Event]) -> str:
    for event in reversed(events):
        if event["type"] == "session.error":
            return f": {event['error']['message'].rstrip('.')} ({event['error']['type']})"
    return ""


def money(list_cost: Mapping[str, Any]) -> str:
    """A list cost as a person writes it; the API counts in cents."""
    return f"{Decimal(list_cost['amount']) / 100:.2f} {list_cost['currency']}"


def usage_in_words(usage: Mapping[str, Any]) -> str:
    """What a session has used so far."""
    writes: dict[str, int] = usage.get("cache_creation") or {}
    written = sum(writes.values())
    cached = usage["cache_read_input_tokens"]
    read = usage["input_tokens"] + written + cached
    return (
        f"{read:,} tokens in ({cached:,} from the cache), {usage['output_tokens']:,} out,"
        f" {money(usage['list_cost'])} at list price, {usage['active_seconds']:.1f} s at work"
    )


def moment(text: str) -> datetime:
    """A time of the API."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def _since(text: str, now: datetime) -> str:
    return duration(max(0.0, (now - moment(text)).total_seconds()))


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def now() -> datetime:
    """The time, in UTC."""
    return datetime.now(UTC)
