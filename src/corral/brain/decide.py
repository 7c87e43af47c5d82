"""What a thread does next, decided from the state alone. Pure: no clock, no database, no model.

`Action` is a closed union; the loop that performs actions matches on it exhaustively, so a new kind of action
fails type checking until it is performed somewhere.

Each thread of a session is decided on by itself. What the session as a whole says when a thread stops follows
from all of them: `settle`.
"""

from datetime import datetime
from typing import Final, Literal

import msgspec

from corral.brain.context_rules import ContextRules
from corral.session.budget import SESSION_HOUR, at_budget
from corral.session.calls import GATEWAY_KINDS, Call
from corral.session.events import Input
from corral.session.outcome_state import Outcome
from corral.session.state import SessionState
from corral.session.thread_state import Status, ThreadState


class Rules(msgspec.Struct, frozen=True):
    """What decisions depend on besides the log."""

    self_hosted: bool
    """Tool calls are answered by the client's worker (contract section 12), not awaited while running."""
    max_rounds: int = 1_000
    """Model requests in one turn, before the turn is taken to run in circles."""
    max_truncations: int = 3
    context: ContextRules = ContextRules()
    session_hour: int = SESSION_HOUR
    """The list price of an hour of running, in nanodollars."""


class CloseRequest(msgspec.Struct, frozen=True):
    """A model request has no end though nobody is making it: its brain died. Close it as failed."""

    start_id: str


class Interrupt(msgspec.Struct, frozen=True):
    """Stop the turn: take the interrupts, answer the open calls, go idle."""

    inputs: tuple[Input, ...]
    calls: tuple[Call, ...]
    ends_turn: bool
    """False on a session that was idle already, where an interrupt changes nothing."""


class TakeVerdicts(msgspec.Struct, frozen=True):
    """The client has allowed or denied calls: take its confirmations into the log."""

    inputs: tuple[Input, ...]


class Deny(msgspec.Struct, frozen=True):
    """Answer calls that must not run."""

    calls: tuple[Call, ...]


class RunTools(msgspec.Struct, frozen=True):
    """Calls may run: see that the hands are there for theirs, make those of MCP and web tools, and wait."""

    calls: tuple[Call, ...]


class CallModel(msgspec.Struct, frozen=True):
    """Take the waiting messages and ask the model."""

    inputs: tuple[Input, ...]


class Compact(msgspec.Struct, frozen=True):
    """The conversation is near the limit of the model's context: have it summed up. What waits, waits on."""


class AwaitRetry(msgspec.Struct, frozen=True):
    """A model request failed; come back later."""

    until: datetime


class Evaluate(msgspec.Struct, frozen=True):
    """The agent takes its work on an outcome to be done: ask the grader, once (contract section 14).

    An evaluation that is open already goes on, whoever had begun it.
    """

    outcome: Outcome


TurnError = Literal[
    "tool_use_limit_reached_error", "compaction_limit_reached_error", "model_request_failed_error"
]
StopReason = Literal["end_turn", "requires_action", "retries_exhausted", "refusal", "budget_reached"]


class GoIdle(msgspec.Struct, frozen=True):
    """The turn is over, or it needs the client."""

    reason: StopReason
    event_ids: tuple[str, ...] = ()
    flush: tuple[Input, ...] = ()
    """Messages that the dead turn takes with it into the log, unanswered."""
    error: TurnError | None = None
    ends_turn: bool = False
    """True if the thread's turn has ended all the same: the budget was reached with nothing left to do."""
    reports: bool = False
    """True if the thread that made this one is told what came of the turn."""
    terminates: bool = False
    """True if the thread ends for good: it is a child, and has run in circles."""


class Settle(msgspec.Struct, frozen=True):
    """All threads have stopped, and the session has not said so, or names calls that nobody waits for."""


class Rest(msgspec.Struct, frozen=True):
    """Nothing to do until something comes in."""


Action = (
    CloseRequest
    | Interrupt
    | TakeVerdicts
    | Deny
    | RunTools
    | CallModel
    | Compact
    | AwaitRetry
    | Evaluate
    | GoIdle
    | Settle
    | Rest
)

_INTERRUPTS: Final = frozenset({"user.interrupt"})
_WORK_STARTING: Final = frozenset({"user.message"})
_WITH_THE_TURN: Final = frozenset({"user.message", "system.message"})


def decide(state: SessionState, rules: Rules, now: datetime, thread_id: str | None = None) -> Action:
    """The next action for a thread of which no action is under way; the primary one unless named."""
    thread = state.lead if thread_id is None else state.thread(thread_id)
    action = _next(state, thread, rules, now)
    if isinstance(action, Rest) and thread.parent is None and _unsaid(state, rules, now):
        return Settle()
    return action


