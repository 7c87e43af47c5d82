"""The events that a person in a chat sends (contract section 10.3)."""

from typing import Any

from corral.cli.session_facts import OpenCall


def message(text: str) -> dict[str, Any]:
    """A message to the agent."""
    return {"type": "user.message", "content": [{"type": "text", "text": text}]}


def interrupt() -> dict[str, Any]:
    """Stop what is going on."""
    return {"type": "user.interrupt"}


def allow(call: OpenCall) -> dict[str, Any]:
    """Let the call run."""
    return {"type": "user.tool_confirmation", "tool_use_id": call.id, "result": "allow"}


def deny(call: OpenCall, why: str | None) -> dict[str, Any]:
    """Do not let the call run; the agent reads why."""
    verdict = {"type": "user.tool_confirmation", "tool_use_id": call.id, "result": "deny"}
    return {**verdict, "deny_message": why} if why else verdict


def answer(call: OpenCall, text: str, *, is_error: bool = False) -> dict[str, Any]:
    """A custom tool's result, given by hand."""
    content = [{"type": "text", "text": text}] if text else []
    return {
        "type": "user.custom_tool_result",
        "custom_tool_use_id": call.id,
        "content": content,
        "is_error": is_error,
    }
