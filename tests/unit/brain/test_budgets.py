"""A session never makes a model request once its budget is used up, whatever its requests cost."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from corral.brain.decide import CallModel, GoIdle, Rest, RunTools, decide, leaves_work
from corral.brain.voice import Voice
from corral.inference.provider import ModelResponse
from corral.session.budget import (
    NANODOLLARS_A_CENT,
    at_budget,
    budget_object,
    cents,
    consumed,
    running_cost,
)
from corral.session.events import Event
from corral.session.state import SessionState, fold, fold_all, with_inputs
from corral.session.thread_state import Usage
from tests.unit.brain.simulation import MODEL, SimulatedSession, use

TOKENS_A_CENT = 3_334  # of claude-sonnet-4-5's input, and one token more than a cent buys
HOUR = 80_000_000


def says(session: SimulatedSession) -> None:
    session.sends("user.message", content=[{"type": "text", "text": "go"}])


def costing(cents_: int, *calls: str) -> ModelResponse:
    """A response that costs as many cents, and asks for tools where it is given their ids."""
    content: list[dict[str, Any]] = [use(call) for call in calls] or [{"type": "text", "text": "fine"}]
    usage = {"input_tokens": cents_ * TOKENS_A_CENT, "output_tokens": 0}
    return ModelResponse(content, "tool_use" if calls else "end_turn", usage, MODEL)


def spent(session: SimulatedSession) -> int:
    return consumed(session.state, session.rules.session_hour, session.now)


def session_of(budget: int | None, hour: int = HOUR) -> SimulatedSession:
    session = SimulatedSession(budget=budget)
    session.rules = msgspec.structs.replace(session.rules, session_hour=hour, max_rounds=1_000)
    return session


steps = st.lists(st.tuples(st.integers(0, 40), st.booleans()), min_size=1, max_size=12)


@settings(deadline=None, max_examples=150)
@given(budget=st.integers(1, 100), steps=steps, hour=st.sampled_from([0, HOUR, 10_000_000_000_000]))
def test_no_request_is_made_once_the_budget_is_used_up(
    budget: int, steps: list[tuple[int, bool]], hour: int
) -> None:
    session = session_of(budget, hour)
    limit = budget * NANODOLLARS_A_CENT
    for number, (cost, with_call) in enumerate(steps):
        says(session)
        calls = [f"toolu_{number}"] if with_call else []
        answers = [costing(cost, *calls), costing(cost)]
        for _ in range(40):
            action = decide(session.state, session.rules, session.now)
            if isinstance(action, Rest | RunTools):
                break
            if isinstance(action, CallModel):
                assert spent(session) < limit
                before = spent(session)
                answer = answers.pop(0) if answers else costing(0)
                session.acts(answer)
                # No more than that one request is beyond the limit, and the time in which it was made.
                made = cost * TOKENS_A_CENT * 3_000 + running_cost(10_000_000, hour)
                assert spent(session) - before <= made
            else:
                session.acts(None)
            for call in session.state.lead.calls:
                if session.state.status == "idle":
                    session.answers(call, content=[])
        assert session.state.status == "idle"
        reached = at_budget(session.state, hour, session.now)
        assert (session.state.stop_type == "budget_reached") == reached
    replayed = fold_all(SessionState(budget=budget), session.events)
    assert replayed == with_inputs(session.state, (), 0)


@given(
    counts=st.lists(
        st.fixed_dictionaries(
            {"cost_nanodollars": st.integers(0, 10**15), "input_tokens": st.integers(0, 10**9)}
        )
    )
)
def test_what_was_consumed_is_the_sum_of_all_requests(counts: list[dict[str, int]]) -> None:
    total = Usage()
    for one in counts:
        after = total.plus(one)
        assert after.cost_nanodollars >= total.cost_nanodollars
        total = after
    assert total.cost_nanodollars == sum(one["cost_nanodollars"] for one in counts)


@given(moments=st.lists(st.integers(0, 10**12), min_size=2).map(sorted), hour=st.integers(0, 10**12))
def test_running_time_costs_never_less_than_before_and_nothing_at_the_price_of_nothing(
    moments: list[int], hour: int
) -> None:
    costs = [running_cost(micros, hour) for micros in moments]
    assert all(0 <= one <= other for one, other in pairwise(costs))
    assert running_cost(moments[-1], 0) == 0
    assert running_cost(3_600_000_000, hour) == hour


def test_only_running_counts_not_waiting() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)

    def at(seconds: int, seq: int, kind: str, **body: Any) -> Event:
        moment = start + timedelta(seconds=seconds)
        return Event(seq, f"sevt_{seq}", kind, "sthr_x", {"type": kind, **body}, moment)

    state = SessionState()
    stop = {"stop_reason": {"type": "end_turn"}}
    for event in (
        at(0, 1, "session.status_running"),
        at(1800, 2, "session.status_idle", **stop),
        at(9000, 3, "session.status_running"),
        at(10800, 4, "session.status_idle", **stop),
    ):
        state = fold(state, event)
    assert consumed(state, HOUR, start + timedelta(days=9)) == HOUR
    assert cents(HOUR) == "8"


@pytest.mark.parametrize(
    ("nanodollars", "shown"),
    [
        (0, "0"),
        (4_999_999, "0"),
        (5_000_000, "1"),
        (14_999_999, "1"),
        (15_000_000, "2"),
        (10**16, "1000000000"),
    ],
)
def test_amounts_are_shown_in_whole_cents_rounded_to_the_nearest(nanodollars: int, shown: str) -> None:
    assert cents(nanodollars) == shown


def test_the_limit_is_held_exactly_though_amounts_are_shown_rounded() -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    just_below = SessionState(budget=50, usage=Usage(cost_nanodollars=50 * NANODOLLARS_A_CENT - 1))
    assert cents(consumed(just_below, HOUR, moment)) == "50"
    assert not at_budget(just_below, HOUR, moment)
    there = SessionState(budget=50, usage=Usage(cost_nanodollars=50 * NANODOLLARS_A_CENT))
    assert at_budget(there, HOUR, moment)


def test_a_pause_stays_until_the_budget_is_changed_though_prices_have_sunk() -> None:
    session = session_of(10)
    says(session)
    session.rests(costing(20))
    assert session.state.stop_type == "budget_reached"
    says(session)
    session.state = msgspec.structs.replace(session.state, usage=Usage())
    assert isinstance(session.acts(None), Rest)
    session.changes_budget(11)
    session.rests(costing(0))
    assert session.state.stop_type == "end_turn"


def test_a_raise_to_less_than_was_consumed_pauses_again() -> None:
    session = session_of(10)
    says(session)
    session.rests(costing(20))
    says(session)
    session.changes_budget(15)
    session.rests()
    assert session.state.stop_type == "budget_reached"
    assert len(session.state.inputs) == 1


def test_a_session_without_a_budget_never_pauses() -> None:
    session = session_of(None)
    for _ in range(3):
        says(session)
        session.rests(costing(100_000))
        assert session.state.stop_type == "end_turn"


def test_a_removed_budget_never_pauses_again() -> None:
    session = session_of(10)
    says(session)
    session.rests(costing(20))
    session.changes_budget(None)
    says(session)
    session.rests(costing(100_000))
    assert session.state.stop_type == "end_turn"
    usage = [event for event in session.events if event.type == "session.usage"]
    assert [event.body["budget"] for event in usage] == [budget_object(10), None]


def test_a_model_without_a_price_pauses_a_session_with_a_budget_and_no_other() -> None:
    for budget, stop in ((10_000, "budget_reached"), (None, "end_turn")):
        session = session_of(budget)
        agent = {**session.voice.agent, "model": {"id": "nobody-sells-it", "speed": "standard"}}
        session.voice = Voice(session.voice.thread_id, agent, False)
        says(session)
        answer = msgspec.structs.replace(costing(1), model="nobody-sells-it")
        session.rests(answer)
        assert session.state.stop_type == stop
        assert session.state.usage.unpriced_requests == 1
        assert session.state.usage.cost_nanodollars == 0


def test_a_refusal_is_told_though_the_budget_is_reached() -> None:
    session = session_of(10)
    says(session)
    session.rests(msgspec.structs.replace(costing(20), stop_reason="refusal"))
    assert session.state.stop_type == "refusal"
    says(session)
    session.rests()
    assert session.state.stop_type == "budget_reached"


def test_a_pause_lets_the_session_go_whatever_waits() -> None:
    session = session_of(10)
    says(session)
    action = GoIdle("budget_reached")
    assert not leaves_work(session.state, action)
    assert leaves_work(session.state, GoIdle("end_turn"))
