"""How a session names its agent, and what it may change of it for itself (contract sections 8.3 and 8.5)."""

from typing import Any, Final, cast

import msgspec
from msgspec import UNSET, UnsetType

from corral.wire.agents import (
    AgentConfig,
    McpServer,
    ModelId,
    ModelParams,
    SessionAgent,
    SkillParams,
    System,
    check_mcp,
    check_readable,
    resolve_model,
    resolve_skills,
)
from corral.wire.errors import InvalidRequest
from corral.wire.fields import Id, PositiveInt, Request
from corral.wire.tools import ToolParams, resolve_tools


class AgentRef(Request, tag="agent"):
    """An agent at a version, or at its latest."""

    id: Id
    version: PositiveInt | UnsetType = UNSET


class AgentWithOverrides(Request, tag="agent_with_overrides"):
    """An agent with session-local changes: absent inherits, null or empty clears, a value replaces."""

    id: Id
    version: PositiveInt | UnsetType = UNSET
    model: ModelId | ModelParams | UnsetType | None = UNSET
    system: System | UnsetType | None = UNSET
    tools: list[ToolParams] | UnsetType | None = UNSET
    mcp_servers: list[McpServer] | UnsetType | None = UNSET
    skills: list[SkillParams] | UnsetType | None = UNSET


AgentParam = Id | AgentRef | AgentWithOverrides


class SessionAgentUpdate(Request):
    """The ``agent`` of a session update: each list that is given replaces the session's."""

    tools: list[ToolParams] | UnsetType | None = UNSET
    mcp_servers: list[McpServer] | UnsetType | None = UNSET


_NOT_KEPT: Final = ("metadata", "multiagent")


def snapshot(
    agent_id: str, version: int, config: AgentConfig, overrides: AgentWithOverrides | None = None
) -> dict[str, Any]:
    """The resolved agent that a session keeps, as the API shows it in ``session.agent``.

    Its `multiagent` is added where the agents are looked up.

    Raises:
        InvalidRequest: ``agent_model_required`` where the model is overridden with null; or the result
            breaks a rule that holds for agents.
    """
    agent = SessionAgent(
        id=agent_id,
        version=version,
        # In full, once the agents are known that it names.
        multiagent=None,
        **{field: getattr(config, field) for field in config.__struct_fields__ if field not in _NOT_KEPT},
    )
    if overrides is not None:
        _override(agent, overrides)
    return cast("dict[str, Any]", msgspec.to_builtins(agent))


def _override(agent: SessionAgent, overrides: AgentWithOverrides) -> None:
    if overrides.model is None:
        raise InvalidRequest(
            "agent.model: cannot be null; omit it to use the agent's model", error_code="agent_model_required"
        )
    if overrides.model is not UNSET:
        model = overrides.model
        if isinstance(model, ModelParams):
            # An override's effort is not applied: the model's default holds (contract section 8.3).
            model = msgspec.structs.replace(model, effort=None)
        agent.model = resolve_model(model)
    if overrides.system is not UNSET:
        agent.system = overrides.system or None
    if overrides.skills is not UNSET:
        agent.skills = resolve_skills(overrides.skills or [], "agent.skills")
    _replace_tools(agent, overrides.tools, overrides.mcp_servers)
    check_readable(agent.tools, agent.skills, "agent.skills")


def updated_snapshot(stored: dict[str, Any], update: SessionAgentUpdate) -> dict[str, Any]:
    """A session's agent after an update of the session; equal to the stored one if nothing changes.

    Raises:
        InvalidRequest: the resulting tools and MCP servers break a rule that holds for agents, or the
            session's skills could no longer be read.
    """
    agent = msgspec.convert(stored, SessionAgent)
    _replace_tools(agent, update.tools, update.mcp_servers)
    check_readable(agent.tools, agent.skills, "agent.skills")
    return cast("dict[str, Any]", msgspec.to_builtins(agent))


def _replace_tools(
    agent: SessionAgent,
    tools: list[ToolParams] | UnsetType | None,
    servers: list[McpServer] | UnsetType | None,
) -> None:
    if tools is not UNSET:
        agent.tools = resolve_tools(tools or [], "agent.tools")
    if servers is not UNSET:
        agent.mcp_servers = servers or []
    if tools is not UNSET or servers is not UNSET:
        check_mcp(agent.tools, agent.mcp_servers, "agent.")
