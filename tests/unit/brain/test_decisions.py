"""What is decided in each state, and how events change the state."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from corral.brain import gateway_events
from corral.brain.decide import (
    AwaitRetry,
    CallModel,
    CloseRequest,
    Deny,
    GoIdle,
    Interrupt,
    Rest,
    RunTools,
    TakeVerdicts,
    decide,
)
from corral.inference.provider import ModelFailed
from corral.session.events import Event
from corral.session.state import SessionState, fold, fold_all
from corral.wire.gateway import CallOutcome
from tests.unit.brain.simulation import LIMITS, SimulatedSession, answer, use

BUSY = ModelFailed("overloaded", "busy", retryable=True)
NO = ModelFailed("failed", "no", retryable=False)
HELLO: list[dict[str, Any]] = [{"type": "text", "text": "hello"}]


def told(*, self_hosted: bool = False) -> SimulatedSession:
    """A session to which the user has said something."""
    session = SimulatedSession(self_hosted=self_hosted)
    session.sends("user.message", content=HELLO)
    return session


def types(session: SimulatedSession) -> list[str]:
    return [event.type for event in session.events]


def next_action(session: SimulatedSession) -> object:
    return decide(session.state, session.rules, session.now)


def test_a_turn_calls_the_model_goes_idle_and_rests() -> None:
    session = told()
    session.rests()
    assert session.actions == ["CallModel", "GoIdle", "Rest"]
    assert session.state.stop_type == "end_turn"


def test_a_request_whose_brain_died_is_closed_and_made_again() -> None:
    session = told()
    session.acts(None)
    assert isinstance(next_action(session), CloseRequest)
    session.rests()
    assert session.actions == ["CallModel", "CloseRequest", "CallModel", "GoIdle", "Rest"]
    assert session.requests[0] == session.requests[1]


def test_an_interrupt_goes_before_everything_but_an_orphan_and_answers_the_open_calls() -> None:
    session = told()
    session.acts(answer(use("a"), use("b", "bash"), use("c", "read")))
    session.sends("user.interrupt")
    session.sends("user.message", content=HELLO)
    action = next_action(session)
    assert isinstance(action, Interrupt)
    assert len(action.calls) == 3
    session.acts(None)
    assert session.state.lead.calls == ()
    assert session.state.stop_type == "end_turn"
    assert isinstance(next_action(session), CallModel)


def test_an_interrupt_of_an_idle_session_changes_nothing() -> None:
    session = told()
    session.rests()
    before = session.state
    session.sends("user.interrupt")
    session.rests()
    assert types(session)[-1] == "user.interrupt"
    assert session.state.status == before.status == "idle"


def test_an_interrupt_ends_the_wait_for_a_retry() -> None:
    session = told()
    session.acts(BUSY)
    assert isinstance(next_action(session), AwaitRetry)
    session.sends("user.interrupt")
    assert isinstance(next_action(session), Interrupt)
    session.rests()
    assert session.state.stop_type == "end_turn"
    assert session.state.lead.failures == 0


def test_a_retry_is_awaited_until_its_time_and_the_request_is_the_same() -> None:
    session = told()
    session.acts(BUSY)
    action = next_action(session)
    assert isinstance(action, AwaitRetry)
    late = decide(session.state, session.rules, action.until + timedelta(seconds=1))
    assert isinstance(late, CallModel)
    session.rests()
    assert session.requests[0] == session.requests[1]
    assert session.state.stop_type == "end_turn"


def test_a_failure_for_good_ends_the_turn_and_takes_the_waiting_messages_with_it() -> None:
    session = told()
    session.acts(NO)
    session.sends("user.message", content=HELLO)
    action = next_action(session)
    assert isinstance(action, GoIdle)
    assert action.reason == "retries_exhausted"
    session.rests()
    assert session.state.inputs == ()
    assert session.state.stop_type == "retries_exhausted"
    session.sends("user.message", content=HELLO)
    session.rests()
    assert session.state.stop_type == "end_turn"


def test_a_refusal_ends_the_turn_and_a_waiting_message_begins_another() -> None:
    session = told()
    session.acts(answer(stop="refusal", stop_details={"category": "cyber"}))
    session.sends("user.message", content=HELLO)
    action = session.acts(None)
    assert isinstance(action, GoIdle)
    assert action.reason == "refusal"
    assert session.events[-1].body["stop_details"] == {"category": "cyber"}
    assert isinstance(next_action(session), CallModel)


def test_cut_off_answers_go_on_a_few_times_and_then_end_the_turn() -> None:
    session = told()
    session.rests(answer(stop="max_tokens"))
    assert len(session.requests) == LIMITS["max_truncations"] + 1
    assert session.state.stop_type == "retries_exhausted"
    [error] = [event for event in session.events if event.type == "session.error"]
    assert error.body["error"]["type"] == "model_request_failed_error"


def test_a_turn_in_circles_is_stopped_and_the_next_turn_counts_anew() -> None:
    session = told()
    for round_ in range(LIMITS["max_rounds"]):
        session.acts(answer(use(f"call{round_}")))
        session.answers(session.state.lead.calls[0])
    session.rests()
    assert session.state.stop_type == "retries_exhausted"
    assert session.events[-4].body["error"]["type"] == "tool_use_limit_reached_error"
    session.sends("user.message", content=HELLO)
    session.rests()
    assert session.state.stop_type == "end_turn"


def test_calls_are_asked_for_run_denied_and_awaited_each_by_its_own_state() -> None:
    session = told()
    session.acts(answer(use("a", "read"), use("b", "bash"), use("c", "unknown"), use("d")))
    read, bash, unknown, custom = session.state.lead.calls
    action = next_action(session)
    assert isinstance(action, Deny)
    assert action.calls == (unknown,)
    session.acts(None)
    action = next_action(session)
    assert isinstance(action, RunTools)
    assert action.calls == (bash,)
    session.answers(bash, content=[])
    action = session.acts(None)
    assert isinstance(action, GoIdle)
    assert action.event_ids == (read.id, custom.id)
    assert isinstance(next_action(session), Rest)
    session.sends("user.tool_confirmation", tool_use_id=read.id, result="deny", deny_message="mine")
    assert isinstance(next_action(session), TakeVerdicts)
    session.rests()
    assert session.events[-1].body["stop_reason"]["event_ids"] == [custom.id]
    assert any("mine" in str(event.body.get("content")) for event in session.events)
    session.answers(custom, content=[])
    assert isinstance(next_action(session), CallModel)


def test_on_self_hosted_calls_are_the_clients_to_answer() -> None:
    session = told(self_hosted=True)
    session.acts(answer(use("a", "bash")))
    action = next_action(session)
    assert isinstance(action, GoIdle)
    assert action.reason == "requires_action"


def test_an_archived_session_rests_whatever_waits() -> None:
    session = told()
    session.acts(answer(use("a")))
    session.append([session.voice.event("session.status_terminated")])
    session.sends("user.message", content=HELLO)
    assert isinstance(next_action(session), Rest)


def test_a_message_waits_behind_open_calls_and_goes_with_their_results() -> None:
    session = told()
    session.acts(answer(use("a")))
    session.rests()
    session.sends("user.message", content=HELLO)
    assert isinstance(next_action(session), Rest)
    session.answers(session.state.lead.calls[0], content=[])
    session.rests()
    last = session.requests[-1][-1]["content"]
    assert [block["type"] for block in last] == ["tool_result", "text"]


def test_results_of_unknown_calls_change_no_call() -> None:
    session = told()
    session.acts(answer(use("a")))
    before = session.state.lead.calls
    session.append(
        [session.voice.event("agent.tool_result", tool_use_id="sevt_nobody", content=[])],
    )
    assert session.state.lead.calls == before
    session.rests()
    assert len(session.requests) == 1


def test_the_fold_refuses_gaps_and_repetitions() -> None:
    session = told()
    session.rests()
    state = fold_all(SessionState(), session.events[:3])
    for wrong in (session.events[2], session.events[4]):
        with pytest.raises(ValueError, match="expected event 4"):
            fold(state, wrong)


def test_an_event_of_a_type_that_is_not_known_changes_nothing_but_the_position() -> None:
    session = told()
    session.rests()
    last = session.events[-1]
    unknown = Event(last.seq + 1, "sevt_x", "agent.novelty", "sthr_x", {"x": 1}, last.processed_at)
    after = fold(session.state, unknown)
    assert after == msgspec.structs.replace(session.state, seq=last.seq + 1)


def test_web_tools_are_run_by_the_server_while_a_workers_calls_wait_for_the_worker() -> None:
    session = told(self_hosted=True)
    session.acts(answer(use("a", "bash"), use("b", "web_fetch", url="https://example.com/")))
    bash, web = session.state.lead.calls
    assert (bash.kind, web.kind) == ("sandbox", "web")
    assert next_action(session) == RunTools((web,))
    session.answers(web, content=HELLO)
    assert next_action(session) == GoIdle("requires_action", (bash.id,))


def test_a_web_tool_that_the_server_does_not_offer_is_denied() -> None:
    session = told()
    session.acts(answer(use("a", "web_search", query="x")))
    assert next_action(session) == Deny(session.state.lead.calls)
    session.rests()
    [result] = [event for event in session.events if event.type == "agent.tool_result"]
    assert result.body["content"][0]["text"] == "Permission to use web_search has been denied."


def test_what_a_search_used_is_the_sessions() -> None:
    session = told()
    session.acts(answer(use("a", "web_fetch", url="https://example.com/")))
    [call] = session.state.lead.calls
    used = {"web_search_requests": 2, "input_tokens": 7, "cost_nanodollars": 5}
    before = session.state.usage
    outcome = CallOutcome(content=HELLO, is_error=False, usage=used)
    session.append(gateway_events.call_result(session.voice, call, outcome))
    assert session.state.usage == before.plus(used)
    assert session.state.lead.calls == ()
