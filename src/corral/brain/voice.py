"""In whose name a thread's events are written."""

from typing import Any

import msgspec

from corral.brain import mcp_tools
from corral.brain.delegation import ALONE, Delegation
from corral.brain.mcp_tools import McpTools
from corral.brain.own_tools import NONE, OwnTools
from corral.brain.permission import Agent
from corral.inference.prices import PriceTable, packaged_prices
from corral.session.events import NewEvent, new_event


class Voice(msgspec.Struct, frozen=True):
    """In whose name a thread's events are written."""

    thread_id: str
    agent: Agent
    self_hosted: bool
    prices: PriceTable = msgspec.field(default_factory=packaged_prices)
    own: OwnTools = NONE
    """The tools that the brain answers itself."""
    mcp: McpTools = mcp_tools.NONE
    """The tools of the agent's MCP servers, as far as they are listed."""
    web: frozenset[str] = frozenset()
    """The web tools that the server offers."""
    delegation: Delegation = ALONE
    """What the thread may do with others."""
    primary: str = ""
    """The primary thread, for a child's voice."""

    def event(self, kind: str, **fields: Any) -> NewEvent:
        """An event on the thread."""
        return new_event(kind, self.thread_id, **fields)

    def of_session(self, kind: str, **fields: Any) -> NewEvent:
        """An event that is the session's: it stands on the primary thread."""
        return new_event(kind, self.primary or self.thread_id, **fields)

    def thread_status(self, status: str, **fields: Any) -> NewEvent:
        """A ``session.thread_status_*`` event."""
        return self.event(
            f"session.thread_status_{status}",
            session_thread_id=self.thread_id,
            agent_name=self.agent["name"],
            **fields,
        )
