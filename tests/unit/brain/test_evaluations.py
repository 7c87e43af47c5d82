"""When work on an outcome is judged, and what each verdict leads to, by the state alone."""

from datetime import timedelta
from typing import Any

import pytest

from corral.brain import grading_events
from corral.brain.decide import AwaitRetry, CallModel, Evaluate, GoIdle, Rest, decide, settle
from corral.inference.provider import ModelFailed
from corral.session.outcome_state import Evaluation, Outcome, added
from corral.session.state import SessionState, fold_all
from corral.testing.validation.request import check_request
from tests.unit.brain.simulation import MODEL, SimulatedSession, answer, use, verdict

BUSY = ModelFailed("overloaded", "busy", retryable=True)
NO = ModelFailed("failed", "no", retryable=False)
HELLO: list[dict[str, Any]] = [{"type": "text", "text": "hello"}]


def worked(*, budget: int | None = None, **fields: Any) -> SimulatedSession:
    """A session whose agent takes its work on an outcome to be done."""
    session = SimulatedSession(budget=budget)
    session.defines(**fields)
    session.acts(answer())
    return session


def next_action(session: SimulatedSession) -> object:
    return decide(session.state, session.rules, session.now)


def outcome_of(session: SimulatedSession) -> Outcome:
    assert session.state.outcome is not None
    return session.state.outcome


def evaluation_of(session: SimulatedSession) -> Evaluation:
    found = outcome_of(session).evaluation
    assert found is not None
    return found


def results(session: SimulatedSession) -> list[str]:
    ends = [event for event in session.events if event.type == "span.outcome_evaluation_end"]
    return [event.body["result"] for event in ends]


def test_the_work_is_judged_when_the_agent_ends_its_turn() -> None:
    session = worked()
    assert isinstance(next_action(session), Evaluate)
    session.rests()
    assert session.actions == ["CallModel", "Evaluate", "GoIdle", "Rest"]
    assert session.state.outcome is None


def test_it_is_not_judged_while_a_call_waits_or_an_outcome_is_fresh() -> None:
    session = SimulatedSession()
    session.defines()
    assert isinstance(next_action(session), CallModel)
    session.acts(answer(use("toolu_1")))
    assert not isinstance(next_action(session), Evaluate)


def test_a_message_that_waits_comes_before_the_judging_and_after_it_once_that_has_begun() -> None:
    session = worked()
    session.sends("user.message", content=HELLO)
    assert isinstance(next_action(session), CallModel)
    session.acts(answer())
    session.acts(None)
    session.sends("user.message", content=HELLO)
    assert isinstance(next_action(session), Evaluate)
    session.acts(answer())
    assert isinstance(next_action(session), CallModel)
    session.rests()
    assert results(session) == ["satisfied"]


def test_a_revision_is_a_turn_of_its_own_and_is_judged_again() -> None:
    session = worked()
    session.verdicts = [verdict("needs_revision", "no table")]
    session.acts(answer())
    assert (outcome_of(session).iteration, outcome_of(session).last_explanation) == (1, "no table")
    assert isinstance(next_action(session), CallModel)
    session.rests()
    assert results(session) == ["needs_revision", "satisfied"]
    assert "no table" in str(session.requests[-1])


@pytest.mark.parametrize("iterations", [1, 2, 5])
def test_after_the_last_iteration_one_more_turn_follows(iterations: int) -> None:
    session = worked(iterations=iterations)
    session.verdicts = [verdict("needs_revision") for _ in range(iterations)]
    session.rests()
    assert results(session) == ["needs_revision"] * (iterations - 1) + ["max_iterations_reached"]
    assert session.actions.count("CallModel") == iterations + 1
    assert session.actions[-2:] == ["GoIdle", "Rest"]
    assert "No evaluation follows" in str(session.requests[-1])


def test_nothing_follows_on_a_rubric_that_does_not_apply() -> None:
    session = worked()
    session.verdicts = [verdict("failed")]
    session.rests()
    assert session.actions == ["CallModel", "Evaluate", "GoIdle", "Rest"]


def test_an_evaluation_whose_brain_died_goes_on_and_is_not_begun_again() -> None:
    session = worked()
    session.acts(None)
    start = evaluation_of(session).start_id
    assert isinstance(next_action(session), Evaluate)
    session.acts(answer())
    starts = [event.id for event in session.events if event.type == "span.outcome_evaluation_start"]
    assert starts == [start]
    assert session.events[-1].body["outcome_evaluation_start_id"] == start


