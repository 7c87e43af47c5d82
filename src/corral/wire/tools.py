"""Tools on an agent: the toolset of built-in tools, toolsets of MCP servers, and custom tools (contract 5).

Two families of structs: what a client sends (``…Params``), and the resolved form in which an agent keeps and
shows it, with every default filled in. `resolve_tools` leads from one to the other.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, get_args

import msgspec
from msgspec import UNSET, Meta, UnsetType

from corral.wire import webtools
from corral.wire.errors import InvalidRequest
from corral.wire.fields import Request
from corral.wire.toolschema import check_custom_tool
from corral.wire.webtools import UrlSources, UrlSourcesParams, UserLocation

BuiltinTool = Literal["bash", "read", "write", "edit", "glob", "grep", "web_fetch", "web_search"]
BUILTIN_TOOLS: Final[tuple[BuiltinTool, ...]] = get_args(BuiltinTool)
SANDBOX_TOOLS: Final[frozenset[str]] = frozenset({"bash", "read", "write", "edit", "glob", "grep"})
TOOLS: Final = 256


class AlwaysAllow(Request, tag="always_allow"):
    """The call runs at once."""


class AlwaysAsk(Request, tag="always_ask"):
    """The call waits for a confirmation."""


class Auto(Request, tag="auto"):
    """The server judges each call."""


PermissionPolicy = AlwaysAllow | AlwaysAsk | Auto


class DefaultConfigParams(Request):
    """What holds for each tool of a set that has no entry of its own."""

    enabled: bool | None = None
    permission_policy: PermissionPolicy | None = None


class BuiltinConfigParams(Request):
    """An entry for one built-in tool; the fields after ``type`` belong to the web tools alone."""

    name: BuiltinTool
    type: BuiltinTool | None = None
    enabled: bool | None = None
    permission_policy: PermissionPolicy | None = None
    allowed_domains: list[str] | None = None
    blocked_domains: list[str] | None = None
    max_content_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    url_sources: UrlSourcesParams | None = None
    user_location: UserLocation | None = None


class AgentToolsetParams(Request, tag="agent_toolset_20260401"):
    """The built-in tools."""

    default_config: DefaultConfigParams | None = None
    configs: list[BuiltinConfigParams] | None = None


class McpConfigParams(Request):
    """An entry for one tool of an MCP server."""

    name: Annotated[str, Meta(min_length=1, max_length=128)]
    enabled: bool | None = None
    permission_policy: PermissionPolicy | None = None


class McpToolsetParams(Request, tag="mcp_toolset"):
    """The tools of one of the agent's MCP servers."""

    mcp_server_name: Annotated[str, Meta(min_length=1, max_length=255)]
    default_config: DefaultConfigParams | None = None
    configs: list[McpConfigParams] | None = None


class CustomTool(Request, tag="custom"):
    """A tool that the client runs. It is kept as it is sent."""

    name: Annotated[str, Meta(min_length=1, max_length=128)]
    description: Annotated[str, Meta(min_length=1)]
    input_schema: dict[str, Any]


ToolParams = AgentToolsetParams | McpToolsetParams | CustomTool


class DefaultConfig(msgspec.Struct, kw_only=True):
    """The resolved defaults of a toolset."""

    enabled: bool
    permission_policy: PermissionPolicy


class BuiltinConfig(msgspec.Struct, kw_only=True):
    """A resolved entry for one built-in tool; the fields after the policy belong to the web tools alone."""

    name: BuiltinTool
    type: BuiltinTool
    enabled: bool
    permission_policy: PermissionPolicy
    allowed_domains: list[str] | UnsetType | None = UNSET
    blocked_domains: list[str] | UnsetType | None = UNSET
    user_location: UserLocation | UnsetType | None = UNSET
    max_content_tokens: int | UnsetType | None = UNSET
    url_sources: UrlSources | UnsetType | None = UNSET


class AgentToolset(msgspec.Struct, tag="agent_toolset_20260401", kw_only=True):
    """The resolved set of built-in tools; ``configs`` holds the entries that were given, no others."""

    default_config: DefaultConfig
    configs: list[BuiltinConfig]


class McpConfig(msgspec.Struct, kw_only=True):
    """A resolved entry for one tool of an MCP server."""

    name: str
    enabled: bool
    permission_policy: PermissionPolicy


class McpToolset(msgspec.Struct, tag="mcp_toolset", kw_only=True):
    """The resolved set of an MCP server's tools."""

    mcp_server_name: str
    default_config: DefaultConfig
    configs: list[McpConfig]


Tool = AgentToolset | McpToolset | CustomTool


