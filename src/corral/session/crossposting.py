"""What a session shows of its child threads (contract section 11.4).

A session's list and stream are those of its primary thread, and of the others what a client must see there:
what they are at, and what they wait for. It is the same event under the same id; only the copy says which
thread it is from. The worker that runs a session's tools sees the calls of all threads.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from corral.session.calls import TOOL_USES
from corral.session.events import NewEvent

OWN_THREAD: Final = 0
EVERYBODY: Final = 1
WORKERS: Final = 2

NAMED: Final = frozenset(
    {*TOOL_USES, "user.tool_confirmation", "user.custom_tool_result", "user.tool_result"}
)
"""The events whose copy names the thread; the others name it in any case."""

_STATUS: Final = "session.thread_status_"
_CLIENTS: Final = frozenset(
    {
        "agent.custom_tool_use",
        "user.interrupt",
        "user.tool_confirmation",
        "user.custom_tool_result",
        "user.tool_result",
    }
)
_SANDBOX: Final = frozenset({"agent.tool_use", "agent.tool_result"})


def crossposted(event_type: str, body: Mapping[str, Any], *, self_hosted: bool) -> int:
    """Who sees an event of a child thread in the session's list and stream."""
    if event_type.startswith(_STATUS) or event_type in _CLIENTS:
        return EVERYBODY
    if event_type in TOOL_USES and body.get("evaluated_permission") == "ask":
        return EVERYBODY
    if event_type in _SANDBOX:
        # On self_hosted the client's worker is to run them.
        return EVERYBODY if self_hosted else WORKERS
    return OWN_THREAD


def marked(events: Sequence[NewEvent], primary: str, *, self_hosted: bool) -> tuple[NewEvent, ...]:
    """The events with the mark that says who sees those of child threads."""
    return tuple(
        event
        if event.thread_id == primary
        else msgspec.structs.replace(
            event, crossposted=crossposted(event.type, event.body, self_hosted=self_hosted)
        )
        for event in events
    )
