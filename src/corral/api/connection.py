"""What a connection may ask of the server around a request: a head of bounded size, in bounded time, and room
for an answer only while somebody takes it.

uvicorn's own protocol keeps a head of any size in memory and waits for its end for ever. Here a request line
and headers may have 64 KiB together and take 30 seconds, and what is no HTTP is refused in the API's
envelope. A body has to keep coming (`Arriving`); its size is for whoever reads it. A client that takes
nothing of an answer for long is disconnected, whatever the answer: a list of events, a file, a stream.
"""

import asyncio
import socket
import struct
from typing import Any, Final

import structlog
from starlette.types import Message, Receive
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from corral.wire.errors import ApiError, HeadTooLarge, InvalidRequest, RequestTimeout
from corral.wire.ids import new_id

HEAD_BYTES: Final = 64 * 1024
"""Most bytes of a request line and its headers; the longest documented query has a tenth of it."""
HEAD_SECONDS: Final = 30.0
"""How long a head may take to arrive, from its first byte or, on a new connection, from the beginning."""
STALLED_SECONDS: Final = 30.0
"""How long an answer may wait without a byte of it being taken, unless the settings say otherwise."""
_REASONS: Final = {400: "Bad Request", 408: "Request Timeout", 431: "Request Header Fields Too Large"}

_log = structlog.get_logger(__name__)


class Arriving:
    """A request's messages. Each piece of its body has to come within so many seconds of the one before."""

    def __init__(self, receive: Receive, seconds: float) -> None:
        self._receive = receive
        self._seconds = seconds
        self._complete = False

    async def __call__(self) -> Message:
        """The next message.

        Raises:
            RequestTimeout: the body is not complete and stopped coming.
        """
        if self._complete:
            return await self._receive()
        try:
            async with asyncio.timeout(self._seconds):
                message = await self._receive()
        except TimeoutError:
            raise RequestTimeout(f"No more of the request's body came for {self._seconds:g} s") from None
        self._complete = message["type"] != "http.request" or not message.get("more_body", False)
        return message


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with bounds on a request's head and a waiting answer. Subclasses may set others."""

    head_bytes = HEAD_BYTES
    head_seconds = HEAD_SECONDS
    stalled_seconds = STALLED_SECONDS

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._head = 0
        self._reading_head = True
        self._late: asyncio.TimerHandle | None = None
        self._refusal: ApiError | None = None
        self._untaken = 0
        self._stalling: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The head of the first request is due."""
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is due any more."""
        self._head_is_here()
        self._answer_moves()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came, unless the head that it belongs to has grown too large."""
        if self._reading_head:
            self._head += len(data)
        super().data_received(data)
        if self._reading_head and self._head > self.head_bytes and not self.transport.is_closing():
            self._refuse(self._too_large())

    def on_message_begin(self) -> None:
        """A head begins."""
        super().on_message_begin()
        if not self._reading_head:
            self._head = 0
            self._expect_head()

    def on_headers_complete(self) -> None:
        """The head is here; a chunk may have brought all of one that is too large."""
        self._head_is_here()
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self.head_bytes:
            self._refusal = self._too_large()
            raise ValueError("the head is too large")  # the parser stops, and `send_400_response` answers
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, or what is too large."""
        self._refuse(self._refusal or InvalidRequest(f"{msg} It cannot be read as HTTP/1.1."))

    def pause_writing(self) -> None:
        """More waits than the client takes; whoever makes the answer waits from here on."""
        super().pause_writing()
        self._untaken = self.transport.get_write_buffer_size()
        self._answer_moves()
        loop = asyncio.get_running_loop()
        self._stalling = loop.call_later(self.stalled_seconds, self._look_whether_answer_moves)

    def resume_writing(self) -> None:
        """The client has taken what waited."""
        self._answer_moves()
        super().resume_writing()

    def _answer_moves(self) -> None:
        if self._stalling is not None:
            self._stalling.cancel()
            self._stalling = None

    def _look_whether_answer_moves(self) -> None:
        self._stalling = None
        before, self._untaken = self._untaken, self.transport.get_write_buffer_size()
        if self._untaken < before:
            loop = asyncio.get_running_loop()
            self._stalling = loop.call_later(self.stalled_seconds, self._look_whether_answer_moves)
            return
        _log.info("disconnected a client that does not read", seconds=self.stalled_seconds, bytes=before)
        # What lies in the kernel goes too: it would wait there for minutes, for a window that does not open.
        connection: socket.socket = self.transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def _expect_head(self) -> None:
        self._reading_head = True
        if self._late is None:
            self._late = asyncio.get_running_loop().call_later(self.head_seconds, self._head_is_late)

    def _head_is_here(self) -> None:
        self._reading_head = False
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _head_is_late(self) -> None:
        self._late = None
        if self._head:
            self._refuse(RequestTimeout(f"The request's head did not arrive within {self.head_seconds:g} s"))
        else:
            self.transport.close()  # a connection that never asked for anything

    def _too_large(self) -> ApiError:
        return HeadTooLarge(f"The request line and the headers exceed the maximum of {self.head_bytes} bytes")

    def _refuse(self, fault: ApiError) -> None:
        self._head_is_here()
        request_id = new_id("req")
        body = fault.body(request_id)
        head = (
            f"HTTP/1.1 {fault.status} {_REASONS[fault.status]}\r\n"
            "content-type: application/json\r\n"
            f"content-length: {len(body)}\r\n"
            f"request-id: {request_id}\r\n"
            f"x-should-retry: {'true' if fault.should_retry else 'false'}\r\n"
            "connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


def bounded(stalled_seconds: float) -> type[BoundedProtocol]:
    """The protocol, with this bound on how long an answer may wait for a client that does not read."""
    return type("BoundedProtocol", (BoundedProtocol,), {"stalled_seconds": stalled_seconds})
