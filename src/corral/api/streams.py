"""Routes of event streams: server-sent events (contract section 10.10).

The headers go out at once, before any event exists. A stream holds no database connection while it waits,
ends as soon as its client is gone or the server is closing, and never keeps either waiting.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from corral.api.call import Call, disconnected
from corral.api.describe import Stream, choices
from corral.api.principals import ANYONE, WorkToken
from corral.api.reach import session_of, session_row
from corral.api.routing import Route
from corral.wire.events import DELTA_TYPES, EVENT_DELTAS
from corral.wire.shown_spans import StreamEvent

_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


# What comes alone, with nothing behind it to push it through a buffer.
_SMALL: Final = b"event: ping"


class EventStream:
    """A response made of frames that are encoded already. It closes the frames' generator, come what may."""

    def __init__(self, frames: AsyncGenerator[bytes], closing: asyncio.Event, padding: int = 0) -> None:
        self._frames = frames
        self._closing = closing
        # A comment, which every reader of event streams skips.
        self._padding = b":" + b" " * padding + b"\n\n" if padding else b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the frames until they end, the client is gone, or the server is closing."""
        async with aclosing(self._frames):
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            await send({"type": "http.response.body", "body": self._padding, "more_body": True})
            pump = asyncio.ensure_future(self._pump(send))
            ends = [asyncio.ensure_future(disconnected(receive)), asyncio.ensure_future(self._closing.wait())]
            try:
                await asyncio.wait({pump, *ends}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (pump, *ends):
                    task.cancel()
                outcomes = await asyncio.gather(pump, *ends, return_exceptions=True)
            if isinstance(outcomes[0], Exception):
                raise outcomes[0]
            if not ends[0].done() or ends[0].cancelled():
                await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pump(self, send: Send) -> None:
        async for frame in self._frames:
            if frame:
                body = frame + self._padding if frame.startswith(_SMALL) else frame
                await send({"type": "http.response.body", "body": body, "more_body": True})


async def _open(call: Call, session_id: str, thread_id: str | None) -> ASGIApp:
    deltas = call.query.values("event_deltas", DELTA_TYPES, most=EVENT_DELTAS) or []
    worker = isinstance(call.principal, WorkToken)
    frames = call.services.sessions.following.follow(
        session_id, thread_id=thread_id, worker=worker, deltas=deltas
    )
    try:
        # The first frame is empty: from here on nothing is missed. An unknown session fails here, as JSON.
        await anext(frames)
    except BaseException:
        await frames.aclose()
        raise
    return EventStream(frames, call.services.closing, call.services.stream_padding)


async def stream_session(call: Call) -> ASGIApp:
    """``GET /v1/sessions/{session_id}/events/stream``."""
    return await _open(call, await session_of(call), None)


async def stream_thread(call: Call) -> ASGIApp:
    """``GET /v1/sessions/{session_id}/threads/{thread_id}/stream``."""
    row = await session_row(call)
    return await _open(call, row["id"], call.params["thread_id"])


_DELTAS: Final = choices(
    "event_deltas", "Preview events of these types while they take shape.", DELTA_TYPES, most=EVENT_DELTAS
)

ROUTES = (
    Route(
        "GET",
        "/v1/sessions/{session_id}/events/stream",
        ANYONE,
        stream_session,
        "Follow a session's events as they come",
        query=(_DELTAS,),
        gives=Stream(StreamEvent),
    ),
    Route(
        "GET",
        "/v1/sessions/{session_id}/threads/{thread_id}/stream",
        ANYONE,
        stream_thread,
        "Follow a thread's events as they come",
        query=(_DELTAS,),
        gives=Stream(StreamEvent),
    ),
)
