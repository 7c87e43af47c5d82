"""The state of a session, folded from its events. This is the only place where it changes.

`fold` is pure: the same log gives the same state in every process, which is what lets any brain carry on
after any other. Waiting inputs are not in the log yet; whoever decides puts them beside with `with_inputs`.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final, Literal

import msgspec

from corral.session.events import Event, Input

Status = Literal["idle", "running", "rescheduling", "terminated"]
CallKind = Literal["sandbox", "mcp", "custom"]
Permission = Literal["allow", "ask", "deny"]
Verdict = Literal["allow", "deny"]
Ending = Literal["end_turn", "refusal", "retries_exhausted"]

TOOL_USES: Final[dict[str, CallKind]] = {
    "agent.tool_use": "sandbox",
    "agent.mcp_tool_use": "mcp",
    "agent.custom_tool_use": "custom",
}
"""The events by which a model calls a tool, and who runs it."""

TOOL_RESULTS: Final[dict[str, str]] = {
    "agent.tool_result": "tool_use_id",
    "agent.mcp_tool_result": "mcp_tool_use_id",
    "user.tool_result": "tool_use_id",
    "user.custom_tool_result": "custom_tool_use_id",
}
"""The events that answer a tool use, and the field that names it."""


class Call(msgspec.Struct, frozen=True):
    """A tool use that has no answer yet. ``id`` is the event's, by which clients name it."""

    id: str
    kind: CallKind
    name: str
    permission: Permission
    verdict: Verdict | None = None
    deny_message: str | None = None

    @property
    def denied(self) -> bool:
        """True if the call must never run: by policy or by the client's verdict."""
        return self.permission == "deny" or self.verdict == "deny"

    @property
    def runnable(self) -> bool:
        """True if the call may run now."""
        return self.permission == "allow" or (self.permission == "ask" and self.verdict == "allow")


class Usage(msgspec.Struct, frozen=True):
    """What the session's finished model requests used. Cost is in billionths of a US dollar."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_input_tokens: int = 0
    ephemeral_5m_input_tokens: int = 0
    ephemeral_1h_input_tokens: int = 0
    cost_nanodollars: int = 0

    def plus(self, private: dict[str, Any]) -> "Usage":
        """The total after one more request, whose counts a request's end keeps in its private part."""
        return Usage(*(getattr(self, name) + int(private.get(name) or 0) for name in self.__struct_fields__))


class SessionState(msgspec.Struct, frozen=True):
    """What a brain must know to decide, and no more."""

    seq: int = 0
    status: Status = "idle"
    stop_type: str | None = None
    announced: tuple[str, ...] = ()
    """The calls that the last idle event named as waiting for the client."""
    request: str | None = None
    """The id of the model request's start event while it has no end."""
    calls: tuple[Call, ...] = ()
    pending: bool = False
    """True while the log holds something that the model has yet to answer."""
    ending: Ending | None = None
    """How the last response ended the turn; None while the turn goes on."""
    stop_details: dict[str, Any] | None = None
    failures: int = 0
    """Model requests that failed in a row."""
    retry_at: datetime | None = None
    rounds: int = 0
    """Model requests completed in this turn."""
    truncations: int = 0
    """Responses in a row that were cut off at the output limit."""
    usage: Usage = Usage()
    running_since: datetime | None = None
    active_seconds: float = 0.0
    started: bool = False
    """True once the session has run."""
    inputs: tuple[Input, ...] = ()
    last_input: int = 0
    """How many inputs were ever queued, as far as `inputs` tells."""


def with_inputs(state: SessionState, inputs: Iterable[Input], last_input: int) -> SessionState:
    """The state with the client events that wait now."""
    return msgspec.structs.replace(state, inputs=tuple(inputs), last_input=last_input)


def fold_all(state: SessionState, events: Iterable[Event]) -> SessionState:
    """The state after `events`, in their order."""
    for event in events:
        state = fold(state, event)
    return state


def fold(state: SessionState, event: Event) -> SessionState:
    """The state after one more event; the event must be the log's next.

    Raises:
        ValueError: the event is not the next one, so events were missed.
    """
    if event.seq != state.seq + 1:
        raise ValueError(f"expected event {state.seq + 1}, got {event.seq}")
    changes = _changes(state, event)
    return msgspec.structs.replace(state, seq=event.seq, **changes)


