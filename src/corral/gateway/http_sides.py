"""The two sides of a proxied exchange, on h11: requests as they come in, the connection they go out by."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import h11

from corral.gateway.channel import Channel, ChannelClosed

Headers: TypeAlias = list[tuple[bytes, bytes]]

HEAD_BYTES: Final = 64 * 1024
_NO_CONTENT: Final = b"text/plain; charset=utf-8"
# Of one connection alone (RFC 9110, 7.6.1), and what is for a proxy.
_HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
        b"expect",
    }
)


@dataclass(frozen=True, slots=True)
class Times:
    """How long a side may be silent, in seconds.

    head: from the first byte of a request to the end of its headers. rest: between two requests. body:
    between two pieces of a body. answer: from the end of a request to its answer.
    """

    head: float = 20.0
    rest: float = 75.0
    body: float = 60.0
    answer: float = 600.0
    connect: float = 10.0


class Refused(Exception):
    """The request is answered here, with this status and this text, instead of being passed on."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class UpstreamFailed(Exception):
    """The server could not be reached, or did not speak HTTP. `fresh`: not one byte of an answer had come."""

    def __init__(self, text: str, *, fresh: bool = False) -> None:
        super().__init__(text)
        self.fresh = fresh


class Incoming:
    """Requests of one client connection, one after the other."""

    def __init__(self, channel: Channel, times: Times) -> None:
        self._channel = channel
        self._times = times
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)

    @property
    def reusable(self) -> bool:
        """Whether another request may follow."""
        return self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE

    @property
    def answering(self) -> bool:
        """Whether no part of the present answer has been sent."""
        return self._h11.our_state in (h11.SEND_RESPONSE, h11.IDLE)

    @property
    def unparsed(self) -> bytes:
        """What the client has sent beyond its request."""
        return self._h11.trailing_data[0]

    async def request(self) -> h11.Request | None:
        """The next request; None if the client has ended or is silent.

        Raises:
            Refused: what came is no request that can be understood in one way only.
        """
        if self._h11.our_state is h11.DONE:
            self._h11.start_next_cycle()
        begun = bool(self._h11.trailing_data[0])
        try:
            if not begun:
                async with asyncio.timeout(self._times.rest):
                    data = await self._channel.read()
                self._h11.receive_data(data)
            async with asyncio.timeout(self._times.head):
                event = await self._next()
        except TimeoutError:
            return None
        if isinstance(event, h11.Request):
            check_framing(event)
            return event
        return None

    async def body(self) -> AsyncGenerator[bytes]:
        """The pieces of the present request's body. Raises `Refused`, `ChannelClosed`."""
        if self._h11.they_are_waiting_for_100_continue:
            go_on = h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
            await self._send(go_on)
        while True:
            try:
                async with asyncio.timeout(self._times.body):
                    event = await self._next()
            except TimeoutError:
                raise ChannelClosed("the client has stopped sending") from None
            if isinstance(event, h11.Data):
                yield bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return
            else:
                raise ChannelClosed("the client left within a request")

    async def left(self) -> None:
        """Return once the client has gone. What it sends before is kept: it is its next request."""
        while data := await self._channel.read():
            self._h11.receive_data(data)
            if len(self.unparsed) > HEAD_BYTES:
                await asyncio.get_running_loop().create_future()  # no more is taken in before it is its turn

    async def begin(self, status: int, headers: Headers, reason: bytes) -> None:
        """Send the head of an answer. Like all that sends, raises `ChannelClosed`."""
        await self._send(h11.Response(status_code=status, headers=headers, reason=reason))

    async def piece(self, data: bytes) -> None:
        """Send a piece of its body."""
        await self._send(h11.Data(data=data))

    async def end(self) -> None:
        """End the answer."""
        await self._send(h11.EndOfMessage())

    async def tunnel(self) -> None:
        """Agree to a CONNECT; what follows is no longer HTTP of this side."""
        await self._send(h11.Response(status_code=200, headers=[], reason=b"Connection established"))

    async def refuse(self, refused: Refused) -> None:
        """Answer a request here and end the connection; nothing if an answer is half out."""
        if not self.answering:
            return
        text = (str(refused) + "\n").encode()
        headers = [
            (b"content-type", _NO_CONTENT),
            (b"content-length", str(len(text)).encode()),
            (b"x-corral-egress", b"refused" if refused.status < 500 else b"failed"),
            (b"connection", b"close"),
        ]
        try:
            await self.begin(refused.status, headers, b"")
            if self._h11.our_state is h11.SEND_BODY:
                await self.piece(text)
                await self.end()
        except ChannelClosed:
            return  # the request was such that it can only be broken off

    async def _next(self) -> object:
        while True:
            try:
                event = self._h11.next_event()
            except h11.RemoteProtocolError as error:
                raise Refused(error.error_status_hint, f"malformed request: {error}") from error
            if event is not h11.NEED_DATA:
                return event
            self._h11.receive_data(await self._channel.read())

    async def _send(self, event: h11.Event) -> None:
        try:
            data = self._h11.send(event)
        except h11.LocalProtocolError as error:
            raise ChannelClosed(f"the answer does not fit the request: {error}") from error
        if not data:
            return
        try:
            async with asyncio.timeout(self._times.body):
                await self._channel.write(data)
        except TimeoutError:
            raise ChannelClosed("the client does not take its answer") from None


