"""Routes of threads (contract section 11). A session has its primary thread, and no other."""

from typing import Final, get_args

from starlette.types import ASGIApp

from corral.api.call import Call, answer
from corral.api.events import page_of_events
from corral.api.principals import ANYONE, APPLICATION
from corral.api.reach import session_row
from corral.api.routing import Route
from corral.session.records import Row, thread_object
from corral.wire import pagination
from corral.wire.errors import InvalidRequest, NotFound
from corral.wire.pagination import Listing
from corral.wire.query import TimeRange
from corral.wire.sessions import SessionStatus

_STATUSES: Final[frozenset[str]] = frozenset(get_args(SessionStatus))


async def thread_row(call: Call) -> Row:
    """The row of the session whose primary thread is the one in the path.

    Raises:
        NotFound: the session, or the thread in it, does not exist or not for this caller.
    """
    row = await session_row(call)
    thread_id = call.params["thread_id"]
    if row["primary_thread_id"] != thread_id:
        raise NotFound(f"thread {thread_id} not found")
    return row


async def list_threads(call: Call) -> ASGIApp:
    """``GET /v1/sessions/{session_id}/threads``."""
    row = await session_row(call)
    call.query.limit(default=1000, most=1000)
    pagination.decode(call.query.text("page"), "threads", (int, str), order="asc", scope=row["id"])
    statuses = call.query.values("statuses", _STATUSES)
    shown = statuses is None or row["status"] in statuses
    return answer(Listing(data=[thread_object(row)] if shown else [], next_page=None))


async def retrieve(call: Call) -> ASGIApp:
    """``GET /v1/sessions/{session_id}/threads/{thread_id}``."""
    return answer(thread_object(await thread_row(call)))


async def archive(call: Call) -> ASGIApp:
    """``POST /v1/sessions/{session_id}/threads/{thread_id}/archive``: never the primary thread."""
    await thread_row(call)
    raise InvalidRequest("The primary thread cannot be archived. Archive the session instead.")


async def list_events(call: Call) -> ASGIApp:
    """``GET /v1/sessions/{session_id}/threads/{thread_id}/events``."""
    row = await thread_row(call)
    return await page_of_events(call, row["id"], row["primary_thread_id"], "asc", TimeRange())


_THREADS: Final = "/v1/sessions/{session_id}/threads"

ROUTES = (
    Route("GET", _THREADS, ANYONE, list_threads),
    Route("GET", _THREADS + "/{thread_id}", ANYONE, retrieve),
    Route("POST", _THREADS + "/{thread_id}/archive", APPLICATION, archive),
    Route("GET", _THREADS + "/{thread_id}/events", ANYONE, list_events),
)
