"""An agent's `multiagent` block: accepted, echoed, merged and pinned (contract section 11.1)."""

from typing import Any

import pytest

from tests.contract.conftest import Api
from tests.contract.refusals import refused, undocumented

NEW = "multiagent_20261001"
OFF: dict[str, Any] = {"type": "disabled"}
ON: dict[str, Any] = {"type": "enabled"}


async def created(api: Api, block: Any, **fields: Any) -> Any:
    agents: Any = api.sdk.beta.agents
    return await agents.create(name="lead", model="m", multiagent=block, **fields)


async def updated(api: Api, agent_id: str, block: Any) -> Any:
    agents: Any = api.sdk.beta.agents
    return await agents.update(agent_id, multiagent=block)


def shown(agent: Any) -> dict[str, Any]:
    assert undocumented(agent) == []
    block: dict[str, Any] = agent.multiagent.to_dict()
    return block


async def test_a_coordinators_roster_is_pinned_and_its_advisor_echoed_last(api: Api) -> None:
    member = await api.agent(name="member")
    await api.post(f"/v1/agents/{member['id']}", {"system": "two"})
    other = await api.agent(name="other")
    roster = [
        {"type": "advisor", "model": "claude-opus-5-5"},
        member["id"],
        {"type": "agent", "id": other["id"], "version": 1},
        {"type": "self"},
    ]
    agent = await created(api, {"type": "coordinator", "agents": roster})
    assert shown(agent) == {
        "type": "coordinator",
        "agents": [
            {"type": "agent", "id": member["id"], "version": 2},
            {"type": "agent", "id": other["id"], "version": 1},
            {"type": "agent", "id": agent.id, "version": 1},
            {"type": "advisor", "model": "claude-opus-5-5"},
        ],
    }
    # A change of a member leaves it alone; a change of its own brings the reference to itself along.
    await api.post(f"/v1/agents/{member['id']}", {"system": "three"})
    changed = await api.sdk.beta.agents.update(agent.id, name="renamed")
    versions = [entry.get("version") for entry in shown(changed)["agents"]]
    assert versions == [2, 1, 2, None]
    assert (await updated(api, agent.id, None)).multiagent is None


async def test_the_defaults_of_the_newer_block_are_filled_in(api: Api) -> None:
    agent = await created(api, {"type": NEW, "workflows": None})
    member: dict[str, Any] = {"type": "enabled", "inline_agents": ON, "predefined_agents": []}
    assert shown(agent) == {"type": NEW, "subagents": member, "workflows": member, "advisor": OFF}


async def test_an_update_of_the_newer_block_is_merged_level_by_level(api: Api) -> None:
    member = (await api.agent())["id"]
    agent = await created(
        api,
        {
            "type": NEW,
            "subagents": {"type": "enabled", "inline_agents": OFF, "predefined_agents": [member]},
            "workflows": OFF,
            "advisor": {"type": "enabled", "model": "claude-opus-5-5"},
        },
    )
    same = await updated(api, agent.id, {"type": NEW, "subagents": ON})
    assert (same.version, shown(same)) == (1, shown(agent))
    both = {"type": NEW, "subagents": {"type": "enabled", "inline_agents": ON}, "advisor": None}
    changed = shown(await updated(api, agent.id, both))
    assert changed["subagents"]["inline_agents"] == ON
    assert [entry["id"] for entry in changed["subagents"]["predefined_agents"]] == [member]
    assert (changed["workflows"], changed["advisor"]) == (OFF, OFF)
    off = shown(await updated(api, agent.id, {"type": NEW, "subagents": OFF, "workflows": ON}))
    assert off["subagents"] == OFF
    assert off["workflows"] == {"type": "enabled", "inline_agents": ON, "predefined_agents": []}
    again = shown(await updated(api, agent.id, {"type": NEW, "subagents": ON}))
    assert again["subagents"]["predefined_agents"] == []
    other = {"type": "coordinator", "agents": [member]}
    assert shown(await updated(api, agent.id, other))["type"] == "coordinator"


@pytest.mark.parametrize(
    ("agents", "message"),
    [
        ([], "multiagent.agents: must hold 1 to 20"),
        (["self"] * 21, "multiagent.agents: must hold 1 to 20"),
        (["agent_unknown"], "multiagent.agents[0]: agent agent_unknown not found"),
        (["MEMBER", {"type": "agent", "id": "MEMBER"}], "multiagent.agents[1]: agent"),
        ([{"type": "agent", "id": "MEMBER", "version": 9}], "not found at version 9"),
        ([{"type": "self"}, {"type": "self"}], "multiagent.agents[1]: at most one entry of type self"),
        ([{"type": "advisor", "model": "x"}] * 2, "multiagent.agents[1]: at most one entry of type advisor"),
        (["ARCHIVED"], "is archived"),
        (["LEAD"], "multiagent.agents[0]: agent"),
        (["FAR"], "inference_geo"),
        (["ADVISOR", {"type": "advisor", "model": "x"}], "that of the advisor"),
    ],
)
async def test_a_bad_roster_is_refused_with_the_path_of_the_field(
    api: Api, agents: list[Any], message: str
) -> None:
    member = (await api.agent())["id"]
    archived = (await api.agent())["id"]
    await api.post(f"/v1/agents/{archived}/archive")
    made = {
        "MEMBER": member,
        "ARCHIVED": archived,
        "LEAD": (await created(api, {"type": "coordinator", "agents": [member]})).id,
        "FAR": (await api.agent(model={"id": "m", "inference_geo": "us"}))["id"],
        "ADVISOR": (await api.agent(name="anthropic.advisor"))["id"],
    }

    def named(entry: Any) -> Any:
        if isinstance(entry, dict):
            return {name: made.get(str(value), value) for name, value in entry.items()}  # pyright: ignore
        return made.get(entry, entry)

    block = {"type": "coordinator", "agents": [named(entry) for entry in agents]}
    await refused(created(api, block), "multiagent.agents", message)


async def test_without_inline_agents_there_must_be_another(api: Api) -> None:
    block = {"type": NEW, "subagents": {"type": "enabled", "inline_agents": OFF}}
    await refused(created(api, block), "multiagent.subagents.predefined_agents", "at least one agent")
    await refused(created(api, {"type": "council"}), "multiagent")


async def test_a_session_keeps_the_agents_in_full_with_its_own_changes_in_its_copy(api: Api) -> None:
    member = await api.agent(name="member", system="mine")
    lead = await created(
        api, {"type": "coordinator", "agents": [member["id"], {"type": "self"}]}, system="old"
    )
    session = await api.sdk.beta.sessions.create(
        agent={"type": "agent_with_overrides", "id": lead.id, "system": "new"},
        environment_id=(await api.environment())["id"],
    )
    assert undocumented(session) == []
    block: Any = session.agent.multiagent
    assert [(one.name, one.system) for one in block.agents] == [("member", "mine"), ("lead", "new")]
    [thread] = (await api.sdk.beta.sessions.threads.list(session.id)).data
    assert "multiagent" not in thread.agent.to_dict()
    await api.post(f"/v1/agents/{member['id']}/archive")
    refusal = api.sdk.beta.sessions.create(agent=lead.id, environment_id=(await api.environment())["id"])
    await refused(refusal, "agent.multiagent.agents[0]", "is archived")
