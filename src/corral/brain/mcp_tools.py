"""The agent's MCP tools as the model knows them, and the policy of each (contract sections 5.3 and 6). Pure.

A model's tool names allow few characters and must be unique over all servers, so a tool is called
``mcp__server__tool`` there; events and clients have the server's name and the tool's own.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from corral.brain.permission import Agent, Evaluation, policy_evaluation
from corral.wire.gateway import Tool

_UNFIT: Final = re.compile(r"[^a-zA-Z0-9_-]")
_LONGEST: Final = 128
_PROPERTY: Final = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


class McpTool(msgspec.Struct, frozen=True):
    """A tool of one of the agent's servers, enabled for it."""

    server_name: str
    name: str
    definition: dict[str, Any]
    evaluation: Evaluation


McpTools = Mapping[str, McpTool]
"""Tools by the names that the model uses."""
NONE: Final[McpTools] = {}


def server_names(agent: Agent) -> list[str]:
    """The servers of the agent's MCP toolsets, in their order."""
    return [tool["mcp_server_name"] for tool in agent["tools"] if tool["type"] == "mcp_toolset"]


def offered(agent: Agent, listed: Mapping[str, Sequence[Tool]]) -> dict[str, McpTool]:
    """The tools that the model is told of, given each server's list: what the agent has enabled, in a fixed
    order. A tool whose parameters a model cannot be told of is left out.
    """
    tools: dict[str, McpTool] = {}
    for toolset in agent["tools"]:
        if toolset["type"] != "mcp_toolset":
            continue
        server_name = toolset["mcp_server_name"]
        for tool in sorted(listed.get(server_name, ()), key=lambda tool: tool.name):
            configuration = _configuration(toolset, tool.name)
            if not configuration["enabled"] or not _is_tellable(tool):
                continue
            name = _model_name(server_name, tool.name)
            definition = {"name": name, "description": tool.description, "input_schema": tool.input_schema}
            tools[name] = McpTool(server_name, tool.name, definition, policy_evaluation(configuration))
    return tools


def _configuration(toolset: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    for override in toolset["configs"]:
        if override["name"] == name:
            return override
    return toolset["default_config"]


def _model_name(server_name: str, tool_name: str) -> str:
    name = f"mcp__{_UNFIT.sub('_', server_name)}__{_UNFIT.sub('_', tool_name)}"
    if name == f"mcp__{server_name}__{tool_name}" and len(name) <= _LONGEST and "__" not in server_name:
        return name
    # Two names may come out alike: what tells them apart is a digest of both.
    digest = hashlib.sha256(f"{server_name}\x00{tool_name}".encode()).hexdigest()[:8]
    return f"{name[: _LONGEST - 9]}_{digest}"


def _is_tellable(tool: Tool) -> bool:
    properties: Any = tool.input_schema.get("properties", {})
    return isinstance(properties, dict) and all(
        _PROPERTY.fullmatch(name) is not None for name in cast("dict[str, Any]", properties)
    )
