"""What becomes of a call: the agent's own policy, the operator's, and the judge's word taken together. Pure.

The strictest of them holds. The one thing that relaxes is a rule of the operator's that says so (`over_ask`).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from corral.brain.permission import Evaluation
from corral.brain.proposals import Proposal
from corral.policy.judge import PROMPT_VERSION, Verdict
from corral.policy.rules import GateDecision
from corral.session.commit import DecisionRow
from corral.session.events import NewEvent
from corral.wire.ids import new_id

RECORD: Final = "policy"
"""Where the private part of an event keeps the record of a decision."""
EVENTLESS: Final = "policies"
"""Where a request's end keeps those of calls that have no event of their own."""

_ALLOWED: Final = Evaluation("allow", {"type": "always_allow"})
_ASKED: Final = Evaluation("ask", {"type": "always_ask"})
_REFUSED: Final = Evaluation("deny", None)


class Judged(msgspec.Struct, frozen=True):
    """What the judge said of a call, and which model it was."""

    verdict: Verdict
    model: str


class Ruling(msgspec.Struct, frozen=True):
    """The decision on one proposed call."""

    proposal: Proposal
    evaluation: Evaluation
    gate: GateDecision | None = None
    digest: str = ""
    """Which policy file it was."""
    judged: Judged | None = None

    @property
    def denied(self) -> bool:
        """True if the call must not be made."""
        return self.evaluation.evaluated_permission == "deny"

    @property
    def told(self) -> str | None:
        """What the model is told beside the fact that a call was refused."""
        if self.gate is None or not self.denied or self.gate.effect == "allow":
            return None
        return self.gate.reason

    @property
    def refusal(self) -> str:
        """The result of a call that was refused and is answered at once."""
        return refusal(self.proposal.name, self.told)

    def record(self) -> dict[str, Any] | None:
        """What the log and the audit trail keep; None where the agent's own policy alone decided."""
        if self.gate is None and self.judged is None:
            return None
        own = self.proposal.evaluation
        kept: dict[str, Any] = {
            "tool": self.proposal.tool,
            "permission": self.evaluation.evaluated_permission,
            "agent_policy": None if own.evaluation is None else own.evaluation["type"],
        }
        if self.gate is not None:
            kept["gate"] = {"effect": self.gate.effect, "rule": self.gate.rule, "policy": self.digest}
        if self.judged is not None:
            verdict = self.judged.verdict
            kept["judge"] = {
                "permission": verdict.permission,
                "reason": verdict.reason,
                "failure": verdict.failure,
                "model": self.judged.model,
                "prompt": PROMPT_VERSION,
            }
        if self.told is not None:
            kept["told"] = self.told
        return kept


class Cleared(msgspec.Struct, frozen=True):
    """The rulings on an answer's calls, in their order, and what the judging used."""

    rulings: Sequence[Ruling] = ()
    usage: Mapping[str, int] = {}


UNGATED: Final = Cleared()
"""That of an answer whose calls the agent's own policy alone decides."""


def added(usage: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    """Two usages together."""
    return {name: usage.get(name, 0) + more.get(name, 0) for name in {**usage, **more}}


def refusal(name: str, told: str | None) -> str:
    """What the model reads of a call that policy refused (contract section 6), and the operator's reason."""
    text = f"Permission to use {name} has been denied."
    return text if told is None else f"{text} The operator's policy says: {told}"


def is_for_the_judge(proposal: Proposal, gate: GateDecision | None) -> bool:
    """Whether the call has to be judged before anybody can say what becomes of it."""
    evaluation = proposal.evaluation.evaluation
    if evaluation is None or evaluation["type"] != "auto":
        return False
    return gate is None or not (gate.effect == "deny" or gate.over_ask)


def rule(
    proposal: Proposal, gate: GateDecision | None = None, judged: Judged | None = None, digest: str = ""
) -> Ruling:
    """The ruling on a call, of all that was said about it."""
    own = proposal.evaluation
    if judged is not None:
        own = Evaluation(judged.verdict.permission, judged.verdict.evaluation())
    return Ruling(proposal, _strictest(proposal, own, gate), gate, digest, judged)


def _strictest(proposal: Proposal, own: Evaluation, gate: GateDecision | None) -> Evaluation:
    if gate is None or (own.evaluated_permission == "deny" and own.evaluation is None):
        return own
    # A call that is answered at once cannot be held for anybody: it is made or it is not.
    if gate.effect == "deny" or (gate.effect == "ask" and proposal.kind == "own"):
        return _REFUSED
    if proposal.kind == "custom":
        return own  # the client runs it, or does not: who would be asked is who is told of it
    if gate.over_ask:
        return _ALLOWED
    if gate.effect == "ask" and own.evaluated_permission == "allow":
        return _ASKED
    return own


def recorded(event: NewEvent, ruling: Ruling) -> NewEvent:
    """A tool use event with the record of its decision."""
    record = ruling.record()
    if record is None:
        return event
    return msgspec.structs.replace(event, private={**(event.private or {}), RECORD: record})


def decision_rows(events: Sequence[NewEvent], *about: str) -> tuple[DecisionRow, ...]:
    """The decisions that events keep, for the audit trail. `about`: ids of what all of them concern."""
    return tuple(
        DecisionRow(
            new_id("audit"),
            record["gate"]["policy"] if "gate" in record else "judge",
            f"{record['permission']} {record['tool']}",
            (*about, event.thread_id, event.id),
            record,
        )
        for event in events
        for record in _records(event.private or {})
    )


def _records(private: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if (record := private.get(RECORD)) is not None:
        yield record
    yield from private.get(EVENTLESS, ())
