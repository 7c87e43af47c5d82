"""The tools of agents and sessions as the API checks and shows them (contract sections 5.1 to 5.4)."""

from typing import Any

import pytest

from .conftest import Api
from .kinds import ok

NAMES = ("bash", "read", "write", "edit", "glob", "grep", "web_fetch", "web_search")
ALLOW, ASK = {"type": "always_allow"}, {"type": "always_ask"}


def builtin(*configs: dict[str, Any], **default: Any) -> dict[str, Any]:
    return {"type": "agent_toolset_20260401", "configs": list(configs), "default_config": default or None}


def fetch(**settings: Any) -> dict[str, Any]:
    return {"name": "web_fetch", **settings}


def search(**settings: Any) -> dict[str, Any]:
    return {"name": "web_search", **settings}


def location(**fields: Any) -> dict[str, Any]:
    return search(user_location={"type": "approximate", **fields})


def custom(name: str = "weather", **changed: Any) -> dict[str, Any]:
    tool = {"type": "custom", "name": name, "description": "d", "input_schema": {"type": "object"}}
    return {**tool, **changed}


def references(*names: str, **fields: Any) -> dict[str, Any]:
    return {"type": "only", "tools": [{"type": "tool_reference", "name": name} for name in names], **fields}


async def refusal(api: Api, *tools: dict[str, Any]) -> str:
    """The message with which a new agent is refused for its tools; a changed one must be for the same."""
    response = await api.post("/v1/agents", {"name": "A", "model": "m", "tools": list(tools)})
    assert response.status_code == 400, response.text
    message = response.json()["error"]["message"]
    agent = await api.agent()
    changed = await api.post(f"/v1/agents/{agent['id']}", {"tools": list(tools)})
    assert (changed.status_code, changed.json()["error"]["message"]) == (400, message)
    return message


async def test_the_eight_built_in_tools_come_back_resolved_and_none_that_was_not_named(api: Api) -> None:
    agent = await api.agent(tools=[builtin(*({"name": name} for name in NAMES))])
    shown = agent["tools"][0]["configs"]
    assert [one["name"] for one in shown] == list(NAMES) == [one["type"] for one in shown]
    assert all(one["enabled"] is True and one["permission_policy"] == ALLOW for one in shown)
    one = await api.agent(tools=[builtin({"name": "bash", "type": "bash", "permission_policy": ASK})])
    assert one["tools"][0] == {
        "type": "agent_toolset_20260401",
        "default_config": {"enabled": True, "permission_policy": ALLOW},
        "configs": [{"name": "bash", "type": "bash", "enabled": True, "permission_policy": ASK}],
    }


async def test_an_agent_without_tools_has_none(api: Api) -> None:
    assert (await api.agent())["tools"] == []
    assert (await api.agent(tools=None))["tools"] == []
    assert (await api.agent(tools=[]))["tools"] == []


DEFAULTS: list[tuple[Any, ...]] = [
    ({}, (True, ALLOW)),
    ({"enabled": False}, (False, ALLOW)),
    ({"permission_policy": ASK}, (True, ASK)),
    ({"enabled": None, "permission_policy": None}, (True, ALLOW)),
    ({"permission_policy": {"type": "auto"}}, (True, {"type": "auto"})),
]


async def test_a_default_is_filled_in_field_by_field_and_handed_down(api: Api) -> None:
    for default, shown in DEFAULTS:
        own = {"name": "grep", "enabled": not shown[0], "permission_policy": ASK}
        agent = await api.agent(tools=[builtin({"name": "bash"}, own, **default)])
        (tool,) = agent["tools"]
        assert (tool["default_config"]["enabled"], tool["default_config"]["permission_policy"]) == shown
        inherited, overridden = tool["configs"]
        assert (inherited["enabled"], inherited["permission_policy"]) == shown
        assert (overridden["enabled"], overridden["permission_policy"]) == (not shown[0], ASK)


