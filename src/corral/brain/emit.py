"""The events that each step of a turn writes, in the documented order (contract section 10.11). Pure."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from corral.brain.decide import GoIdle, Settled
from corral.brain.delegation import Delegated, message
from corral.brain.own_tools import NO_ANSWERS, SERVER, OwnAnswer, OwnAnswers
from corral.brain.proposals import propose, uses
from corral.brain.rulings import EVENTLESS, UNGATED, Cleared, Ruling, added, recorded, refusal, rule
from corral.brain.voice import Voice
from corral.inference.provider import ModelFailed, ModelResponse
from corral.session.budget import budget_object
from corral.session.calls import Call
from corral.session.events import ASKED, NewEvent
from corral.session.outcome_state import COUNTS, NOTHING_USED, Outcome
from corral.session.state import SessionState, as_if
from corral.session.thread_state import ThreadState
from corral.session.usage import usage_private, usage_snapshot
from corral.wire.ids import new_id

INTERRUPTED_CALL: Final = "Tool execution was interrupted before completion. Please retry."

_ERROR_MESSAGES: Final = {
    "tool_use_limit_reached_error": "The turn made more model requests than one turn may; it was stopped.",
    "compaction_limit_reached_error": "The conversation does not fit into the model's context. "
    "Send a shorter message, or choose a model with a larger context.",
    "model_request_failed_error": "The model's responses were cut off at the output limit again and again.",
}
FAILURES: Final = {
    "overloaded": "model_overloaded_error",
    "rate_limited": "model_rate_limited_error",
    "billing": "billing_error",
    "failed": "model_request_failed_error",
}
"""The types of ``session.error`` by what kept a model request from being answered."""


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
        return refusal(call.name, call.told)
    reason = f" They said: {call.deny_message}" if call.deny_message else ""
    return f"The user denied this call; it was not run.{reason}"


def request_end(
    voice: Voice, start_id: str, outcome: str, *, is_error: bool, private: Mapping[str, Any] | None = None
) -> NewEvent:
    """The end of a model request that brought no answer."""
    return voice.event(
        "span.model_request_end",
        is_error=is_error,
        model_request_start_id=start_id,
        model_usage={**NOTHING_USED, "speed": voice.agent["model"]["speed"]},
        private={"outcome": outcome, **(private or {})},
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
    looked_up: OwnAnswers = NO_ANSWERS,
    cleared: Cleared = UNGATED,
    asked: Mapping[str, str] | None = None,
) -> list[NewEvent]:
    """What a model's answer writes: thinking, message, tool uses, the end of the request, and the results of
    those calls that the brain answers itself.

    The request's end keeps the raw answer, which event stands for which call of the model, and what calls
    that deal with other threads are answered. `looked_up` are answers that had to be read first, by the ids
    of the model's calls. `cleared` has the rulings on the calls; without any, the agent's own policies hold.
    `asked` are digests of the request.
    """
    events = _said(voice, answer, ids)
    calls: dict[str, str] = {}
    answered: dict[str, dict[str, Any]] = {}
    answers: list[NewEvent] = []
    eventless: list[dict[str, Any]] = []
    blocks = uses(answer)
    rulings = cleared.rulings or [rule(propose(voice, block)) for block in blocks]
    for block, ruling in zip(blocks, rulings, strict=True):
        done = _delegated(voice, ruling, state)
        if done is not None:
            state = as_if(state, done.events, _ANY_TIME)
            events.extend(done.events)
            calls[block["id"]] = done.events[0].id if done.events else block["id"]
            answered[block["id"]] = {"text": done.text, "is_error": done.is_error}
            if (record := ruling.record()) is not None:
                eventless.append(record)
            continue
        use = recorded(_tool_use(voice, ruling), ruling)
        calls[block["id"]] = use.id
        events.append(use)
        answers.extend(_own_result(voice, use, ruling, looked_up.get(block["id"])))
    beside = {"answered": answered, EVENTLESS: eventless, "judging": cleared.usage, "request": asked}
    kept: dict[str, Any] = {"calls": calls, **{name: value for name, value in beside.items() if value}}
    return [*events, _completed(voice, start_id, answer, kept), *answers]


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


def _delegated(voice: Voice, ruling: Ruling, state: SessionState) -> Delegated | None:
    """What a call that deals with other threads comes to; None for any other."""
    proposal = ruling.proposal
    if proposal.kind != "own" or proposal.name in voice.own:
        return None
    if ruling.denied:
        return Delegated(ruling.refusal, is_error=True)
    return voice.delegation.answer(proposal.name, proposal.input, state)


def _tool_use(voice: Voice, ruling: Ruling) -> NewEvent:
    proposal = ruling.proposal
    # A client runs what it sees: a call of its own tool that must not run is shown as none of those.
    if proposal.kind == "custom" and not ruling.denied:
        return voice.event("agent.custom_tool_use", name=proposal.name, input=proposal.input)
    shown = {"name": proposal.name, "input": proposal.input, **ruling.evaluation.fields()}
    if proposal.server_name is not None:
        return voice.event("agent.mcp_tool_use", mcp_server_name=proposal.server_name, **shown)
    return voice.event("agent.tool_use", **shown)


def _own_result(voice: Voice, use: NewEvent, ruling: Ruling, found: OwnAnswer | None) -> Iterable[NewEvent]:
    tool = voice.own.get(use.body["name"])
    if tool is None or use.body.get("mcp_server_name") != SERVER:
        return
    refused = OwnAnswer(ruling.refusal, is_error=True) if ruling.denied else None
    brought = refused or found or tool.answer(use.body["input"])
    content = [{"type": "text", "text": brought.text}]
    event = voice.event(
        "agent.mcp_tool_result", mcp_tool_use_id=use.id, content=content, is_error=brought.is_error
    )
    yield msgspec.structs.replace(event, resolves=use.id)


def _completed(voice: Voice, start_id: str, answer: ModelResponse, calls: Mapping[str, Any]) -> NewEvent:
    kept = {
        "outcome": "completed",
        "content": answer.content,
        "stop_reason": answer.stop_reason,
        "stop_details": answer.stop_details,
        **calls,
    }
    return answered_request(voice, start_id, answer, kept)


def answered_request(voice: Voice, start_id: str, answer: ModelResponse, kept: Mapping[str, Any]) -> NewEvent:
    """The end of a model request that was answered: what it used, and privately what is `kept` of it."""
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
            **kept,
            "model": voice.agent["model"]["id"],
            "served_model": answer.model,
            # With what the judging of its calls has used; what is shown above is the answer's alone.
            "usage": added(usage, kept.get("judging", {})),
        },
    )


def usage_of(voice: Voice, answer: ModelResponse, model: str | None = None) -> dict[str, int]:
    """What an answer adds to the session's usage, by the names of its counts, its cost among them.

    `model` is the one that was asked, where it is not the agent's.
    """
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
    return {**counts, **_cost(voice, answer, counts, model or voice.agent["model"]["id"])}


def _cost(voice: Voice, answer: ModelResponse, counts: Mapping[str, int], model: str) -> dict[str, int]:
    server_tools: Mapping[str, Any] = answer.usage.get("server_tool_use") or {}
    searches = int(server_tools.get("web_search_requests") or 0)
    cost = voice.prices.cost(
        model,
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
    kind = FAILURES[failure.kind]
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


def outcome_end(
    voice: Voice,
    outcome: Outcome,
    verdict: str,
    explanation: str,
    *,
    usage: Mapping[str, int] = NOTHING_USED,
    private: Mapping[str, Any] | None = None,
) -> NewEvent:
    """The end of an evaluation, or of an outcome whose evaluation had not begun.

    `usage` is that of a request which has just been answered; what the evaluation used before is added.
    """
    evaluation = outcome.evaluation
    used = NOTHING_USED if evaluation is None else evaluation.usage
    # None of its requests is under way any more.
    kept = {**(private or {}), **({} if evaluation is None else {ASKED: True})}
    return voice.event(
        "span.outcome_evaluation_end",
        outcome_evaluation_start_id="" if evaluation is None else evaluation.start_id,
        outcome_id=outcome.id,
        iteration=outcome.iteration,
        result=verdict,
        explanation=explanation,
        usage={**{name: used[name] + usage[name] for name in COUNTS}, "speed": voice.agent["model"]["speed"]},
        private=kept or None,
    )


def preview_id() -> str:
    """A fresh event id for a preview to announce."""
    return new_id("sevt")
