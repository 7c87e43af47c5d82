"""Budgets as requests set and change them; nothing has been consumed here (contract section 8.6)."""

import asyncio
from typing import Any

import pytest
from anthropic import NotFoundError

from tests.contract.conftest import Api
from tests.contract.refusals import refused, undocumented


def budget(amount: Any, currency: str = "USD") -> Any:
    return {"type": "limit", "max_list_cost": {"amount": amount, "currency": currency}}


async def session_with(api: Api, amount: str = "2500") -> Any:
    made = await api.session(budget=budget(amount))
    return await api.sdk.beta.sessions.retrieve(made["id"])


async def updates(api: Api, session_id: str) -> list[Any]:
    listed = api.sdk.beta.sessions.events.list(session_id, types=["session.updated"])
    return [event async for event in listed]


async def test_a_budget_is_shown_as_it_was_given(api: Api) -> None:
    session = await session_with(api)
    assert undocumented(session) == []
    assert session.budget.to_dict() == budget("2500")
    assert session.usage.list_cost.to_dict() == {"amount": "0", "currency": "USD"}
    [listed] = [one async for one in api.sdk.beta.sessions.list()]
    assert listed.budget == session.budget
    assert (await api.session())["budget"] is None
    assert (await api.session(budget=None))["budget"] is None


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (budget("0"), "budget.max_list_cost.amount"),
        (budget("-5"), "budget.max_list_cost.amount"),
        (budget("25.00"), "budget.max_list_cost.amount"),
        (budget("007"), "budget.max_list_cost.amount"),
        (budget(""), "budget.max_list_cost.amount"),
        (budget("1e3"), "budget.max_list_cost.amount"),
        (budget("1" * 19), "budget.max_list_cost.amount"),
        (budget(100), "budget.max_list_cost.amount"),
        (budget("100", "EUR"), "budget.max_list_cost.currency"),
        (budget("100", "usd"), "budget.max_list_cost.currency"),
        ({"type": "limit"}, "budget.max_list_cost: Field required"),
        ({"max_list_cost": {"amount": "1", "currency": "USD"}}, "budget.type: Field required"),
        ({**budget("1"), "type": "soft"}, "budget.type"),
        ({**budget("1"), "more": 1}, "budget.more: Extra inputs"),
        ("100", "budget"),
    ],
)
async def test_a_budget_that_is_none_is_refused_with_its_field(api: Api, given: Any, named: str) -> None:
    agent, environment = await api.agent(), await api.environment()
    body = {"agent": agent["id"], "environment_id": environment["id"], "budget": given}
    sessions: Any = api.sdk.beta.sessions
    await refused(sessions.create(**body), named)
    session = await session_with(api)
    await refused(sessions.update(session.id, budget=given), named)
    assert (await sessions.retrieve(session.id)).budget == session.budget


async def test_the_smallest_and_the_largest_budget_are_taken(api: Api) -> None:
    for amount in ("1", "9" * 18):
        assert (await session_with(api, amount)).budget.max_list_cost.amount == amount


async def test_a_model_without_a_list_price_cannot_have_a_budget(api: Api) -> None:
    agent = await api.agent(model="my-own-model")
    environment = await api.environment()
    create = api.sdk.beta.sessions.create(
        agent=agent["id"], environment_id=environment["id"], budget=budget("100")
    )
    error = await refused(create, "budget", "no list price is available", "my-own-model")
    assert error["details"]["error_code"] == "model_not_budgetable"
    assert [one async for one in api.sdk.beta.sessions.list()] == []
    without = await api.sdk.beta.sessions.create(agent=agent["id"], environment_id=environment["id"])
    assert without.budget is None


async def test_the_model_that_a_session_overrides_its_agents_with_is_the_one_that_counts(api: Api) -> None:
    priced, unpriced = await api.agent(), await api.agent(model="my-own-model")
    environment = (await api.environment())["id"]
    sessions: Any = api.sdk.beta.sessions

    def create(agent: Any, model: str) -> Any:
        override = {"type": "agent_with_overrides", "id": agent["id"], "model": model}
        return sessions.create(agent=override, environment_id=environment, budget=budget("100"))

    await refused(create(priced, "my-own-model"), "no list price is available")
    assert (await create(unpriced, "claude-haiku-5-5")).budget is not None


