"""Routes of events: send and list (contract sections 10.2 and 10.9)."""

from collections.abc import Sequence
from datetime import datetime

from starlette.types import ASGIApp

from corral.api.call import Call, raw_page
from corral.api.principals import ANYONE, ApiKey, Principal, WorkToken
from corral.api.reach import session_of
from corral.api.routing import Route
from corral.session.listing import EventFilter, Listed, Place
from corral.session.sending import SendAuthority
from corral.wire import pagination
from corral.wire.errors import InvalidRequest, PermissionDenied
from corral.wire.events import (
    PERSISTED_TYPES,
    ClientEvent,
    SendEvents,
    UserCustomToolResult,
    UserToolResult,
    event_type,
)
from corral.wire.pagination import Order
from corral.wire.query import TimeRange


async def send(call: Call) -> ASGIApp:
    """``POST /v1/sessions/{session_id}/events``: all events are taken, or none."""
    session_id = await session_of(call)
    params = await call.decode(SendEvents)
    _check_sender(call.principal, params.events)
    # A worker speaks for its session: it can name no file of another.
    own = None if isinstance(call.principal, ApiKey) else session_id
    await call.services.sources.check(params.events, "events", session_id=own)
    authority = SendAuthority(runs_tools=isinstance(call.principal, WorkToken))
    return raw_page(await call.services.sessions.sending.send(session_id, params.events, authority))


def _check_sender(principal: Principal, events: Sequence[ClientEvent]) -> None:
    """Workers send results. Were they to send confirmations, a call could approve itself."""
    if isinstance(principal, ApiKey):
        return
    for index, event in enumerate(events):
        if not isinstance(event, UserToolResult | UserCustomToolResult):
            raise PermissionDenied(f"events[{index}].type: a worker may not send {event_type(event)}")


async def list_events(call: Call) -> ASGIApp:
    """``GET /v1/sessions/{session_id}/events``."""
    session_id = await session_of(call)
    row = await call.services.sessions.records.retrieve(session_id)
    types = call.query.values("types", PERSISTED_TYPES)
    return await page_of_events(
        call, session_id, row["primary_thread_id"], call.query.order("asc"), call.query.times(), types
    )


async def page_of_events(
    call: Call,
    session_id: str,
    thread_id: str,
    order: Order,
    times: TimeRange,
    types: Sequence[str] | None = None,
) -> ASGIApp:
    """One page of a thread's events."""
    scope = f"{session_id}/{thread_id}"
    limit = call.query.limit(default=1000, most=1000)
    cursor = pagination.decode(call.query.text("page"), "events", (int, int, int), order=order, scope=scope)
    after = None
    if cursor is not None:
        seq, waiting, _ = (int(part) for part in cursor.position)
        after = Place(seq=seq, input=waiting)
        if waiting:
            if times != TimeRange():
                raise InvalidRequest("page: the created_at filter excludes the position of the page cursor")
        elif not times.holds(pagination.moment_at(int(cursor.position[2]))):
            raise InvalidRequest("page: the created_at filter excludes the position of the page cursor")
    narrow = EventFilter(
        thread_id=thread_id,
        types=types,
        created_gt=times.gt,
        created_gte=times.gte,
        created_lt=times.lt,
        created_lte=times.lte,
    )
    found = await call.services.sessions.listing.page(
        session_id, narrow, after=after, descending=order == "desc", limit=limit + 1
    )
    kept = found[:limit]
    next_page = None
    if len(found) > limit:
        next_page = pagination.encode("events", _position(kept[-1]), order=order, scope=scope)
    return raw_page([event.wire for event in kept], next_page=next_page)


def _position(event: Listed) -> tuple[int, int, int]:
    moment: datetime | None = event.processed_at
    microseconds = 0 if moment is None else pagination.time_position(moment, "")[0]
    return event.place.seq, event.place.input, microseconds


ROUTES = (
    Route("GET", "/v1/sessions/{session_id}/events", ANYONE, list_events),
    Route("POST", "/v1/sessions/{session_id}/events", ANYONE, send),
)
