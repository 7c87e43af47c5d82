"""A budget on a working session: it pauses between model requests and goes on when the budget allows it."""

from typing import Any

import msgspec

from corral.settings import Brain, Inference, Settings
from corral.testing import ScriptedModel
from tests.contract.refusals import refused
from tests.corral_server import Corral, SessionUnderTest, running_corral

WEATHER: dict[str, Any] = {
    "type": "custom",
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL: dict[str, Any] = {"tools": [{"name": "get_weather", "input": {}}]}
# Of claude-sonnet-4-5, at $3 per million tokens.
FORTY_CENTS: dict[str, Any] = {"usage": {"input_tokens": 133_334, "output_tokens": 0}}
PAUSE = ["session.thread_status_idle", "session.usage", "session.status_idle"]


def budget(cents: int) -> Any:
    return {"type": "limit", "max_list_cost": {"amount": str(cents), "currency": "USD"}}


async def raise_to(session: SessionUnderTest, cents: int | None) -> Any:
    changed: Any = None if cents is None else budget(cents)
    return await session.corral.client.beta.sessions.update(session.id, budget=changed)


async def answer(session: SessionUnderTest, call: str) -> None:
    content = [{"type": "text", "text": "17 C"}]
    await session.sends({"type": "user.custom_tool_result", "custom_tool_use_id": call, "content": content})


async def paused_in_its_work(corral: Corral, cents: int = 30) -> tuple[SessionUnderTest, Any]:
    """A session that has reached its budget with a tool's result in hand, and its last idle event."""
    session = await corral.session(WEATHER, budget=budget(cents))
    await session.says("weather?", script=[{**CALL, **FORTY_CENTS}, {"text": "it is {result}"}])
    asked = await session.idle()
    assert asked.stop_reason.type == "requires_action"
    await answer(session, asked.stop_reason.event_ids[0])
    return session, await session.idle(after=asked.id)


async def test_a_session_at_its_budget_records_the_result_and_pauses_before_the_next_request(
    corral: Corral,
) -> None:
    session, idle = await paused_in_its_work(corral)
    assert idle.stop_reason.type == "budget_reached"
    events = await session.events()
    assert [event.type for event in events[-4:]] == ["user.custom_tool_result", *PAUSE]
    assert events[-3].stop_reason.type == "budget_reached"
    usage = events[-2]
    assert usage.usage.list_cost.amount == "40"
    assert usage.budget.max_list_cost.amount == "30"
    shown = await session.retrieve()
    assert shown.status == "idle"
    assert (shown.usage.list_cost.amount, shown.budget.max_list_cost.amount) == ("40", "30")
    assert len([event for event in events if event.type == "span.model_request_start"]) == 1


async def test_whatever_the_model_says_a_session_with_a_budget_takes_messages_and_pauses(
    corral: Corral,
) -> None:
    session = await corral.session(WEATHER, budget=budget(30))
    said = {"thinking": "a\x00b", "text": "NUL \x00", **FORTY_CENTS}
    refused_with = {"text": "no", "refusal": {"category": "cyber", "explanation": "because \x00"}}
    await session.says("hello", script=[refused_with])
    first = await session.idle()
    await session.says("again", script=[said])
    idle = await session.idle(after=first.id)
    assert idle.stop_reason.type == "budget_reached"
    await session.sends({"type": "user.interrupt"})
    raised = await raise_to(session, 50)
    assert raised.budget.max_list_cost.amount == "50"
    await session.says("go on", script=[{"text": "on"}])
    assert (await session.idle(after=idle.id)).stop_reason.type == "end_turn"


async def test_raising_the_budget_goes_on_with_the_work_without_any_event(corral: Corral) -> None:
    session, idle = await paused_in_its_work(corral)
    changed = await raise_to(session, 100)
    assert changed.budget.max_list_cost.amount == "100"
    ended = await session.idle(after=idle.id)
    assert ended.stop_reason.type == "end_turn"
    types = [event.type for event in await session.events()]
    after = types[types.index("session.updated") :]
    assert after[:4] == [
        "session.updated",
        "session.status_running",
        "session.thread_status_running",
        "span.model_request_start",
    ]
    messages = [event for event in await session.events() if event.type == "agent.message"]
    assert messages[-1].content[0].text == "it is 17 C"


async def test_removing_the_budget_goes_on_too_and_for_good(corral: Corral) -> None:
    session, idle = await paused_in_its_work(corral)
    assert (await raise_to(session, None)).budget is None
    assert (await session.idle(after=idle.id)).stop_reason.type == "end_turn"
    updated = next(event for event in await session.events() if event.type == "session.updated")
    assert updated.model_dump(exclude_unset=True).keys() == {"id", "type", "budget", "processed_at"}
    assert updated.budget is None
    error = await refused(raise_to(session, 500), "budget")
    assert error["details"]["error_code"] == "budget_create_only"
    await session.says("and more", script=[{"text": "done"}])


async def test_a_budget_must_be_raised_above_what_was_consumed(corral: Corral) -> None:
    session, _ = await paused_in_its_work(corral)
    for cents in (1, 30, 40):
        error = await refused(
            raise_to(session, cents),
            "budget.max_list_cost must be greater than the session's consumed list cost",
        )
        assert error["details"]["error_code"] == "budget_not_raised"
    assert (await session.retrieve()).budget.max_list_cost.amount == "30"
    assert "session.updated" not in await session.types()


async def test_at_its_budget_a_session_takes_only_what_settles_its_work(corral: Corral) -> None:
    session, _ = await paused_in_its_work(corral)
    before = await session.types()
    for event in (
        {"type": "user.message", "content": [{"type": "text", "text": "go on"}]},
        {
            "type": "user.define_outcome",
            "description": "a report",
            "rubric": {"type": "text", "content": "has figures"},
        },
    ):
        await refused(
            session.sends(event),
            "events[0]",
            "user.tool_confirmation, user.tool_result, user.custom_tool_result and user.interrupt",
        )
    assert await session.types() == before


async def test_an_interrupt_of_a_paused_session_is_accepted_and_changes_nothing(corral: Corral) -> None:
    session, idle = await paused_in_its_work(corral)
    before = await session.types()
    sent = await session.sends({"type": "user.interrupt"})
    assert sent.data[0].type == "user.interrupt"
    assert await session.types() == before
    await raise_to(session, 100)
    assert (await session.idle(after=idle.id)).stop_reason.type == "end_turn"
    assert "user.interrupt" not in await session.types()


async def test_a_request_that_crosses_the_budget_and_ends_the_turn_ends_it_on_the_thread(
    corral: Corral,
) -> None:
    session = await corral.session(budget=budget(30))
    await session.says("hello", script=[{"text": "hi", **FORTY_CENTS}, {"text": "again"}])
    idle = await session.idle()
    assert idle.stop_reason.type == "budget_reached"
    thread = next(e for e in await session.events() if e.type == "session.thread_status_idle")
    assert thread.stop_reason.type == "end_turn"
    # There is nothing to go on with: raising the budget opens the session, and no more.
    await raise_to(session, 200)
    await session.says("once more")
    assert (await session.idle(after=idle.id)).stop_reason.type == "end_turn"


async def test_a_message_that_waited_when_the_budget_was_reached_is_taken_up_after_a_raise(
    corral: Corral,
) -> None:
    session = await corral.session(budget=budget(30))
    await session.says("one", script=[{"text": "1", "hold": "here", **FORTY_CENTS}, {"text": "2"}])
    await corral.model.until_holding("here")
    await session.says("two")
    corral.model.release("here")
    idle = await session.idle()
    assert idle.stop_reason.type == "budget_reached"
    waiting = (await session.events())[-1]
    assert (waiting.type, waiting.processed_at) == ("user.message", None)
    await raise_to(session, 100)
    assert (await session.idle(after=idle.id)).stop_reason.type == "end_turn"
    assert [event.processed_at is None for event in await session.events()].count(True) == 0


async def test_a_pending_question_outranks_the_budget(corral: Corral) -> None:
    session = await corral.session(WEATHER, budget=budget(30))
    calls = [{"name": "get_weather", "input": {"city": city}} for city in ("Oslo", "Rome")]
    await session.says("both?", script=[{"tools": calls, **FORTY_CENTS}, {"text": "fine"}])
    asked = await session.idle()
    assert asked.stop_reason.type == "requires_action"
    first, second = asked.stop_reason.event_ids
    await answer(session, first)
    again = await session.idle(after=asked.id)
    assert (again.stop_reason.type, again.stop_reason.event_ids) == ("requires_action", [second])
    await answer(session, second)
    assert (await session.idle(after=again.id)).stop_reason.type == "budget_reached"


async def test_an_interrupt_while_a_question_is_open_ends_the_turn_though_the_budget_is_reached(
    corral: Corral,
) -> None:
    session = await corral.session(WEATHER, budget=budget(30))
    await session.says("weather?", script=[{**CALL, **FORTY_CENTS}, {"text": "never said"}])
    asked = await session.idle()
    await session.sends({"type": "user.interrupt"})
    idle = await session.idle(after=asked.id)
    assert idle.stop_reason.type == "end_turn"
    assert "user.interrupt" in await session.types()


async def test_a_budget_may_be_lowered_while_the_session_runs_and_holds_from_the_next_request(
    corral: Corral,
) -> None:
    session = await corral.session(WEATHER, budget=budget(500))
    await session.says("weather?", script=[{**CALL, **FORTY_CENTS, "hold": "here"}, {"text": "no"}])
    await corral.model.until_holding("here")
    await raise_to(session, 20)
    corral.model.release("here")
    asked = await session.until("session.status_idle")
    await answer(session, asked.stop_reason.event_ids[0])
    assert (await session.idle(after=asked.id)).stop_reason.type == "budget_reached"


async def test_another_server_keeps_a_pause_and_goes_on_from_it(
    database_url: str, model: ScriptedModel
) -> None:
    async with running_corral(database_url, model) as one:
        session, idle = await paused_in_its_work(one)
    async with running_corral(database_url, model) as other:
        session = SessionUnderTest(other, session.id)
        await refused(session.says("go on"), "budget")
        assert (await session.events())[-1].id == idle.id
        await raise_to(session, 100)
        ended = await session.idle(after=idle.id)
        assert ended.stop_reason.type == "end_turn"
        assert (await session.retrieve()).usage.list_cost.amount >= "40"


async def test_a_brain_that_dies_before_the_pause_is_written_leaves_it_to_the_next(
    database_url: str, model: ScriptedModel
) -> None:
    async with running_corral(database_url, model) as one:
        session = await one.session(WEATHER, budget=budget(30))
        await session.says("weather?", script=[{**CALL, **FORTY_CENTS}, {"text": "it is {result}"}])
        asked = await session.idle()
    async with running_corral(database_url, model, brains=False) as without_brains:
        # The result is in the log, and nobody is there to decide what comes of it.
        await answer(SessionUnderTest(without_brains, session.id), asked.stop_reason.event_ids[0])
    async with running_corral(database_url, model) as other:
        session = SessionUnderTest(other, session.id)
        idle = await session.idle(after=asked.id)
        assert idle.stop_reason.type == "budget_reached"
        await raise_to(session, 100)
        assert (await session.idle(after=idle.id)).stop_reason.type == "end_turn"
        starts = [kind for kind in await session.types() if kind == "span.model_request_start"]
        assert len(starts) == 2


def settings(model: ScriptedModel, **inference: Any) -> Settings:
    return Settings(
        inference=Inference(provider="gateway", base_url=model.base_url, **inference),
        brain=Brain(lease_seconds=2.0),
    )


async def test_a_model_of_your_own_has_the_price_that_the_settings_give_it(
    database_url: str, model: ScriptedModel
) -> None:
    own = settings(model, prices={"my-model": {"input": 30, "output": 60}})
    async with running_corral(database_url, model, settings=own) as corral:
        agent = await corral.agent(model="my-model")
        made = await corral.client.beta.sessions.create(
            agent=agent, environment_id=await corral.environment(), budget=budget(1000)
        )
        session = SessionUnderTest(corral, made.id)
        used = {"usage": {"input_tokens": 100_000, "output_tokens": 10_000}}
        await session.says("hello", script=[{"text": "hi", **used}])
        await session.idle()
        assert (await session.retrieve()).usage.list_cost.amount == "360"


async def test_a_model_that_loses_its_price_pauses_the_session_and_only_removal_helps(
    database_url: str, model: ScriptedModel
) -> None:
    priced = settings(model, prices={"my-model": {"input": 30, "output": 60}})
    async with running_corral(database_url, model, settings=priced) as corral:
        made = await corral.client.beta.sessions.create(
            agent=await corral.agent(WEATHER, model="my-model"),
            environment_id=await corral.environment(),
            budget=budget(1000),
        )
    async with running_corral(database_url, model, settings=settings(model)) as corral:
        session = SessionUnderTest(corral, made.id)
        await session.says("weather?", script=[CALL, {"text": "it is {result}"}])
        asked = await session.idle()
        await answer(session, asked.stop_reason.event_ids[0])
        idle = await session.idle(after=asked.id)
        assert idle.stop_reason.type == "budget_reached"
        error = await refused(raise_to(session, 100_000), "no list price is available")
        assert error["details"]["error_code"] == "model_not_budgetable"
        await raise_to(session, None)
        assert (await session.idle(after=idle.id)).stop_reason.type == "end_turn"


async def test_running_time_costs_what_the_settings_say(database_url: str, model: ScriptedModel) -> None:
    dear = settings(model, session_hour_price=100_000.0)
    async with running_corral(database_url, model, settings=dear) as corral:
        session = await corral.session(WEATHER, budget=budget(1))
        await session.says("weather?", script=[CALL, {"text": "never said"}])
        asked = await session.idle()
        await answer(session, asked.stop_reason.event_ids[0])
        idle = await session.idle(after=asked.id)
        assert idle.stop_reason.type == "budget_reached"
        shown = await session.retrieve()
        assert int(shown.usage.list_cost.amount) >= 1
        threads = [thread async for thread in corral.client.beta.sessions.threads.list(session.id)]
        # A thread's cost leaves running time out.
        assert msgspec.to_builtins(threads[0].usage.list_cost.amount) == "0"  # type: ignore[union-attr]


async def test_a_deployment_hands_its_budget_to_each_of_its_runs(corral: Corral) -> None:
    deployments: Any = corral.client.beta.deployments
    script = msgspec.json.encode([{"text": "hi", **FORTY_CENTS}]).decode()
    made = await deployments.create(
        name="nightly",
        agent=await corral.agent(),
        environment_id=await corral.environment(),
        initial_events=[
            {"type": "user.message", "content": [{"type": "text", "text": f"go\nscript: {script}"}]}
        ],
        budget=budget(30),
    )
    assert made.budget.max_list_cost.amount == "30"
    session = SessionUnderTest(corral, "")
    for _ in range(2):
        run = await deployments.run(made.id)
        session = SessionUnderTest(corral, run.session_id)
        idle = await session.idle()
        assert idle.stop_reason.type == "budget_reached"
        assert (await session.retrieve()).budget.max_list_cost.amount == "30"
    # Another budget is for the sessions that come after it.
    changed = await deployments.update(made.id, budget=budget(900))
    assert changed.budget.max_list_cost.amount == "900"
    assert (await session.retrieve()).budget.max_list_cost.amount == "30"
    assert (await deployments.update(made.id, budget=None)).budget is None
    assert (await deployments.update(made.id, budget=budget(70))).budget.max_list_cost.amount == "70"
