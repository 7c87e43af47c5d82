"""The outcome that a session works on, folded from its events (contract section 14). Pure.

What the API shows of all outcomes is in `corral.session.outcomes`.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from corral.session.events import Event

COUNTS: Final = (
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
)
"""What a span's ``usage`` counts."""

NOTHING_USED: Final[Mapping[str, int]] = dict.fromkeys(COUNTS, 0)
DEFAULT_ITERATIONS: Final = 3


class Evaluation(msgspec.Struct, frozen=True):
    """An evaluation that has begun and not ended, whoever is at it."""

    start_id: str
    start_seq: int
    """Where it begins in the log; what the grader was answered stands behind it."""
    usage: dict[str, int] = msgspec.field(default_factory=lambda: dict(NOTHING_USED))
    """What its finished requests used, by the names of `COUNTS`."""
    reads: int = 0
    """Requests that were answered by calls of the grader's reading tool."""
    unusable: int = 0
    """Answers that held no verdict."""
    failures: int = 0
    """Requests that failed in a row."""
    plain: bool = False
    """True once a request was refused: those that follow hold neither media nor a forced tool."""


class Outcome(msgspec.Struct, frozen=True):
    """The outcome that is worked on."""

    id: str
    iteration: int = 0
    fresh: bool = True
    """True until a model request has shown it to the model."""
    max_iterations: int = DEFAULT_ITERATIONS
    defined: int = 0
    """The place of its definition in the log."""
    evaluation: Evaluation | None = None
    last_explanation: str = ""
    """What the evaluation before has found."""

    @property
    def is_last(self) -> bool:
        """Whether no revision follows on the evaluation of this iteration."""
        return self.iteration + 1 >= self.max_iterations


OUTCOME_PREFIXES: Final = ("user.define_outcome", "span.outcome_evaluation_")


def fold_outcome(outcome: Outcome | None, event: Event) -> Outcome | None:
    """The outcome after an event that tells of outcomes."""
    match event.type:
        case "user.define_outcome":
            return Outcome(
                event.body["outcome_id"],
                max_iterations=event.body.get("max_iterations") or DEFAULT_ITERATIONS,
                defined=event.seq,
            )
        case "span.outcome_evaluation_start" if outcome is not None:
            return msgspec.structs.replace(outcome, evaluation=Evaluation(event.id, event.seq))
        case "span.outcome_evaluation_ongoing" if outcome is not None and outcome.evaluation is not None:
            evaluation = _answered(outcome.evaluation, event.private or {})
            return msgspec.structs.replace(outcome, evaluation=evaluation)
        case "span.outcome_evaluation_end":
            return _judged(outcome, event)
        case _:
            return outcome


def _answered(evaluation: Evaluation, private: Mapping[str, Any]) -> Evaluation:
    """After an answer to the grader; a heartbeat, and the beginning of a request, change nothing."""
    match private.get("outcome"):
        case "failed":
            return msgspec.structs.replace(
                evaluation,
                failures=evaluation.failures + 1,
                plain=evaluation.plain or bool(private.get("refused")),
            )
        case "read" | "unusable" as kind:
            return msgspec.structs.replace(
                evaluation,
                failures=0,
                usage=added(evaluation.usage, private["usage"]),
                reads=evaluation.reads + (kind == "read"),
                unusable=evaluation.unusable + (kind == "unusable"),
            )
        case _:
            return evaluation


def added(counts: Mapping[str, int], usage: Mapping[str, int]) -> dict[str, int]:
    """The counts of a span with one more request's usage, which keeps cache writes by their time to live."""
    written = usage["ephemeral_5m_input_tokens"] + usage["ephemeral_1h_input_tokens"]
    more = {**usage, "cache_creation_input_tokens": written}
    return {name: counts[name] + more[name] for name in COUNTS}


def _judged(outcome: Outcome | None, event: Event) -> Outcome | None:
    if outcome is None or event.body["result"] != "needs_revision":
        return None
    return msgspec.structs.replace(
        outcome,
        iteration=event.body["iteration"] + 1,
        fresh=False,
        evaluation=None,
        last_explanation=event.body["explanation"],
    )
