"""Routes of events: send and list (contract sections 10.2 and 10.9)."""

from collections.abc import Sequence
from datetime import datetime

from starlette.types import ASGIApp

from corral.api.call import Call, raw_page
from corral.api.describe import PAGE, PageOf, choices, limit, order, times
from corral.api.principals import ANYONE, ApiKey, Principal, WorkToken
from corral.api.reach import session_of
from corral.api.routing import Route
from corral.session.crossposting import EVERYBODY, WORKERS
from corral.session.listing import EventFilter, Listed, Place
from corral.session.sending import SendAuthority
from corral.wire import pagination
from corral.wire.errors import Conflict, InvalidRequest, PermissionDenied
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
from corral.wire.shown_spans import ShownAcceptedEvent, ShownEvent


async def send(call: Call) -> ASGIApp:
    """``POST /v1/sessions/{session_id}/events``: all events are taken, or none."""
    session_id = await session_of(call)
    params = await call.decode(SendEvents)
    _check_sender(call.principal, params.events)
    await call.services.admission.backlog.check_sessions(params.events)
    # A worker speaks for its session: it can name no file of another.
    own = None if isinstance(call.principal, ApiKey) else session_id
    await call.services.sources.check(params.events, "events", session_id=own)
    authority = SendAuthority(runs_tools=isinstance(call.principal, WorkToken))
    events = await call.services.sources.rubrics(params.events, "events")
    return raw_page(await call.services.sessions.sending.send(session_id, events, authority))


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
        call,
        session_id,
        row["primary_thread_id"],
        call.query.order("asc"),
        call.query.times(),
        types,
        shown=shown_to(call.principal),
    )


def shown_to(principal: Principal) -> int:
    """Which events of child threads a session shows: to the worker of its tools, the calls of all."""
    return WORKERS if isinstance(principal, WorkToken) else EVERYBODY


async def page_of_events(
    call: Call,
    session_id: str,
    thread_id: str,
    order: Order,
    times: TimeRange,
    types: Sequence[str] | None = None,
    *,
    shown: int,
) -> ASGIApp:
    """One page of a thread's events, and of those of others that are shown there up to a mark."""
    scope = f"{session_id}/{thread_id}"
    limit = call.query.limit(default=1000, most=1000)
    cursor = pagination.decode(call.query.text("page"), "events", (int, int, int), order=order, scope=scope)
    after = None
    if cursor is not None:
        seq, waiting, microseconds = (int(part) for part in cursor.position)
        after = Place(seq=seq, input=waiting)
        if not microseconds:  # the last one seen has no time yet
            if times != TimeRange():
                raise InvalidRequest("page: the created_at filter excludes the position of the page cursor")
        elif not times.holds(pagination.moment_at(microseconds)):
            raise InvalidRequest("page: the created_at filter excludes the position of the page cursor")
    narrow = EventFilter(
        thread_id=thread_id,
        shown=shown,
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
    Route(
        "GET",
        "/v1/sessions/{session_id}/events",
        ANYONE,
        list_events,
        "List a session's events, oldest first",
        query=(
            limit(default=1000, most=1000),
            PAGE,
            order("asc"),
            *times(),
            choices("types", "Only events of these types.", PERSISTED_TYPES),
        ),
        gives=PageOf(ShownEvent),
    ),
    Route(
        "POST",
        "/v1/sessions/{session_id}/events",
        ANYONE,
        send,
        "Send events to a session: all are taken, or none",
        takes=SendEvents,
        gives=PageOf(ShownAcceptedEvent, cursors=()),
        refuses=(Conflict,),
    ),
)
