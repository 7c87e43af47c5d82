"""The events that each step of a turn writes, in the documented order (contract section 10.11). Pure."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from corral.brain.decide import GoIdle, Settled
from corral.brain.delegation import message
from corral.brain.own_tools import SERVER
from corral.brain.permission import custom_tools, evaluate
from corral.brain.voice import Voice
from corral.inference.provider import ModelFailed, ModelResponse
from corral.session.budget import budget_object
from corral.session.calls import Call
from corral.session.events import NewEvent
from corral.session.state import Outcome, SessionState, as_if
from corral.session.thread_state import ThreadState
from corral.session.usage import usage_private, usage_snapshot
from corral.wire.ids import new_id

INTERRUPTED_CALL: Final = "Tool execution was interrupted before completion. Please retry."

_ERROR_MESSAGES: Final = {
    "tool_use_limit_reached_error": "The turn made more model requests than one turn may; it was stopped.",
    "model_request_failed_error": "The model's responses were cut off at the output limit again and again.",
}
_UNGRADED: Final = (
    "This server does not judge outcomes: the agent has worked on it once and says that it is done. Look at "
    "the result yourself; send a user.message to have it revised."
)
_FAILURES: Final = {
    "overloaded": "model_overloaded_error",
    "rate_limited": "model_rate_limited_error",
    "billing": "billing_error",
    "failed": "model_request_failed_error",
}


def running(voice: Voice, state: SessionState) -> list[NewEvent]:
    """What starts a turn, or carries on one that had stopped; nothing if the thread is running."""
    events: list[NewEvent] = []
    if state.status != "running":
        events.append(voice.of_session("session.status_running"))
    if state.thread(voice.thread_id).status != "running":
        events.append(voice.thread_status("running"))
    return events


def idle(
    voice: Voice, state: SessionState, action: GoIdle, now: datetime, settled: Settled
) -> list[NewEvent]:
    """What ends a turn: the error that ended it, if any, the report of a child, the thread's idle; and if no
    thread works any more, the usage and the session's idle.
    """
    events: list[NewEvent] = []
    thread = state.thread(voice.thread_id)
    if action.error is not None:
        events.append(error(voice, action.error, _ERROR_MESSAGES[action.error], "exhausted"))
    if action.reports and voice.delegation.parent is not None:
        name = str(voice.agent["name"])
        events += message(voice.thread_id, voice.delegation.parent, _report(thread, action), from_name=name)
    stop: dict[str, Any] = {"type": "end_turn" if action.ends_turn else action.reason}
    if action.reason == "requires_action":
        stop["event_ids"] = list(action.event_ids)
    details = thread.stop_details if action.reason == "refusal" else None
    events.append(voice.thread_status("idle", stop_reason=stop, stop_details=details))
    if action.terminates:
        events.append(voice.thread_status("terminated"))
    if settled.status == "idle":
        return [*events, *session_idle(voice, state, settled, now)]
    if settled.status == "rescheduling" and state.status == "running":
        events.append(voice.of_session("session.status_rescheduled"))
    if action.reason == "budget_reached":
        events.append(_usage(voice, state, now))
    return events


def session_idle(voice: Voice, state: SessionState, settled: Settled, now: datetime) -> list[NewEvent]:
    """What the session says when its last thread has stopped."""
    stop: dict[str, Any] = {"type": settled.reason}
    if settled.reason == "requires_action":
        stop["event_ids"] = list(settled.event_ids)
    details = state.lead.stop_details if settled.reason == "refusal" else None
    return [
        _usage(voice, state, now),
        voice.of_session("session.status_idle", stop_reason=stop, stop_details=details),
    ]


def _usage(voice: Voice, state: SessionState, now: datetime) -> NewEvent:
    usage = usage_snapshot(state, now, voice.prices.session_hour)
    budget = budget_object(state.budget)
    return voice.of_session("session.usage", usage=usage, budget=budget, private=usage_private(state))


def _report(thread: ThreadState, action: GoIdle) -> str:
    """What a child's turn came to, in its own words where it has any."""
    said = "\n\n".join(text for text in thread.said if text.strip())
    match action.reason:
        case "refusal":
            return "[The agent could not go on: the model refused.]"
        case "retries_exhausted":
            ended = " It has ended for good." if action.terminates else ""
            return f"[The agent could not go on: its turn failed.{ended}]"
        case _:
            return said or "[The agent is done, and has said nothing.]"