def _changes(state: SessionState, event: Event) -> dict[str, Any]:
    kind = event.type
    if kind in TOOL_USES:
        return _tool_use(state, event)
    if kind in TOOL_RESULTS:
        answered = event.body[TOOL_RESULTS[kind]]
        return {"calls": tuple(call for call in state.calls if call.id != answered), "pending": True}
    match kind:
        case "user.message" | "system.message":
            return {"pending": True}
        case "user.interrupt":
            return {"pending": False, "ending": "end_turn" if state.status != "idle" else state.ending}
        case "user.tool_confirmation":
            return _verdict(state, event)
        case "span.model_request_start":
            return {"request": event.id, "pending": False, "ending": None}
        case "span.model_request_end":
            return _request_end(state, event)
        case "session.error":
            exhausted = event.body["error"]["retry_status"]["type"] == "exhausted"
            ends = exhausted and event.body["error"]["type"] not in _HARMLESS_ERRORS
            return {"ending": "retries_exhausted", "pending": False} if ends else {}
        case _:
            return _status(state, event)


_HARMLESS_ERRORS: Final = frozenset({"mcp_connection_failed_error", "mcp_authentication_failed_error"})
"""Errors after which the session runs on, without the server concerned (contract section 5.3)."""


def _tool_use(state: SessionState, event: Event) -> dict[str, Any]:
    permission: Permission = event.body.get("evaluated_permission", "allow")
    call = Call(event.id, TOOL_USES[event.type], event.body["name"], permission)
    return {"calls": (*state.calls, call)}


def _verdict(state: SessionState, event: Event) -> dict[str, Any]:
    def judged(call: Call) -> Call:
        if call.id != event.body["tool_use_id"]:
            return call
        return msgspec.structs.replace(
            call, verdict=event.body["result"], deny_message=event.body.get("deny_message")
        )

    return {"calls": tuple(map(judged, state.calls))}


def _request_end(state: SessionState, event: Event) -> dict[str, Any]:
    private: dict[str, Any] = dict(event.private or {})
    used = {"request": None, "usage": state.usage.plus(private.get("usage") or {})}
    match private.get("outcome"):
        case "interrupted":
            return used
        case "completed":
            return {**used, "failures": 0, "rounds": state.rounds + 1, **_completed(state, private)}
        case _:  # failed, or its brain died
            return {**used, "failures": state.failures + 1, "pending": True}


def _completed(state: SessionState, private: dict[str, Any]) -> dict[str, Any]:
    if private.get("stop_reason") == "refusal":
        return {"ending": "refusal", "stop_details": private.get("stop_details"), "truncations": 0}
    if state.calls:
        return {"truncations": 0}
    match private.get("stop_reason"):
        case "max_tokens":
            return {"pending": True, "truncations": state.truncations + 1}
        case "pause_turn":
            return {"pending": True, "truncations": 0}
        case _:
            return {"ending": "end_turn", "truncations": 0}


def _status(state: SessionState, event: Event) -> dict[str, Any]:
    match event.type:
        case "session.status_running":
            return {
                "status": "running",
                "running_since": event.processed_at,
                "retry_at": None,
                "stop_type": None,
                "stop_details": None,
                "announced": (),
                "started": True,
            }
        case "session.status_idle":
            stop = event.body["stop_reason"]
            waits = stop["type"] == "requires_action"
            return {
                **_stopped_running(state, event),
                "status": "idle",
                "stop_type": stop["type"],
                "announced": tuple(stop.get("event_ids", ())),
                "ending": None,
                **({} if waits else {"pending": False, "failures": 0, "truncations": 0, "rounds": 0}),
            }
        case "session.status_rescheduled":
            retry_at = (event.private or {}).get("retry_at")
            return {
                **_stopped_running(state, event),
                "status": "rescheduling",
                "retry_at": None if retry_at is None else datetime.fromisoformat(retry_at),
            }
        case "session.status_terminated":
            return {**_stopped_running(state, event), "status": "terminated", "calls": ()}
        case _:
            return {}


def _stopped_running(state: SessionState, event: Event) -> dict[str, Any]:
    return {"running_since": None, "active_seconds": active_seconds(state, event.processed_at)}


def active_seconds(state: SessionState, now: datetime) -> float:
    """Seconds that the session has been running in all, up to `now`."""
    if state.running_since is None:
        return state.active_seconds
    return state.active_seconds + max(0.0, (now - state.running_since).total_seconds())
