"""The events that each step of a turn writes, in the documented order (contract section 10.11). Pure."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from corral.brain.decide import GoIdle
from corral.brain.permission import Agent, custom_tools, evaluate
from corral.inference.prices import cost_nanodollars
from corral.inference.provider import ModelFailed, ModelResponse
from corral.session.events import NewEvent, new_event
from corral.session.state import Call, SessionState
from corral.session.usage import usage_snapshot
from corral.wire.ids import new_id

INTERRUPTED_CALL: Final = "Tool execution was interrupted before completion. Please retry."

_ERROR_MESSAGES: Final = {
    "tool_use_limit_reached_error": "The turn made more model requests than one turn may; it was stopped.",
    "model_request_failed_error": "The model's responses were cut off at the output limit again and again.",
}
_FAILURES: Final = {
    "overloaded": "model_overloaded_error",
    "rate_limited": "model_rate_limited_error",
    "billing": "billing_error",
    "failed": "model_request_failed_error",
}


class Voice(msgspec.Struct, frozen=True):
    """In whose name a thread's events are written."""

    thread_id: str
    agent: Agent
    self_hosted: bool

    def event(self, kind: str, **fields: Any) -> NewEvent:
        """An event on the thread."""
        return new_event(kind, self.thread_id, **fields)

    def thread_status(self, status: str, **fields: Any) -> NewEvent:
        """A ``session.thread_status_*`` event."""
        return self.event(
            f"session.thread_status_{status}",
            session_thread_id=self.thread_id,
            agent_name=self.agent["name"],
            **fields,
        )


def running(voice: Voice, state: SessionState) -> list[NewEvent]:
    """What starts a turn, or carries on one that had stopped; nothing if the session is running."""
    if state.status == "running":
        return []
    return [voice.event("session.status_running"), voice.thread_status("running")]


def idle(voice: Voice, state: SessionState, action: GoIdle, now: datetime) -> list[NewEvent]:
    """What ends a turn: the error that ended it, if any, the thread's idle, the usage, the session's idle."""
    events: list[NewEvent] = []
    if action.error is not None:
        events.append(error(voice, action.error, _ERROR_MESSAGES[action.error], "exhausted"))
    stop: dict[str, Any] = {"type": action.reason}
    if action.reason == "requires_action":
        stop["event_ids"] = list(action.event_ids)
    details = state.stop_details if action.reason == "refusal" else None
    usage = usage_snapshot(state, now)
    return [
        *events,
        voice.thread_status("idle", stop_reason=stop, stop_details=details),
        voice.event("session.usage", usage=usage, budget=None),
        voice.event("session.status_idle", stop_reason=stop, stop_details=details),
    ]


def error(voice: Voice, kind: str, message: str, retry: str) -> NewEvent:
    """A ``session.error`` event."""
    return voice.event(
        "session.error", error={"type": kind, "message": message, "retry_status": {"type": retry}}
    )


def result(voice: Voice, call: Call, text: str) -> NewEvent:
    """An error result that the server itself gives for a call which did not run."""
    content = [{"type": "text", "text": text}]
    match call.kind:
        case "sandbox":
            event = voice.event("agent.tool_result", tool_use_id=call.id, content=content, is_error=True)
        case "mcp":
            event = voice.event(
                "agent.mcp_tool_result", mcp_tool_use_id=call.id, content=content, is_error=True
            )
        case "custom":
            event = voice.event(
                "user.custom_tool_result", custom_tool_use_id=call.id, content=content, is_error=True
            )
    return msgspec.structs.replace(event, resolves=call.id)


def denial(call: Call) -> str:
    """What the model reads when a call was refused, by policy or by the user."""
    if call.verdict != "deny":
        return f"Permission to use {call.name} has been denied."
    reason = f" They said: {call.deny_message}" if call.deny_message else ""
    return f"The user denied this call; it was not run.{reason}"


def request_end(
    voice: Voice, start_id: str, outcome: str, *, is_error: bool, private: Mapping[str, Any] | None = None
) -> NewEvent:
    """The end of a model request that brought no answer."""
    counts = dict.fromkeys(_COUNTS, 0)
    return voice.event(
        "span.model_request_end",
        is_error=is_error,
        model_request_start_id=start_id,
        model_usage={**counts, "speed": voice.agent["model"]["speed"]},
        private={"outcome": outcome, **(private or {})},
    )


