"""What a rule may look at: one call, and who makes it where."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

MCP: Final = "mcp"
CUSTOM: Final = "custom"
OWN: Final = "corral"


class AgentFacts(msgspec.Struct, frozen=True):
    """An agent by what the session's snapshot says of it; one that an agent has defined itself has no id."""

    name: str
    id: str | None = None


class Surroundings(msgspec.Struct, frozen=True):
    """Where a call is made: what is the same for all calls of a session."""

    environment_id: str = ""
    environment_name: str = ""
    environment_metadata: Mapping[str, str] = {}
    session_metadata: Mapping[str, str] = {}
    agent_metadata: Mapping[str, str] = {}
    """Of the session's agent, in the version that the session runs."""
    vault_ids: tuple[str, ...] = ()


class CallFacts(msgspec.Struct, frozen=True):
    """One call, before it runs."""

    tool: str
    """`bash`, `mcp/SERVER/TOOL`, `custom/NAME` or `corral/NAME`; see `tool_name`."""
    input: Mapping[str, Any]
    agents: tuple[AgentFacts, ...] = ()
    """Who makes the call, and the agent that it works for, up to the session's own."""
    around: Surroundings = Surroundings()
    server_host: str = ""
    """Where the MCP server is, of a call that goes to one; its name is whatever the agent calls it."""


def tool_name(name: str, *, kind: str | None = None, server: str | None = None) -> str:
    """A tool as policy files call it: built-in ones by name, others below `mcp/`, `custom/`, `corral/`."""
    # A name has no parts of its own, so that `mcp/SERVER/*` is all that the server has.
    own = name.replace("/", "%2F")
    if server is not None:
        return f"{MCP}/{server.replace('/', '%2F')}/{own}"
    return own if kind is None else f"{kind}/{own}"
