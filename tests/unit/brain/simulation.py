"""A session without a database, a model or a clock: decisions are performed in memory, one at a time.

It writes what the brain's loop writes, through the same pure functions, so that logs made by it are logs that
a session may have.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from corral.brain import compaction, emit, grading_events
from corral.brain.context_rules import ContextRules
from corral.brain.decide import (
    Action,
    AwaitRetry,
    CallModel,
    CloseRequest,
    Compact,
    Deny,
    Evaluate,
    GoIdle,
    Interrupt,
    Rest,
    Rules,
    RunTools,
    Settle,
    TakeVerdicts,
    decide,
    settle,
    settle_all,
)
from corral.brain.grader import VERDICT, Unusable, Verdict, Wishes, read_answer
from corral.brain.own_tools import OwnAnswer, own_tool
from corral.brain.transcript import Transcript
from corral.brain.voice import Voice
from corral.inference.provider import ModelFailed, ModelRequest, ModelResponse
from corral.session.budget import budget_object
from corral.session.calls import Call
from corral.session.events import Event, Input, NewEvent, new_event
from corral.session.state import SessionState, fold, with_inputs
from corral.session.thread_state import COMPACTION
from corral.testing.validation.request import check_request
from corral.wire.ids import new_id

MODEL: Final = "claude-sonnet-4-5"
THREAD: Final = "sthr_x"
AGENT: Final[dict[str, Any]] = {
    "name": "tester",
    "model": {"id": MODEL, "speed": "standard"},
    "tools": [
        {
            "type": "agent_toolset_20260401",
            "default_config": {"enabled": True, "permission_policy": {"type": "always_allow"}},
            "configs": [{"name": "read", "enabled": True, "permission_policy": {"type": "always_ask"}}],
        },
        {"type": "custom", "name": "look_up", "description": "", "input_schema": {"type": "object"}},
    ],
}
OWN: Final = "ant__echo"
"""A tool that the brain answers itself."""
ECHO: Final = own_tool(OWN, "Says it again.", lambda given: OwnAnswer(str(given), is_error=not given))
LIMITS: Final = {"max_rounds": 6, "max_truncations": 2}


class SimulatedSession:
    """A session's log, queue and state, and what its brain does next."""

    def __init__(self, *, self_hosted: bool = False, budget: int | None = None) -> None:
        self.rules = Rules(self_hosted=self_hosted, context=ContextRules(MODEL), **LIMITS)
        self.voice = Voice(THREAD, AGENT, self_hosted, own={OWN: ECHO}, web=frozenset({"web_fetch"}))
        self.state = SessionState(THREAD, budget=budget)
        self.transcript = Transcript(MODEL)
        self.events: list[Event] = []
        self.requests: list[list[dict[str, Any]]] = []
        self.resolved: set[str] = set()
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.actions: list[str] = []
        self.verdicts: list[ModelResponse] = []
        """What the grader answers; once there is none left, it is satisfied."""

    def sends(self, kind: str, **body: Any) -> None:
        """A client's event that waits in the queue."""
        new = new_event(kind, THREAD, **body)
        position = self.state.last_input + 1
        entry = Input(position, new.id, kind, THREAD, {"id": new.id, "type": kind, **body})
        self.state = with_inputs(self.state, (*self.state.inputs, entry), position)

    def answers(self, call: Call, **body: Any) -> None:
        """A result that enters the log at once."""
        is_custom = call.kind == "custom"
        kind = "user.custom_tool_result" if is_custom else "agent.tool_result"
        field = "custom_tool_use_id" if is_custom else "tool_use_id"
        new = NewEvent(new_id("sevt"), kind, THREAD, {field: call.id, **body})
        self.append([msgspec.structs.replace(new, resolves=call.id)])

    def defines(self, description: str = "a report", iterations: int = 3) -> None:
        """An outcome, which enters the log at once."""
        body: dict[str, Any] = {
            "outcome_id": new_id("outc"),
            "description": description,
            "max_iterations": iterations,
        }
        rubric = {"type": "text", "content": "has figures"}
        self.append([new_event("user.define_outcome", THREAD, **body, rubric=rubric)])

    def changes_budget(self, cents: int | None) -> None:
        """The budget is raised, lowered or removed."""
        self.append([new_event("session.updated", THREAD, budget=budget_object(cents))])

    def append(self, events: Iterable[NewEvent], take: Sequence[Input] = ()) -> None:
        """One commit."""
        for new in events:
            assert new.resolves is None or new.resolves not in self.resolved, f"{new.resolves} twice"
            if new.resolves is not None:
                self.resolved.add(new.resolves)
            body = {"id": new.id, "type": new.type, **new.body}
            self.now += timedelta(seconds=1)
            event = Event(len(self.events) + 1, new.id, new.type, new.thread_id, body, self.now, new.private)
            self.events.append(event)
            self.state = fold(self.state, event)
            self.transcript.add(event)
            if event.type == "agent.thread_context_compacted":
                self.requests.clear()  # the next one shares no prefix with them
        left = [entry for entry in self.state.inputs if entry not in take]
        self.state = with_inputs(self.state, left, self.state.last_input)

    def acts(self, outcome: ModelResponse | ModelFailed | None) -> Action:
        """The brain's next action, performed. `outcome` is what a model request brings; None: it dies."""
        action = decide(self.state, self.rules, self.now)
        self.actions.append(type(action).__name__)
        match action:
            case CloseRequest():
                self.append([emit.request_end(self.voice, action.start_id, "orphaned", is_error=True)])
            case Interrupt():
                taken = [entry.taken() for entry in action.inputs]
                written = emit.interruption(
                    self.voice, taken, start_id=None, calls=action.calls, outcome=self.state.outcome
                )
                if action.ends_turn:
                    written += self._idle(GoIdle("end_turn"))
                self.append(written, action.inputs)
            case TakeVerdicts():
                self.append([entry.taken() for entry in action.inputs], action.inputs)
            case Deny():
                self.append([emit.result(self.voice, call, emit.denial(call)) for call in action.calls])
            case RunTools():
                if running := emit.running(self.voice, self.state):
                    self.append(running)
            case CallModel():
                self._calls_model(action, outcome)
            case Compact():
                self._compacts(outcome)
            case AwaitRetry():
                self.now = action.until
            case Evaluate():
                self._evaluates(action, outcome)
            case GoIdle():
                taken = [entry.taken() for entry in action.flush]
                self.append([*taken, *self._idle(action)], action.flush)
            case Settle():
                settled = settle_all(self.state, self.rules, self.now)
                self.append(emit.session_idle(self.voice, self.state, settled, self.now))
            case Rest():
                pass
        return action

    def _idle(self, action: GoIdle) -> list[NewEvent]:
        settled = settle(self.state, self.rules, self.now, action)
        return emit.idle(self.voice, self.state, action, self.now, settled)

    def _evaluates(self, action: Evaluate, outcome: ModelResponse | ModelFailed | None) -> None:
        begun = grading_events.begun(self.voice, action.outcome)
        self.append([*emit.running(self.voice, self.state), begun])
        judged = self.state.outcome
        assert judged is not None
        if isinstance(outcome, ModelFailed):
            retry_at = self.now + timedelta(minutes=1) if outcome.retryable else None
            self.append(grading_events.failed(self.voice, judged, outcome, retry_at=retry_at, alone=True))
        elif outcome is not None:
            match read_answer(self.verdicts.pop(0) if self.verdicts else verdict()):
                case Verdict() as found:
                    self.append([grading_events.judged(self.voice, judged, verdict(), found)])
                case Wishes():
                    self.append([grading_events.read(self.voice, judged, verdict(), {})])
                case Unusable() as why:
                    self.append([grading_events.unusable(self.voice, judged, verdict(), why)])

    def _calls_model(self, action: CallModel, outcome: ModelResponse | ModelFailed | None) -> None:
        start = self.voice.event("span.model_request_start")
        taken = [entry.taken() for entry in action.inputs]
        self.append([*taken, *emit.running(self.voice, self.state), start], action.inputs)
        self.requests.append(self.transcript.messages())
        check_request({"model": MODEL, "max_tokens": 100, "messages": self.requests[-1]})
        if isinstance(outcome, ModelResponse):
            self.append(
                emit.response(self.voice, start.id, outcome, emit.PreviewIds(thinking=[]), self.state)
            )
        elif outcome is not None:
            self._fails(start.id, outcome)

    def _compacts(self, outcome: ModelResponse | ModelFailed | None) -> None:
        thread = self.state.lead
        assert not thread.calls, "a conversation is compacted between batches of calls alone"
        start = compaction.start(self.voice)
        self.append([*emit.running(self.voice, self.state), start])
        can = self.rules.context.model_of(thread)
        cut = compaction.cut_for(thread, self.transcript.sizes(), can)
        request = compaction.summary_request(
            ModelRequest(MODEL, self.transcript.messages()), can, digest=compaction.needs_digest(thread)
        )
        check_request({"model": MODEL, "max_tokens": 100, "messages": request.messages})
        if isinstance(outcome, ModelResponse):
            self.append(compaction.finished(self.voice, start.id, outcome, cut))
        elif outcome is not None:
            self._fails(start.id, outcome, COMPACTION)

    def _fails(self, start_id: str, failure: ModelFailed, purpose: str | None = None) -> None:
        if failure.overflow:
            private = {"failure": failure.message, "purpose": purpose}
            self.append([emit.request_end(self.voice, start_id, "overflow", is_error=True, private=private)])
            return
        retry_at = self.now + timedelta(minutes=1) if failure.retryable else None
        self.append(emit.failed(self.voice, start_id, failure, retry_at=retry_at))

    def cuts_off(self) -> None:
        """An interrupt stops the model request that is under way."""
        interrupts = [entry for entry in self.state.inputs if entry.type == "user.interrupt"]
        taken = [entry.taken() for entry in interrupts]
        written = emit.interruption(
            self.voice, taken, start_id=self.state.lead.request, calls=(), outcome=self.state.outcome
        )
        written += self._idle(GoIdle("end_turn"))
        self.append(written, interrupts)

    def rests(self, outcome: ModelResponse | ModelFailed | None = None, *, most: int = 200) -> Action:
        """Acts until it waits for somebody: the action it waits in. Each request brings `outcome`."""
        for _ in range(most):
            action = self.acts(outcome or answer())
            if isinstance(action, Rest | RunTools):
                return action
        raise AssertionError(f"no rest in {most} actions: {self.actions[-10:]}")


def answer(*blocks: dict[str, Any], stop: str = "end_turn", tokens: int = 0, **fields: Any) -> ModelResponse:
    """A response of `blocks`; a single text without any. `tokens`: how long the request was."""
    content = list(blocks) or [{"type": "text", "text": "fine"}]
    if any(block["type"] == "tool_use" for block in content) and stop == "end_turn":
        stop = "tool_use"
    return ModelResponse(content, stop, {"input_tokens": tokens} if tokens else {}, MODEL, **fields)


def verdict(result: str = "satisfied", explanation: str = "as asked") -> ModelResponse:
    """A verdict of the grader's."""
    given: dict[str, Any] = {"criteria": [], "explanation": explanation, "result": result}
    return answer({"type": "tool_use", "id": "toolu_v", "name": VERDICT, "input": given})


def use(id: str, name: str = "look_up", **given: Any) -> dict[str, Any]:
    """A tool use block."""
    return {"type": "tool_use", "id": id, "name": name, "input": given}