BAD_SETTINGS: list[tuple[Any, ...]] = [
    (builtin({"name": "rm"}), 'tools[0].configs[0].name: "rm" is not a valid value'),
    (builtin({"name": "Bash"}), 'tools[0].configs[0].name: "Bash" is not a valid value'),
    (builtin({}), "tools[0].configs[0].name: Field required"),
    (builtin({"name": "bash"}, {"name": "bash"}), 'tools[0].configs[1].name: "bash" is configured more'),
    (builtin({"name": "bash", "type": "read"}), 'tools[0].configs[0].type: must be "bash"'),
    (builtin({"name": "bash", "enabled": "yes"}), "tools[0].configs[0].enabled: Input should be a valid"),
    (
        builtin({"name": "bash", "permission_policy": {"type": "never"}}),
        'tools[0].configs[0].permission_policy.type: "never" is not a valid value',
    ),
    (
        builtin({"name": "bash", "permission_policy": "always_ask"}),
        "tools[0].configs[0].permission_policy: Input should be a valid object",
    ),
    (builtin(policy="x"), "tools[0].default_config.policy: Extra inputs are not permitted"),
    (builtin({"name": "bash", "max_content_tokens": 1}), "tools[0].configs[0].max_content_tokens: Extra"),
    (
        builtin({"name": "read", "blocked_domains": ["a.com"]}),
        "tools[0].configs[0].blocked_domains: Extra",
    ),
    (builtin(search(url_sources={})), "tools[0].configs[0].url_sources: Extra inputs"),
    (builtin(fetch(user_location={"type": "approximate"})), "tools[0].configs[0].user_location: Extra"),
]


async def test_bad_settings_of_a_built_in_tool_are_refused_with_their_path(api: Api) -> None:
    for tool, said in BAD_SETTINGS:
        assert (await refusal(api, tool)).startswith(said)


async def test_the_documented_texts_about_domains(api: Api) -> None:
    at = "tools[0].configs[0]"
    both = fetch(allowed_domains=["a.com"], blocked_domains=["b.com"])
    assert await refusal(api, builtin(both)) == (
        f"{at}: Only one of allowed_domains or blocked_domains may be set."
    )
    assert await refusal(api, builtin(search(allowed_domains=[]))) == (
        f"{at}.allowed_domains: Empty list of domains is ambiguous. Provide at least one domain or null."
    )
    assert await refusal(api, builtin(fetch(allowed_domains=["10.1.2.3"]))) == (
        f"{at}.allowed_domains[0]: IP addresses are not supported; "
        'provide a plain hostname like "example.com"'
    )
    assert await refusal(api, builtin(location(country="ZZ"))) == (
        f"{at}.user_location.country: not a country the search provider supports"
    )


@pytest.mark.parametrize("tool", [fetch, search])
@pytest.mark.parametrize("field", ["allowed_domains", "blocked_domains"])
async def test_domains_that_are_taken(api: Api, tool: Any, field: str) -> None:
    long = ".".join(["a" * 63] * 3 + ["b" * 59, "com"])
    assert len(long) == 255
    for domains in (
        [f"d{n}.example.com" for n in range(64)],
        [long],
        ["example.com", "docs.example.com", "Example.ORG", "trailing.example/", "xn--bcher-kva.example"],
        ["1.example.com", "a-b.example.com"],
    ):
        agent = await api.agent(tools=[builtin(tool(**{field: domains}))])
        assert agent["tools"][0]["configs"][0][field] == domains, "kept as they were sent"
    agent = await api.agent(tools=[builtin(tool(**{field: None}))])
    assert agent["tools"][0]["configs"][0][field] is None


