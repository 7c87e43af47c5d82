"""Tool uses that wait for their answer, and the events that make and answer them."""

from typing import Final, Literal

import msgspec

CallKind = Literal["sandbox", "mcp", "web", "custom"]
Permission = Literal["allow", "ask", "deny"]
Verdict = Literal["allow", "deny"]

GATEWAY_KINDS: Final[tuple[CallKind, ...]] = ("mcp", "web")
"""The calls that the brain has made by the gateway, wherever the session's hands are."""

TOOL_USES: Final[dict[str, CallKind]] = {
    "agent.tool_use": "sandbox",
    "agent.mcp_tool_use": "mcp",
    "agent.custom_tool_use": "custom",
}
"""The events by which a model calls a tool, and who runs it; but for web tools, which the server runs."""

TOOL_RESULTS: Final[dict[str, str]] = {
    "agent.tool_result": "tool_use_id",
    "agent.mcp_tool_result": "mcp_tool_use_id",
    "user.tool_result": "tool_use_id",
    "user.custom_tool_result": "custom_tool_use_id",
}
"""The events that answer a tool use, and the field that names it."""


class Call(msgspec.Struct, frozen=True):
    """A tool use that has no answer yet. ``id`` is the event's, by which clients name it."""

    id: str
    kind: CallKind
    name: str
    permission: Permission
    verdict: Verdict | None = None
    deny_message: str | None = None
    server_name: str | None = None
    """The MCP server, of a call that goes to one."""
    told: str | None = None
    """What the model is told of a call that the operator's policy refuses."""

    @property
    def denied(self) -> bool:
        """True if the call must never run: by policy or by the client's verdict."""
        return self.permission == "deny" or self.verdict == "deny"

    @property
    def runnable(self) -> bool:
        """True if the call may run now."""
        return self.permission == "allow" or (self.permission == "ask" and self.verdict == "allow")
