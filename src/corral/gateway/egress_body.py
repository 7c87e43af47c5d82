"""A request's body on its way out of a sandbox, with secrets put in where that is wanted."""

from contextlib import AsyncExitStack, aclosing
from typing import Final, Self

import h11

from corral.gateway.egress_clearance import House
from corral.gateway.http_sides import Headers, Incoming, Outgoing, Refused, UpstreamFailed
from corral.gateway.injection import BodyInjection, Injection

_SMALL: Final = 64 * 1024
"""Bytes of a body that is read as a whole without waiting for a turn."""


class RequestBody:
    """The body of one request. Use it with ``async with``. Raises `Refused` if it says that it is too large.

    One whose stated length may change is read as a whole, and of those a session has a few in memory at a
    time; others go through as they come.
    """

    def __init__(
        self,
        incoming: Incoming,
        request: h11.Request,
        injection: Injection | None,
        house: House,
        session_id: str,
    ) -> None:
        self._incoming = incoming
        self._house = house
        self._session_id = session_id
        named = {name.lower(): value for name, value in request.headers}
        self._length = int(named[b"content-length"]) if b"content-length" in named else None
        self._chunked = b"transfer-encoding" in named
        self._whole: bytes | None = None
        self._turn = AsyncExitStack()
        self._injection: BodyInjection | None = None
        readable = named.get(b"content-encoding", b"identity") == b"identity"
        if injection is not None and injection.into_bodies and readable:
            self._injection = injection.body(named.get(b"content-type", b""))
        if self._length is not None and self._length > house.body_bytes:
            raise Refused(413, "the request is larger than gateway.egress_body_bytes")

    @property
    def streams(self) -> bool:
        """Whether there is a body that can be read once only."""
        return self._chunked or bool(self._length)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._forget()

    async def prepare(self, headers: Headers) -> Headers:
        """The headers, with the length that the body will have. Reads it if that is not known otherwise."""
        if self._chunked:
            return [*headers, (b"transfer-encoding", b"chunked")]
        if not self._length or self._injection is None or self._length > self._house.rewritten_bytes:
            self._injection = None
            return headers
        if self._length > _SMALL:
            await self._turn.enter_async_context(self._house.bodies.one(self._session_id))
        self._whole = await self._read(self._injection)
        kept = [(name, value) for name, value in headers if name.lower() != b"content-length"]
        return [*kept, (b"content-length", str(len(self._whole)).encode())]

    async def _read(self, injection: BodyInjection) -> bytes:
        whole = bytearray()
        async with aclosing(self._incoming.body()) as pieces:
            async for piece in pieces:
                whole += await injection.feed(piece)
        return bytes(whole + injection.finish())

    async def _forget(self) -> None:
        """What was read is not needed any more: let another have the turn."""
        self._whole = None
        await self._turn.aclose()

    async def send(self, outgoing: Outgoing) -> None:
        """Send it all. Raises `UpstreamFailed`, `Refused`, `ChannelClosed`."""
        if self._whole is not None:
            await outgoing.send(h11.Data(data=self._whole))
            await self._forget()
        elif self.streams:
            await self._stream(outgoing)
        else:
            async with aclosing(self._incoming.body()) as pieces:
                async for _ in pieces:
                    continue
        await outgoing.send(h11.EndOfMessage())

    async def _stream(self, outgoing: Outgoing) -> None:
        taken = 0
        async with aclosing(self._incoming.body()) as pieces:
            async for piece in pieces:
                taken += len(piece)
                if taken > self._house.body_bytes:
                    raise UpstreamFailed("the request is larger than gateway.egress_body_bytes")
                passed = piece if self._injection is None else await self._injection.feed(piece)
                if passed:
                    await outgoing.send(h11.Data(data=passed))
        rest = b"" if self._injection is None else self._injection.finish()
        if rest:
            await outgoing.send(h11.Data(data=rest))
