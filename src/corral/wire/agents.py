"""Agents on the wire: create and update, the resolved configuration, and the agent as the API shows it.

(contract section 4) Pure rules live here; versions, races and archiving are in `corral.resources.agents`.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET, Meta, UnsetType

from corral.wire.errors import InvalidRequest
from corral.wire.fields import Metadata, MetadataPatch, PositiveInt, Request, given
from corral.wire.models import Effort, default_effort
from corral.wire.multiagent import Multiagent, MultiagentParams
from corral.wire.skills import LATEST, SkillReference, references
from corral.wire.tools import McpToolset, Tool, ToolParams, enabled, resolve_tools

Name = Annotated[str, Meta(min_length=1, max_length=256)]
Description = Annotated[str, Meta(max_length=2048)]
System = Annotated[str, Meta(max_length=100_000)]
ModelId = Annotated[str, Meta(min_length=1, max_length=256)]

MCP_SERVERS: Final = 20


class EffortLevel(Request):
    """A level of effort in its object form."""

    type: Effort


class ModelParams(Request):
    """A model with its settings. ``effort`` may be a bare word."""

    id: ModelId
    effort: Effort | EffortLevel | None = None
    speed: Literal["standard", "fast"] | None = None
    inference_geo: Literal["us", "global"] | None = None


class ModelConfig(msgspec.Struct, kw_only=True):
    """The resolved model: every default filled in."""

    id: str
    effort: EffortLevel
    speed: Literal["standard", "fast"]
    inference_geo: str | None


class McpServer(Request, tag="url"):
    """A remote MCP server; it is kept as it is sent."""

    name: Annotated[str, Meta(min_length=1, max_length=255)]
    url: Annotated[str, Meta(min_length=1, max_length=2048)]


class AnthropicSkillParams(Request, tag="anthropic"):
    """A skill of the vendor's, by name."""

    skill_id: Annotated[str, Meta(min_length=1, max_length=64)]
    version: Annotated[str, Meta(min_length=1, max_length=64)] | None = None


class CustomSkillParams(Request, tag="custom"):
    """A skill of one's own, by id."""

    skill_id: Annotated[str, Meta(min_length=1, max_length=64)]
    version: Annotated[str, Meta(min_length=1, max_length=64)] | None = None


SkillParams = AnthropicSkillParams | CustomSkillParams


class ServiceAccount(Request, tag="service_account"):
    """Runs carry no principal of the customer's."""


class AwsRole(Request, tag="aws_role"):
    """Runs carry an AWS role."""

    role_arn: Annotated[str, Meta(min_length=1, max_length=2048)]


ExecutionIdentity = ServiceAccount | AwsRole


class CreateAgent(Request):
    """The body of ``POST /v1/agents``."""

    name: Name
    model: ModelId | ModelParams
    description: Description | None = None
    system: System | None = None
    tools: list[ToolParams] | None = None
    mcp_servers: list[McpServer] | None = None
    skills: list[SkillParams] | None = None
    multiagent: MultiagentParams | None = None
    execution_identity: ExecutionIdentity | None = None
    metadata: Metadata | None = None


class UpdateAgent(Request):
    """The body of ``POST /v1/agents/{id}``: an absent field stays, null clears what can be cleared."""

    version: PositiveInt | UnsetType = UNSET
    name: Name | UnsetType = UNSET
    model: ModelId | ModelParams | UnsetType = UNSET
    description: Description | UnsetType | None = UNSET
    system: System | UnsetType | None = UNSET
    tools: list[ToolParams] | UnsetType | None = UNSET
    mcp_servers: list[McpServer] | UnsetType | None = UNSET
    skills: list[SkillParams] | UnsetType | None = UNSET
    multiagent: MultiagentParams | UnsetType | None = UNSET
    execution_identity: ExecutionIdentity | UnsetType | None = UNSET
    metadata: MetadataPatch | UnsetType | None = UNSET


class AgentConfig(msgspec.Struct, kw_only=True):
    """One version of an agent, resolved: what `agent_versions.config` keeps."""

    name: str
    description: str | None
    model: ModelConfig
    system: str | None
    tools: list[Tool]
    mcp_servers: list[McpServer]
    skills: list[SkillReference]
    multiagent: Multiagent | None
    execution_identity: ExecutionIdentity
    metadata: dict[str, str]


class Agent(AgentConfig, tag="agent", kw_only=True):
    """The agent as the API shows it."""

    id: str
    version: int
    created_at: str
    updated_at: str
    archived_at: str | None


class SessionAgent(msgspec.Struct, tag="agent", kw_only=True):
    """The resolved agent that a session keeps: a snapshot with the session's own overrides in it."""

    id: str
    version: int
    name: str
    description: str | None
    model: ModelConfig
    system: str | None
    tools: list[Tool]
    mcp_servers: list[McpServer]
    skills: list[SkillReference]
    multiagent: dict[str, Any] | None
    execution_identity: ExecutionIdentity


def resolve_model(params: str | ModelParams) -> ModelConfig:
    """The model with every default filled in."""
    if isinstance(params, str):
        params = ModelParams(id=params)
    effort = params.effort if params.effort is not None else default_effort(params.id)
    return ModelConfig(
        id=params.id,
        effort=effort if isinstance(effort, EffortLevel) else EffortLevel(type=effort),
        speed=params.speed or "standard",
        inference_geo=params.inference_geo,
    )


