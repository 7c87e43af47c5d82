"""What to do next, decided from the state alone. Pure: no clock, no database, no model.

`Action` is a closed union; the loop that performs actions matches on it exhaustively, so a new kind of action
fails type checking until it is performed somewhere.
"""

from datetime import datetime
from typing import Final, Literal

import msgspec

from corral.session.events import Input
from corral.session.state import Call, SessionState


class Rules(msgspec.Struct, frozen=True):
    """What decisions depend on besides the log."""

    self_hosted: bool
    """Tool calls are answered by the client's worker (contract section 12), not awaited while running."""
    max_rounds: int = 1_000
    """Model requests in one turn, before the turn is taken to run in circles."""
    max_truncations: int = 3


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
    """Calls are with the hands: see that the hands are there, and wait for results."""

    calls: tuple[Call, ...]


class CallModel(msgspec.Struct, frozen=True):
    """Take the waiting messages and ask the model."""

    inputs: tuple[Input, ...]


class AwaitRetry(msgspec.Struct, frozen=True):
    """A model request failed; come back later."""

    until: datetime


class GoIdle(msgspec.Struct, frozen=True):
    """The turn is over, or it needs the client."""

    reason: Literal["end_turn", "requires_action", "retries_exhausted", "refusal"]
    event_ids: tuple[str, ...] = ()
    flush: tuple[Input, ...] = ()
    """Messages that the dead turn takes with it into the log, unanswered."""
    error: Literal["tool_use_limit_reached_error", "model_request_failed_error"] | None = None


class Rest(msgspec.Struct, frozen=True):
    """Nothing to do until something comes in."""


Action = CloseRequest | Interrupt | TakeVerdicts | Deny | RunTools | CallModel | AwaitRetry | GoIdle | Rest

_WORK_STARTING: Final = frozenset({"user.message"})
_WITH_THE_TURN: Final = frozenset({"user.message", "system.message"})


def decide(state: SessionState, rules: Rules, now: datetime) -> Action:
    """The next action for a session of which no action is under way."""
    if state.status == "terminated":
        return Rest()
    if state.request is not None:
        return CloseRequest(state.request)
    if interrupts := _inputs(state, frozenset({"user.interrupt"})):
        return _interrupt(state, interrupts)
    if verdicts := _inputs(state, frozenset({"user.tool_confirmation"})):
        return TakeVerdicts(verdicts)
    if denied := tuple(call for call in state.calls if call.denied):
        return Deny(denied)
    if state.calls:
        return _await_calls(state, rules)
    return _go_on(state, rules, now)


def _interrupt(state: SessionState, interrupts: tuple[Input, ...]) -> Interrupt:
    return Interrupt(interrupts, state.calls, ends_turn=state.status != "idle" or bool(state.calls))


def _await_calls(state: SessionState, rules: Rules) -> Action:
    runnable = tuple(call for call in state.calls if call.kind != "custom" and call.runnable)
    if runnable and not rules.self_hosted:
        return RunTools(runnable)
    waiting = tuple(call.id for call in state.calls)
    if state.status == "idle" and state.announced == waiting:
        return Rest()
    return GoIdle("requires_action", waiting)


def _go_on(state: SessionState, rules: Rules, now: datetime) -> Action:
    messages = _inputs(state, _WITH_THE_TURN)
    if state.ending == "retries_exhausted":
        return GoIdle("retries_exhausted", flush=messages)
    if state.ending == "refusal":
        return GoIdle("refusal")
    if state.pending or any(waiting.type in _WORK_STARTING for waiting in messages):
        if state.status == "rescheduling" and state.retry_at is not None and now < state.retry_at:
            return AwaitRetry(state.retry_at)
        if state.rounds >= rules.max_rounds:
            return GoIdle("retries_exhausted", flush=messages, error="tool_use_limit_reached_error")
        if state.truncations > rules.max_truncations:
            return GoIdle("retries_exhausted", flush=messages, error="model_request_failed_error")
        return CallModel(messages)
    if state.status != "idle":
        return GoIdle("end_turn")
    return Rest()


def leaves_work(state: SessionState, action: GoIdle) -> bool:
    """Whether a message waits that starts a turn of its own once `action` has ended this one."""
    if action.reason == "requires_action":
        return False
    waiting = (entry for entry in state.inputs if entry not in action.flush)
    return any(entry.type in _WORK_STARTING for entry in waiting)


def _inputs(state: SessionState, types: frozenset[str]) -> tuple[Input, ...]:
    return tuple(waiting for waiting in state.inputs if waiting.type in types)
