"""A child has its own agent's MCP servers, through the gateway (contract section 11.3)."""

from corral.testing import ScriptedModel
from tests.corral_server import SessionUnderTest
from tests.e2e.coordinating import children, ended, starts, thread_events
from tests.e2e.mcp_house import ALLOW, calls, mcp_house


async def test_a_childs_server_is_its_own_whatever_the_coordinator_calls_by_that_name(
    database_url: str, model: ScriptedModel
) -> None:
    async with mcp_house(database_url, model) as house:
        toolset = {"type": "mcp_toolset", "mcp_server_name": "calc", "default_config": ALLOW}
        corral = house.corral
        member = await corral.agent(
            toolset, name="one", mcp_servers=[{"type": "url", "name": "calc", "url": house.server.url}]
        )
        # The coordinator's server of this name cannot be reached.
        lead = await corral.agent(
            toolset,
            name="lead",
            mcp_servers=[{"type": "url", "name": "calc", "url": "https://calc.invalid/mcp"}],
            multiagent={"type": "coordinator", "agents": [member]},
        )
        made = await corral.client.beta.sessions.create(agent=lead, environment_id=await corral.environment())
        session = SessionUnderTest(corral, made.id)
        steps = [{"tools": [starts("one", calls("add", a=2, b=3), {"text": "added"})]}, {"text": "ok"}]
        await session.says("go", script=steps)
        await session.until("session.status_idle", where=ended)
        assert house.server.calls == [("add", {"a": 2, "b": 3})]
        child = (await children(session))["one"]
        [result] = [e for e in await thread_events(session, child.id) if e.type == "agent.mcp_tool_result"]
        assert [block.text for block in result.content] == ["5"]
        assert "agent.mcp_tool_use" not in await session.types()
