"""Tool definitions and `tool_choice`."""

from __future__ import annotations

import re
from typing import Any

from corral.testing.refusal import Refused
from corral.testing.validation.caching import cache_control
from corral.testing.validation.fields import (
    Check,
    a_list,
    an_object,
    as_list,
    as_object,
    boolean,
    check_fields,
    filled_string,
    join,
    list_of,
    nullable,
    one_of,
    string,
)
from corral.testing.validation.naming import property_name, tool_name
from corral.testing.validation.thinking import thinking_is_on

_DATED_TOOL = re.compile(r"[a-z][a-z0-9_]*_20\d{6}")


def check_tools(body: dict[str, Any]) -> None:
    """Definitions are well formed and their names unique; `tool_choice` fits them."""
    names: list[str] = []
    for index, item in enumerate(as_list(body.get("tools", []), "tools")):
        path = f"tools.{index}"
        tool = as_object(item, path)
        name = _check_tool(tool, path)
        if name in names:
            raise Refused(join(path, "name"), f"tool names must be unique, {name!r} appears more than once")
        if name:
            names.append(name)
    if body.get("tool_choice") is not None:
        _check_choice(as_object(body["tool_choice"], "tool_choice"), names, body)


def _check_tool(tool: dict[str, Any], path: str) -> str | None:
    kind = tool.get("type")
    if kind is None or kind == "custom":
        check_fields(tool, path, required=_CUSTOM_REQUIRED, optional=_CUSTOM_OPTIONAL)
        return tool["name"]
    if kind == "mcp_toolset":
        return None
    if not isinstance(kind, str) or not _DATED_TOOL.fullmatch(kind):
        raise Refused(join(path, "type"), f"{kind!r} is not a tool type")
    if "_toolset_" not in kind:
        tool_name(tool.get("name"), join(path, "name"))
        return tool["name"]
    return None


def _input_schema(value: Any, path: str) -> None:
    schema = as_object(value, path)
    if "type" not in schema:
        raise Refused(join(path, "type"), "field required")
    if schema["type"] != "object":
        raise Refused(join(path, "type"), "must be object")
    for key in ("oneOf", "anyOf", "allOf"):
        if key in schema:
            raise Refused(join(path, key), "oneOf, anyOf and allOf are not supported at the top level")
    for name in as_object(schema.get("properties") or {}, join(path, "properties")):
        property_name(name, join(path, "properties"))
    if schema.get("required") is not None:
        list_of(string)(schema["required"], join(path, "required"))


_CUSTOM_REQUIRED: dict[str, Check] = {"name": tool_name, "input_schema": _input_schema}
_CUSTOM_OPTIONAL: dict[str, Check] = {
    "type": nullable(one_of("custom")),
    "description": string,
    "cache_control": nullable(cache_control),
    "strict": boolean,
    "defer_loading": boolean,
    "eager_input_streaming": nullable(boolean),
    "allowed_callers": a_list,
    "input_examples": list_of(an_object),
}


def _check_choice(choice: dict[str, Any], names: list[str], body: dict[str, Any]) -> None:
    kind = choice.get("type")
    parallel: dict[str, Check] = {} if kind == "none" else {"disable_parallel_tool_use": boolean}
    required: dict[str, Check] = {"type": one_of("auto", "any", "tool", "none")}
    if kind == "tool":
        required["name"] = filled_string
    check_fields(choice, "tool_choice", required=required, optional=parallel)
    if kind in ("any", "tool") and not body.get("tools"):
        raise Refused("tool_choice", "may only be given together with tools")
    if kind == "tool" and choice["name"] not in names:
        raise Refused("tool_choice.name", f"tool {choice['name']!r} is not among the provided tools")
    if kind in ("any", "tool") and thinking_is_on(body):
        raise Refused("tool_choice.type", "thinking may not be enabled when tool_choice forces tool use")
