"""Routes of threads (contract section 11)."""

from typing import Final, get_args

from starlette.types import ASGIApp

from corral.api.call import Call, answer
from corral.api.describe import PAGE, PageOf, choices, limit
from corral.api.events import page_of_events
from corral.api.principals import ANYONE, APPLICATION
from corral.api.reach import session_row
from corral.api.routing import Route
from corral.session.crossposting import EVERYBODY, OWN_THREAD
from corral.wire import pagination
from corral.wire.pagination import Listing
from corral.wire.query import TimeRange
from corral.wire.sessions import SessionStatus, Thread
from corral.wire.shown_spans import ShownEvent

LIST: Final = "threads"
_STATUSES: Final[frozenset[str]] = frozenset(get_args(SessionStatus))


async def list_threads(call: Call) -> ASGIApp:
    """``GET /v1/sessions/{session_id}/threads``."""
    row = await session_row(call)
    limit = call.query.limit(default=1000, most=1000)
    cursor = pagination.decode(call.query.text("page"), LIST, (int, str), order="asc", scope=row["id"])
    statuses = call.query.values("statuses", _STATUSES)
    after = None if cursor is None else (pagination.moment_of(cursor), str(cursor.position[1]))
    found = await call.services.sessions.threads.page(row, statuses, after=after, limit=limit + 1)
    next_page = None
    if len(found) > limit:
        (moment, thread_id), _ = found[limit - 1]
        place = pagination.time_position(moment, thread_id)
        next_page = pagination.encode(LIST, place, order="asc", scope=row["id"])
    return answer(Listing(data=[shown for _, shown in found[:limit]], next_page=next_page))


async def retrieve(call: Call) -> ASGIApp:
    """``GET /v1/sessions/{session_id}/threads/{thread_id}``."""
    row = await session_row(call)
    return answer(await call.services.sessions.threads.retrieve(row, call.params["thread_id"]))


async def archive(call: Call) -> ASGIApp:
    """``POST /v1/sessions/{session_id}/threads/{thread_id}/archive``: never the primary thread."""
    row = await session_row(call)
    return answer(await call.services.sessions.archive_thread(row["id"], call.params["thread_id"]))


async def list_events(call: Call) -> ASGIApp:
    """``GET /v1/sessions/{session_id}/threads/{thread_id}/events``."""
    row = await session_row(call)
    thread = await call.services.sessions.threads.retrieve(row, call.params["thread_id"])
    # The primary thread's list is the session's.
    shown = EVERYBODY if thread["parent_thread_id"] is None else OWN_THREAD
    return await page_of_events(call, row["id"], thread["id"], "asc", TimeRange(), shown=shown)


_THREADS: Final = "/v1/sessions/{session_id}/threads"

ROUTES = (
    Route(
        "GET",
        _THREADS,
        ANYONE,
        list_threads,
        "List a session's threads, oldest first",
        query=(
            limit(default=1000, most=1000),
            PAGE,
            choices("statuses", "Only threads in these statuses.", _STATUSES),
        ),
        gives=PageOf(Thread),
    ),
    Route("GET", _THREADS + "/{thread_id}", ANYONE, retrieve, "Look at a thread", gives=Thread),
    Route("POST", _THREADS + "/{thread_id}/archive", APPLICATION, archive, "Archive a thread", gives=Thread),
    Route(
        "GET",
        _THREADS + "/{thread_id}/events",
        ANYONE,
        list_events,
        "List a thread's events, oldest first",
        query=(limit(default=1000, most=1000), PAGE),
        gives=PageOf(ShownEvent),
    ),
)