def error(voice: Voice, kind: str, message: str, retry: str) -> NewEvent:
    """A ``session.error`` event."""
    return voice.event(
        "session.error", error={"type": kind, "message": message, "retry_status": {"type": retry}}
    )


def result(voice: Voice, call: Call, text: str) -> NewEvent:
    """An error result that the server itself gives for a call which did not run."""
    content = [{"type": "text", "text": text}]
    match call.kind:
        case "sandbox" | "web":
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


def response(
    voice: Voice,
    start_id: str,
    answer: ModelResponse,
    ids: PreviewIds,
    state: SessionState,
    asked: Mapping[str, str] | None = None,
) -> list[NewEvent]:
    """What a model's answer writes: thinking, message, tool uses, the end of the request, and the results of
    those calls that the brain answers itself.

    The request's end keeps the raw answer, which event stands for which call of the model, what calls that
    deal with other threads are answered, and what was `asked`, as digests.
    """
    events = _said(voice, answer, ids)
    calls: dict[str, str] = {}
    answered: dict[str, dict[str, Any]] = {}
    answers: list[NewEvent] = []
    uses = [block for block in answer.content if block.get("type") == "tool_use"]
    for block in uses if answer.stop_reason != "refusal" else ():
        done = voice.delegation.answer(block["name"], block.get("input") or {}, state)
        if done is not None:
            state = as_if(state, done.events, _ANY_TIME)
            events.extend(done.events)
            calls[block["id"]] = done.events[0].id if done.events else block["id"]
            answered[block["id"]] = {"text": done.text, "is_error": done.is_error}
            continue
        use = _tool_use(voice, block)
        calls[block["id"]] = use.id
        events.append(use)
        answers.extend(_own_result(voice, use))
    return [*events, _completed(voice, start_id, answer, calls, answered, asked), *answers]


_ANY_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""For states that are looked at for their threads alone."""


def _said(voice: Voice, answer: ModelResponse, ids: PreviewIds) -> list[NewEvent]:
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
    return events


def _tool_use(voice: Voice, block: Mapping[str, Any]) -> NewEvent:
    name: str = block["name"]
    given: dict[str, Any] = block.get("input") or {}
    if any(tool["name"] == name for tool in custom_tools(voice.agent)):
        return voice.event("agent.custom_tool_use", name=name, input=given)
    if name in voice.own:
        return voice.event(
            "agent.mcp_tool_use",
            name=name,
            mcp_server_name=SERVER,
            input=given,
            evaluated_permission="allow",
            evaluation={"type": "always_allow"},
        )
    if (tool := voice.mcp.get(name)) is not None:
        return voice.event(
            "agent.mcp_tool_use",
            mcp_server_name=tool.server_name,
            name=tool.name,
            input=given,
            **tool.evaluation.fields(),
        )
    evaluation = evaluate(voice.agent, name, voice.web)
    return voice.event("agent.tool_use", name=name, input=given, **evaluation.fields())


def _own_result(voice: Voice, use: NewEvent) -> Iterable[NewEvent]:
    tool = voice.own.get(use.body["name"])
    if tool is None or use.body.get("mcp_server_name") != SERVER:
        return
    brought = tool.answer(use.body["input"])
    content = [{"type": "text", "text": brought.text}]
    event = voice.event(
        "agent.mcp_tool_result", mcp_tool_use_id=use.id, content=content, is_error=brought.is_error
    )
    yield msgspec.structs.replace(event, resolves=use.id)


def _completed(
    voice: Voice,
    start_id: str,
    answer: ModelResponse,
    calls: Mapping[str, str],
    answered: Mapping[str, Mapping[str, Any]],
    asked: Mapping[str, str] | None,
) -> NewEvent:
    usage = usage_of(voice, answer)
    counts = {name: usage[name] for name in ("input_tokens", "output_tokens", "cache_read_input_tokens")}
    written = usage["ephemeral_5m_input_tokens"] + usage["ephemeral_1h_input_tokens"]
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
            **({"answered": answered} if answered else {}),
            **({"request": asked} if asked else {}),
            "model": voice.agent["model"]["id"],
            "served_model": answer.model,
            "usage": usage,
        },
    )


def usage_of(voice: Voice, answer: ModelResponse) -> dict[str, int]:
    """What an answer adds to the session's usage, by the names of its counts, its cost among them."""
    used = answer.usage
    writes: Mapping[str, Any] = used.get("cache_creation") or {}
    hour = int(writes.get("ephemeral_1h_input_tokens") or 0)
    counts = {
        "input_tokens": int(used.get("input_tokens") or 0),
        "output_tokens": int(used.get("output_tokens") or 0),
        "cache_read_input_tokens": int(used.get("cache_read_input_tokens") or 0),
        "ephemeral_5m_input_tokens": int(used.get("cache_creation_input_tokens") or 0) - hour,
        "ephemeral_1h_input_tokens": hour,
    }
    return {**counts, **_cost(voice, answer, counts)}


