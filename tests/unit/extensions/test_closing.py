"""Wherever any session's log is cut, closing it leaves a session at rest that takes a next turn."""

from datetime import timedelta

from hypothesis import settings

from corral.brain.decide import Rest, decide
from corral.extensions.closing import UNKNOWN, closing, marker
from corral.inference.provider import ModelFailed
from corral.session.budget import consumed
from corral.session.calls import TOOL_RESULTS, TOOL_USES
from corral.session.events import NewEvent
from corral.session.thread_state import Usage
from tests.unit.brain.simulation import SimulatedSession, answer, use
from tests.unit.brain.test_any_session import AnySession

ORIGIN = {"kind": "fork", "session_id": "sesn_x", "event_id": None, "seq": 0, "head": None}


def cut(session: SimulatedSession, length: int) -> SimulatedSession:
    """A session whose log is the beginning of another's, closed."""
    copy = SimulatedSession(self_hosted=session.rules.self_hosted)
    for event in session.events[:length]:
        body = {name: value for name, value in event.body.items() if name not in ("id", "type")}
        copy.now = event.processed_at - timedelta(seconds=1)
        copy.append([NewEvent(event.id, event.type, event.thread_id, body, event.private)])
    copy.append([marker(copy.voice.thread_id, ORIGIN)])
    copy.append(closing(copy.state, lambda _: copy.voice, copy.now))
    return copy


def check(session: SimulatedSession, length: int) -> None:
    """What has to hold of a cut."""
    copy = cut(session, length)
    assert copy.state.status == "idle"
    assert copy.state.lead.status == "idle"
    assert not copy.state.lead.calls
    assert copy.state.usage == copy.state.lead.usage == Usage()
    assert consumed(copy.state, 10**9, copy.now + timedelta(hours=1)) == 0
    assert isinstance(decide(copy.state, copy.rules, copy.now), Rest)
    uses = [event.id for event in copy.events if event.type in TOOL_USES]
    answers = [event.body[TOOL_RESULTS[event.type]] for event in copy.events if event.type in TOOL_RESULTS]
    assert sorted(uses) == sorted(answers)
    copy.sends("user.message", content=[{"type": "text", "text": "go on"}])
    copy.rests()  # each request is held against the rules of the model's API
    assert copy.state.stop_type == "end_turn"
    assert copy.requests


class AnyFork(AnySession):
    """Any session, cut at every place of its log."""

    def teardown(self) -> None:
        """Cut it: everywhere at its end, and at some places before."""
        session = getattr(self, "session", None)
        if session is None:
            return
        count = len(session.events)
        for length in {*range(0, count, 5), *range(max(0, count - 8), count + 1)}:
            check(session, length)


TestAnyFork = AnyFork.TestCase
TestAnyFork.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)


def test_a_log_at_rest_needs_nothing_to_close_it() -> None:
    session = SimulatedSession()
    session.sends("user.message", content=[{"type": "text", "text": "hi"}])
    session.rests()
    copy = cut(session, len(session.events))
    assert copy.events[-1].type == "session.updated"
    assert not closing(SimulatedSession().state, lambda _: session.voice, session.now)


def test_open_calls_are_answered_with_what_is_not_known() -> None:
    session = SimulatedSession()
    session.sends("user.message", content=[{"type": "text", "text": "hi"}])
    session.rests(answer(use("toolu_1", "bash"), use("toolu_2", "look_up")))
    copy = cut(session, len(session.events))
    results = [event for event in copy.events if event.type in TOOL_RESULTS]
    assert {event.type for event in results} == {"agent.tool_result", "user.custom_tool_result"}
    assert all(event.body["is_error"] and event.body["content"][0]["text"] == UNKNOWN for event in results)


def test_a_retry_that_was_waited_for_is_not_made() -> None:
    session = SimulatedSession()
    session.sends("user.message", content=[{"type": "text", "text": "hi"}])
    session.acts(ModelFailed("overloaded", "busy", retryable=True))
    assert session.state.status == "rescheduling"
    check(session, len(session.events))


def test_a_pause_at_a_budget_does_not_hold_the_copy() -> None:
    session = SimulatedSession(budget=1)
    session.sends("user.message", content=[{"type": "text", "text": "hi"}])
    session.changes_budget(0)
    session.rests()
    assert session.state.stop_type == "budget_reached"
    copy = cut(session, len(session.events))
    copy.append([marker(copy.voice.thread_id, ORIGIN, budget=None)])
    assert not copy.state.budget_held
    assert copy.state.budget is None
