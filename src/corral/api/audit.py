"""The audit trail of requests: which are administrative, and the route that shows the records.

Every request of an application that may change something is administrative, unless it is named here: what
agents and their users do all day long has the session's log as its record.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from starlette.responses import Response
from starlette.types import ASGIApp

from corral.api.call import Call, answer
from corral.api.describe import PAGED, PageOf, choices, text, times
from corral.api.principals import APPLICATION, ApiKey
from corral.api.routing import Route
from corral.resources import audit
from corral.wire.errors import ApiError, InternalError

_SESSION: Final = "/v1/sessions/{session_id}"

NOT_ADMINISTRATIVE: Final[frozenset[tuple[str, str]]] = frozenset(
    {
        ("POST", "/v1/sessions"),
        ("POST", f"{_SESSION}/events"),
        ("POST", "/v1/files"),
        ("POST", "/v1/memory_stores/{memory_store_id}/memories"),
        ("POST", "/v1/memory_stores/{memory_store_id}/memories/{memory_id}"),
    }
)
"""Requests that change something and are not recorded, since they are the daily work itself."""


class _Made(msgspec.Struct):
    id: str | None = None


def is_administrative(route: Route) -> bool:
    """Whether requests to a route are recorded when an application makes them."""
    changes = route.method not in {"GET", "HEAD"} and ApiKey in route.callers
    return changes and (route.method, route.path) not in NOT_ADMINISTRATIVE


async def recorded(
    route: Route, call: Call, key: ApiKey, request_id: str, respond: Callable[[], Awaitable[ASGIApp]]
) -> ASGIApp:
    """The answer to an administrative request, which is recorded before it is carried out."""
    trail = call.services.audit
    record_id = await trail.begin(
        "api", key.key_id, f"{route.method} {route.path}", list(call.params.values()), request_id
    )
    try:
        response = await respond()
    except Exception as error:
        await trail.complete(record_id, error.status if isinstance(error, ApiError) else InternalError.status)
        raise
    if isinstance(response, Response):
        await trail.complete(record_id, response.status_code, _made(response))
    return response


def _made(response: Response) -> str | None:
    try:
        return msgspec.json.decode(response.body, type=_Made).id
    except msgspec.DecodeError:
        return None


async def list_records(call: Call) -> ASGIApp:
    """``GET /corral/v1/audit``: administrative acts and decisions on tool calls, newest first."""
    span = call.query.times("created_at", ("gte", "lte"))
    page = call.page(audit.LIST, (int, str))
    kinds = call.query.values("actor_kind", audit.RECORDED)
    narrow = audit.Narrowing(
        actor_id=call.query.text("actor_id"),
        object_id=call.query.text("object_id"),
        since=span.gte,
        until=span.lte,
        actor_kinds=kinds,
    )
    return answer(await call.services.audit.list(page, narrow))


ROUTES = (
    Route(
        "GET",
        "/corral/v1/audit",
        APPLICATION,
        list_records,
        "List administrative acts and decisions on tool calls, newest first",
        query=(
            *PAGED,
            text("actor_id", "Only those of this credential, or of this user at the command line."),
            text("object_id", "Only those that concern this."),
            choices(
                "actor_kind",
                "Only those of these kinds of actors; `policy` decides on calls.",
                audit.RECORDED,
            ),
            *times(allowed=("gte", "lte")),
        ),
        gives=PageOf(audit.AuditRecord),
    ),
)
