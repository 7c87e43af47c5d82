"""The official SDK's session tool runner against a real server: answers, holds, skips the denied."""

import asyncio
from typing import Any

from anthropic import AsyncAnthropic
from anthropic.lib.tools import beta_async_tool

from tests.corral_server import Corral, SessionUnderTest
from tests.moments import ends_turn


@beta_async_tool
async def get_weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: Which city.
    """
    return f"sunny in {city}"


@beta_async_tool
async def bash(command: str) -> str:
    """Stands in for the toolset's bash.

    Args:
        command: What to run.
    """
    return f"ran {command}"


WEATHER: dict[str, Any] = {
    "type": "custom",
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
ASKING: dict[str, Any] = {
    "type": "agent_toolset_20260401",
    "default_config": {"enabled": True, "permission_policy": {"type": "always_ask"}},
}
CALLS = [
    {"name": "bash", "input": {"command": "ls"}},
    {"name": "get_weather", "input": {"city": "Oslo"}},
]


async def dispatched(session: SessionUnderTest, key: str | None = None) -> list[Any]:
    """What the runner does until the turn has ended."""
    client = session.corral.client
    runner = client.beta.sessions.events.tool_runner(
        session.id, tools=[get_weather, bash], max_idle=0.2, environment_key=key
    )
    async with asyncio.timeout(30):
        return [call async for call in runner]


async def test_the_runner_answers_custom_and_built_in_tools(corral: Corral) -> None:
    session = await corral.session(WEATHER, {"type": "agent_toolset_20260401"}, kind="self_hosted")
    await session.says("go", script=[{"tools": CALLS}, {"text": "{result}"}])
    calls = await dispatched(session)
    assert {(call.name, call.posted, call.is_error) for call in calls} == {
        ("bash", True, False),
        ("get_weather", True, False),
    }
    [message] = await session.events(types=["agent.message"])
    assert message.content[0].text == "ran ls\nsunny in Oslo"


async def test_the_runner_works_with_an_environment_key_alone(corral: Corral) -> None:
    session = await corral.session(WEATHER, {"type": "agent_toolset_20260401"}, kind="self_hosted")
    environment_id = (await session.retrieve()).environment_id
    _, key = await corral.services.keys.create("environment", "worker", environment_id)
    await session.says("go", script=[{"tools": CALLS}, {"text": "{result}"}])
    assert {call.name for call in await dispatched(session, key)} == {"bash", "get_weather"}
    [message] = await session.events(types=["agent.message"])
    assert message.content[0].text == "ran ls\nsunny in Oslo"


async def test_the_runner_holds_a_call_until_it_is_allowed(corral: Corral) -> None:
    session = await corral.session(ASKING, kind="self_hosted")
    await session.says("go", script=[{"tools": CALLS[:1]}, {"text": "{result}"}])
    idle = await session.idle()
    running = asyncio.create_task(dispatched(session))
    [call] = idle.stop_reason.event_ids
    await session.sends({"type": "user.tool_confirmation", "tool_use_id": call, "result": "allow"})
    [done] = await running
    assert (done.confirmation, done.posted) == ("allow", True)
    [message] = await session.events(types=["agent.message"])
    assert message.content[0].text == "ran ls"


async def test_the_runner_never_runs_a_denied_call_and_the_server_answers_it(corral: Corral) -> None:
    session = await corral.session(ASKING, kind="self_hosted")
    await session.says("go", script=[{"tools": CALLS[:1]}, {"text": "{result}"}])
    idle = await session.idle()
    running = asyncio.create_task(dispatched(session))
    [call] = idle.stop_reason.event_ids
    await session.sends({"type": "user.tool_confirmation", "tool_use_id": call, "result": "deny"})
    [done] = await running
    assert (done.confirmation, done.posted) == ("deny", False)
    assert "user.tool_result" not in await session.types()
    assert (await session.idle(after=idle.id)).stop_reason.type == "end_turn"


async def test_the_runner_stops_when_the_session_ends(corral: Corral) -> None:
    session = await corral.session(WEATHER)
    client: AsyncAnthropic = corral.client
    runner = client.beta.sessions.events.tool_runner(session.id, tools=[get_weather], max_idle=None)
    running = asyncio.create_task(runner.until_done())
    await session.says("go", script=[{"tools": CALLS[1:]}, {"text": "{result}"}])
    await session.until("session.status_idle", where=ends_turn)
    await client.beta.sessions.archive(session.id)
    async with asyncio.timeout(30):
        await running
