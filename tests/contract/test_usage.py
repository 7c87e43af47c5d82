"""What a session is shown to have used, and when that moves (contract section 8.8)."""

from typing import Any

from tests.contract.refusals import undocumented
from tests.contract.test_events_send import a_waiting_call, custom_result
from tests.corral_server import Corral, SessionUnderTest
from tests.moments import ends_turn

TOKENS = ("input_tokens", "output_tokens", "cache_read_input_tokens")
# Of claude-sonnet-4-5: $3 a million tokens in, $15 out, $0.30 from the cache, $3.75 and $6 into it.
LARGE: dict[str, Any] = {
    "input_tokens": 100_000,
    "output_tokens": 10_000,
    "cache_read_input_tokens": 50_000,
    "cache_creation_input_tokens": 40_000,
    "cache_creation": {"ephemeral_5m_input_tokens": 30_000, "ephemeral_1h_input_tokens": 10_000},
}
HALF: dict[str, Any] = {
    "input_tokens": 50_000,
    "output_tokens": 5_000,
    "cache_read_input_tokens": 25_000,
    "cache_creation_input_tokens": 20_000,
    "cache_creation": {"ephemeral_5m_input_tokens": 15_000, "ephemeral_1h_input_tokens": 5_000},
}
"""Far enough from the model's limit that the next turn needs no compaction."""


async def spans(session: SessionUnderTest) -> list[Any]:
    return await session.events(types=["span.model_request_end"])


async def test_each_kind_of_token_has_its_own_count_and_the_cost_is_whole_cents(corral: Corral) -> None:
    session = await corral.session()
    await session.says("go", script=[{"text": "one", "usage": LARGE}])
    await session.idle()
    used = (await session.retrieve()).usage
    assert [getattr(used, name) for name in TOKENS] == [100_000, 10_000, 50_000]
    assert used.cache_creation.to_dict() == LARGE["cache_creation"]
    # 30 + 15 + 1.5 + 11.25 + 6 cents, and a fraction for the time.
    assert used.list_cost.to_dict() == {"amount": "64", "currency": "USD"}
    assert used.server_tool_use.to_dict() == {"web_search_requests": 0, "web_fetch_requests": 0}
    [span] = await spans(session)
    assert span.model_usage.cache_creation_input_tokens == 40_000
    assert undocumented(span) == []


async def test_tokens_and_cost_move_when_the_turn_ends_and_are_the_sum_of_its_requests(
    corral: Corral,
) -> None:
    session, call = await a_waiting_call(corral)
    first = (await session.retrieve()).usage
    assert first.output_tokens > 0
    await session.says("and this", script=[{"text": "one", "usage": LARGE}])
    await session.sends(custom_result(call, "found"))
    await session.until("session.status_idle", where=ends_turn)
    used = (await session.retrieve()).usage
    for name in TOKENS:
        assert getattr(used, name) == sum(getattr(span.model_usage, name) for span in await spans(session))
    assert used.input_tokens >= first.input_tokens + LARGE["input_tokens"]


async def test_in_mid_turn_the_counts_stand_and_the_time_runs(corral: Corral) -> None:
    session = await corral.session()
    await session.says("go", script=[{"text": "one", "hold": "here"}])
    await corral.model.until_holding("here")
    one = two = await session.retrieve()
    while two.usage.active_seconds <= one.usage.active_seconds:
        two = await session.retrieve()
    for shown in (one, two):
        assert [getattr(shown.usage, name) for name in TOKENS] == [0, 0, 0]
        assert shown.usage.list_cost.amount == "0"
    corral.model.release("here")
    await session.idle()
    rested = later = await session.retrieve()
    while later.stats.duration_seconds <= rested.stats.duration_seconds:
        later = await session.retrieve()
    assert rested.usage.active_seconds == later.usage.active_seconds >= two.usage.active_seconds
    assert rested.stats.active_seconds == rested.usage.active_seconds


async def test_waiting_for_an_answer_is_no_running_time(corral: Corral) -> None:
    session, _ = await a_waiting_call(corral)
    one = two = await session.retrieve()
    while two.stats.duration_seconds <= one.stats.duration_seconds:
        two = await session.retrieve()
    assert one.usage.active_seconds == two.usage.active_seconds > 0


async def test_a_usage_event_shows_what_the_session_shows_and_its_budget(corral: Corral) -> None:
    budget: Any = {"type": "limit", "max_list_cost": {"amount": "2500", "currency": "USD"}}
    session = await corral.session(budget=budget)
    await session.says("go", script=[{"text": "one"}])
    await session.idle()
    [event] = await session.events(types=["session.usage"])
    assert event.budget.to_dict() == budget
    assert event.usage.to_dict() == (await session.retrieve()).usage.to_dict()
    plain = await corral.session()
    await plain.says("go", script=[{"text": "one"}])
    await plain.idle()
    [event] = await plain.events(types=["session.usage"])
    assert event.budget is None


async def test_usage_adds_up_over_turns_and_never_goes_back(corral: Corral) -> None:
    session = await corral.session()
    after = None
    for _ in range(3):
        await session.says("go", script=[{"text": "one", "usage": HALF}])
        after = (await session.idle(after=after)).id
    told = await session.events(types=["session.usage"])
    assert [event.usage.input_tokens for event in told] == [50_000, 100_000, 150_000]
    assert [event.usage.list_cost.amount for event in told] == ["32", "64", "96"]
    times = [event.usage.active_seconds for event in told]
    assert times == sorted(times)


async def test_the_threads_usage_is_null_until_its_first_idle_and_leaves_running_time_out(
    corral: Corral,
) -> None:
    session = await corral.session()
    threads = corral.client.beta.sessions.threads
    await session.says("go", script=[{"text": "one", "usage": LARGE, "hold": "here"}])
    await corral.model.until_holding("here")
    [running] = (await threads.list(session.id)).data
    assert (running.status, running.usage) == ("running", None)
    corral.model.release("here")
    await session.idle()
    [rested] = (await threads.list(session.id)).data
    assert rested.usage is not None
    assert rested.usage.input_tokens == 100_000
    assert rested.usage.list_cost is not None
    assert rested.usage.list_cost.amount == "64"
    assert rested.stats is not None
    assert rested.stats.startup_seconds == 0
