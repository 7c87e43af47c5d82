"""Tools and overrides: resolved with every default, refused with a path (contract sections 5 and 8.3)."""

import json
from typing import Any

import msgspec
import pytest

from corral.wire.agents import CreateAgent, create_config
from corral.wire.decode import decode
from corral.wire.errors import InvalidRequest
from corral.wire.overrides import AgentWithOverrides, snapshot
from corral.wire.tools import TOOLS, enabled

SOURCES = ("user_input", "client_tool_results", "server_tool_results")


def config_of(**fields: Any) -> Any:
    body = json.dumps({"name": "A", "model": "m", **fields}).encode()
    return create_config(decode(body, CreateAgent), {})


def tools_of(*tools: dict[str, Any]) -> list[dict[str, Any]]:
    return msgspec.to_builtins(config_of(tools=tools).tools)


def refusal(*tools: dict[str, Any]) -> str:
    with pytest.raises(InvalidRequest) as refused:
        tools_of(*tools)
    return refused.value.message


def builtin(*configs: dict[str, Any], **default: Any) -> dict[str, Any]:
    return {"type": "agent_toolset_20260401", "configs": configs, "default_config": default or None}


def custom(name: str = "get_weather", **schema: Any) -> dict[str, Any]:
    return {
        "type": "custom",
        "name": name,
        "description": "d",
        "input_schema": {"type": "object", **schema},
    }


def test_entries_inherit_from_the_default_and_show_their_type() -> None:
    (tool,) = tools_of(
        builtin({"name": "bash"}, {"name": "read", "enabled": True}, enabled=False,
                permission_policy={"type": "always_ask"})
    )  # fmt: skip
    ask = {"type": "always_ask"}
    assert tool["default_config"] == {"enabled": False, "permission_policy": ask}
    assert tool["configs"] == [
        {"name": "bash", "type": "bash", "enabled": False, "permission_policy": ask},
        {"name": "read", "type": "read", "enabled": True, "permission_policy": ask},
    ]


def test_an_entry_wins_over_the_default_when_a_tool_is_asked_for() -> None:
    tools = config_of(tools=[builtin({"name": "read", "enabled": True}, enabled=False)]).tools
    assert (enabled(tools, "read"), enabled(tools, "bash"), enabled([], "read")) == (True, False, False)


def test_web_tools_show_their_settings_and_other_tools_have_none() -> None:
    (tool,) = tools_of(
        builtin(
            {
                "name": "web_fetch",
                "allowed_domains": ["docs.example.com"],
                "url_sources": {"user_input": "all"},
            },
            {"name": "web_search", "user_location": {"type": "approximate", "country": "NO"}},
        )
    )
    fetch, search = tool["configs"]
    assert (fetch["allowed_domains"], fetch["blocked_domains"]) == (["docs.example.com"], None)
    assert fetch["max_content_tokens"] is None
    assert fetch["url_sources"] == {
        "user_input": {"type": "all"},
        "client_tool_results": None,
        "server_tool_results": None,
    }
    assert search["user_location"]["country"] == "NO"
    assert "max_content_tokens" not in search


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"name": "bash", "allowed_domains": ["x.com"]}, "allowed_domains: Extra inputs"),
        ({"name": "web_search", "max_content_tokens": 5}, "max_content_tokens: Extra inputs"),
        ({"name": "bash", "type": "read"}, 'type: must be "bash"'),
        (
            {"name": "web_fetch", "allowed_domains": []},
            "Empty list of domains is ambiguous. Provide at least one domain or null.",
        ),
        ({"name": "web_fetch", "allowed_domains": ["a.com"], "blocked_domains": ["b.com"]}, "Only one of"),
        ({"name": "web_fetch", "allowed_domains": ["127.0.0.1"]}, "IP addresses are not supported"),
        ({"name": "web_fetch", "allowed_domains": ["localhost"]}, "not a plain hostname"),
        ({"name": "web_fetch", "allowed_domains": ["https://a.com"]}, "not a plain hostname"),
        ({"name": "web_fetch", "allowed_domains": ["x.internal"]}, "not a public domain"),
        ({"name": "web_fetch", "allowed_domains": ["a.com/path"]}, "not a plain hostname"),
        ({"name": "web_search", "allowed_domains": ["a.com", "A.com/"]}, "more than once"),
        ({"name": "web_search", "user_location": {"type": "approximate"}}, "at least one"),
        ({"name": "web_search", "user_location": {"type": "approximate", "country": "no"}}, "upper case"),
        ({"name": "web_search", "user_location": {"type": "approximate", "timezone": "Mars"}}, "IANA"),
        (
            {
                "name": "web_fetch",
                "url_sources": dict.fromkeys(SOURCES, "none"),
            },
            "at least one source",
        ),
        (
            {
                "name": "web_fetch",
                "url_sources": {
                    "client_tool_results": {
                        "type": "only",
                        "tools": [{"type": "tool_reference", "name": "x"}],
                    }
                },
            },
            'client_tool_results.tools[0].name: "x" is not a custom tool here',
        ),
    ],
)
def test_bad_settings_of_a_built_in_tool_are_refused(config: dict[str, Any], message: str) -> None:
    found = refusal(builtin(config))
    assert found.startswith("tools[0].configs[0]")
    assert message in found