class Outgoing:
    """One connection to a server."""

    def __init__(self, channel: Channel, times: Times) -> None:
        self._channel = channel
        self._times = times
        self._h11 = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES)
        self._answered = False
        self.used = False
        """Whether it has carried an exchange before the present one."""

    @property
    def reusable(self) -> bool:
        """Whether another request can be sent."""
        return self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE

    @property
    def idle(self) -> bool:
        """Whether it waits for a request, and the server has not ended it."""
        return self._h11.our_state is h11.IDLE and not self._channel.at_end

    def next_exchange(self) -> None:
        """Make ready for another request."""
        self._h11.start_next_cycle()
        self.used, self._answered = True, False

    async def send(self, event: h11.Event) -> None:
        """Send a part of a request. Raises `UpstreamFailed`."""
        try:
            data = self._h11.send(event)
        except h11.LocalProtocolError as error:
            raise UpstreamFailed(f"the request cannot be passed on: {error}") from error
        if data:
            try:
                async with asyncio.timeout(self._times.body):
                    await self._channel.write(data)
            except (ChannelClosed, TimeoutError) as error:
                raise UpstreamFailed("the server does not take the request", fresh=True) from error

    async def head(self) -> h11.Response:
        """The head of the answer; what comes before it (status 1xx) is left out. Raises `UpstreamFailed`."""
        while True:
            event = await self._receive(self._times.answer)
            if isinstance(event, h11.Response):
                return event
            if not isinstance(event, h11.InformationalResponse):
                raise UpstreamFailed("the server has closed the connection", fresh=True)

    async def body(self) -> AsyncGenerator[bytes]:
        """The pieces of the answer's body. Raises `UpstreamFailed`."""
        while True:
            event = await self._receive(self._times.answer)
            if isinstance(event, h11.Data):
                yield bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return
            else:
                raise UpstreamFailed("the server has broken off within its answer")

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()

    async def _receive(self, seconds: float) -> object:
        while True:
            try:
                event = self._h11.next_event()
            except h11.RemoteProtocolError as error:
                fresh = not self._answered
                raise UpstreamFailed(f"the server does not speak HTTP: {error}", fresh=fresh) from error
            if event is not h11.NEED_DATA:
                return event
            try:
                async with asyncio.timeout(seconds):
                    data = await self._channel.read()
            except TimeoutError:
                raise UpstreamFailed("the server does not answer") from None
            except ChannelClosed as error:
                text = "the server has broken the connection off"
                raise UpstreamFailed(text, fresh=not self._answered) from error
            self._answered = self._answered or bool(data)
            self._h11.receive_data(data)


def check_framing(request: h11.Request) -> None:
    """Refuse what two programs could cut into different requests.

    Raises:
        Refused: both ways of telling a body's length, two hosts, headers beyond all measure, or another
            version of HTTP.
    """
    if sum(len(name) + len(value) for name, value in request.headers) + len(request.target) > HEAD_BYTES:
        raise Refused(431, "the headers are too large")
    if request.http_version not in (b"1.0", b"1.1"):
        raise Refused(505, "HTTP/1.1 is spoken here")
    names = [name for name, _ in request.headers]
    if b"transfer-encoding" in names and (b"content-length" in names or request.http_version < b"1.1"):
        raise Refused(400, "a request has either a transfer-encoding or a content-length")
    if names.count(b"host") > 1:
        raise Refused(400, "a request has one host")


def end_to_end(headers: Sequence[tuple[bytes, bytes]]) -> Headers:
    """The headers that are meant for the other end: without those of one connection."""
    named = {
        token.strip().lower()
        for name, value in headers
        if name.lower() == b"connection"
        for token in value.split(b",")
    }
    return [
        (name, value)
        for name, value in headers
        if name.lower() not in _HOP_BY_HOP and (name.lower() not in named or name.lower() in _KEPT)
    ]


# A client cannot have these taken out by calling them its own connection's.
_KEPT: Final = frozenset({b"host", b"content-length", b"authorization", b"content-type"})
