"""The bounds on what an agent may hold, at both edges (contract sections 2.5 and 4.2)."""

from typing import Any

import pytest

from .conftest import Api
from .kinds import ok

TOOLSET: dict[str, Any] = {"type": "agent_toolset_20260401"}
CAT = "\U0001f408"


def servers(count: int, **changed: Any) -> dict[str, Any]:
    """So many MCP servers, each with its toolset; the first one changed."""
    names = [f"s{n}" for n in range(count)]
    listed = [{"type": "url", "name": name, "url": f"https://{name}.example.com/mcp"} for name in names]
    listed[0].update(changed)
    toolsets = [{"type": "mcp_toolset", "mcp_server_name": server["name"]} for server in listed]
    return {"mcp_servers": listed, "tools": toolsets}


def custom(name: str = "weather", description: str = "d", **schema: Any) -> dict[str, Any]:
    input_schema = {"type": "object", **schema}
    return {"type": "custom", "name": name, "description": description, "input_schema": input_schema}


def mcp_entries(count: int) -> dict[str, Any]:
    fields = servers(1)
    fields["tools"][0]["configs"] = [{"name": f"t{n}"} for n in range(count)]
    return fields


def mcp_entry(name: str) -> dict[str, Any]:
    fields = servers(1)
    fields["tools"][0]["configs"] = [{"name": name}]
    return fields


URL = "https://mcp.example.com/"

EDGES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "name": ({"name": CAT * 256}, {"name": CAT * 257}, "name: must have at most 256 characters"),
    "name at least": ({"name": "x"}, {"name": ""}, "name: must have at least 1 characters"),
    "description": (
        {"description": CAT * 2048},
        {"description": "d" * 2049},
        "description: must have at most 2048 characters",
    ),
    "system": ({"system": "s" * 100_000}, {"system": "s" * 100_001}, "system: must have at most 100000"),
    "model": ({"model": "m" * 256}, {"model": "m" * 257}, "model: must have at most 256 characters"),
    "model at least": ({"model": "m"}, {"model": ""}, "model: must have at least 1 characters"),
    "model.id": (
        {"model": {"id": "m" * 256}},
        {"model": {"id": "m" * 257}},
        "model.id: must have at most 256 characters",
    ),
    "20 servers": (servers(20), servers(21), "mcp_servers: at most 20 servers"),
    "server name": (
        servers(1, name="n" * 255),
        servers(1, name="n" * 256),
        "mcp_servers[0].name: must have at most 255 characters",
    ),
    "server name at least": (servers(1), servers(1, name=""), "mcp_servers[0].name: must have at least 1"),
    "server url": (
        servers(1, url=URL + "u" * (2048 - len(URL))),
        servers(1, url=URL + "u" * (2049 - len(URL))),
        "mcp_servers[0].url: must have at most 2048 characters",
    ),
    "256 tools": (
        {"tools": [TOOLSET, *(custom(f"t{n}") for n in range(248))]},
        {"tools": [TOOLSET, *(custom(f"t{n}") for n in range(249))]},
        "tools: at most 256 tools over all toolsets",
    ),
    "256 tools of a server": (mcp_entries(256), mcp_entries(257), "tools: at most 256 tools"),
    "tool of a server": (
        mcp_entry("t" * 128),
        mcp_entry("t" * 129),
        "tools[0].configs[0].name: must have at most 128 characters",
    ),
    "tool of a server at least": (
        mcp_entry("t"),
        mcp_entry(""),
        "tools[0].configs[0].name: must have at least 1 characters",
    ),
    "custom tool": (
        {"tools": [custom("t" * 128)]},
        {"tools": [custom("t" * 129)]},
        "tools[0].name: must have at most 128 characters",
    ),
    "description of a custom tool": (
        {"tools": [custom(description="d" * 100_000)]},
        {"tools": [custom(description="")]},
        "tools[0].description: must have at least 1 characters",
    ),
    "property of a custom tool": (
        {"tools": [custom(properties={"p" * 64: {}})]},
        {"tools": [custom(properties={"p" * 65: {}})]},
        "tools[0].input_schema.properties: property name",
    ),
    "role": (
        {"execution_identity": {"type": "aws_role", "role_arn": "r" * 2048}},
        {"execution_identity": {"type": "aws_role", "role_arn": "r" * 2049}},
        "execution_identity.role_arn: must have at most 2048 characters",
    ),
}


@pytest.mark.parametrize("case", EDGES)
async def test_each_bound_is_taken_and_one_more_refused_in_a_new_agent_and_a_changed_one(
    api: Api, case: str
) -> None:
    good, bad, said = EDGES[case]
    plain = {"name": "A", "model": "m"}
    made = await ok(api.post("/v1/agents", {**plain, **good}))
    path = f"/v1/agents/{made['id']}"
    for request in (api.post("/v1/agents", {**plain, **bad}), api.post(path, bad)):
        response = await request
        assert response.status_code == 400
        assert response.json()["error"]["message"].startswith(said), response.text
    assert await ok(api.get(path)) == made, "a refused update burns no version"
    changed = await api.agent(name="B")
    assert (await ok(api.post(f"/v1/agents/{changed['id']}", good)))["version"] == 2