def test_a_failed_request_is_made_again_later() -> None:
    session = worked()
    session.acts(BUSY)
    assert evaluation_of(session).failures == 1
    assert session.state.status == "rescheduling"
    action = next_action(session)
    assert isinstance(action, AwaitRetry)
    session.now = action.until
    session.rests()
    assert session.state.status == "idle"
    assert results(session) == ["satisfied"]


def test_a_refused_request_makes_those_that_follow_plain() -> None:
    session = worked()
    refused = ModelFailed("failed", "bad", retryable=False, refused=True)
    session.acts(None)
    session.append(
        grading_events.failed(session.voice, outcome_of(session), refused, retry_at=session.now, alone=False)
    )
    assert evaluation_of(session).plain
    session.acts(BUSY)
    assert evaluation_of(session).plain


def test_a_request_that_fails_for_good_ends_the_outcome_and_the_turn() -> None:
    session = worked()
    session.acts(NO)
    assert results(session) == ["failed"]
    action = next_action(session)
    assert isinstance(action, GoIdle)
    assert action.reason == "retries_exhausted"


def test_answers_without_a_verdict_come_to_an_end() -> None:
    session = worked()
    session.verdicts = [answer(), answer(), answer()]
    session.acts(answer())
    session.acts(answer())
    assert (evaluation_of(session).unusable, results(session)) == (2, [])
    session.acts(answer())
    assert results(session) == ["failed"]


def test_an_interrupt_ends_an_evaluation_under_its_start() -> None:
    session = worked()
    session.acts(None)
    start = evaluation_of(session).start_id
    session.sends("user.interrupt")
    session.rests()
    assert results(session) == ["interrupted"]
    [end] = [event for event in session.events if event.type == "span.outcome_evaluation_end"]
    assert end.body["outcome_evaluation_start_id"] == start
    assert session.state.stop_type == "end_turn"


def test_an_interrupt_ends_an_evaluation_that_waits_to_be_tried_again() -> None:
    session = worked()
    session.acts(BUSY)
    session.sends("user.interrupt")
    session.rests()
    assert results(session) == ["interrupted"]
    assert session.state.status == "idle"
    assert "Evaluate" not in session.actions[2:]


def test_at_the_budget_the_judging_waits_and_is_not_forgotten() -> None:
    session = worked(budget=10)
    session.now += timedelta(days=1)
    session.rests()
    assert session.actions[-2:] == ["GoIdle", "Rest"]
    assert session.state.stop_type == "budget_reached"
    session.changes_budget(None)
    assert isinstance(next_action(session), Evaluate)
    session.rests()
    assert results(session) == ["satisfied"]


def test_an_open_evaluation_waits_at_the_budget_too() -> None:
    session = worked(budget=10)
    session.acts(None)
    session.now += timedelta(days=1)
    session.rests()
    assert session.state.stop_type == "budget_reached"
    start = evaluation_of(session).start_id
    session.changes_budget(None)
    session.rests()
    assert session.events[-4].body["outcome_evaluation_start_id"] == start


def test_a_session_whose_work_has_yet_to_be_judged_is_not_let_go() -> None:
    session = worked(budget=10)
    settled = settle(session.state, session.rules, session.now, GoIdle("budget_reached"))
    assert settled.rests
    assert settled.reason == "budget_reached"


def test_what_an_evaluation_used_counts_for_the_session_and_the_thread() -> None:
    session = worked()
    session.acts(None)
    used = {
        "input_tokens": 5,
        "output_tokens": 7,
        "cache_read_input_tokens": 0,
        "ephemeral_5m_input_tokens": 2,
        "ephemeral_1h_input_tokens": 1,
        "cost_nanodollars": 11,
    }
    private: dict[str, Any] = {"outcome": "read", "usage": used, "content": [], "results": {}}
    ongoing = {"outcome_id": outcome_of(session).id, "iteration": 0}
    session.append([session.voice.event("span.outcome_evaluation_ongoing", private=private, **ongoing)])
    assert session.state.usage.cost_nanodollars == session.state.lead.usage.cost_nanodollars == 11
    assert evaluation_of(session).usage == added(dict.fromkeys(evaluation_of(session).usage, 0), used)
    assert evaluation_of(session).usage["cache_creation_input_tokens"] == 3
    assert evaluation_of(session).reads == 1


def test_every_log_of_an_outcome_gives_valid_requests_and_one_state() -> None:
    session = worked()
    session.verdicts = [verdict("needs_revision", "more"), answer(), verdict("needs_revision", "more yet")]
    session.sends("user.message", content=HELLO)
    assert isinstance(session.rests(), Rest)
    for messages in session.requests:
        check_request({"model": MODEL, "max_tokens": 100, "messages": messages})
    again = fold_all(SessionState(session.state.primary), session.events)
    assert again.outcome == session.state.outcome
    assert again.threads == session.state.threads