_COUNTS: Final = (
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
)


class PreviewIds(msgspec.Struct):
    """Event ids that previews have announced, for the final events to carry."""

    message: str = ""
    thinking: list[str] = []


def response(voice: Voice, start_id: str, answer: ModelResponse, ids: PreviewIds) -> list[NewEvent]:
    """What a model's answer writes: thinking, message, tool uses, and the end of the request.

    The request's end keeps the raw answer, and which event stands for which call of the model.
    """
    events: list[NewEvent] = []
    thoughts = [block for block in answer.content if block.get("type") in ("thinking", "redacted_thinking")]
    for n, _ in enumerate(thoughts):
        events.append(voice.event("agent.thinking", id=ids.thinking[n] if n < len(ids.thinking) else None))
    texts = [
        {"type": "text", "text": block["text"]}
        for block in answer.content
        if block.get("type") == "text" and block.get("text")
    ]
    if texts and answer.stop_reason != "refusal":
        events.append(voice.event("agent.message", id=ids.message or None, content=texts))
    calls: dict[str, str] = {}
    if answer.stop_reason != "refusal":
        for block in answer.content:
            if block.get("type") == "tool_use":
                use = _tool_use(voice, block)
                calls[block["id"]] = use.id
                events.append(use)
    return [*events, _completed(voice, start_id, answer, calls)]


def _tool_use(voice: Voice, block: Mapping[str, Any]) -> NewEvent:
    name: str = block["name"]
    given: dict[str, Any] = block.get("input") or {}
    if any(tool["name"] == name for tool in custom_tools(voice.agent)):
        return voice.event("agent.custom_tool_use", name=name, input=given)
    return voice.event("agent.tool_use", name=name, input=given, **evaluate(voice.agent, name).fields())


def _completed(voice: Voice, start_id: str, answer: ModelResponse, calls: Mapping[str, str]) -> NewEvent:
    used = answer.usage
    model = voice.agent["model"]["id"]
    writes: Mapping[str, Any] = used.get("cache_creation") or {}
    written = int(used.get("cache_creation_input_tokens") or 0)
    hour = int(writes.get("ephemeral_1h_input_tokens") or 0)
    counts = {
        "input_tokens": int(used.get("input_tokens") or 0),
        "output_tokens": int(used.get("output_tokens") or 0),
        "cache_read_input_tokens": int(used.get("cache_read_input_tokens") or 0),
    }
    kept = {**counts, "ephemeral_5m_input_tokens": written - hour, "ephemeral_1h_input_tokens": hour}
    return voice.event(
        "span.model_request_end",
        is_error=False,
        model_request_start_id=start_id,
        model_usage={
            **counts,
            "cache_creation_input_tokens": written,
            "speed": voice.agent["model"]["speed"],
        },
        private={
            "outcome": "completed",
            "content": answer.content,
            "stop_reason": answer.stop_reason,
            "stop_details": answer.stop_details,
            "calls": calls,
            "model": model,
            "served_model": answer.model,
            "usage": {**kept, "cost_nanodollars": cost_nanodollars(model, kept)},
        },
    )


def failed(voice: Voice, start_id: str, failure: ModelFailed, *, retry_at: datetime | None) -> list[NewEvent]:
    """What a failed model request writes; without `retry_at` the turn is dead."""
    kind = _FAILURES[failure.kind]
    kept: dict[str, Any] = {"failure": failure.message, "refused": failure.refused}
    end = request_end(voice, start_id, "failed", is_error=True, private=kept)
    if retry_at is None:
        return [end, error(voice, kind, failure.message, "exhausted")]
    return [
        end,
        error(voice, kind, failure.message, "retrying"),
        voice.event("session.status_rescheduled", private={"retry_at": retry_at.isoformat()}),
        voice.thread_status("rescheduled"),
    ]


def interruption(
    voice: Voice,
    taken: Sequence[NewEvent],
    *,
    start_id: str | None,
    calls: Iterable[Call],
) -> list[NewEvent]:
    """What an interrupt writes before the idle: itself, the cut request's end, results for open calls."""
    events = list(taken)
    if start_id is not None:
        events.append(request_end(voice, start_id, "interrupted", is_error=False))
    events.extend(result(voice, call, INTERRUPTED_CALL) for call in calls)
    return events


def preview_id() -> str:
    """A fresh event id for a preview to announce."""
    return new_id("sevt")