async def test_domains_that_are_no_plain_public_hostname(api: Api) -> None:
    for domain in (
        *("https://example.com", "example.com:443", "*.example.com", "user@example.com", ".example.com"),
        *("example..com", "-a.example.com", "a-.example.com", "exa mple.com", "example.com.", "a_b.example"),
        *("localhost", "intranet", "com", "printer.local", "x.internal", "x.localdomain", "x.invalid"),
        *("127.0.0.1", "127.1", "0x7f.0.0.1", "2130706433", "[::1]", "::1", "1.2.3.4.5", "/", "/a"),
        *("b\u00fccher.example", "example.com\u212a", "\u212ax.com", "example\u3002com", "a" * 64 + ".com"),
    ):
        for tool in (fetch, search):
            body = {"tools": [builtin(tool(blocked_domains=["ok.example", domain]))]}
            response = await api.post("/v1/agents", {"name": "A", "model": "m", **body})
            assert response.status_code == 400, domain
            message = response.json()["error"]["message"]
            assert message.startswith("tools[0].configs[0].blocked_domains[1]: "), message


OUT_OF_BOUNDS: list[tuple[Any, ...]] = [
    ([f"d{n}.example.com" for n in range(65)], ": at most 64 domains"),
    (["a" * 250 + ".com.x"], "[0]: must have 1 to 255 characters"),
    ([""], "[0]: must have 1 to 255 characters"),
    (["a.com", "b.com", "A.com"], '[2]: "A.com" is listed more than once'),
    (["a.com", "a.com/"], '[1]: "a.com/" is listed more than once'),
    ([5], "[0]: Input should be a valid string"),
    ("a.com", ": Input should be a valid list"),
]


async def test_lists_of_domains_out_of_bounds(api: Api) -> None:
    for domains, said in OUT_OF_BOUNDS:
        message = await refusal(api, builtin(fetch(allowed_domains=domains)))
        assert message.startswith(f"tools[0].configs[0].allowed_domains{said}"), message


async def test_a_path_may_follow_the_host_for_searches_alone(api: Api) -> None:
    agent = await api.agent(tools=[builtin(search(allowed_domains=["example.com/docs/v1"]))])
    assert agent["tools"][0]["configs"][0]["allowed_domains"] == ["example.com/docs/v1"]
    assert "[0]: " in await refusal(api, builtin(fetch(allowed_domains=["example.com/docs/v1"])))
    for path in ("*", "a b", "x?y", "x#y", "ü"):
        assert "[0]: " in await refusal(api, builtin(search(allowed_domains=[f"example.com/{path}"])))


NO_LOCATIONS: list[tuple[Any, ...]] = [
    ({}, ": give at least one of city, region, country and timezone"),
    ({"country": "no"}, ".country: must be a two-letter"),
    ({"country": "NOR"}, ".country: must be a two-letter"),
    ({"country": "ＮＯ"}, ".country: must be a two-letter"),
    ({"timezone": "Mars/Base"}, '.timezone: "Mars/Base" is not an IANA time zone'),
    ({"timezone": "../../etc/passwd"}, ".timezone: "),
    ({"timezone": "localtime"}, '.timezone: "localtime" is not an IANA time zone'),
    ({"city": ""}, ".city: must have at least 1 characters"),
    ({"city": "c" * 256}, ".city: must have at most 255 characters"),
    ({"region": "r" * 256}, ".region: must have at most 255 characters"),
    ({"timezone": "t" * 256}, ".timezone: must have at most 255 characters"),
    ({"city": "Oslo", "street": "x"}, ".street: Extra inputs"),
    ({"city": "Oslo", "type": "exact"}, '.type: "exact" is not a valid value'),
]


async def test_a_location_that_is_none(api: Api) -> None:
    for fields, said in NO_LOCATIONS:
        message = await refusal(api, builtin(location(**fields)))
        assert message.startswith(f"tools[0].configs[0].user_location{said}"), message


async def test_a_location_and_a_bound_on_the_content_come_back(api: Api) -> None:
    place = {
        "type": "approximate",
        "city": "c" * 255,
        "region": "r" * 255,
        "country": "NO",
        "timezone": "Europe/Oslo",
    }
    tool = builtin(search(user_location=place), fetch(max_content_tokens=2**31 - 1))
    shown = (await api.agent(tools=[tool]))["tools"][0]["configs"]
    assert (shown[0]["user_location"], shown[1]["max_content_tokens"]) == (place, 2**31 - 1)
    for bad in (0, -1, 2**31, "5", 1.5):
        message = await refusal(api, builtin(fetch(max_content_tokens=bad)))
        assert message.startswith("tools[0].configs[0].max_content_tokens: ")


