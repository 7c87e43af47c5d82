"""A real MCP server, a real token endpoint and a gateway, each over HTTP on the loopback."""

import asyncio
import base64
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

import mcp_types as types
import msgspec
from mcp.server import MCPServer
from mcp.server.mcpserver import Image
from mcp.server.mcpserver.exceptions import ToolError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from corral.gateway.addresses import Resolver
from corral.gateway.app import create_app
from corral.gateway.keyring import Keys
from corral.gateway.secret_backends import open_backend
from corral.gateway.services import GatewayServices, open_gateway
from corral.server import listen, serving
from corral.settings import Gateway, SecretManager
from corral.store.database import Database
from corral.vault.keys import PrivateKey

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@dataclass
class McpUnderTest:
    """An MCP server of the official package behind a door that looks at tokens.

    ``accepted`` are the tokens that the door lets in; None lets everybody in. ``answer`` is a status that the
    door gives instead, for as long as it is set.
    """

    url: str = ""
    accepted: set[str] | None = None
    answer: int | None = None
    body: bytes = b'{"error":"refused"}'
    seen: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Each message with the headers that it came with."""
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list[tuple[str, dict[str, Any]]])
    """Each call that a tool has taken."""
    started: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the tool `wait` has begun."""
    proceed: asyncio.Event = field(default_factory=asyncio.Event)
    """Lets the tool `wait` go on."""
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    forget: bool = False
    """Forget every connection: each request with one is answered 404, until the next handshake."""

    def methods(self) -> list[str]:
        """The methods of the messages that came, in order."""
        return [one["message"]["method"] for one in self.seen if "method" in one["message"]]


def _tools(under_test: McpUnderTest) -> MCPServer:
    server = MCPServer("under test")

    @server.tool(annotations=types.ToolAnnotations(read_only_hint=True))
    def add(a: int, b: int) -> str:
        """Add two numbers."""
        under_test.calls.append(("add", {"a": a, "b": b}))
        return str(a + b)

    @server.tool()
    def pixel() -> Image:
        """A picture."""
        return Image(data=PIXEL, format="png")

    @server.tool()
    def fail(reason: str) -> str:
        """Fail."""
        raise ToolError(reason)

    @server.tool()
    def long(characters: int) -> str:
        """Say much."""
        return "x" * characters

    @server.tool()
    async def wait() -> str:
        """Wait until it is told to go on."""
        under_test.calls.append(("wait", {}))
        under_test.started.set()
        try:
            await under_test.proceed.wait()
        except asyncio.CancelledError:
            under_test.cancelled.set()
            raise
        return "waited"

    @server.tool()
    def echo_headers() -> str:
        """The headers of the last request."""
        return msgspec.json.encode(under_test.seen[-1]["headers"]).decode()

    return server


class _Door:
    def __init__(self, inner: ASGIApp, under_test: McpUnderTest) -> None:
        self._inner = inner
        self._under_test = under_test

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        body = await request.body() if scope["method"] == "POST" else b""
        headers = dict(request.headers)
        message: dict[str, Any] = msgspec.json.decode(body) if body else {}
        if scope["method"] == "POST":
            self._under_test.seen.append({"message": message, "headers": headers})
        refusal = self._refusal(headers, message)
        if refusal is not None:
            content_type = {"content-type": "application/json"}
            await _Plain(refusal, self._under_test.body, content_type)(scope, receive, send)
            return
        waiting = [{"type": "http.request", "body": body, "more_body": False}]

        async def again() -> Any:
            return waiting.pop() if waiting else await receive()

        await self._inner(scope, again, send)

    def _refusal(self, headers: dict[str, str], message: dict[str, Any]) -> int | None:
        under_test = self._under_test
        if under_test.answer is not None:
            return under_test.answer
        token = headers.get("authorization", "").removeprefix("Bearer ")
        if under_test.accepted is not None and token not in under_test.accepted:
            return 401
        if under_test.forget:
            if message.get("method") == "initialize":
                under_test.forget = False
            elif "mcp-session-id" in headers:
                return 404
        return None


class _Plain:
    def __init__(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self._status = status
        self._body = body
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(name.encode(), value.encode()) for name, value in self._headers.items()]
        await send({"type": "http.response.start", "status": self._status, "headers": headers})
        await send({"type": "http.response.body", "body": self._body})


