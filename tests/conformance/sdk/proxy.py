"""The proxy between the SDK's tests and the server.

The tests name resources that do not exist and send placeholders. For each request the proxy makes the named
resources through the server's public API, puts their ids in, turns placeholders into valid values, and sends
the request on with a credential that the server knows. The server's answer goes back byte for byte, whatever
it is. A request that cannot be prepared is answered 424 with the reason.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import httpx
import msgspec
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from tests.conformance.sdk import placeholders
from tests.conformance.sdk.asked import Asked
from tests.conformance.sdk.keys import EnvironmentKeys, NoKey
from tests.conformance.sdk.public_api import PublicApi, Refused
from tests.conformance.sdk.routes import ALL, Routes
from tests.conformance.sdk.workshop import NotMade, Workshop

_HOP: Final = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "upgrade", "te", "trailer", "proxy-connection"}
)
_OURS: Final = _HOP | {"host", "authorization", "x-api-key", "content-length"}
_READ_SECONDS: Final = 60.0
_METHODS: Final = ["GET", "POST", "DELETE", "PUT", "PATCH"]


class Proxy:
    """Prepares requests and sends them on; see the module."""

    def __init__(self, http: httpx.AsyncClient, api_key: str, keys: EnvironmentKeys, model: str) -> None:
        self._http = http
        self._api_key = api_key
        self._workshop = Workshop(PublicApi(http, api_key), keys, model)
        self._routes = Routes(ALL)

    async def serve(self, request: Request) -> Response:
        """Answer one request of a test."""
        found = self._routes.find(request.method, request.url.path)
        if found is None:
            return _unprepared(f"no rule for {request.method} {request.url.path}")
        asked = Asked.read(
            request.method,
            found.template,
            found.params,
            request.url.query,
            request.headers,
            await request.body(),
        )
        try:
            await found.rule(asked, self._workshop)
            await self._fill(asked)
        except (Refused, NoKey, NotMade, httpx.TransportError) as error:
            return _unprepared(str(error) or type(error).__name__)
        try:
            return await self._forward(asked)
        except httpx.TransportError as error:
            return _told(502, f"The server broke off the test's request: {type(error).__name__} {error}")

    async def _fill(self, asked: Asked) -> None:
        placeholders.fill(asked)
        if placeholders.wants_cursor(asked):
            placeholders.turn_to(asked, await self._workshop.next_page(asked.path, asked.query, asked.key))

    async def _forward(self, asked: Asked) -> Response:
        headers = {name: value for name, value in asked.headers.items() if name not in _OURS}
        headers["authorization"] = f"Bearer {asked.key or self._api_key}"
        url = asked.path + (f"?{asked.query_string}" if asked.query else "")
        request = self._http.build_request(asked.method, url, headers=headers, content=asked.payload)
        answer = await self._http.send(request, stream=True)
        response = StreamingResponse(
            _raw(answer), answer.status_code, background=BackgroundTask(answer.aclose)
        )
        response.raw_headers = [
            (name.lower(), value) for name, value in answer.headers.raw if name.decode().lower() not in _HOP
        ]
        return response


async def _raw(answer: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for chunk in answer.aiter_raw():
            yield chunk
    finally:
        await answer.aclose()


def _unprepared(why: str) -> Response:
    return _told(424, f"The test's request was not sent: {why}")


def _told(status: int, message: str) -> Response:
    """An answer of the proxy's own; the SDK must not try again, since it would be the same."""
    error = {"type": "error", "error": {"type": "proxy_error", "message": message}}
    headers = {"x-should-retry": "false"}
    return Response(msgspec.json.encode(error), status, headers, media_type="application/json")


@asynccontextmanager
async def proxy_app(
    target: str, api_key: str, keys: EnvironmentKeys, model: str
) -> AsyncGenerator[Starlette]:
    """The proxy for the server at ``target`` as an ASGI application; its connections end with it."""
    timeout = httpx.Timeout(_READ_SECONDS)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
    async with httpx.AsyncClient(base_url=target, timeout=timeout, limits=limits, trust_env=False) as http:
        proxy = Proxy(http, api_key, keys, model)
        yield Starlette(routes=[Route("/{path:path}", proxy.serve, methods=_METHODS)])
