"""How a session's agent is found and pinned (contract section 8.3)."""

import pytest

from corral.resources.agents import Agents
from corral.store.database import Database
from corral.wire.agents import CreateAgent, UpdateAgent
from corral.wire.errors import InvalidRequest, NotFound
from corral.wire.overrides import AgentRef, AgentWithOverrides


async def test_an_id_pins_the_latest_version_and_a_reference_the_one_it_names(database: Database) -> None:
    agents = Agents(database)
    agent = await agents.create(CreateAgent(name="One", model="m"))
    await agents.update(agent.id, UpdateAgent(name="Two"))
    for param, version, name in (
        (agent.id, 2, "Two"),
        (AgentRef(id=agent.id), 2, "Two"),
        (AgentRef(id=agent.id, version=1), 1, "One"),
        (AgentWithOverrides(id=agent.id, version=1, system="s"), 1, "One"),
    ):
        agent_id, pinned, snapshot = await agents.resolve_for_session(param)
        assert (agent_id, pinned, snapshot["version"], snapshot["name"]) == (agent.id, version, version, name)
        assert (snapshot["type"], snapshot["id"]) == ("agent", agent.id)
    assert (await agents.retrieve(agent.id)).system is None


async def test_what_is_missing_is_named(database: Database) -> None:
    agents = Agents(database)
    agent = await agents.create(CreateAgent(name="One", model="m"))
    with pytest.raises(NotFound, match="agent: agent_x not found"):
        await agents.resolve_for_session("agent_x")
    with pytest.raises(NotFound, match=r"agent\.version: 999 not found"):
        await agents.resolve_for_session(AgentRef(id=agent.id, version=999))


async def test_an_archived_agent_takes_no_session(database: Database) -> None:
    agents = Agents(database)
    agent = await agents.create(CreateAgent(name="One", model="m"))
    await agents.archive(agent.id)
    with pytest.raises(InvalidRequest, match="is archived"):
        await agents.resolve_for_session(agent.id)
