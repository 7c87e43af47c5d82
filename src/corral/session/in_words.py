"""Events in plain words, for models that read of a session which is not their own. Pure."""

from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

SPEAKERS: Final = {
    "user.message": "user",
    "system.message": "system",
    "agent.message": "agent",
    "agent.thread_message_received": "report",
    "agent.tool_use": "agent calls",
    "agent.mcp_tool_use": "agent calls",
    "agent.custom_tool_use": "agent calls",
    "agent.tool_result": "result",
    "agent.mcp_tool_result": "result",
    "user.tool_result": "result",
    "user.custom_tool_result": "result",
    "user.tool_confirmation": "user decides",
    "user.interrupt": "user interrupts",
    "user.define_outcome": "user wants",
    "span.outcome_evaluation_end": "evaluation",
    "session.error": "error",
}
"""The events that can be put into words, and how each is headed."""


def entry_text(kind: str, body: Mapping[str, Any]) -> str:
    """An event of `SPEAKERS` in words."""
    head = SPEAKERS[kind]
    match kind:
        case "agent.tool_use" | "agent.mcp_tool_use" | "agent.custom_tool_use":
            return f"{head} {body['name']}: {msgspec.json.encode(body.get('input')).decode()}"
        case "user.tool_confirmation":
            reason = f" ({body['deny_message']})" if body.get("deny_message") else ""
            return f"{head}: {body['result']}{reason}"
        case "session.error":
            return f"{head}: {body['error']['message']}"
        case "user.define_outcome":
            return f"{head}: {body.get('description') or ''}"
        case "span.outcome_evaluation_end":
            return f"{head}: {body['result']}. {body['explanation']}"
        case "agent.thread_message_received":
            sender = body.get("from_agent_name") or "the coordinator"
            return f"{head} of {sender}: {content_text(body.get('content'))}"
        case "user.interrupt":
            return head
        case _:
            failed = " (failed)" if body.get("is_error") else ""
            return f"{head}{failed}: {content_text(body.get('content'))}"


def content_text(content: object) -> str:
    """The text of an event's content; blocks without text show as their type in brackets."""
    if isinstance(content, str):
        return content
    blocks = cast("list[dict[str, Any]]", content or [])
    return "\n".join(block["text"] if block["type"] == "text" else f"[{block['type']}]" for block in blocks)


def shortened(text: str, most: int) -> str:
    """The first `most` characters, and how many were left out."""
    if len(text) <= most:
        return text
    return f"{text[:most]} … ({len(text) - most} more characters)"
