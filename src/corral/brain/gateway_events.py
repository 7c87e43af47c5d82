"""The events that dealings with the gateway write: calls of MCP and web tools, servers that fail. Pure."""

from typing import Any

import msgspec

from corral.brain.spilled import WHOLE, preview
from corral.brain.voice import Voice
from corral.session.calls import Call
from corral.session.events import NewEvent
from corral.wire.gateway import CallOutcome, Failure
from corral.wire.ids import new_id


def mcp_failure(voice: Voice, server_name: str, failure: Failure, *, listing: bool) -> NewEvent:
    """The error of an MCP server that cannot be used; the session runs on without it.

    `listing`: its tools could not be listed, so it is left alone until the session runs anew.
    """
    denied = failure.type == "mcp_authentication_failed_error"
    shown = {
        "type": failure.type,
        "message": f"The MCP server {server_name} cannot be used: {failure.message}.",
        "mcp_server_name": server_name,
        # Whatever is tried again meanwhile, a credential that is refused stays so.
        "retry_status": {"type": "exhausted" if denied else "retrying"},
    }
    return voice.event("session.error", error=shown, private={"listing": listing})


def call_result(voice: Voice, call: Call, outcome: CallOutcome) -> list[NewEvent]:
    """What a call of an MCP or web tool brings: its result, after the error if the server could not be used.

    The result of a web tool keeps what the call adds to the session's usage; one that is too long for a
    conversation shows a preview, and keeps the whole.
    """
    kept: dict[str, Any] = {}
    content = outcome.content
    result_id = new_id("sevt")
    if (shown := preview(content, result_id)) is not None:
        # The event shows what the model is shown; the log keeps all of it for the agent to read.
        kept, content = {WHOLE: content}, shown
    if call.kind == "web":
        searches = outcome.usage.get("web_search_requests", 0)
        cost = {"cost_nanodollars": searches * voice.prices.web_search}
        event = voice.event(
            "agent.tool_result",
            id=result_id,
            tool_use_id=call.id,
            content=content,
            is_error=outcome.is_error,
            private=({"usage": cost | outcome.usage} if outcome.usage else {}) | kept or None,
        )
        return [msgspec.structs.replace(event, resolves=call.id)]
    event = voice.event(
        "agent.mcp_tool_result",
        id=result_id,
        mcp_tool_use_id=call.id,
        content=content,
        is_error=outcome.is_error,
        private=kept or None,
    )
    result = msgspec.structs.replace(event, resolves=call.id)
    if outcome.failure is None:
        return [result]
    return [mcp_failure(voice, call.server_name or "", outcome.failure, listing=False), result]
