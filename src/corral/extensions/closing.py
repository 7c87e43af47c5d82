"""The end of a copied log: what was under way where it was cut is closed, and the session is idle. Pure.

Nothing that is open in a copy may run from it: the original may have run it, or may do so yet, and an
imported log is somebody's word. So every open call has a result that says so, and the next turn begins from
there.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from corral.brain import emit
from corral.brain.decide import Settled
from corral.brain.voice import Voice
from corral.session.events import NewEvent, new_event
from corral.session.state import SessionState, as_if
from corral.session.thread_state import ThreadState

UNKNOWN: Final = (
    "This session is a copy of another one, which was cut here: the call has no result in it. In the other "
    "one it may have run, or may run yet; check before you repeat it."
)
_OUTCOME: Final = "The session is a copy of another one, which was cut while this outcome was worked on."

Speaking = Callable[[ThreadState], Voice]
"""The voice of a thread."""


def marker(primary: str, origin: dict[str, Any], **changes: Any) -> NewEvent:
    """The event that ends what was copied: from here on the session's usage counts, from zero.

    `changes` are what the copy has in another way than the original (title, metadata, budget).
    """
    return new_event("session.updated", primary, private={"origin": origin}, **changes)


def closing(state: SessionState, speaking: Speaking, now: datetime) -> list[NewEvent]:
    """What closes a log that was cut where `state` is, after its marker. Nothing if it rests there."""
    events: list[NewEvent] = []
    # Children first, as they stop in life: the session is idle when the last one is.
    lead = state.lead
    for thread in (*state.others(lead.id), *([lead] if lead.live else [])):
        events += _thread_closed(state, thread, speaking(thread))
    if events or state.status != "idle" or state.stop_type in ("requires_action", "budget_reached"):
        after = as_if(state, events, now)
        events += emit.session_idle(speaking(lead), after, Settled("idle"), now)
    return events


def _thread_closed(state: SessionState, thread: ThreadState, voice: Voice) -> list[NewEvent]:
    events: list[NewEvent] = []
    if thread.request is not None:
        events.append(emit.request_end(voice, thread.request, "orphaned", is_error=True))
    events += [emit.result(voice, call, UNKNOWN) for call in thread.calls]
    if thread.parent is None and state.outcome is not None:
        events.append(emit.outcome_end(voice, state.outcome, "interrupted", _OUTCOME))
    unfinished = thread.pending or thread.interrupted or thread.ending is not None
    if events or unfinished or thread.status != "idle" or thread.announced:
        events.append(voice.thread_status("idle", stop_reason={"type": "end_turn"}, stop_details=None))
    return events
