"""The kinds of credential in the OpenAPI document, and which of them a route takes."""

from collections.abc import Iterable
from typing import Any, Final

from corral.api.principals import ApiKey, EnvironmentKey, FormerWorkToken, Kind, PoolKey, WorkToken

_KINDS: Final[dict[Kind, tuple[str, str]]] = {
    ApiKey: ("apiKey", "A key of an application or of the operator (`corral admin api-key create`)."),
    EnvironmentKey: ("environmentKey", "A key of the workers of one environment."),
    PoolKey: ("poolKey", "A key of the workers of the operator's pool."),
    WorkToken: (
        "workToken",
        "The token of one work item; a poll gives it to the worker that takes the item.",
    ),
}
_HEADER: Final = "x-api-key"


def schemes() -> dict[str, Any]:
    """Each kind of credential, in both of its forms."""
    found: dict[str, Any] = {}
    for name, about in _KINDS.values():
        found[name] = {"type": "http", "scheme": "bearer", "description": about}
        found[_in_header(name)] = {"type": "apiKey", "in": "header", "name": _HEADER, "description": about}
    return found


def security(callers: Iterable[Kind]) -> list[dict[str, list[str]]]:
    """What a request of these callers may carry: one of them is enough."""
    wanted = set(callers)
    # Whoever held a work item carries the same token as whoever holds it.
    wanted |= {WorkToken} if FormerWorkToken in wanted else set()
    names = [name for kind, (name, _) in _KINDS.items() if kind in wanted]
    return [{form: []} for name in names for form in (name, _in_header(name))]


def _in_header(name: str) -> str:
    return f"{name}Header"