SKILLS: list[tuple[Any, ...]] = [
    ({"skill_id": "s" * 65}, "skills[0].skill_id: must have at most 64 characters"),
    ({"skill_id": ""}, "skills[0].skill_id: must have at least 1 characters"),
    ({"skill_id": "s" * 64, "version": "v" * 65}, "skills[0].version: must have at most 64 characters"),
    ({"skill_id": "s" * 64, "version": ""}, "skills[0].version: must have at least 1 characters"),
    ({"skill_id": "s" * 64, "version": "v" * 64}, f"skills[0].skill_id: skill {'s' * 64} not found"),
]


async def test_the_bounds_of_a_reference_to_a_skill(api: Api) -> None:
    for skill, said in SKILLS:
        body = {"name": "A", "model": "m", "tools": [TOOLSET], "skills": [{"type": "custom", **skill}]}
        response = await api.post("/v1/agents", body)
        assert response.status_code == 400
        assert response.json()["error"]["message"].startswith(said)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"name": None}, "name: Input should be a valid string, got null"),
    ({"name": 5}, "name: Input should be a valid string, got integer"),
    ({"name": ["a"]}, "name: Input should be a valid string, got list"),
    ({"name": "a\x00b"}, "name: holds a NUL"),
    ({"system": {"text": "s"}}, "system: Input should be a valid string"),
    ({"description": 1.5}, "description: Input should be a valid string"),
    ({"model": 7}, "model: Input should be a valid"),
    ({"model": {}}, "model.id: Field required"),
    ({"model": {"id": None}}, "model.id: Input should be a valid string"),
    ({"model": {"id": "m", "temperature": 1}}, "model.temperature: Extra inputs are not permitted"),
    ({"model": {"id": "m", "speed": "slow"}}, 'model.speed: "slow" is not a valid value'),
    ({"model": {"id": "m", "inference_geo": "eu"}}, 'model.inference_geo: "eu" is not a valid value'),
    (
        {"model": {"id": "m", "effort": {"type": "huge"}}},
        'model.effort.type: "huge" is not a valid value',
    ),
    ({"model": {"id": "m", "effort": {}}}, "model.effort.type: Field required"),
    ({"tools": {}}, "tools: Input should be a valid list"),
    ({"tools": [None]}, "tools[0]: Input should be a valid object"),
    ({"tools": [{}]}, "tools[0].type: Field required"),
    ({"tools": [TOOLSET, "bash"]}, "tools[1]: Input should be a valid object"),
    ({"mcp_servers": [{"type": "stdio"}]}, 'mcp_servers[0].type: "stdio" is not a valid value'),
    ({"mcp_servers": [{"type": "url", "name": "a"}]}, "mcp_servers[0].url: Field required"),
    (servers(1, authorization_token="t"), "mcp_servers[0].authorization_token: Extra inputs"),
    (servers(1, url="https://user:pass@m.example/x"), "mcp_servers[0].url: must not contain credentials"),
    (servers(1, url="ftp://m.example/x"), "mcp_servers[0].url: must be an http or https URL"),
    ({"skills": [{"type": "plugin", "skill_id": "x"}]}, 'skills[0].type: "plugin" is not a valid value'),
    ({"skills": [{"type": "custom"}]}, "skills[0].skill_id: Field required"),
    ({"execution_identity": {"type": "root"}}, 'execution_identity.type: "root" is not a valid value'),
    ({"execution_identity": {"type": "aws_role"}}, "execution_identity.role_arn: Field required"),
    ({"id": "agent_1"}, "id: Extra inputs are not permitted"),
    ({"version": 1}, "version: Extra inputs are not permitted"),
]


async def test_a_value_of_the_wrong_kind_is_refused_with_its_whole_path(api: Api) -> None:
    for fields, said in WRONG:
        response = await api.post("/v1/agents", {"name": "A", "model": "m", **fields})
        assert response.status_code == 400
        assert response.json()["error"]["message"].startswith(said), response.text


async def test_servers_and_toolsets_are_one_to_one(api: Api) -> None:
    two = servers(2)
    two["mcp_servers"][1]["name"] = "s0"
    doubled = servers(1)
    doubled["tools"].append(doubled["tools"][0])
    unnamed = servers(2)
    del unnamed["tools"][1]
    cased = servers(1)
    cased["tools"][0]["mcp_server_name"] = "S0"
    for fields, said in (
        (two, 'mcp_servers[1].name: "s0" is used more than once'),
        (doubled, 'tools[1]: only one mcp_toolset is allowed for the server "s0"'),
        (unnamed, 'mcp_servers[1].name: no mcp_toolset in tools refers to the server "s1"'),
        (cased, 'tools[0].mcp_server_name: "S0" is not in mcp_servers'),
    ):
        response = await api.post("/v1/agents", {"name": "A", "model": "m", **fields})
        assert response.status_code == 400
        assert response.json()["error"]["message"].startswith(said), response.text
