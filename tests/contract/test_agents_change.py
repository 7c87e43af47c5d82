"""Changing agents: what an update keeps, clears and replaces, and when it makes a version (contract 4.3)."""

from typing import Any

import pytest

from .conftest import Api
from .kinds import ok

TOOLSET: dict[str, Any] = {"type": "agent_toolset_20260401"}
FULL: dict[str, Any] = {
    "description": "d",
    "system": "s",
    "model": {"id": "m", "effort": "low", "speed": "fast", "inference_geo": "us"},
    "tools": [TOOLSET, {"type": "mcp_toolset", "mcp_server_name": "gh"}],
    "mcp_servers": [{"type": "url", "name": "gh", "url": "https://mcp.example.com/mcp"}],
    "execution_identity": {"type": "aws_role", "role_arn": "arn:aws:iam::1:role/r"},
    "metadata": {"a": "1"},
}
MOVING = ("version", "updated_at")


def but(agent: dict[str, Any], *names: str) -> dict[str, Any]:
    """An agent without some of its fields, and without those that every version has anew."""
    return {key: value for key, value in agent.items() if key not in (*names, *MOVING)}


async def changed(api: Api, agent: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return await ok(api.post(f"/v1/agents/{agent['id']}", fields))


async def test_an_update_of_one_field_keeps_every_other(api: Api) -> None:
    agent = await api.agent(**FULL)
    updated = await changed(api, agent, name="Other")
    assert (updated["version"], updated["name"]) == (2, "Other")
    assert but(updated, "name") == but(agent, "name")
    assert updated["created_at"] == agent["created_at"]
    assert updated["updated_at"] > agent["updated_at"]


CLEARED: list[tuple[Any, ...]] = [
    ({"description": None}, {"description": None}),
    ({"description": ""}, {"description": None}),
    ({"system": None}, {"system": None}),
    ({"system": ""}, {"system": None}),
    ({"tools": None, "mcp_servers": None}, {"tools": [], "mcp_servers": []}),
    ({"tools": [], "mcp_servers": []}, {"tools": [], "mcp_servers": []}),
    ({"execution_identity": None}, {"execution_identity": {"type": "service_account"}}),
]


async def test_null_and_emptiness_clear_what_can_be_cleared(api: Api) -> None:
    for fields, cleared in CLEARED:
        agent = await api.agent(**FULL)
        updated = await changed(api, agent, **fields)
        assert updated["version"] == 2
        assert {name: updated[name] for name in cleared} == cleared
        assert but(updated, *cleared) == but(agent, *cleared)
        assert await changed(api, updated, **fields) == updated, "the second time it is there already"


@pytest.mark.parametrize("fields", [{"name": None}, {"name": ""}, {"model": None}, {"model": ""}])
async def test_name_and_model_cannot_be_cleared(api: Api, fields: dict[str, Any]) -> None:
    agent = await api.agent(**FULL)
    response = await api.post(f"/v1/agents/{agent['id']}", fields)
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(f"{next(iter(fields))}: ")
    assert await ok(api.get(f"/v1/agents/{agent['id']}")) == agent


async def test_a_model_replaces_the_stored_one_but_for_the_effort_of_the_same_id(api: Api) -> None:
    agent = await api.agent(**FULL)
    assert agent["model"] == {
        "id": "m",
        "effort": {"type": "low"},
        "speed": "fast",
        "inference_geo": "us",
    }
    plain = {"speed": "standard", "inference_geo": None}
    for number, (model, shown) in enumerate(
        [
            ("m", {"id": "m", "effort": {"type": "low"}, **plain}),
            ({"id": "m", "effort": {"type": "max"}}, {"id": "m", "effort": {"type": "max"}, **plain}),
            ({"id": "n", "speed": "fast"}, {"id": "n", "effort": {"type": "high"}, **plain, "speed": "fast"}),
            ({"id": "n", "effort": None}, {"id": "n", "effort": {"type": "high"}, **plain}),
            ({"id": "m", "effort": "xhigh"}, {"id": "m", "effort": {"type": "xhigh"}, **plain}),
        ],
        start=2,
    ):  # fmt: skip
        updated = await changed(api, agent, model=model)
        assert (updated["version"], updated["model"]) == (number, shown)


async def test_tools_servers_and_identity_are_replaced_as_wholes(api: Api) -> None:
    agent = await api.agent(**FULL)
    ask = {"enabled": False, "permission_policy": {"type": "always_ask"}}
    narrowed = {**TOOLSET, "default_config": ask, "configs": [{"name": "read", "enabled": True}]}
    updated = await changed(
        api, agent, tools=[narrowed], mcp_servers=[], execution_identity={"type": "service_account"}
    )
    assert updated["tools"] == [
        {
            "type": "agent_toolset_20260401",
            "default_config": ask,
            "configs": [
                {
                    "name": "read",
                    "type": "read",
                    "enabled": True,
                    "permission_policy": {"type": "always_ask"},
                }
            ],
        }
    ]
    assert (updated["mcp_servers"], updated["execution_identity"]) == ([], {"type": "service_account"})
    again = await changed(api, updated, tools=[TOOLSET])
    assert again["tools"][0]["configs"] == []
    assert again["tools"][0]["default_config"]["enabled"] is True


NO_CHANGES: list[dict[str, Any]] = [
    {},
    {"version": 1},
    {"name": "Agent", "description": "d", "system": "s"},
    {"model": FULL["model"]},
    {"model": {**FULL["model"], "effort": {"type": "low"}}},
    {"tools": FULL["tools"]},
    {
        "tools": [
            {
                **TOOLSET,
                "configs": [],
                "default_config": {"enabled": True, "permission_policy": {"type": "always_allow"}},
            },
            {"type": "mcp_toolset", "mcp_server_name": "gh", "default_config": None, "configs": None},
        ]
    },
    {"mcp_servers": FULL["mcp_servers"]},
    {"skills": None},
    {"skills": []},
    {"multiagent": None},
    {"execution_identity": FULL["execution_identity"]},
    {"metadata": {"a": "1", "unknown": None}},
    {"metadata": None},
]


async def test_what_leads_to_the_same_agent_makes_no_version(api: Api) -> None:
    for fields in NO_CHANGES:
        agent = await api.agent(**FULL)
        assert await changed(api, agent, **fields) == agent
        listed = await ok(api.get(f"/v1/agents/{agent['id']}/versions"))
        assert [one["version"] for one in listed["data"]] == [1]


NO_VERSIONS: list[Any] = [0, -1, 2**31, "1", 1.5, None, True, []]


async def test_a_version_that_is_none_is_refused(api: Api) -> None:
    for version in NO_VERSIONS:
        agent = await api.agent()
        response = await api.post(f"/v1/agents/{agent['id']}", {"version": version, "name": "x"})
        assert response.status_code == 400
        assert response.json()["error"]["message"].startswith("version: ")
        assert (await ok(api.get(f"/v1/agents/{agent['id']}")))["version"] == 1


async def test_a_conflict_says_which_version_is_the_current_one_and_burns_none(api: Api) -> None:
    agent = await api.agent()
    await changed(api, agent, name="B")
    for version in (1, 3, 2**31 - 1):
        response = await api.post(f"/v1/agents/{agent['id']}", {"version": version, "name": "C"})
        assert response.status_code == 409
        error = response.json()["error"]
        assert error["message"].startswith("Concurrent modification detected.")
        assert error["details"] == {"current_version": 2}
    assert (await changed(api, agent, version=2, name="C"))["version"] == 3


async def test_an_archived_agent_refuses_every_update_even_a_stale_or_an_empty_one(api: Api) -> None:
    agent = await api.agent()
    archived = await ok(api.post(f"/v1/agents/{agent['id']}/archive"))
    assert but(archived, "archived_at") == but(agent, "archived_at")
    for fields in ({}, {"version": 1}, {"version": 9}, {"name": "x"}):
        response = await api.post(f"/v1/agents/{agent['id']}", fields)
        assert response.status_code == 400
        assert response.json()["error"]["message"] == "Cannot modify archived agent"
    assert await ok(api.get(f"/v1/agents/{agent['id']}")) == archived


async def test_what_an_archived_agent_was_made_of_goes_on(api: Api) -> None:
    agent = await api.agent()
    session = await api.session(agent=agent["id"])
    await changed(api, agent, name="B")
    await ok(api.post(f"/v1/agents/{agent['id']}/archive"))
    first = await ok(api.get(f"/v1/agents/{agent['id']}", params={"version": 1}))
    assert (first["name"], first["archived_at"] is not None) == ("Agent", True)
    event = {"type": "user.message", "content": [{"type": "text", "text": "hi"}]}
    await ok(api.post(f"/v1/sessions/{session['id']}/events", {"events": [event]}))
    assert (await ok(api.get(f"/v1/sessions/{session['id']}")))["agent"]["version"] == 1


async def test_versions_page_newest_first_while_more_are_made(api: Api) -> None:
    agent, other = await api.agent(), await api.agent()
    for name in "bcde":
        await changed(api, agent, name=name)
        await changed(api, other, name=name)
    path = f"/v1/agents/{agent['id']}/versions"
    first = await ok(api.get(path, params={"limit": 2}))
    await changed(api, agent, name="f")
    rest = await ok(api.get(path, params={"limit": 100, "page": first["next_page"]}))
    assert [one["version"] for one in first["data"] + rest["data"]] == [5, 4, 3, 2, 1]
    assert rest["next_page"] is None
    assert {one["id"] for one in rest["data"]} == {agent["id"]}
    assert rest["data"][-1]["updated_at"] == agent["updated_at"]
    stolen = await api.get(f"/v1/agents/{other['id']}/versions", params={"page": first["next_page"]})
    assert stolen.status_code == 400
    assert (await api.get("/v1/agents/agent_01/versions")).status_code == 404


TAKEN = {"1": 200, "2": 404, "2147483647": 404}
NO_NUMBER = ["0", "-1", "2147483648", "x", "1.0"]


@pytest.mark.parametrize(("version", "status"), [*TAKEN.items(), *((text, 400) for text in NO_NUMBER)])
async def test_a_version_is_named_by_its_number(api: Api, version: str, status: int) -> None:
    agent = await api.agent()
    response = await api.get(f"/v1/agents/{agent['id']}", params={"version": version})
    assert response.status_code == status
    if status == 404:
        assert response.json()["error"]["message"] == "Agent version not found."
    if status == 400:
        assert response.json()["error"]["message"].startswith("version: ")
