"""MCP tools as the model knows them: names, order, policies (contract sections 5.3 and 6)."""

import re
from typing import Any

from corral.brain.mcp_tools import offered
from corral.wire.gateway import Tool

ASK: dict[str, Any] = {"enabled": True, "permission_policy": {"type": "always_ask"}}


def tool(name: str, **properties: Any) -> Tool:
    return Tool(name=name, description=name, input_schema={"type": "object", "properties": properties})


def agent(*servers: str, configs: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    toolsets = [
        {
            "type": "mcp_toolset",
            "mcp_server_name": server,
            "default_config": ASK,
            "configs": configs or [],
        }
        for server in servers
    ]
    return {"name": "A", "tools": toolsets, "mcp_servers": []}


def test_names_say_server_and_tool_and_are_in_a_fixed_order() -> None:
    listed = {"b": [tool("z"), tool("a")], "a": [tool("x")]}
    assert list(offered(agent("b", "a"), listed)) == ["mcp__b__a", "mcp__b__z", "mcp__a__x"]


def test_names_that_a_model_cannot_have_become_fit_and_stay_apart() -> None:
    listed = {"my server": [tool("a.b"), tool("a b"), tool("x" * 128)], "my_server": [tool("a_b")]}
    names = offered(agent("my server", "my_server"), listed)
    assert len(names) == 4
    for name, known in names.items():
        assert re.fullmatch(r"[a-zA-Z0-9_-]{1,128}", name)
        assert known.definition["name"] == name
    assert {known.name for known in names.values()} == {"a.b", "a b", "x" * 128, "a_b"}


def test_a_server_whose_name_has_two_underscores_cannot_pass_for_another() -> None:
    names = offered(agent("a", "a__b"), {"a": [tool("b__c")], "a__b": [tool("c")]})
    assert len(names) == 2


def test_configurations_override_the_default_tool_by_tool() -> None:
    allow = {"name": "a", "enabled": True, "permission_policy": {"type": "always_allow"}}
    off = {"name": "b", **ASK, "enabled": False}
    names = offered(agent("s", configs=[allow, off]), {"s": [tool("a"), tool("b"), tool("c")]})
    assert {name: known.evaluation.evaluated_permission for name, known in names.items()} == {
        "mcp__s__a": "allow",
        "mcp__s__c": "ask",
    }


def test_a_tool_with_parameters_that_the_models_api_refuses_is_left_out() -> None:
    assert offered(agent("s"), {"s": [tool("a", **{"bad name": {}}), tool("b", **{"x" * 65: {}})]}) == {}