def _cost(voice: Voice, answer: ModelResponse, counts: Mapping[str, int]) -> dict[str, int]:
    server_tools: Mapping[str, Any] = answer.usage.get("server_tool_use") or {}
    searches = int(server_tools.get("web_search_requests") or 0)
    cost = voice.prices.cost(
        voice.agent["model"]["id"],
        counts,
        served=answer.model,
        speed=answer.usage.get("speed"),
        geography=answer.usage.get("inference_geo"),
        web_searches=searches,
    )
    found = {"unpriced_requests": 1} if cost is None else {"cost_nanodollars": cost}
    return {"web_search_requests": searches, **found}


def failed(
    voice: Voice, start_id: str, failure: ModelFailed, *, retry_at: datetime | None, alone: bool = True
) -> list[NewEvent]:
    """What a failed model request writes; without `retry_at` the turn is dead.

    `alone`: no other thread is running, so the whole session waits for the retry.
    """
    kind = _FAILURES[failure.kind]
    kept: dict[str, Any] = {"failure": failure.message, "refused": failure.refused}
    end = request_end(voice, start_id, "failed", is_error=True, private=kept)
    if retry_at is None:
        return [end, error(voice, kind, failure.message, "exhausted")]
    until = {"retry_at": retry_at.isoformat()}
    whole = voice.of_session("session.status_rescheduled", private=None if voice.primary else until)
    return [
        end,
        error(voice, kind, failure.message, "retrying"),
        *([whole] if alone else []),
        voice.thread_status("rescheduled", private=until),
    ]


def interruption(
    voice: Voice,
    taken: Sequence[NewEvent],
    *,
    start_id: str | None,
    calls: Iterable[Call],
    outcome: Outcome | None = None,
) -> list[NewEvent]:
    """What an interrupt writes before the idle: itself, the cut request's end, results for open calls, and
    the end of the outcome that was worked on.
    """
    events = list(taken)
    if start_id is not None:
        events.append(request_end(voice, start_id, "interrupted", is_error=False))
    events.extend(result(voice, call, INTERRUPTED_CALL) for call in calls)
    if outcome is not None:
        events.append(outcome_end(voice, outcome, "interrupted", "The user interrupted the work."))
    return events


def ungraded(voice: Voice, outcome: Outcome) -> NewEvent:
    """The end of an outcome that nobody judges."""
    return outcome_end(voice, outcome, "failed", _UNGRADED)


def outcome_end(voice: Voice, outcome: Outcome, verdict: str, explanation: str) -> NewEvent:
    """The end of an outcome whose judging had not begun."""
    return voice.event(
        "span.outcome_evaluation_end",
        outcome_evaluation_start_id="",
        outcome_id=outcome.id,
        iteration=outcome.iteration,
        result=verdict,
        explanation=explanation,
        usage={**dict.fromkeys(_COUNTS, 0), "speed": voice.agent["model"]["speed"]},
    )


def preview_id() -> str:
    """A fresh event id for a preview to announce."""
    return new_id("sevt")
