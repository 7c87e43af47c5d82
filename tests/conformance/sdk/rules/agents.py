"""Agents and their versions."""

from typing import Any, Final

from tests.conformance.sdk.asked import Asked
from tests.conformance.sdk.rules import Rules
from tests.conformance.sdk.workshop import Made, Workshop


async def create(asked: Asked, at: Workshop) -> None:
    """The agents of the roster, the skills, and a toolset for each MCP server."""
    await _complete(asked.fields, at)


async def existing(asked: Asked, at: Workshop) -> None:
    """An agent to look at or to archive."""
    asked.params["agent_id"] = (await at.agent())["id"]


async def update(asked: Asked, at: Workshop) -> None:
    """An agent to change, and what the change names."""
    await existing(asked, at)
    if asked.body is not None:
        await _complete(asked.fields, at)


async def listed(asked: Asked, at: Workshop) -> None:
    """Two agents, so that there is a second page."""
    for _ in range(2):
        await at.agent()


async def versions(asked: Asked, at: Workshop) -> None:
    """An agent of two versions."""
    agent = await at.agent()
    asked.params["agent_id"] = agent["id"]
    await at.api.post(f"/v1/agents/{agent['id']}", {"version": 1, "system": "Be brief."})


def with_mcp_toolsets(fields: dict[str, Any]) -> None:
    """Add the toolset that each MCP server must have (contract 4.2): the tests leave it out."""
    servers: list[dict[str, Any]] = fields.get("mcp_servers") or []
    for server in servers:
        toolset = {"type": "mcp_toolset", "mcp_server_name": server["name"]}
        fields.setdefault("tools", []).append(toolset)


async def _complete(fields: dict[str, Any], at: Workshop) -> None:
    with_mcp_toolsets(fields)
    if fields.get("skills"):
        fields["skills"] = [await _skill(at) for _ in fields["skills"]]
    geo = _real_region(fields.get("model"))
    if fields.get("multiagent"):
        await _roster(fields["multiagent"], at, geo)


def _real_region(model: dict[str, Any] | str | None) -> str | None:
    """The region that the agent's model runs in, a placeholder made real."""
    if not isinstance(model, dict):
        return None
    if model.get("inference_geo") == "inference_geo":
        model["inference_geo"] = "us"
    return model.get("inference_geo")


async def _skill(at: Workshop) -> Made:
    """The tests name one of the vendor's, which another server cannot have."""
    return {"type": "custom", "skill_id": (await at.skill())["id"], "version": "latest"}


async def _roster(multiagent: dict[str, Any], at: Workshop, geo: str | None) -> None:
    """Make the members; they must have the region that the agent has (contract 11.1)."""
    model = {"id": at.model, "inference_geo": geo} if geo is not None else at.model
    holders: list[dict[str, Any]] = [
        multiagent,
        multiagent.get("subagents", {}),
        multiagent.get("workflows", {}),
    ]
    for holder in holders:
        for name in ("agents", "predefined_agents"):
            members: list[Any] = holder.get(name) or []
            for index, member in enumerate(members):
                if isinstance(member, str):
                    members[index] = (await at.agent(model=model))["id"]
                elif member.get("type") == "agent":
                    member["id"] = (await at.agent(model=model))["id"]


RULES: Final[Rules] = {
    "POST /v1/agents": create,
    "GET /v1/agents": listed,
    "GET /v1/agents/{agent_id}": existing,
    "POST /v1/agents/{agent_id}": update,
    "POST /v1/agents/{agent_id}/archive": existing,
    "GET /v1/agents/{agent_id}/versions": versions,
}