def _next(state: SessionState, thread: ThreadState, rules: Rules, now: datetime) -> Action:
    if state.status == "terminated" or not thread.live:
        return Rest()
    if thread.request is not None:
        return CloseRequest(thread.request)
    if is_interrupted(state, thread.id):
        return interrupt(state, thread)
    if verdicts := _inputs(state, thread, frozenset({"user.tool_confirmation"})):
        return TakeVerdicts(verdicts)
    if denied := tuple(call for call in thread.calls if call.denied):
        return Deny(denied)
    if thread.calls:
        return _await_calls(thread, rules)
    if any(other.interrupted for other in state.others(thread.id)):
        # Everything has been told to stop; what comes after the interrupt starts from there.
        return Rest()
    return _go_on(state, thread, rules, now)


def is_interrupted(state: SessionState, thread_id: str) -> bool:
    """Whether a thread is to stop: an interrupt of it waits, or one of the whole session was taken up."""
    thread = state.thread(thread_id)
    return thread.interrupted or bool(_inputs(state, thread, _INTERRUPTS))


def interrupt(state: SessionState, thread: ThreadState) -> Interrupt:
    """What the interrupts that wait come to on a thread."""
    # With its calls answered just now, an idle thread still says that it waits for them.
    unfinished = bool(thread.calls) or thread.stop_type == "requires_action"
    ends = thread.status != "idle" or unfinished or thread.interrupted
    return Interrupt(_inputs(state, thread, _INTERRUPTS), thread.calls, ends_turn=ends)


def _await_calls(thread: ThreadState, rules: Rules) -> Action:
    runnable = tuple(call for call in thread.calls if call.kind != "custom" and call.runnable)
    if runnable and not rules.self_hosted:
        return RunTools(runnable)
    # MCP and web tools are called from here wherever the session's hands are.
    if calls := tuple(call for call in runnable if call.kind in GATEWAY_KINDS):
        return RunTools(calls)
    waiting = tuple(call.id for call in thread.calls)
    if thread.status == "idle" and thread.announced == waiting:
        return Rest()
    return GoIdle("requires_action", waiting)


def _go_on(state: SessionState, thread: ThreadState, rules: Rules, now: datetime) -> Action:
    messages = _inputs(state, thread, _WITH_THE_TURN)
    child = thread.parent is not None
    outcome = None if child else state.outcome
    if outcome is not None and outcome.evaluation is not None and thread.ending == "end_turn":
        # What has come in meanwhile is taken up with the verdict.
        return _evaluate(state, thread, outcome, rules, now)
    if thread.ending == "retries_exhausted":
        return GoIdle("retries_exhausted", flush=messages, reports=child)
    if thread.ending == "refusal":
        return GoIdle("refusal", reports=child)
    if thread.pending or any(waiting.type in _WORK_STARTING for waiting in messages):
        if at_budget(state, rules.session_hour, now):
            return _pause(state, thread)
        if thread.status == "rescheduling" and thread.retry_at is not None and now < thread.retry_at:
            return AwaitRetry(thread.retry_at)
        if thread.rounds >= rules.max_rounds:
            circles = "tool_use_limit_reached_error"
            return GoIdle("retries_exhausted", flush=messages, error=circles, reports=child, terminates=child)
        if thread.truncations > rules.max_truncations:
            cut_off = "model_request_failed_error"
            return GoIdle("retries_exhausted", flush=messages, error=cut_off, reports=child)
        if rules.context.is_due(thread):
            if thread.compactions >= rules.context.most_in_a_row:
                full = "compaction_limit_reached_error"
                return GoIdle(
                    "retries_exhausted", flush=messages, error=full, reports=child, terminates=child
                )
            return Compact()
        return CallModel(messages)
    if outcome is not None and thread.ending == "end_turn" and not _others_at_it(state, thread, rules, now):
        return _evaluate(state, thread, outcome, rules, now)
    if thread.status != "idle":
        if at_budget(state, rules.session_hour, now):
            return GoIdle("budget_reached", ends_turn=True, reports=child)
        return GoIdle("end_turn", reports=child)
    return Rest()


def _evaluate(
    state: SessionState, thread: ThreadState, outcome: Outcome, rules: Rules, now: datetime
) -> Action:
    if at_budget(state, rules.session_hour, now):
        return _pause(state, thread)
    if thread.status == "rescheduling" and thread.retry_at is not None and now < thread.retry_at:
        return AwaitRetry(thread.retry_at)
    return Evaluate(outcome)


def _others_at_it(state: SessionState, thread: ThreadState, rules: Rules, now: datetime) -> bool:
    """Whether work on an outcome goes on elsewhere, be it that a client has to answer first."""
    if any(other.calls for other in state.others(thread.id)):
        return True
    return status_of_others(state, rules, now, thread.id) != "idle"


def _pause(state: SessionState, thread: ThreadState) -> GoIdle | Rest:
    said = "budget_reached"
    paused = thread.stop_type == said or (state.status == "idle" and state.stop_type == said)
    return Rest() if thread.status == "idle" and paused else GoIdle("budget_reached")


class Settled(msgspec.Struct, frozen=True):
    """Where the session stands once a thread has stopped."""

    status: Status
    """`idle` if no thread works any more."""
    reason: StopReason = "end_turn"
    """Why, if it is idle."""
    event_ids: tuple[str, ...] = ()
    """The calls of all threads that wait for the client."""
    rests: bool = False
    """True if nothing is left to do for anybody, and the session can be let go."""


