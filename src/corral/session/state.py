"""The state of a session, folded from its events. This is the only place where it changes.

`fold` is pure: the same log gives the same state in every process, which is what lets any brain carry on
after any other. Waiting inputs are not in the log yet; whoever decides puts them beside with `with_inputs`.
What belongs to one thread is folded in `corral.session.thread_state`.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from corral.session import thread_state
from corral.session.events import Event, Input, NewEvent
from corral.session.outcome_state import OUTCOME_PREFIXES, Outcome, fold_outcome
from corral.session.thread_state import Status, ThreadState, Usage, fold_thread, used_anew


class SessionState(msgspec.Struct, frozen=True):
    """What a brain must know to decide, and no more."""

    primary: str = ""
    """The id of the primary thread; where it is not given, it is that of the log's first event."""
    seq: int = 0
    status: Status = "idle"
    """What the session says of itself; each thread has a status of its own."""
    stop_type: str | None = None
    announced: tuple[str, ...] = ()
    """The calls, of all threads, that the session's last idle event named as waiting for the client."""
    threads: Mapping[str, ThreadState] = {}
    """The threads by id, in the order in which they were made; the primary one once anything happened."""
    usage: Usage = Usage()
    running_since: datetime | None = None
    active: int = 0
    """Microseconds of running up to the last stop."""
    budget: int | None = None
    """The limit on the list cost in cents. The log has its changes; what it began with is the row's."""
    budget_held: bool = False
    """True from a pause at the budget until the budget is changed."""
    outcome: Outcome | None = None
    inputs: tuple[Input, ...] = ()
    last_input: int = 0
    """How many inputs were ever queued, as far as `inputs` tells."""

    def thread(self, thread_id: str) -> ThreadState:
        """A thread's state; that of one to which nothing has happened is the default."""
        return self.threads.get(thread_id) or ThreadState(thread_id)

    @property
    def lead(self) -> ThreadState:
        """The primary thread."""
        return self.thread(self.primary)

    def others(self, thread_id: str) -> list[ThreadState]:
        """The live threads but for one."""
        return [one for one in self.threads.values() if one.id != thread_id and one.live]


def with_inputs(state: SessionState, inputs: Iterable[Input], last_input: int) -> SessionState:
    """The state with the client events that wait now."""
    return msgspec.structs.replace(state, inputs=tuple(inputs), last_input=last_input)


def fold_all(state: SessionState, events: Iterable[Event]) -> SessionState:
    """The state after `events`, in their order."""
    for event in events:
        state = fold(state, event)
    return state


def as_if(state: SessionState, events: Iterable[NewEvent], now: datetime) -> SessionState:
    """The state as it will be once `events` are in the log."""
    for new in events:
        event = Event(state.seq + 1, new.id, new.type, new.thread_id, new.body, now, new.private)
        state = fold(state, event)
    return state


def fold(state: SessionState, event: Event) -> SessionState:
    """The state after one more event; the event must be the log's next.

    Raises:
        ValueError: the event is not the next one, so events were missed.
    """
    if event.seq != state.seq + 1:
        raise ValueError(f"expected event {state.seq + 1}, got {event.seq}")
    primary = state.primary or event.thread_id
    changes = {"seq": event.seq, "primary": primary, **_changes(state, event, primary)}
    if (threads := _threads(state, event)) is not None:
        changes["threads"] = threads
    return msgspec.structs.replace(state, **changes)


def _threads(state: SessionState, event: Event) -> dict[str, ThreadState] | None:
    """The threads after an event; None if it changes none."""
    match event.type:
        case "session.thread_created":
            made = event.body["session_thread_id"]
            agent = dict((event.private or {})["agent"])
            threads = {**state.threads} if state.threads else {event.thread_id: ThreadState(event.thread_id)}
            return {**threads, made: ThreadState(made, event.thread_id, agent)}
        case "session.status_terminated":
            lead = {event.thread_id: state.thread(event.thread_id)}
            ended = {**lead, **state.threads}
            return {name: fold_thread(one, event) for name, one in ended.items()}
        case "session.updated" if is_copy(event):
            return {name: used_anew(one) for name, one in state.threads.items()}
        case _:
            pass
    before = state.thread(event.thread_id)
    outcome = None if before.parent is not None else state.outcome
    after = fold_thread(before, event, awaits=None if outcome is None else outcome.fresh)
    threads = None if after is before else {**state.threads, event.thread_id: after}
    if event.type == "user.interrupt" and event.body.get("session_thread_id") is None:
        threads = _all_interrupted(threads or state.threads, event.thread_id)
    return threads


def _all_interrupted(threads: Mapping[str, ThreadState], but: str) -> dict[str, ThreadState]:
    """The threads once all are to stop; the one that took the interrupt stops with it."""
    return {
        name: msgspec.structs.replace(one, interrupted=True) if one.busy and name != but else one
        for name, one in threads.items()
    }


def _changes(state: SessionState, event: Event, primary: str) -> dict[str, Any]:
    match event.type:
        case kind if kind.startswith(OUTCOME_PREFIXES):
            used = state.usage.plus((event.private or {}).get("usage") or {})
            return {"outcome": fold_outcome(state.outcome, event), "usage": used}
        case "span.model_request_start" if (event.private or {}).get("purpose") == thread_state.COMPACTION:
            return {}
        case "span.model_request_start" if event.thread_id == primary and state.outcome is not None:
            return {"outcome": msgspec.structs.replace(state.outcome, fresh=False)}
        case "span.model_request_end" | "agent.tool_result":
            return {"usage": state.usage.plus((event.private or {}).get("usage") or {})}
        case "session.updated" if is_copy(event):
            anew: dict[str, Any] = {"usage": Usage(), "active": 0, "running_since": None}
            if "budget" in event.body:
                anew |= {"budget": limit_cents(event.body["budget"]), "budget_held": False}
            return anew
        case "session.updated" if "budget" in event.body:
            return {"budget": limit_cents(event.body["budget"]), "budget_held": False}
        case "session.status_running":
            return {
                "status": "running",
                "running_since": event.processed_at,
                "stop_type": None,
                "announced": (),
            }
        case "session.status_idle":
            stop = event.body["stop_reason"]
            return {
                **_stopped_running(state, event),
                "status": "idle",
                "stop_type": stop["type"],
                "budget_held": stop["type"] == "budget_reached" or state.budget_held,
                "announced": tuple(stop.get("event_ids", ())),
            }
        case "session.status_rescheduled":
            return {**_stopped_running(state, event), "status": "rescheduling"}
        case "session.status_terminated":
            return {**_stopped_running(state, event), "status": "terminated"}
        case _:
            return {}


def is_copy(event: Event) -> bool:
    """Whether all before was copied from another session, which has paid for it (`corral.extensions`)."""
    return "origin" in (event.private or {})


STATUSES: Final[Mapping[str, Status]] = {
    "running": "running",
    "idle": "idle",
    "rescheduled": "rescheduling",
    "terminated": "terminated",
}
"""The statuses by the ends of the event types that tell of them."""


def _stopped_running(state: SessionState, event: Event) -> dict[str, Any]:
    return {"running_since": None, "active": active_micros(state, event.processed_at)}


def limit_cents(budget: Mapping[str, Any] | None) -> int | None:
    """A budget object's limit in cents; None without a budget."""
    return None if budget is None else int(budget["max_list_cost"]["amount"])


def active_micros(state: SessionState, now: datetime) -> int:
    """Microseconds that the session has been running in all, up to `now`."""
    return thread_state.active_micros(state.running_since, state.active, now)