def resolve_tools(tools: Sequence[ToolParams], path: str = "tools") -> list[Tool]:
    """Check an agent's tools and fill in every default.

    Raises:
        InvalidRequest: two toolsets for the same thing, a name used twice, a reserved name, a schema that
            the model's API would refuse, or bad settings of a web tool.
    """
    custom = {tool.name for tool in tools if isinstance(tool, CustomTool)}
    seen: dict[str, str] = {}
    resolved: list[Tool] = []
    for index, tool in enumerate(tools):
        where = f"{path}[{index}]"
        match tool:
            case AgentToolsetParams():
                key, clash = "agent_toolset", "only one agent_toolset_20260401 is allowed"
                resolved.append(_builtin(tool, where, custom))
            case McpToolsetParams():
                key = f"mcp:{tool.mcp_server_name}"
                clash = f'only one mcp_toolset is allowed for the server "{tool.mcp_server_name}"'
                resolved.append(_mcp(tool, where))
            case CustomTool():
                key, clash = f"custom:{tool.name}", f'tool name "{tool.name}" is used more than once'
                check_custom_tool(tool.name, tool.input_schema, BUILTIN_TOOLS, where)
                resolved.append(tool)
        if key in seen:
            raise InvalidRequest(f"{where}: {clash} (the first is {seen[key]})")
        seen[key] = where
    if tool_count(resolved) > TOOLS:
        raise InvalidRequest(f"{path}: at most {TOOLS} tools over all toolsets")
    return resolved


def tool_count(tools: Sequence[Tool]) -> int:
    """How many tools these are, as far as the agent's own definition tells."""
    total = 0
    for tool in tools:
        match tool:
            case AgentToolset():
                total += len(BUILTIN_TOOLS)
            case McpToolset():
                total += len(tool.configs)
            case CustomTool():
                total += 1
    return total


def enabled(tools: Sequence[Tool], name: BuiltinTool) -> bool:
    """Whether a built-in tool is there and enabled."""
    for tool in tools:
        if isinstance(tool, AgentToolset):
            for config in tool.configs:
                if config.name == name:
                    return config.enabled
            return tool.default_config.enabled
    return False


def _default(params: DefaultConfigParams | None, policy: PermissionPolicy) -> DefaultConfig:
    params = params or DefaultConfigParams()
    return DefaultConfig(
        enabled=True if params.enabled is None else params.enabled,
        permission_policy=params.permission_policy or policy,
    )


def _mcp(tool: McpToolsetParams, path: str) -> McpToolset:
    default = _default(tool.default_config, AlwaysAsk())
    configs = tool.configs or []
    _refuse_twice([config.name for config in configs], path)
    return McpToolset(
        mcp_server_name=tool.mcp_server_name,
        default_config=default,
        configs=[
            McpConfig(
                name=config.name,
                enabled=default.enabled if config.enabled is None else config.enabled,
                permission_policy=config.permission_policy or default.permission_policy,
            )
            for config in configs
        ],
    )


def _builtin(tool: AgentToolsetParams, path: str, custom: set[str]) -> AgentToolset:
    default = _default(tool.default_config, AlwaysAllow())
    configs = tool.configs or []
    _refuse_twice([config.name for config in configs], path)
    resolved = [_builtin_config(c, default, f"{path}.configs[{i}]", custom) for i, c in enumerate(configs)]
    return AgentToolset(default_config=default, configs=resolved)


def _refuse_twice(names: Sequence[str], path: str) -> None:
    for index, name in enumerate(names):
        if name in names[:index]:
            raise InvalidRequest(f'{path}.configs[{index}].name: "{name}" is configured more than once')


def _builtin_config(
    config: BuiltinConfigParams, default: DefaultConfig, path: str, custom: set[str]
) -> BuiltinConfig:
    if config.type not in (None, config.name):
        raise InvalidRequest(f'{path}.type: must be "{config.name}", as the name')
    own = {"name", "type", "enabled", "permission_policy"}
    if config.name in ("web_search", "web_fetch"):
        own |= {"allowed_domains", "blocked_domains"}
        own |= {"user_location"} if config.name == "web_search" else {"max_content_tokens", "url_sources"}
    for field in config.__struct_fields__:
        if field not in own and getattr(config, field) is not None:
            raise InvalidRequest(f"{path}.{field}: Extra inputs are not permitted")
    resolved = BuiltinConfig(
        name=config.name,
        type=config.name,
        enabled=default.enabled if config.enabled is None else config.enabled,
        permission_policy=config.permission_policy or default.permission_policy,
    )
    if config.name not in ("web_search", "web_fetch"):
        return resolved
    webtools.check_domains(
        config.allowed_domains, config.blocked_domains, path, paths_allowed=config.name == "web_search"
    )
    resolved.allowed_domains, resolved.blocked_domains = config.allowed_domains, config.blocked_domains
    if config.name == "web_search":
        webtools.check_location(config.user_location, path)
        resolved.user_location = config.user_location
    else:
        resolved.max_content_tokens = config.max_content_tokens
        resolved.url_sources = webtools.resolve_url_sources(config.url_sources, f"{path}.url_sources", custom)
    return resolved