def updated_model(stored: ModelConfig, params: str | ModelParams) -> ModelConfig:
    """The model after an update: replaced, but for the effort where the id stays (contract section 4.3)."""
    resolved = resolve_model(params)
    named = None if isinstance(params, str) else params.effort
    if named is None and resolved.id == stored.id:
        resolved.effort = stored.effort
    return resolved


def resolve_skills(skills: Sequence[SkillParams], path: str = "skills") -> list[SkillReference]:
    """The skills with every default filled in. Whether they exist is looked up elsewhere.

    Raises:
        InvalidRequest: there are too many, or one stands there twice.
    """
    resolved = [
        SkillReference(
            type="anthropic" if isinstance(skill, AnthropicSkillParams) else "custom",
            skill_id=skill.skill_id,
            version=skill.version or LATEST,
        )
        for skill in skills
    ]
    return [reference for _, reference in references(resolved, path)]


def check_readable(tools: Sequence[Tool], skills: Sequence[object], path: str = "skills") -> None:
    """Skills are files that the agent reads (contract section 4.2).

    Raises:
        InvalidRequest: there are skills, and no `read` tool that is enabled.
    """
    if skills and not enabled(tools, "read"):
        raise InvalidRequest(
            f"{path}: skills need the read tool; enable it in an agent_toolset_20260401 in tools"
        )


def check_mcp(tools: Sequence[Tool], servers: Sequence[McpServer], above: str = "") -> None:
    """Servers and toolsets must name each other, in both directions (contract section 4.2).

    `above` stands before the paths of both lists, such as ``agent.``.

    Raises:
        InvalidRequest: a name without its counterpart, a name twice, too many servers, or a bad URL.
    """
    if len(servers) > MCP_SERVERS:
        raise InvalidRequest(f"{above}mcp_servers: at most {MCP_SERVERS} servers")
    names: set[str] = set()
    for index, server in enumerate(servers):
        if server.name in names:
            raise InvalidRequest(f'{above}mcp_servers[{index}].name: "{server.name}" is used more than once')
        names.add(server.name)
        _check_url(server.url, f"{above}mcp_servers[{index}].url")
    used: set[str] = set()
    for index, tool in enumerate(tools):
        if isinstance(tool, McpToolset):
            used.add(tool.mcp_server_name)
            if tool.mcp_server_name not in names:
                raise InvalidRequest(
                    f'{above}tools[{index}].mcp_server_name: "{tool.mcp_server_name}" is not in mcp_servers'
                )
    for index, server in enumerate(servers):
        if server.name not in used:
            raise InvalidRequest(
                f"{above}mcp_servers[{index}].name: no mcp_toolset in tools refers to the server "
                f'"{server.name}"'
            )


def _check_url(url: str, path: str) -> None:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise InvalidRequest(f"{path}: not a valid URL") from None
    if parts.scheme.lower() not in ("http", "https") or not host:
        raise InvalidRequest(f"{path}: must be an http or https URL")
    if parts.username is not None or parts.password is not None:
        raise InvalidRequest(f"{path}: must not contain credentials; put them in a vault")


def create_config(params: CreateAgent, metadata: dict[str, str]) -> AgentConfig:
    """The first version of an agent, without its `multiagent` block, which is looked up elsewhere.

    Raises:
        InvalidRequest: a rule of contract sections 4 and 5 does not hold.
    """
    skills = resolve_skills(params.skills or [])
    tools = resolve_tools(params.tools or [])
    check_readable(tools, skills)
    servers = params.mcp_servers or []
    check_mcp(tools, servers)
    return AgentConfig(
        name=params.name,
        description=params.description or None,
        model=resolve_model(params.model),
        system=params.system or None,
        tools=tools,
        mcp_servers=servers,
        skills=skills,
        multiagent=None,
        execution_identity=params.execution_identity or ServiceAccount(),
        metadata=metadata,
    )


def update_config(stored: AgentConfig, params: UpdateAgent, metadata: dict[str, str]) -> AgentConfig:
    """The next version of an agent, equal to the stored one if nothing changes (contract section 4.3).

    Its `multiagent` block is the stored one; a new one is looked up elsewhere.

    Raises:
        InvalidRequest: a rule of contract sections 4 and 5 does not hold for the result.
    """
    skills = stored.skills if params.skills is UNSET else resolve_skills(params.skills or [])
    tools = stored.tools if params.tools is UNSET else resolve_tools(params.tools or [])
    check_readable(tools, skills)
    servers = stored.mcp_servers if params.mcp_servers is UNSET else params.mcp_servers or []
    check_mcp(tools, servers)
    identity = params.execution_identity
    return AgentConfig(
        name=given(params.name, stored.name),
        description=stored.description if params.description is UNSET else params.description or None,
        model=stored.model if params.model is UNSET else updated_model(stored.model, params.model),
        system=stored.system if params.system is UNSET else params.system or None,
        tools=tools,
        mcp_servers=servers,
        skills=skills,
        multiagent=stored.multiagent,
        execution_identity=stored.execution_identity if identity is UNSET else identity or ServiceAccount(),
        metadata=metadata,
    )