async def test_sources_of_urls_come_back_as_objects(api: Api) -> None:
    sources = {
        "user_input": "none",
        "client_tool_results": references("weather"),
        "server_tool_results": {**references("web_search"), "type": "except"},
    }
    agent = await api.agent(tools=[builtin(fetch(url_sources=sources)), custom()])
    assert agent["tools"][0]["configs"][0]["url_sources"] == {**sources, "user_input": {"type": "none"}}
    plain = await api.agent(tools=[builtin(fetch(url_sources={"client_tool_results": "all"}))])
    assert plain["tools"][0]["configs"][0]["url_sources"] == {
        "user_input": None,
        "client_tool_results": {"type": "all"},
        "server_tool_results": None,
    }
    assert (await api.agent(tools=[builtin(fetch())]))["tools"][0]["configs"][0]["url_sources"] is None


NO_SOURCES: list[tuple[Any, ...]] = [
    (
        {"user_input": "none", "client_tool_results": {"type": "none"}, "server_tool_results": "none"},
        ": at least one source must be allowed",
    ),
    ({"client_tool_results": references("x")}, '.client_tool_results.tools[0].name: "x" is not a custom'),
    ({"client_tool_results": references("bash")}, '.client_tool_results.tools[0].name: "bash" is not'),
    ({"server_tool_results": references("weather")}, '.server_tool_results.tools[0].name: "weather" is'),
    (
        {"client_tool_results": references("weather", "weather")},
        '.client_tool_results.tools[1].name: "weather" is listed more than once',
    ),
    ({"client_tool_results": references()}, ".client_tool_results.tools: must have at least 1 items"),
    (
        {"client_tool_results": references(*(f"t{n}" for n in range(129)))},
        ".client_tool_results.tools: must have at most 128 items",
    ),
    ({"user_input": "some"}, ".user_input"),
    ({"user_input": references("weather")}, ".user_input"),
    ({"others": "all"}, ".others: Extra inputs"),
]


async def test_sources_of_urls_that_cannot_be(api: Api) -> None:
    for sources, said in NO_SOURCES:
        message = await refusal(api, builtin(fetch(url_sources=sources)), custom())
        assert message.startswith(f"tools[0].configs[0].url_sources{said}"), message


async def test_a_session_that_brings_tools_is_checked_like_an_agent(api: Api) -> None:
    agent, environment = await api.agent(), await api.environment()
    bad = [builtin(fetch(allowed_domains=["localhost"]))]
    overridden = {"type": "agent_with_overrides", "id": agent["id"], "tools": bad}
    session = await api.session(agent=agent["id"], environment_id=environment["id"])
    for request in (
        api.post("/v1/sessions", {"agent": overridden, "environment_id": environment["id"]}),
        api.post(f"/v1/sessions/{session['id']}", {"agent": {"tools": bad}}),
    ):
        response = await request
        assert response.status_code == 400
        message = response.json()["error"]["message"]
        assert message.startswith("agent.tools[0].configs[0].allowed_domains[0]: "), message


async def test_an_mcp_toolset_asks_by_default_and_shows_what_was_named(api: Api) -> None:
    servers = [{"type": "url", "name": "gh", "url": "https://mcp.example.com"}]
    toolset: dict[str, Any] = {"type": "mcp_toolset", "mcp_server_name": "gh"}
    plain = await api.agent(mcp_servers=servers, tools=[toolset])
    assert plain["tools"] == [
        {**toolset, "default_config": {"enabled": True, "permission_policy": ASK}, "configs": []}
    ]
    entries = [{"name": "a", "enabled": False}, {"name": "b", "permission_policy": ALLOW}]
    narrowed = {**toolset, "default_config": {"enabled": None}, "configs": entries}
    assert (await api.agent(mcp_servers=servers, tools=[narrowed]))["tools"][0]["configs"] == [
        {"name": "a", "enabled": False, "permission_policy": ASK},
        {"name": "b", "enabled": True, "permission_policy": ALLOW},
    ]
    for configs, said in (
        ([{"name": "a"}, {"name": "a"}], 'tools[0].configs[1].name: "a" is configured more than once'),
        ([{"name": "a", "type": "a"}], "tools[0].configs[0].type: Extra inputs are not permitted"),
    ):
        body = {"name": "A", "model": "m", "mcp_servers": servers, "tools": [{**toolset, "configs": configs}]}
        assert (await api.post("/v1/agents", body)).json()["error"]["message"] == said


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city.name-1": {"type": "string", "enum": ["a", "$ref"]},
        "x": {"anyOf": [{"type": "null"}]},
    },
    "required": ["x"],
    "additionalProperties": False,
    "title": "T",
}


