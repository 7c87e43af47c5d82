"""The agent that plays when no script is named: runs what the user asks to run, then says what came back."""

from __future__ import annotations

import re
from typing import Any, cast

from corral.testing.conversation import Conversation, ToolResult
from corral.testing.scripts import dream, judge
from corral.testing.steps import Step, ToolCall

TOOLSET = frozenset({"bash", "read", "write", "edit", "glob", "grep", "web_fetch", "web_search"})
"""Tools of the agent toolset: called by their own rules, never for the words of their names."""
_ECHO_CHARS = 2000
_RUN = re.compile(r"\brun\s+", re.IGNORECASE)
_QUOTED = re.compile(r"`([^`]+)`|\"([^\"]+)\"")
_COMMAND_END = re.compile(
    r"\s+(?:to|and|then|so|for|please|in order|if|because)\b|[.!?;,](?:\s|$)|\s*$",
    re.IGNORECASE | re.MULTILINE,
)
_MCP_PREFIX = re.compile(r"^mcp__.+?__")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")


def step(conversation: Conversation, turn: int) -> Step:
    """The answer to what the user said last, or to the results of the calls made for it."""
    if judge.is_judging(conversation):
        return judge.step(conversation)
    if turn < 0 and dream.is_dreaming(conversation):
        return dream.step(conversation, turn)
    results = conversation.results()
    if results:
        return Step(text=_report(results))
    calls = _calls(conversation.new_text or conversation.text, conversation.tools)
    if calls:
        names = ", ".join(call.name for call in calls)
        return Step(text=f"I will use {names}.", tools=calls)
    return Step(text=f"You said: {conversation.text.strip()[:_ECHO_CHARS]}")


def forced(conversation: Conversation) -> Step:
    """The plainest call of a tool that has to be called: the one that is named, or the first."""
    choice: dict[str, Any] = conversation.body["tool_choice"]
    tool = next(tool for tool in conversation.tools if tool["name"] == choice.get("name", tool["name"]))
    return Step(tools=[ToolCall(name=tool["name"], input=_least_input(tool.get("input_schema") or {}))])


def _report(results: list[ToolResult]) -> str:
    lines = ["Here is what I found."]
    for result in results:
        what = result.input.get("command") if result.name == "bash" else None
        title = f"{result.name} ({what})" if what else result.name
        verdict = " failed" if result.is_error else ""
        lines.append(f"- {title}{verdict}: {result.text.strip() or '(nothing)'}")
    return "\n".join(lines)


def _calls(text: str, tools: list[dict[str, Any]]) -> list[ToolCall]:
    names = {tool.get("name") for tool in tools}
    calls = [
        ToolCall(name=tool["name"], input=_least_input(tool.get("input_schema") or {}))
        for tool in tools
        if "input_schema" in tool and tool["name"] not in TOOLSET and _is_named(tool["name"], text)
    ]
    if "bash" in names:
        calls += [ToolCall(name="bash", input={"command": command}) for command in commands(text)]
    return calls


def commands(text: str) -> list[str]:
    """The shell commands that a text asks to run: what follows "run", quoted or up to the next word of
    grammar.
    """
    found: list[str] = []
    at = 0
    while (match := _RUN.search(text, at)) is not None:
        quoted = _QUOTED.match(text, match.end())
        if quoted is not None:
            command, at = quoted[1] or quoted[2], quoted.end()
        else:
            end = _COMMAND_END.search(text, match.end())
            at = end.start() if end else len(text)
            command = text[match.end() : at]
        if command.strip() and command.strip().lower() not in ("it", "them", "this", "that"):
            found.append(command.strip())
        at = max(at, match.end())
    return found


def _is_named(name: str, text: str) -> bool:
    bare = _CAMEL.sub("_", _MCP_PREFIX.sub("", name))
    words = [word.lower() for word in re.split(r"[^A-Za-z0-9]+", bare) if word]
    said = set(re.findall(r"[a-z0-9]+", text.lower()))
    return bool(words) and all(word in said for word in words)


def _least_input(schema: dict[str, Any]) -> dict[str, Any]:
    """The smallest input that satisfies a schema: its required properties with the plainest values."""
    properties: dict[str, Any] = schema.get("properties") or {}
    required: list[str] = schema.get("required") or []
    return {name: _least_value(properties.get(name) or {}) for name in required}


def _least_value(schema: dict[str, Any]) -> Any:
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type", "string")
    match cast("list[str]", kind)[0] if isinstance(kind, list) else kind:
        case "object":
            return _least_input(schema)
        case "array":
            return [_least_value(schema.get("items") or {}) for _ in range(schema.get("minItems", 0))]
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return False
        case "null":
            return None
        case _:
            return "example".ljust(schema.get("minLength", 0), ".")
