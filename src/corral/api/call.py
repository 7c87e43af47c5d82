"""One request on its way through a route: what it carries, and the answers that a route gives back."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import ASGIApp, Receive

from corral.api.body_room import HeldRoom
from corral.api.principals import Principal
from corral.api.services import Services
from corral.wire import decode as wire
from corral.wire import pagination
from corral.wire.errors import InvalidRequest, PermissionDenied, RequestTooLarge
from corral.wire.fields import Request
from corral.wire.pagination import Order, Page
from corral.wire.query import Query

R = TypeVar("R", bound=Request)

# Bodies above this are decoded off the event loop.
_LARGE: Final = 256 * 1024
# A body that is too large is read on up to here, so that its sender gets to read the answer.
_DRAINED: Final = 4 * wire.BODY_BYTES


@dataclass(frozen=True, slots=True)
class Call:
    """A request that has found its route and whose caller may use it."""

    services: Services
    http: HttpRequest
    params: dict[str, str]
    caller: Principal | None
    query: Query
    room: HeldRoom
    """For the body, until the answer is out."""

    @property
    def principal(self) -> Principal:
        """The caller; only open routes have none."""
        if self.caller is None:
            raise PermissionDenied("This route needs a credential.")
        return self.caller

    async def body(self) -> bytes:
        """The whole body.

        Raises:
            InvalidRequest: it is compressed.
            RequestTooLarge: it has more than 32 MB.
            Overloaded: the bodies of other requests take all the memory that there is for them.
        """
        coding = self.http.headers.get("content-encoding", "identity").strip().lower()
        if coding not in ("identity", ""):
            raise InvalidRequest(
                f"content-encoding: {coding[:40]!r} is not supported; send the body as it is"
            )
        await self.room.reach(min(self._announced, wire.BODY_BYTES))
        chunks: list[bytes] = []
        size = 0
        async for chunk in self.http.stream():
            size += len(chunk)
            if size <= wire.BODY_BYTES:
                await self.room.reach(size)
                chunks.append(chunk)
            elif size > _DRAINED:
                break
        if size > wire.BODY_BYTES:
            raise RequestTooLarge(f"Request body exceeds the maximum of {wire.BODY_BYTES} bytes")
        return b"".join(chunks)

    @property
    def _announced(self) -> int:
        """How long the request says that its body is."""
        length = self.http.headers.get("content-length", "")
        return int(length) if length.isascii() and length.isdigit() else 0

    async def decode(self, type_: type[R]) -> R:
        """The body as a struct; see `corral.wire.decode.decode`."""
        body = await self.body()
        if len(body) > _LARGE:
            return await asyncio.to_thread(wire.decode, body, type_)
        return wire.decode(body, type_)

    async def decode_optional(self, type_: type[R]) -> R:
        """The body as a struct, or the struct's defaults where the body is empty."""
        body = await self.body()
        return wire.decode(body, type_) if body.strip() else type_()

    def page(self, kind: str, shape: tuple[type, ...], *, scope: str = "", order: Order = "desc") -> Page:
        """The page that a list of at most 100 items is asked for (20 unless said otherwise)."""
        return Page(
            limit=self.query.limit(default=20, most=100),
            order=order,
            after=pagination.decode(self.query.text("page"), kind, shape, order=order, scope=scope),
        )


Handler: TypeAlias = Callable[[Call], Awaitable[ASGIApp]]


async def disconnected(receive: Receive) -> None:
    """Return when the client of a request is gone. What it may still have sent is thrown away."""
    while (await receive())["type"] != "http.disconnect":
        pass


def answer(value: Any, status: int = 200) -> Response:
    """A JSON response of anything that msgspec can encode."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def raw_page(data: list[bytes], **cursors: str | None) -> Response:
    """A list response of items that are encoded already."""
    parts = [b'{"data":[', b",".join(data), b"]"]
    parts += [f',"{name}":'.encode() + msgspec.json.encode(value) for name, value in cursors.items()]
    return Response(b"".join([*parts, b"}"]), media_type="application/json")