async def test_a_custom_tool_is_shown_as_it_was_sent(api: Api) -> None:
    tool = custom("get-Weather_2", description="d" * 5000, input_schema=SCHEMA)
    agent = await api.agent(tools=[tool])
    assert agent["tools"] == [tool]
    assert (await ok(api.get(f"/v1/agents/{agent['id']}")))["tools"] == [tool]


NO_CUSTOM_TOOLS: list[tuple[Any, ...]] = [
    ({"name": "bash"}, '.name: "bash" is the name of a built-in tool'),
    ({"name": "web_search"}, '.name: "web_search" is the name of a built-in tool'),
    ({"name": "ant__x"}, ".name: the prefixes ant__ and mcp__ are reserved"),
    ({"name": "mcp__x"}, ".name: the prefixes ant__ and mcp__ are reserved"),
    ({"name": "a b"}, ".name: may hold letters, digits, underscores and hyphens only"),
    ({"name": "wetter\u00fc"}, ".name: may hold letters"),
    ({"name": "a\n"}, ".name: may hold letters"),
    ({"input_schema": {}}, '.input_schema.type: must be "object"'),
    ({"input_schema": {"type": "array"}}, '.input_schema.type: must be "object"'),
    ({"input_schema": {"type": ["object"]}}, '.input_schema.type: must be "object"'),
    ({"input_schema": "{}"}, ".input_schema: Input should be a valid object"),
    (
        {"input_schema": {"type": "object", "oneOf": []}},
        ".input_schema.oneOf: not allowed at the top level",
    ),
    ({"input_schema": {"type": "object", "anyOf": []}}, ".input_schema.anyOf: not allowed"),
    ({"input_schema": {"type": "object", "allOf": []}}, ".input_schema.allOf: not allowed"),
    (
        {"input_schema": {"type": "object", "$defs": {"a": {"items": {"$ref": "#"}}}}},
        ".input_schema.$defs.a.items.$ref: references are not supported",
    ),
    (
        {"input_schema": {"type": "object", "properties": {"a": {"properties": {"b c": {}}}}}},
        ".input_schema.properties.a.properties: property name 'b c'",
    ),
    ({"input_schema": {"type": "object", "properties": {"": {}}}}, ".input_schema.properties: property"),
    ({"input_schema": {"type": "object", "required": "x"}}, ".input_schema.required: "),
    ({"permission_policy": ASK}, ".permission_policy: Extra inputs are not permitted"),
    ({"description": None}, ".description: Input should be a valid string"),
]


async def test_a_custom_tool_that_cannot_be(api: Api) -> None:
    for changed, said in NO_CUSTOM_TOOLS:
        message = await refusal(api, custom("fine"), custom(**changed))
        assert message.startswith(f"tools[1]{said}"), message


async def test_no_name_is_used_twice(api: Api) -> None:
    said = await refusal(api, custom("same"), builtin(), custom("same"))
    assert said.startswith('tools[2]: tool name "same" is used more than once (the first is tools[0])')
    said = await refusal(api, builtin(), builtin())
    assert said.startswith("tools[1]: only one agent_toolset_20260401 is allowed")
    await api.agent(tools=[custom("same"), custom("Same")])