async def test_a_budget_is_changed_up_and_down_and_told_by_an_event(api: Api) -> None:
    session = await session_with(api)
    for amount in ("9000", "50"):
        changed = await api.sdk.beta.sessions.update(session.id, budget=budget(amount))
        assert changed.budget is not None
        assert changed.budget.max_list_cost.amount == amount
    told = await updates(api, session.id)
    assert [event.budget.max_list_cost.amount for event in told] == ["9000", "50"]
    assert {"title", "metadata", "agent"}.isdisjoint(told[0].to_dict())


async def test_the_same_budget_again_changes_nothing(api: Api) -> None:
    session = await session_with(api)
    changed = await api.sdk.beta.sessions.update(session.id, budget=budget("2500"))
    assert changed.updated_at == session.updated_at
    assert await updates(api, session.id) == []


async def test_an_update_without_a_budget_keeps_it(api: Api) -> None:
    session = await session_with(api)
    changed = await api.sdk.beta.sessions.update(session.id, title="renamed")
    assert changed.budget == session.budget
    [told] = await updates(api, session.id)
    assert "budget" not in told.to_dict()


async def test_a_removed_budget_cannot_come_back(api: Api) -> None:
    session = await session_with(api)
    assert (await api.sdk.beta.sessions.update(session.id, budget=None)).budget is None
    assert (await api.sdk.beta.sessions.update(session.id, budget=None)).budget is None
    [told] = await updates(api, session.id)
    assert told.to_dict()["budget"] is None
    error = await refused(api.sdk.beta.sessions.update(session.id, budget=budget("100")), "budget")
    assert error["details"]["error_code"] == "budget_create_only"


async def test_an_archived_session_keeps_its_budget_and_takes_no_other(api: Api) -> None:
    session = await session_with(api)
    await api.sdk.beta.sessions.archive(session.id)
    await refused(api.sdk.beta.sessions.update(session.id, budget=budget("100")), "archived")
    assert (await api.sdk.beta.sessions.retrieve(session.id)).budget == session.budget


async def test_a_budget_on_a_session_that_does_not_exist_is_not_found(api: Api) -> None:
    update = api.sdk.beta.sessions.update("sesn_011CZkZaBF1tNoB5wlCeusgy", budget=budget("100"))
    await refused(update, kind=NotFoundError)


async def test_of_many_changes_at_once_each_is_told_and_the_last_one_holds(api: Api) -> None:
    session = await session_with(api)
    amounts = [str(1000 + n) for n in range(8)]
    await asyncio.gather(
        *(api.sdk.beta.sessions.update(session.id, budget=budget(amount)) for amount in amounts)
    )
    told = [event.budget.max_list_cost.amount for event in await updates(api, session.id)]
    assert sorted(told) == amounts
    shown = await api.sdk.beta.sessions.retrieve(session.id)
    assert shown.budget is not None
    assert shown.budget.max_list_cost.amount == told[-1]


async def test_below_its_budget_a_session_takes_all_events(api: Api) -> None:
    session = await session_with(api)
    message: Any = {"type": "user.message", "content": [{"type": "text", "text": "hello"}]}
    sent = await api.sdk.beta.sessions.events.send(session.id, events=[message, {"type": "user.interrupt"}])
    assert sent.data is not None
    assert len(sent.data) == 2


async def test_a_deployment_checks_its_budget_and_can_clear_it_and_set_it_again(api: Api) -> None:
    deployments: Any = api.sdk.beta.deployments
    body = {
        "name": "nightly",
        "environment_id": (await api.environment())["id"],
        "initial_events": [{"type": "user.message", "content": [{"type": "text", "text": "go"}]}],
    }
    agent, unpriced = (await api.agent())["id"], (await api.agent(model="my-own-model"))["id"]
    made = await deployments.create(agent=agent, budget=budget("2000"), **body)
    assert made.budget.to_dict() == budget("2000")
    run = await deployments.run(made.id)
    session = await api.sdk.beta.sessions.retrieve(run.session_id)
    assert session.budget is not None
    assert session.budget.to_dict() == budget("2000")
    assert (await deployments.update(made.id, budget=None)).budget is None
    assert (await deployments.update(made.id, budget=budget("1"))).budget.to_dict() == budget("1")
    error = await refused(deployments.create(agent=unpriced, budget=budget("1"), **body), "list price")
    assert error["details"]["error_code"] == "model_not_budgetable"
    error = await refused(deployments.update(made.id, agent=unpriced), "list price")
    assert error["details"]["error_code"] == "model_not_budgetable"