@asynccontextmanager
async def mcp_server(
    *, accepted: Iterable[str] | None = None, sse: bool = False
) -> AsyncGenerator[McpUnderTest]:
    """A running MCP server; `sse` makes it one that knows the older transport alone."""
    under_test = McpUnderTest(accepted=None if accepted is None else set(accepted))
    server = _tools(under_test)
    app = server.sse_app(sse_path="/mcp") if sse else server.streamable_http_app()
    async with _lifespan(app), serving(_Door(app, under_test), listen("127.0.0.1", 0)) as base_url:
        under_test.url = base_url + "/mcp"
        yield under_test
        under_test.proceed.set()


@asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncGenerator[None]:
    """The application's life in one task of its own: a fixture may end in another than it began in."""
    up, down = asyncio.Event(), asyncio.Event()

    async def live() -> None:
        async with app.router.lifespan_context(app):
            up.set()
            await down.wait()

    living = asyncio.create_task(live())
    await up.wait()
    try:
        yield
    finally:
        down.set()
        await living


@dataclass
class TokenEndpoint:
    """An OAuth token endpoint with rotating refresh tokens: each is good once, a second use revokes all.

    ``answer`` is a status that it gives instead, for as long as it is set.
    """

    url: str = ""
    refresh_token: str = "refresh-0-hunter2"
    answer: int | None = None
    requests: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    headers: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    granted: list[str] = field(default_factory=list[str])
    servers: list[McpUnderTest] = field(default_factory=list[McpUnderTest])
    """They accept each new token, and no earlier one."""
    hold: asyncio.Event | None = None
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    revoked: bool = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        form = {name: values[0] for name, values in parse_qs((await request.body()).decode()).items()}
        self.requests.append(form)
        self.headers.append(dict(request.headers))
        self.asked.set()
        if self.hold is not None:
            await self.hold.wait()
        await self._answer(form)(scope, receive, send)

    def _answer(self, form: dict[str, str]) -> JSONResponse:
        if self.answer is not None:
            return JSONResponse({"error": "temporarily_unavailable"}, self.answer)
        if self.revoked or form.get("refresh_token") != self.refresh_token:
            self.revoked = True
            told = {"error": "invalid_grant", "sent": form.get("refresh_token")}
            return JSONResponse(told, 400)
        number = len(self.granted) + 1
        access = f"access-{number}-hunter2"
        self.refresh_token = f"refresh-{number}-hunter2"
        self.granted.append(access)
        for server in self.servers:
            server.accepted = {access}
        return JSONResponse({"access_token": access, "refresh_token": self.refresh_token, "expires_in": 3600})


@asynccontextmanager
async def token_endpoint(*servers: McpUnderTest) -> AsyncGenerator[TokenEndpoint]:
    """A running token endpoint whose tokens `servers` accept."""
    endpoint = TokenEndpoint(servers=list(servers))
    async with serving(endpoint, listen("127.0.0.1", 0)) as base_url:
        endpoint.url = base_url + "/token"
        yield endpoint


@dataclass(frozen=True)
class GatewayUnderTest:
    """A gateway in this process."""

    url: str
    services: GatewayServices


@asynccontextmanager
async def gateway_at_work(
    database: Database,
    key: PrivateKey,
    *,
    port: int = 0,
    former: Sequence[PrivateKey] = (),
    secret_manager: SecretManager | None = None,
    resolver: Resolver | None = None,
    **settings: Any,
) -> AsyncGenerator[GatewayUnderTest]:
    """A gateway on the database, for which the loopback is an internal range unless told otherwise."""
    loopback: dict[str, Any] = {"internal": ["127.0.0.0/8"]}
    given = Gateway(**(loopback | settings))
    keys = Keys(lambda: [key, *former])
    async with AsyncExitStack() as stack:
        backend = await stack.enter_async_context(open_backend(secret_manager or SecretManager()))
        services = await stack.enter_async_context(
            open_gateway(given, database, keys, backend, resolver=resolver)
        )
        url = await stack.enter_async_context(serving(create_app(services), listen("127.0.0.1", port)))
        yield GatewayUnderTest(url, services)
