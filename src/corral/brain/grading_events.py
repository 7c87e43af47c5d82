"""The events that each step of an evaluation writes (contract sections 10.6 and 14). Pure.

Every request to the grader begins with an event that says so in its private part, and ends with one that
holds what it used, in the same way as the model requests of a thread do. So what it cost is in the log
whatever becomes of the evaluation, and a brain that takes over goes on with it.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from corral.brain import emit
from corral.brain.grader import VERSION, Block, Unusable, Verdict, kept_content, unread
from corral.brain.voice import Voice
from corral.inference.provider import ModelFailed, ModelResponse
from corral.session.events import ASKED, ASKS, NewEvent
from corral.session.outcome_state import NOTHING_USED, Outcome, added

MOST_UNUSABLE: Final = 3
"""Answers without a verdict in one evaluation, before the work is taken to be beyond judging."""

_BEYOND: Final = (
    "The work could not be judged: the grader gave no usable verdict in {count} answers. Of the last one: "
    "{reason}"
)
_UNANSWERED: Final = "The work could not be judged: the grader could not be asked. {reason}"
_BROKEN: Final = "The work could not be judged: the server failed inside; its log says why."


def begun(voice: Voice, outcome: Outcome) -> NewEvent:
    """The beginning of a request, and with the first one that of the evaluation."""
    step = "start" if outcome.evaluation is None else "ongoing"
    return _event(voice, outcome, step, private={ASKS: True})


def heartbeat(voice: Voice, outcome: Outcome) -> NewEvent:
    """A sign that the evaluation goes on."""
    return _event(voice, outcome, "ongoing")


def read(voice: Voice, outcome: Outcome, answer: ModelResponse, results: Mapping[str, Block]) -> NewEvent:
    """The grader has read on. The event keeps what it asked for and what it got."""
    return _event(voice, outcome, "ongoing", private=_kept(voice, answer, "read", results))


def judged(voice: Voice, outcome: Outcome, answer: ModelResponse, verdict: Verdict) -> NewEvent:
    """The end of an evaluation."""
    result = verdict.result
    unmet = result == "needs_revision" and outcome.is_last
    return _end(voice, outcome, answer, "max_iterations_reached" if unmet else result, verdict.explanation)


def unusable(voice: Voice, outcome: Outcome, answer: ModelResponse, why: Unusable) -> NewEvent:
    """The grader gave no verdict: it is told why that will not do, or the evaluation ends as failed."""
    count = 1 if outcome.evaluation is None else outcome.evaluation.unusable + 1
    if count >= MOST_UNUSABLE:
        return _end(voice, outcome, answer, "failed", _BEYOND.format(count=count, reason=why.reason))
    results = unread({}, kept_content(answer), why.reason)
    note = "" if results else f"This will not do. {why.reason}"
    return _event(
        voice, outcome, "ongoing", private={**_kept(voice, answer, "unusable", results), "note": note}
    )


def failed(
    voice: Voice, outcome: Outcome, failure: ModelFailed, *, retry_at: datetime | None, alone: bool
) -> list[NewEvent]:
    """The grader did not answer; without `retry_at` the evaluation has failed, and the turn is dead.

    `alone`: no other thread is running, so the whole session waits for the retry.
    """
    kind = emit.FAILURES[failure.kind]
    kept = {"outcome": "failed", "failure": failure.message, "refused": failure.refused}
    if retry_at is None:
        reason = _UNANSWERED.format(reason=failure.message)
        return [
            emit.outcome_end(voice, outcome, "failed", reason, private=kept),
            emit.error(voice, kind, failure.message, "exhausted"),
        ]
    return [
        _event(voice, outcome, "ongoing", private={ASKED: True, **kept}),
        emit.error(voice, kind, failure.message, "retrying"),
        *([voice.of_session("session.status_rescheduled")] if alone else []),
        voice.thread_status("rescheduled", private={"retry_at": retry_at.isoformat()}),
    ]


def broken_off(voice: Voice, outcome: Outcome) -> NewEvent:
    """The end of an evaluation in which the server failed."""
    return emit.outcome_end(voice, outcome, "failed", _BROKEN)


def grader_voice(voice: Voice, model: str | None) -> Voice:
    """The voice by which the grader's requests are priced: `model` in place of the agent's own, if given."""
    if model is None or model == voice.agent["model"]["id"]:
        return voice
    own: dict[str, Any] = {**voice.agent["model"], "id": model, "speed": "standard"}
    return msgspec.structs.replace(voice, agent={**voice.agent, "model": own})


def _end(voice: Voice, outcome: Outcome, answer: ModelResponse, result: str, explanation: str) -> NewEvent:
    usage = emit.usage_of(voice, answer)
    private = {**_answered(voice, answer, usage), "content": answer.content}
    counts = added(NOTHING_USED, usage)
    return emit.outcome_end(voice, outcome, result, explanation, usage=counts, private=private)


def _kept(voice: Voice, answer: ModelResponse, outcome: str, results: Mapping[str, Block]) -> dict[str, Any]:
    usage = emit.usage_of(voice, answer)
    return {
        "outcome": outcome,
        **_answered(voice, answer, usage),
        "content": kept_content(answer),
        "results": dict(results),
    }


def _answered(voice: Voice, answer: ModelResponse, usage: Mapping[str, int]) -> dict[str, Any]:
    return {
        ASKED: True,
        "usage": dict(usage),
        "model": voice.agent["model"]["id"],
        "served_model": answer.model,
        "prompt_version": VERSION,
    }


def _event(
    voice: Voice, outcome: Outcome, step: str, *, private: Mapping[str, Any] | None = None
) -> NewEvent:
    return voice.event(
        f"span.outcome_evaluation_{step}",
        outcome_id=outcome.id,
        iteration=outcome.iteration,
        private=None if private is None else dict(private),
    )
