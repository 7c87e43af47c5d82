"""MCP tools under the operator's policy and the judge: what is refused never reaches their server."""

from pathlib import Path

from corral.settings import Policy
from corral.testing import ScriptedModel
from tests.e2e.mcp_house import calls, last_message, mcp_house
from tests.policy_world import case_of, decisions, is_for_judge, judges

NO_ADDING = """
version: 1
rules:
  - id: no-adding
    effect: deny
    tools: ['mcp/**']
    servers: [127.0.0.1]
    input: {a: {equals: 666}}
    reason: No.
"""
SAYS = {"text": "they said: {result}"}


async def test_a_denied_call_never_reaches_the_server(
    database_url: str, model: ScriptedModel, tmp_path: Path
) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(NO_ADDING)
    async with mcp_house(database_url, model, policy=Policy(file=str(path))) as house:
        session = await house.session()
        await session.says("go", script=[calls("add", a=666, b=3), calls("add", a=2, b=3), SAYS])
        await session.idle()
        assert house.server.calls == [("add", {"a": 2, "b": 3})]
        denied, allowed = await session.events(types=["agent.mcp_tool_use"])
        assert (denied.evaluated_permission, denied.evaluation) == ("deny", None)
        assert allowed.evaluated_permission == "allow"
        result = (await session.events(types=["agent.mcp_tool_result"]))[0]
        assert (result.mcp_tool_use_id, result.is_error) == (denied.id, True)
        text = "Permission to use add has been denied. The operator's policy says: No."
        assert result.content[0].text == text
        first, second = await decisions(house.corral, session.id)
        assert (first["action"], second["action"]) == ("deny mcp/calc/add", "allow mcp/calc/add")


async def test_a_call_under_auto_is_judged_with_what_the_tool_says_of_itself(
    database_url: str, model: ScriptedModel
) -> None:
    judges(model, "ask")
    async with mcp_house(database_url, model) as house:
        policy = {"default_config": {"permission_policy": {"type": "auto"}}}
        session = await house.session(policy=policy)
        await session.says("go", script=[calls("add", a=2, b=3), SAYS])
        idle = await session.idle()
        [use] = await session.events(types=["agent.mcp_tool_use"])
        [asked] = [body for body in model.requests() if is_for_judge(body)]
        assert case_of(asked)["call"]["tool"] == "mcp/calc/add"
        assert case_of(asked)["call"]["about"]
        assert use.evaluation.to_dict() == {
            "type": "auto",
            "evaluated_permission": {"type": "ask", "reason_code": "indeterminate"},
        }
        assert house.server.calls == []
        await session.sends({"type": "user.tool_confirmation", "tool_use_id": use.id, "result": "allow"})
        await session.idle(after=idle.id)
        assert house.server.calls == [("add", {"a": 2, "b": 3})]
        assert await last_message(session) == "they said: 5"