def test_a_custom_tool_is_kept_as_it_is_sent() -> None:
    tool = custom(properties={"city": {"type": "string"}}, required=["city"], additionalProperties=False)
    assert tools_of(tool) == [tool]


@pytest.mark.parametrize(
    ("tool", "message"),
    [
        (custom("bash"), "is the name of a built-in tool"),
        (custom("ant__x"), "reserved"),
        (custom("mcp__x"), "reserved"),
        (custom("a b"), "letters, digits"),
        (custom(anyOf=[]), "input_schema.anyOf: not allowed"),
        (custom(properties={"a b": {}}), "property name"),
        (custom(properties={"a": {"$ref": "#/x"}}), "input_schema.properties.a.$ref: references"),
        (custom(properties=[]), "input_schema.properties"),
        (custom(required=[1]), "input_schema.required"),
        ({**custom(), "input_schema": {"type": "array"}}, 'input_schema.type: must be "object"'),
        ({**custom(), "description": ""}, "description: must have at least 1"),
    ],
)
def test_a_custom_tool_that_the_model_would_refuse_is_refused(tool: dict[str, Any], message: str) -> None:
    assert message in refusal(tool)


def test_names_are_unique_and_tools_are_counted_over_all_toolsets() -> None:
    assert "used more than once" in refusal(custom(), custom())
    many = [custom(f"t{i}") for i in range(TOOLS - 7)]
    assert "at most 256 tools" in refusal(builtin(), *many)


def overridden(config: Any, **overrides: Any) -> dict[str, Any]:
    body = {"type": "agent_with_overrides", "id": "agent_1", **overrides}
    return snapshot("agent_1", 3, config, msgspec.convert(body, AgentWithOverrides))


def test_absent_overrides_inherit_and_null_clears() -> None:
    config = config_of(system="s", tools=[builtin()], model={"id": "m", "effort": "max"})
    inherited = overridden(config)
    assert (inherited["system"], len(inherited["tools"]), inherited["version"]) == ("s", 1, 3)
    assert inherited["model"]["effort"] == {"type": "max"}
    cleared = overridden(config, system=None, tools=None)
    assert (cleared["system"], cleared["tools"]) == (None, [])
    assert "metadata" not in cleared


def test_an_overridden_model_takes_its_default_effort_whatever_is_asked() -> None:
    config = config_of(model={"id": "m", "effort": "max", "inference_geo": "us"})
    model = overridden(config, model={"id": "m", "effort": "low"})["model"]
    assert (model["effort"], model["inference_geo"]) == ({"type": "high"}, None)


def test_a_null_model_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest) as refused:
        overridden(config_of(), model=None)
    assert refused.value.details["error_code"] == "agent_model_required"


def test_clearing_servers_that_a_toolset_needs_is_refused() -> None:
    config = config_of(
        mcp_servers=[{"type": "url", "name": "gh", "url": "https://x.example"}],
        tools=[{"type": "mcp_toolset", "mcp_server_name": "gh"}],
    )
    with pytest.raises(InvalidRequest, match="is not in mcp_servers"):
        overridden(config, mcp_servers=[])
    assert overridden(config, mcp_servers=[], tools=[])["mcp_servers"] == []


@pytest.mark.parametrize("url", ["https://user:pw@x.example", "ftp://x.example", "https://", "http://[::1"])
def test_a_server_url_is_an_http_url_without_credentials(url: str) -> None:
    with pytest.raises(InvalidRequest, match=r"mcp_servers\[0\]\.url"):
        config_of(
            mcp_servers=[{"type": "url", "name": "gh", "url": url}],
            tools=[{"type": "mcp_toolset", "mcp_server_name": "gh"}],
        )
