"""Agents through the official SDK (contract section 4)."""

import asyncio
from typing import Any

import anthropic
import pytest
from anthropic.types.beta import BetaManagedAgentsAgent

from .conftest import Api

TOOLSET: Any = {"type": "agent_toolset_20260401"}


async def test_a_created_agent_comes_back_resolved(api: Api) -> None:
    agent = await api.sdk.beta.agents.create(name="Coder", model="claude-opus-5-5", tools=[TOOLSET])
    assert agent.version == 1
    assert agent.model.to_dict() == {
        "id": "claude-opus-5-5",
        "effort": {"type": "high"},
        "speed": "standard",
        "inference_geo": None,
    }
    assert agent.tools[0].to_dict() == {
        "type": "agent_toolset_20260401",
        "default_config": {"enabled": True, "permission_policy": {"type": "always_allow"}},
        "configs": [],
    }
    assert agent.execution_identity.type == "service_account"
    assert (agent.description, agent.system, agent.multiagent, agent.archived_at) == (None, None, None, None)
    assert (agent.skills, agent.mcp_servers, agent.metadata) == ([], [], {})


async def test_every_required_field_of_the_sdk_is_there(api: Api) -> None:
    raw = await api.agent()
    required = {name for name, field in BetaManagedAgentsAgent.model_fields.items() if field.is_required()}
    assert required <= set(raw)


async def test_an_update_makes_a_version_and_the_old_one_stays_readable(api: Api) -> None:
    agent = await api.sdk.beta.agents.create(name="One", model="m", system="s", metadata={"a": "1", "b": "2"})
    updated = await api.sdk.beta.agents.update(
        agent.id, version=1, name="Two", system=None, metadata={"a": None, "c": "3"}
    )
    assert (updated.version, updated.name, updated.system) == (2, "Two", None)
    assert updated.metadata == {"b": "2", "c": "3"}
    first = await api.sdk.beta.agents.retrieve(agent.id, version=1)
    assert (first.name, first.system, first.metadata) == ("One", "s", {"a": "1", "b": "2"})


async def test_an_update_that_changes_nothing_makes_no_version(api: Api) -> None:
    agent = await api.sdk.beta.agents.create(name="One", model="m", tools=[TOOLSET])
    same = await api.sdk.beta.agents.update(agent.id, version=1, name="One", model="m", tools=[TOOLSET])
    assert same == agent


async def test_a_stale_version_is_a_conflict_even_for_a_no_op_and_is_not_to_be_retried(api: Api) -> None:
    agent = await api.agent()
    response = await api.post(f"/v1/agents/{agent['id']}", {"version": 2, "name": agent["name"]})
    assert response.status_code == 409
    assert response.headers["x-should-retry"] == "false"
    assert response.json()["error"]["type"] == "conflict_error"
    assert (await api.sdk.beta.agents.retrieve(agent["id"])).version == 1


async def test_of_many_updates_at_once_from_one_version_exactly_one_wins(api: Api) -> None:
    agent = await api.agent()
    responses = await asyncio.gather(
        *(api.post(f"/v1/agents/{agent['id']}", {"version": 1, "name": f"N{i}"}) for i in range(6))
    )
    assert sorted(r.status_code for r in responses) == [200, *[409] * 5]
    assert (await api.sdk.beta.agents.retrieve(agent["id"])).version == 2


async def test_unconditional_updates_at_once_all_become_versions(api: Api) -> None:
    agent = await api.agent()
    responses = await asyncio.gather(
        *(api.post(f"/v1/agents/{agent['id']}", {"name": f"N{i}"}) for i in range(6))
    )
    assert sorted(r.json()["version"] for r in responses) == [2, 3, 4, 5, 6, 7]


async def test_effort_survives_a_model_update_only_while_the_model_id_stays(api: Api) -> None:
    agent = await api.sdk.beta.agents.create(name="A", model={"id": "m", "effort": "max", "speed": "fast"})
    assert agent.model.effort
    assert agent.model.effort.type == "max"
    kept = await api.sdk.beta.agents.update(agent.id, model={"id": "m"})
    assert kept.model.effort
    assert (kept.model.effort.type, kept.model.speed) == ("max", "standard")
    moved = await api.sdk.beta.agents.update(agent.id, model="n")
    assert moved.model.effort
    assert moved.model.effort.type == "high"


async def test_versions_are_listed_newest_first_and_page(api: Api) -> None:
    agent = await api.agent()
    for name in "abcd":
        await api.sdk.beta.agents.update(agent["id"], name=name)
    versions = [v.version async for v in api.sdk.beta.agents.versions.list(agent["id"], limit=2)]
    assert versions == [5, 4, 3, 2, 1]


