"""System messages: which models take them, where they may stand, what the model sees (contract 10.3)."""

from typing import Any

import pytest

from tests.contract.conftest import Api
from tests.contract.refusals import refused
from tests.contract.test_events_send import INTERRUPT, SYSTEM, custom_result, listed, send
from tests.contract.test_permissions import LS, output, verdict
from tests.contract.test_processed_at import outcome
from tests.contract.test_sessions_create import CUSTOM, TOOLSET, create, message
from tests.corral_server import Corral, SessionUnderTest

CODE = "model_does_not_support_mid_conversation_system"


async def on_opus(corral: Corral, *tools: Any, kind: str = "cloud", **fields: Any) -> SessionUnderTest:
    """A session on a model that takes system messages."""
    agent = await corral.agent(*tools, model="claude-opus-5-5", **fields)
    environment = await corral.environment(kind)
    made = await corral.client.beta.sessions.create(agent=agent, environment_id=environment)
    return SessionUnderTest(corral, made.id)


@pytest.mark.parametrize(
    "model",
    [
        *("claude-fable-5", "claude-fable-5-1", "claude-mythos-5", "claude-mythos-5-1", "claude-opus-5"),
        *("claude-opus-5-5", "claude-opus-4-8", "claude-sonnet-5-5", "claude-haiku-5-5"),
        "claude-opus-5-5-20260901",
    ],
)
async def test_the_models_that_are_documented_to_take_them_do(api: Api, model: str) -> None:
    session = await api.session(agent=(await api.agent(model=model))["id"])
    sent = await send(api, session, message(), SYSTEM)
    assert [event.type for event in sent.data] == ["user.message", "system.message"]


@pytest.mark.parametrize("model", ["claude-sonnet-4-5", "claude-opus-4-7", "claude-opus-50", "my-own-model"])
async def test_other_models_refuse_them_and_the_whole_batch(api: Api, model: str) -> None:
    session = await api.session(agent=(await api.agent(model=model))["id"])
    error = await refused(send(api, session, message(), SYSTEM), f"events[1]: model {model} does not support")
    assert error["details"] == {"error_code": CODE}
    assert await listed(api, session) == []


async def test_the_model_that_a_session_overrides_is_the_one_that_counts(api: Api) -> None:
    agent = await api.agent(model="claude-opus-5-5")
    override = {"type": "agent_with_overrides", "id": agent["id"], "model": "claude-sonnet-4-5"}
    made = await create(api, agent=override)
    error = await refused(send(api, {"id": made.id}, SYSTEM), "events[0]")
    assert error["details"]["error_code"] == CODE


async def test_it_is_a_turn_of_its_own_behind_the_message_and_the_system_prompt_stays(corral: Corral) -> None:
    session = await on_opus(corral, system="Be brief.")
    await session.sends(message("hello"), SYSTEM)
    idle = await session.idle()
    [request] = corral.model.requests()
    assert [turn["role"] for turn in request["messages"]] == ["user", "system"]
    assert "It is noon." in str(request["messages"][1])
    assert "It is noon." not in str(request["system"])
    assert "Be brief." in str(request["system"])
    types = await session.types()
    assert types[:3] == ["user.message", "system.message", "session.status_running"]
    # It stays where it was said.
    await session.sends(message("again"))
    await session.idle(after=idle.id)
    turns = [turn["role"] for turn in corral.model.requests()[-1]["messages"]]
    assert turns == ["user", "system", "assistant", "user"]


async def test_alone_it_waits_for_the_next_message_and_starts_nothing(corral: Corral) -> None:
    session = await on_opus(corral)
    sent = await session.sends(SYSTEM)
    assert sent.data[0].processed_at is None
    await session.sends(message("hello"))
    await session.idle()
    types = await session.types()
    assert types.count("session.status_running") == 1
    assert set(types[:2]) == {"system.message", "user.message"}
    assert len(corral.model.requests()) == 1


async def test_it_may_follow_a_tools_result_of_either_kind(corral: Corral) -> None:
    session = await on_opus(corral, CUSTOM, TOOLSET, kind="self_hosted")
    calls = [LS, {"name": "lookup", "input": {"key": "k"}}]
    await session.says("go", script=[{"tools": calls}, {"text": "ok"}])
    idle = await session.idle()
    uses = {event.name: event.id for event in await session.events() if hasattr(event, "name")}
    await session.sends(output(uses["bash"]), SYSTEM)
    later = await session.idle(after=idle.id)
    assert later.stop_reason.event_ids == [uses["lookup"]]
    await session.sends(custom_result(uses["lookup"], "found"))
    await session.idle(after=later.id)
    assert [turn["role"] for turn in corral.model.requests()[-1]["messages"]][-2:] == ["user", "system"]


async def test_a_result_that_is_repeated_with_it_is_no_reason_to_refuse_it(corral: Corral) -> None:
    other = {**CUSTOM, "name": "search"}
    session = await on_opus(corral, CUSTOM, other)
    calls = [{"name": name, "input": {"key": "k"}} for name in ("lookup", "search")]
    await session.says("go", script=[{"tools": calls}, {"text": "ok"}])
    idle = await session.idle()
    call = idle.stop_reason.event_ids[0]
    first = await session.sends(custom_result(call, "found"), SYSTEM)
    again = await session.sends(custom_result(call, "found"), SYSTEM)
    assert again.data[0].to_dict() == first.data[0].to_dict()
    # An outcome is no result, though it enters the log as one does.
    await refused(session.sends(outcome(), message(), SYSTEM), "events[2]", "must follow one of them")


async def test_behind_a_verdict_or_an_interrupt_it_is_refused(corral: Corral) -> None:
    asks = {**TOOLSET, "configs": [{"name": "bash", "permission_policy": {"type": "always_ask"}}]}
    session = await on_opus(corral, asks, kind="self_hosted")
    await session.says("go", script=[{"tools": [LS]}, {"text": "ok"}])
    idle = await session.idle()
    call = idle.stop_reason.event_ids[0]
    before = await session.types()
    await refused(session.sends(verdict(call, "allow"), SYSTEM), "events[1]", "must directly follow")
    await refused(session.sends(INTERRUPT, SYSTEM), "events[1]", "must directly follow")
    await refused(session.sends(SYSTEM), "events[0]", "must follow one of them")
    assert await session.types() == before


async def test_none_may_begin_a_session(api: Api) -> None:
    agent = (await api.agent(model="claude-opus-5-5"))["id"]
    await refused(
        create(api, agent=agent, initial_events=[message(), SYSTEM]),
        'initial_events[1].type: "system.message" is not a valid value',
    )
