"""What tests send in every list alike, where a value is needed that means something."""

from typing import Final

from tests.conformance.sdk.asked import Asked
from tests.conformance.sdk.workshop import FAR

_LATEST: Final = ("created_at[lt]", "created_at[lte]")
# Names a workspace that no other server has; whose credential belongs to one may leave it out (contract 2.1).
_WORKSPACE: Final = "anthropic-workspace-id"


def fill(asked: Asked) -> None:
    """Give the parameters that all families share a valid value.

    A limit or a version of 0 becomes 1. The latest time that is asked for, in the tests the same as the
    earliest, moves far ahead, so that there is something to find. The workspace is left out.
    """
    for name in ("limit", "version", "agent_version"):
        if asked.first(name) == "0":
            asked.put(name, "1")
    for name in _LATEST:
        if asked.has(name):
            asked.put(name, FAR)
    asked.headers.pop(_WORKSPACE, None)


def wants_cursor(asked: Asked) -> bool:
    """Whether the request asks for a page by a made-up cursor."""
    return asked.first("page") == "page"


def turn_to(asked: Asked, cursor: str | None) -> None:
    """Put a real cursor in; without one, the first page is asked for."""
    if cursor is None:
        asked.drop("page")
    else:
        asked.put("page", cursor)