async def test_archiving_is_idempotent_and_makes_the_agent_read_only(api: Api) -> None:
    agent = await api.agent()
    first = await api.sdk.beta.agents.archive(agent["id"])
    assert first.archived_at is not None
    assert await api.sdk.beta.agents.archive(agent["id"]) == first
    with pytest.raises(anthropic.BadRequestError, match="archived"):
        await api.sdk.beta.agents.update(agent["id"], name="x")
    assert [v.version async for v in api.sdk.beta.agents.versions.list(agent["id"])] == [1]


async def test_the_list_hides_archived_agents_unless_asked_and_is_newest_first(api: Api) -> None:
    ids = [(await api.agent())["id"] for _ in range(5)]
    await api.sdk.beta.agents.archive(ids[2])
    listed = [a.id async for a in api.sdk.beta.agents.list(limit=2)]
    assert listed == [ids[4], ids[3], ids[1], ids[0]]
    everything = [a.id async for a in api.sdk.beta.agents.list(limit=2, include_archived=True)]
    assert everything == ids[::-1]


async def test_the_list_can_be_bounded_by_time(api: Api) -> None:
    agents = [await api.agent() for _ in range(3)]
    times = {"created_at[gte]": agents[1]["created_at"], "created_at[lte]": agents[1]["created_at"]}
    listed = (await api.get("/v1/agents", params=times)).json()
    assert [a["id"] for a in listed["data"]] == [agents[1]["id"]]


async def test_what_does_not_exist_is_not_found(api: Api) -> None:
    agent = await api.agent()
    with pytest.raises(anthropic.NotFoundError, match="Agent version not found"):
        await api.sdk.beta.agents.retrieve(agent["id"], version=9)
    for call in (
        api.sdk.beta.agents.retrieve("agent_x"),
        api.sdk.beta.agents.update("agent_x", name="n"),
        api.sdk.beta.agents.archive("agent_x"),
    ):
        with pytest.raises(anthropic.NotFoundError):
            await call


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": ""}, "name: must have at least 1"),
        ({"name": "n" * 257}, "name: must have at most 256"),
        ({"description": "d" * 2049}, "description: must have at most 2048"),
        ({"system": "s" * 100_001}, "system: must have at most 100000"),
        ({"foo": 1}, "foo: Extra inputs are not permitted"),
        ({"model": None}, "model: Input should be a valid"),
        ({"model": {"id": "m", "effort": "huge"}}, 'model.effort: "huge" is not a valid value'),
        ({"metadata": {"k" * 65: "v"}}, "metadata: key"),
        ({"metadata": {"k": 1}}, "metadata.k: Input should be a valid string"),
        ({"metadata": {str(i): "v" for i in range(17)}}, "metadata: at most 16 pairs"),
        ({"tools": [TOOLSET, TOOLSET]}, "tools[1]: only one agent_toolset"),
        ({"tools": [{"type": "nope"}]}, 'tools[0].type: "nope" is not a valid value'),
        ({"tools": [{**TOOLSET, "configs": [{"name": "rm"}]}]}, 'tools[0].configs[0].name: "rm" is not'),
        ({"tools": [{**TOOLSET, "configs": [{"name": "bash"}] * 2}]}, "tools[0].configs[1].name"),
        ({"tools": [{"type": "mcp_toolset", "mcp_server_name": "x"}]}, "is not in mcp_servers"),
        ({"mcp_servers": [{"type": "url", "name": "x", "url": "https://x.example"}]}, "no mcp_toolset"),
        (
            {
                "skills": [{"type": "custom", "skill_id": "skill_1"}],
                "tools": [{"type": "agent_toolset_20260401"}],
            },
            "skills[0].skill_id: skill skill_1 not",
        ),
        ({"multiagent": {"type": "coordinator", "agents": []}}, "multiagent.agents: must hold 1 to 20"),
    ],
)
async def test_a_bad_agent_is_refused_with_the_path_of_the_field(
    api: Api, fields: dict[str, Any], message: str
) -> None:
    response = await api.post("/v1/agents", {"name": "A", "model": "m", **fields})
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]
    assert (await api.get("/v1/agents")).json()["data"] == []


async def test_mcp_servers_and_toolsets_are_stored_when_they_name_each_other(api: Api) -> None:
    agent = await api.agent(
        mcp_servers=[{"type": "url", "name": "gh", "url": "https://mcp.example/x"}],
        tools=[{"type": "mcp_toolset", "mcp_server_name": "gh", "configs": [{"name": "list"}]}],
    )
    assert agent["mcp_servers"] == [{"type": "url", "name": "gh", "url": "https://mcp.example/x"}]
    assert agent["tools"][0]["default_config"]["permission_policy"] == {"type": "always_ask"}
    assert agent["tools"][0]["configs"] == [
        {"name": "list", "enabled": True, "permission_policy": {"type": "always_ask"}}
    ]
    response = await api.post(f"/v1/agents/{agent['id']}", {"tools": []})
    assert response.status_code == 400
    assert (await api.get(f"/v1/agents/{agent['id']}")).json()["version"] == 1
