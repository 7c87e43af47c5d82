"""MCP tools in sessions, from the model's call to its result, with a real MCP server (section 5.3)."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
import pytest_asyncio

from corral.testing import ScriptedModel
from tests.corral_server import SessionUnderTest, running_corral
from tests.e2e.mcp_house import ALLOW, McpHouse, calls, last_message, mcp_house, settings_with

TOKEN = "bearer-hunter2"
BEARER = {"type": "static_bearer", "token": TOKEN}
SAYS = {"text": "they said: {result}"}


@pytest_asyncio.fixture
async def house(database_url: str, model: ScriptedModel) -> AsyncGenerator[McpHouse]:
    async with mcp_house(database_url, model) as at_work:
        yield at_work


async def test_an_allowed_call_runs_and_its_result_reaches_the_model(house: McpHouse) -> None:
    session = await house.session()
    await session.says("go", script=[calls("add", a=2, b=3), SAYS])
    await session.idle()
    [use] = await session.events(types=["agent.mcp_tool_use"])
    [result] = await session.events(types=["agent.mcp_tool_result"])
    assert (use.mcp_server_name, use.name, use.input) == ("calc", "add", {"a": 2, "b": 3})
    assert (use.evaluated_permission, use.evaluation.type) == ("allow", "always_allow")
    assert (result.mcp_tool_use_id, result.is_error) == (use.id, False)
    assert [block.text for block in result.content] == ["5"]
    assert await last_message(session) == "they said: 5"


async def test_the_order_of_events_is_the_documented_one(house: McpHouse) -> None:
    session = await house.session()
    await session.says("go", script=[calls("add", a=2, b=3), SAYS])
    await session.idle()
    assert await session.types() == [
        "user.message",
        "session.status_running",
        "session.thread_status_running",
        "span.model_request_start",
        "agent.mcp_tool_use",
        "span.model_request_end",
        "agent.mcp_tool_result",
        "span.model_request_start",
        "agent.message",
        "span.model_request_end",
        "session.thread_status_idle",
        "session.usage",
        "session.status_idle",
    ]


async def test_a_call_asks_first_unless_the_agent_says_otherwise(house: McpHouse) -> None:
    session = await house.session(policy={})
    await session.says("go", script=[calls("add", a=2, b=3), SAYS])
    idle = await session.idle()
    [use] = await session.events(types=["agent.mcp_tool_use"])
    assert idle.stop_reason.event_ids == [use.id]
    assert (use.evaluated_permission, use.evaluation.type) == ("ask", "always_ask")
    assert house.server.calls == []
    await session.sends({"type": "user.tool_confirmation", "tool_use_id": use.id, "result": "allow"})
    await session.idle(after=idle.id)
    assert house.server.calls == [("add", {"a": 2, "b": 3})]
    assert await last_message(session) == "they said: 5"


async def test_a_denied_call_does_not_run_and_the_model_is_told_why(house: McpHouse) -> None:
    session = await house.session(policy={})
    await session.says("go", script=[calls("add", a=2, b=3), SAYS])
    idle = await session.idle()
    deny = {"type": "user.tool_confirmation", "result": "deny", "deny_message": "not today"}
    await session.sends({**deny, "tool_use_id": idle.stop_reason.event_ids[0]})
    await session.idle(after=idle.id)
    [result] = await session.events(types=["agent.mcp_tool_result"])
    assert result.is_error is True
    assert "not today" in await last_message(session)
    assert house.server.calls == []


async def test_the_model_is_told_of_enabled_tools_alone_and_of_the_same_ones_each_time(
    house: McpHouse, model: ScriptedModel
) -> None:
    configs = [{"name": "fail", "enabled": False}, {"name": "add", **ALLOW}]
    session = await house.session(policy={"configs": configs})
    await session.says("go", script=[calls("add", a=1, b=1), SAYS])
    first = await session.idle()
    await session.says("again", script=[{"text": "yes"}])
    await session.idle(after=first.id)
    told = [[tool["name"] for tool in request["tools"]] for request in model.requests()]
    names = ["add", "echo_headers", "long", "pixel", "wait"]
    assert told == [[f"mcp__calc__{name}" for name in names]] * 3
    [definition] = [tool for tool in model.requests()[0]["tools"] if tool["name"] == "mcp__calc__add"]
    assert definition["description"] == "Add two numbers."
    assert definition["input_schema"]["required"] == ["a", "b"]
    assert house.server.methods().count("tools/list") == 1, "they are listed once in a session"


async def test_a_tool_that_is_not_enabled_is_refused(house: McpHouse) -> None:
    session = await house.session(policy={"configs": [{"name": "add", "enabled": False}]})
    await session.says("go", script=[calls("add", a=1, b=1), SAYS])
    await session.idle()
    assert "has been denied" in await last_message(session)
    assert house.server.calls == []


async def test_an_error_of_the_tool_is_an_error_result_and_no_session_error(house: McpHouse) -> None:
    session = await house.session()
    await session.says("go", script=[calls("fail", reason="no luck"), SAYS])
    await session.idle()
    [result] = await session.events(types=["agent.mcp_tool_result"])
    assert result.is_error is True
    assert "no luck" in result.content[0].text
    assert await session.events(types=["session.error"]) == []


async def test_a_picture_reaches_the_model_as_a_picture(house: McpHouse) -> None:
    session = await house.session()
    await session.says("go", script=[calls("pixel"), {"text": "nice"}])
    await session.idle()
    [result] = await session.events(types=["agent.mcp_tool_result"])
    assert [block.type for block in result.content] == ["image"]
    assert result.content[0].source.media_type == "image/png"


async def test_of_a_long_result_a_preview_is_shown_and_the_agent_can_read_all_of_it(house: McpHouse) -> None:
    session = await house.session()
    await session.says("go", script=[calls("long", characters=150_000), {"text": "much"}])
    idle = await session.idle()
    [result] = await session.events(types=["agent.mcp_tool_result"])
    assert "150,000 characters" in result.content[0].text
    assert len(result.content[1].text) == 10_000
    look = {"name": "ant__history", "input": {"entry": result.id, "offset": 149_990}}
    await session.says("and the end?", script=[{"tools": [look]}, SAYS])
    await session.idle(after=idle.id)
    said = await last_message(session)
    assert "characters 149990 to 150000 of 150000" in said


async def test_calls_of_one_answer_run_side_by_side(house: McpHouse) -> None:
    session = await house.session()
    both = {"tools": [*calls("wait")["tools"], *calls("add", a=1, b=2)["tools"]]}
    await session.says("go", script=[both, {"text": "done"}])
    [first] = [await session.until("agent.mcp_tool_result")]
    assert first.content[0].text == "3", "the quick one does not wait for the slow one"
    house.server.proceed.set()
    await session.idle()
    assert len(await session.events(types=["agent.mcp_tool_result"])) == 2


async def test_a_server_that_knows_the_older_transport_alone_is_spoken_to_by_it(
    database_url: str, model: ScriptedModel
) -> None:
    async with mcp_house(database_url, model, accepted=[TOKEN], sse=True) as house:
        session = await house.session(vault_ids=[await house.vault(BEARER)])
        await session.says("go", script=[calls("add", a=2, b=3), SAYS])
        await session.idle()
        assert await last_message(session) == "they said: 5"


async def test_the_event_id_goes_out_as_idempotency_key(house: McpHouse) -> None:
    session = await house.session()
    await session.says("go", script=[calls("add", a=2, b=3), SAYS])
    await session.idle()
    [use] = await session.events(types=["agent.mcp_tool_use"])
    [call] = [one for one in house.server.seen if one["message"].get("method") == "tools/call"]
    assert call["headers"]["idempotency-key"] == use.id
    assert call["message"]["params"]["_meta"]["idempotencyKey"] == use.id


async def test_a_connection_that_the_server_has_forgotten_is_opened_anew_once(house: McpHouse) -> None:
    session = await house.session()
    await session.says("go", script=[calls("add", a=2, b=3), SAYS])
    first = await session.idle()
    house.server.forget = True
    await session.says("go", script=[calls("add", a=4, b=4), SAYS])
    await session.idle(after=first.id)
    assert await last_message(session) == "they said: 8"
    assert house.server.calls == [("add", {"a": 2, "b": 3}), ("add", {"a": 4, "b": 4})]


async def test_a_call_that_takes_too_long_is_given_up_and_the_model_is_told(
    database_url: str, model: ScriptedModel
) -> None:
    async with mcp_house(database_url, model, call_seconds=0.5) as house:
        session = await house.session()
        await session.says("go", script=[calls("wait"), SAYS])
        await session.idle()
        assert "given up after 0.5 s" in await last_message(session)
        async with asyncio.timeout(10):
            await house.server.cancelled.wait()


async def test_an_interrupt_cancels_a_call_at_the_server(house: McpHouse) -> None:
    session = await house.session()
    await session.says("go", script=[calls("wait"), SAYS])
    async with asyncio.timeout(20):
        await house.server.started.wait()
        await session.sends({"type": "user.interrupt"})
        await session.idle()
        await house.server.cancelled.wait()
    [result] = await session.events(types=["agent.mcp_tool_result"])
    assert (result.is_error, "interrupted" in result.content[0].text) == (True, True)


@pytest.mark.parametrize("self_hosted", [False, True])
async def test_mcp_tools_run_wherever_the_sessions_hands_are(house: McpHouse, self_hosted: bool) -> None:
    environment = await house.corral.environment("self_hosted" if self_hosted else "cloud")
    session = await house.session(environment_id=environment)
    await session.says("go", script=[calls("add", a=2, b=3), SAYS])
    await session.idle()
    assert await last_message(session) == "they said: 5"


async def test_a_server_that_is_away_is_a_session_error_and_the_session_runs_on(house: McpHouse) -> None:
    session = await house.session(url="http://127.0.0.1:9/mcp")
    await session.says("go", script=[{"text": "still here"}])
    idle = await session.idle()
    [error] = await session.events(types=["session.error"])
    assert (error.error.type, error.error.mcp_server_name) == ("mcp_connection_failed_error", "calc")
    assert error.error.retry_status.type == "retrying"
    assert idle.stop_reason.type == "end_turn"
    assert await last_message(session) == "still here"


async def test_a_failed_server_is_tried_again_when_the_session_next_begins_to_run(house: McpHouse) -> None:
    house.server.answer = 503
    session = await house.session()
    await session.says("go", script=[{"text": "without it"}])
    first = await session.idle()
    house.server.answer = None
    await session.says("go", script=[calls("add", a=2, b=3), SAYS])
    await session.idle(after=first.id)
    assert await last_message(session) == "they said: 5"
    assert len(await session.events(types=["session.error"])) == 1


async def test_a_missing_credential_is_an_authentication_error(
    database_url: str, model: ScriptedModel
) -> None:
    async with mcp_house(database_url, model, accepted=[TOKEN]) as house:
        session = await house.session()
        await session.says("go", script=[{"text": "without it"}])
        await session.idle()
        [error] = await session.events(types=["session.error"])
        assert (error.error.type, error.error.mcp_server_name) == ("mcp_authentication_failed_error", "calc")
        assert error.error.retry_status.type == "exhausted"
        assert "no vault of the session has one" in error.error.message


async def test_the_first_vault_with_a_credential_for_the_url_wins(
    database_url: str, model: ScriptedModel
) -> None:
    async with mcp_house(database_url, model, accepted=[TOKEN]) as house:
        other = await house.vault({**BEARER, "mcp_server_url": "https://other.example.com/mcp"})
        right = await house.vault({**BEARER, "mcp_server_url": house.server.url + "/"})
        wrong = await house.vault({**BEARER, "token": "wrong-hunter2"})
        session = await house.session(vault_ids=[other, right, wrong])
        await session.says("go", script=[calls("add", a=2, b=3), SAYS])
        await session.idle()
        assert await last_message(session) == "they said: 5"
        sent = {one["headers"].get("authorization") for one in house.server.seen}
        assert sent == {f"Bearer {TOKEN}"}


async def test_a_changed_credential_reaches_a_running_session(
    database_url: str, model: ScriptedModel
) -> None:
    async with mcp_house(database_url, model, accepted=[TOKEN]) as house:
        vault_id = await house.vault(BEARER)
        session = await house.session(vault_ids=[vault_id])
        await session.says("go", script=[calls("add", a=2, b=3), SAYS])
        first = await session.idle()
        house.server.accepted = {"new-hunter2"}
        sdk: Any = house.corral.client.beta.vaults.credentials
        [credential] = [one async for one in sdk.list(vault_id)]
        new = {"type": "static_bearer", "token": "new-hunter2"}
        await sdk.update(credential.id, vault_id=vault_id, auth=new)
        await session.says("go", script=[calls("add", a=4, b=4), SAYS])
        second = await session.idle(after=first.id)
        assert await last_message(session) == "they said: 8"
        await sdk.archive(credential.id, vault_id=vault_id)
        await session.says("go", script=[calls("add", a=5, b=5), SAYS])
        await session.idle(after=second.id)
        [error] = await session.events(types=["session.error"])
        assert error.error.type == "mcp_authentication_failed_error"
        assert "cannot be used" in await last_message(session)


async def test_a_token_that_a_tool_gives_back_is_masked(database_url: str, model: ScriptedModel) -> None:
    async with mcp_house(database_url, model, accepted=[TOKEN]) as house:
        session = await house.session(vault_ids=[await house.vault(BEARER)])
        await session.says("go", script=[calls("echo_headers"), SAYS])
        await session.idle()
        assert "Bearer [secret]" in await last_message(session)


async def test_a_server_without_a_gateway_says_so_and_runs_on(
    database_url: str, model: ScriptedModel
) -> None:
    async with running_corral(database_url, model, settings=settings_with(None, model)) as corral:
        toolset = {"type": "mcp_toolset", "mcp_server_name": "calc"}
        server = {"type": "url", "name": "calc", "url": "https://mcp.example.com/mcp"}
        agent = await corral.agent(toolset, mcp_servers=[server])
        environment = await corral.environment()
        made = await corral.client.beta.sessions.create(agent=agent, environment_id=environment)
        session = SessionUnderTest(corral, made.id)
        await session.says("go", script=[{"text": "still here"}])
        await session.idle()
        [error] = await session.events(types=["session.error"])
        assert error.error.type == "mcp_connection_failed_error"
        assert "gateway.url" in error.error.message
        assert await last_message(session) == "still here"


async def test_limited_networking_holds_for_mcp_hosts_at_run_time_too(house: McpHouse) -> None:
    limited = {"type": "limited", "allowed_hosts": ["127.0.0.2"], "allow_mcp_servers": True}
    environments: Any = house.corral.client.beta.environments
    config = {"type": "cloud", "networking": limited}
    environment = await environments.create(name="limited", config=config)
    session = await house.session(environment_id=environment.id)
    await environments.update(
        environment.id, config={"type": "cloud", "networking": {**limited, "allow_mcp_servers": False}}
    )
    await session.says("go", script=[{"text": "still here"}])
    await session.idle()
    [error] = await session.events(types=["session.error"])
    assert error.error.type == "mcp_connection_failed_error"
    assert "allowed_hosts" in error.error.message
    assert house.server.seen == []