def settle(
    state: SessionState, rules: Rules, now: datetime, action: GoIdle, thread_id: str | None = None
) -> Settled:
    """Where the session stands once a thread, the primary one unless named, goes idle as decided."""
    thread = state.lead if thread_id is None else state.thread(thread_id)
    if action.reports and thread.parent is not None:
        state = _told(state, thread.parent)
    if state.outcome is not None:
        # What has yet to be judged may wait for this thread alone.
        state = _stopped(state, thread, action)
    others = state.others(thread.id)
    status = status_of_others(state, rules, now, thread.id)
    if status != "idle":
        return Settled(status)
    waiting = [
        action.event_ids if one.id == thread.id else tuple(call.id for call in one.calls)
        for one in (state.threads or {thread.id: thread}).values()
        if one.live
    ]
    event_ids = tuple(event_id for ids in waiting for event_id in ids)
    lead = action.reason if thread.parent is None else state.lead.stop_type
    paused = action.reason == "budget_reached" or any(other.stop_type == "budget_reached" for other in others)
    rests = not leaves_work(state, action, thread.id) and all(
        isinstance(_next(state, other, rules, now), Rest) for other in others
    )
    return Settled("idle", _reason(event_ids, lead, paused=paused), event_ids, rests)


def settle_all(state: SessionState, rules: Rules, now: datetime) -> Settled:
    """Where a session stands whose threads have all stopped."""
    event_ids = _waiting(state)
    threads = [one for one in state.threads.values() if one.live]
    paused = any(one.stop_type == "budget_reached" for one in threads)
    rests = all(isinstance(_next(state, one, rules, now), Rest) for one in threads)
    return Settled("idle", _reason(event_ids, state.lead.stop_type, paused=paused), event_ids, rests)


def _reason(event_ids: tuple[str, ...], lead: str | None, *, paused: bool) -> StopReason:
    if event_ids:
        return "requires_action"
    if paused:
        return "budget_reached"
    match lead:
        case "retries_exhausted" | "refusal":
            return lead
        case _:
            return "end_turn"


def _waiting(state: SessionState) -> tuple[str, ...]:
    return tuple(call.id for one in state.threads.values() if one.live for call in one.calls)


def _unsaid(state: SessionState, rules: Rules, now: datetime) -> bool:
    """Whether the session has to say anew that it is idle, or what it waits for."""
    if state.status == "terminated" or not state.threads:
        return False
    if not all(_quiet(state, one, rules, now) for one in state.threads.values()):
        return False
    if state.status != "idle":
        return True
    return state.stop_type == "requires_action" and set(state.announced) != set(_waiting(state))


def _quiet(state: SessionState, thread: ThreadState, rules: Rules, now: datetime) -> bool:
    """Whether a thread does nothing, but for what clients may have sent it."""
    alone = msgspec.structs.replace(state, inputs=()) if state.inputs else state
    stopped = thread.status == "idle" or not thread.live
    return stopped and isinstance(_next(alone, thread, rules, now), Rest)


def status_of_others(state: SessionState, rules: Rules, now: datetime, thread_id: str) -> Status:
    """What the session would be without a thread: running if any other one works, or is about to."""
    working = [other for other in state.others(thread_id) if not _quiet(state, other, rules, now)]
    if not working:
        return "idle"
    return "rescheduling" if all(other.status == "rescheduling" for other in working) else "running"


def _told(state: SessionState, thread_id: str) -> SessionState:
    told = msgspec.structs.replace(state.thread(thread_id), pending=True)
    return msgspec.structs.replace(state, threads={**state.threads, thread_id: told})


def _stopped(state: SessionState, thread: ThreadState, action: GoIdle) -> SessionState:
    """The state once a thread has gone idle, as far as decisions on the others depend on it."""
    calls = tuple(call for call in thread.calls if call.id in action.event_ids)
    waits = action.reason in ("requires_action", "budget_reached")
    idle = msgspec.structs.replace(
        thread,
        status="idle",
        stop_type=action.reason,
        announced=action.event_ids,
        calls=calls,
        pending=thread.pending and waits,
        interrupted=False,
    )
    return msgspec.structs.replace(state, threads={**state.threads, thread.id: idle})


def leaves_work(state: SessionState, action: GoIdle, thread_id: str | None = None) -> bool:
    """Whether a message waits that starts a turn of its own once `action` has ended this one."""
    if action.reason in ("requires_action", "budget_reached"):
        return False
    thread = state.lead if thread_id is None else state.thread(thread_id)
    if thread.parent is None and state.outcome is not None and state.outcome.fresh:
        return True
    waiting = (entry for entry in state.inputs if entry not in action.flush)
    return any(entry.type in _WORK_STARTING and entry.thread_id == thread.id for entry in waiting)


def _inputs(state: SessionState, thread: ThreadState, types: frozenset[str]) -> tuple[Input, ...]:
    return tuple(
        waiting for waiting in state.inputs if waiting.type in types and waiting.thread_id == thread.id
    )
