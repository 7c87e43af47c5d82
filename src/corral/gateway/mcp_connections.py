"""Connections to MCP servers: opened when they are needed, kept between the calls of a session, then closed.

The client's streams and tasks belong to the task that opened them, so each connection has a task of its own;
calls are made from others. A server may keep state for its client (a browser, a shell), which is why a
connection is one session's alone.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, TypeVar, cast

import httpx2
import mcp_types as types
from mcp import ClientSession, MCPError
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

import corral
from corral.gateway.addresses import Reach
from corral.gateway.http import CheckedTransport, Exchange, exchange
from corral.gateway.identity import HEADER as IDENTITY
from corral.gateway.mcp_results import TOOLS
from corral.gateway.tokens import Held

_PAGES: Final = 50
_GONE: Final = 404
_NO_STREAMABLE: Final = range(400, 500)

T = TypeVar("T")

# What the package logs holds messages of the protocol, and so the content of calls.
for _name in ("mcp", "httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)


class Unusable(Exception):
    """An MCP server could not be used; the message says why and holds no secret.

    ``denied``: it refused the credential, or wants one. ``expired``: it no longer knows the connection, so
    the request had no effect. ``sent``: the request may have had an effect all the same.
    """

    def __init__(
        self, reason: str, *, denied: bool = False, expired: bool = False, sent: bool = False
    ) -> None:
        super().__init__(reason)
        self.denied: Final = denied
        self.expired: Final = expired
        self.sent: Final = sent


class _Session(ClientSession):
    """Passes results on as they are: whether they fit the server's schema is not for the gateway to judge."""

    async def validate_tool_result(self, name: str, result: types.CallToolResult) -> None:
        """Accept any result."""


class Connection:
    """One connection to one MCP server with one token."""

    def __init__(
        self,
        url: str,
        reach: Reach,
        held: Held | None,
        sign: Callable[[], str] | None,
        *,
        connect_seconds: float,
        call_seconds: float,
        idle_seconds: float,
    ) -> None:
        self.url: Final = url
        self.held: Final = held
        self._reach = reach
        self._sign = sign
        self._connect_seconds = connect_seconds
        self._call_seconds = call_seconds
        self._idle_seconds = idle_seconds
        self._transport = CheckedTransport(reach, url)
        self._opening = Exchange()
        self._session: ClientSession | None = None
        self._closing = asyncio.Event()
        self._calls = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        """Whether requests can be made on it."""
        return self._task is not None and not self._task.done() and not self._closing.is_set()

    async def open(self) -> None:
        """Connect and agree on a version of the protocol; by SSE where the server knows nothing newer.

        Raises:
            Unusable: that failed.
        """
        try:
            async with asyncio.timeout(self._connect_seconds):
                try:
                    await self._start(sse=False)
                except Unusable as error:
                    if error.denied or self._opening.status not in _NO_STREAMABLE:
                        raise
                    await self._start(sse=True)
        except TimeoutError:
            await self.close()
            raise Unusable(f"it did not answer within {self._connect_seconds:g} s") from None
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End the connection; again does nothing."""
        self._closing.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._transport.aclose()

    async def tools(self) -> list[types.Tool]:
        """All tools of the server.

        Raises:
            Unusable: it did not tell.
        """
        found = list[types.Tool]()
        cursor: str | None = None
        for _ in range(_PAGES):
            params = types.PaginatedRequestParams(cursor=cursor)
            try:
                page = await self._asked(self._open_session.list_tools(params=params), Exchange())
            except MCPError as error:
                raise Unusable(f"it does not list its tools: {error.message}") from None
            found += page.tools
            cursor = page.next_cursor
            if cursor is None or len(found) >= TOOLS:
                break
        return found[:TOOLS]

    async def call(self, tool: str, given: dict[str, Any], key: str) -> types.CallToolResult:
        """Call a tool; `key` tells the server a repeated call from a new one.

        Raises:
            Unusable: there is no result, and the server gave no error of the tool's own.
            MCPError: the server refused the call.
        """
        meta: Any = {"idempotencyKey": key}
        return await self._asked(self._open_session.call_tool(tool, given, meta=meta), Exchange(key))

    @property
    def _open_session(self) -> ClientSession:
        if self._session is None or not self.alive:
            raise Unusable("the connection was closed")
        return self._session

    async def _asked(self, request: Coroutine[Any, Any, T], seen: Exchange) -> T:
        """The answer of one request; ends with the connection."""
        assert self._task is not None
        self._calls += 1
        exchange.set(seen)
        asking = asyncio.ensure_future(request)
        try:
            await asyncio.wait({asking, self._task}, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                raise self._lost(seen)
            return asking.result()
        except MCPError as error:
            raise _explained(error, seen) from None
        finally:
            self._calls -= 1
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    def _lost(self, seen: Exchange) -> Unusable:
        task = self._task
        cause = task.exception() if task is not None and task.done() and not task.cancelled() else None
        if seen.denied is not None:
            return Unusable(f"it answered {seen.denied}", denied=True)
        return Unusable(_reason(cause), sent=not isinstance(_leaf(cause), httpx2.ConnectError))

    async def _start(self, *, sse: bool) -> None:
        self._opening = Exchange()
        exchange.set(self._opening)
        ready = asyncio.Event()
        self._task = asyncio.create_task(self._own(ready, sse=sse), name="MCP connection")
        waiting = asyncio.create_task(ready.wait())
        try:
            await asyncio.wait({self._task, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if self._task.done():
                raise self._lost(self._opening)
        except BaseException:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            raise
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    async def _own(self, ready: asyncio.Event, *, sse: bool) -> None:
        """Hold the connection open until it is closed or has been idle for long."""
        async with self._streams(sse=sse) as (read, write):
            info = types.Implementation(name="corral", version=corral.__version__)
            async with _Session(read, write, client_info=info) as session:
                await _agree(session, sse=sse)
                self._session = session
                ready.set()
                while True:
                    before = self._calls
                    try:
                        async with asyncio.timeout(self._idle_seconds):
                            await self._closing.wait()
                            return
                    except TimeoutError:
                        if self._calls == 0 and before == 0:
                            self._closing.set()
                            return

    @asynccontextmanager
    async def _streams(self, *, sse: bool) -> AsyncGenerator[tuple[Any, Any]]:
        async with AsyncExitStack() as stack:
            if sse:
                streams = sse_client(self.url, httpx_client_factory=self._client_for_sse)
                yield await stack.enter_async_context(streams)
                return
            client = await stack.enter_async_context(self._client())
            yield await stack.enter_async_context(streamable_http_client(self.url, http_client=client))

    def _client(self) -> httpx2.AsyncClient:
        headers = dict[str, str]()
        if self.held is not None:
            headers["authorization"] = f"Bearer {self.held.token.reveal()}"
        return httpx2.AsyncClient(
            transport=_Kept(self._transport, self._sign),
            headers=headers,
            timeout=httpx2.Timeout(self._connect_seconds, read=self._call_seconds),
            trust_env=False,
        )

    def _client_for_sse(
        self,
        headers: dict[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,
        auth: httpx2.Auth | None = None,
    ) -> httpx2.AsyncClient:
        return self._client()


class _Kept(httpx2.AsyncBaseTransport):
    """A transport that outlives its client, since the one for SSE comes after the first has failed.

    It puts the agent's identity on each request, since that holds for a shorter time than a connection.
    """

    def __init__(self, inner: CheckedTransport, sign: Callable[[], str] | None) -> None:
        self._inner = inner
        self._sign = sign

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if self._sign is not None:
            request.headers[IDENTITY] = self._sign()
        return await self._inner.handle_async_request(request)


async def _agree(session: ClientSession, *, sse: bool) -> None:
    if not sse:
        try:
            await session.discover()
        except (MCPError, ValueError, RuntimeError):
            pass  # an older server: it wants the handshake
        else:
            return
    await session.initialize()


def _explained(error: MCPError, seen: Exchange) -> Exception:
    """What an error of the protocol means, given what the server answered below it."""
    if seen.denied is not None:
        return Unusable(f"it answered {seen.denied}", denied=True)
    if seen.status == _GONE:
        return Unusable("it no longer knows the connection", expired=True)
    if error.code == types.CONNECTION_CLOSED:
        return Unusable("the connection broke", sent=True)
    if seen.status is not None and seen.status >= 400:
        return Unusable(f"it answered {seen.status}", sent=True)
    return error


def _leaf(error: BaseException | None) -> BaseException | None:
    """The first error of a group, which the client's tasks wrap theirs in."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error


def _reason(error: BaseException | None) -> str:
    match _leaf(error):
        case None:
            return "the connection ended"
        case httpx2.ConnectError() as failed:
            return f"it cannot be connected to ({failed})"
        case httpx2.HTTPStatusError() as failed:
            return f"it answered {failed.response.status_code}"
        case httpx2.TimeoutException():
            return "it did not answer in time"
        case httpx2.HTTPError() as failed:
            return f"the connection broke ({type(failed).__name__})"
        case MCPError() as failed:
            return f"it refused the connection: {failed.error.message}"
        case other:
            return f"what it answers is not understood ({type(other).__name__})"


class Connections:
    """The connections that are open, by session and server."""

    def __init__(self, *, connect_seconds: float, call_seconds: float, idle_seconds: float) -> None:
        self._times = {
            "connect_seconds": connect_seconds,
            "call_seconds": call_seconds,
            "idle_seconds": idle_seconds,
        }
        self._open: dict[tuple[str, str], Connection] = {}
        self._opening: dict[tuple[str, str], asyncio.Lock] = {}

    async def get(
        self,
        session_id: str,
        url: str,
        reach: Reach,
        held: Held | None,
        sign: Callable[[], str] | None,
    ) -> Connection:
        """The session's connection to a server with this token, opened if need be.

        Raises:
            Unusable: it could not be opened.
        """
        place = (session_id, url)
        lock = self._opening.setdefault(place, asyncio.Lock())
        async with lock:
            found = self._open.get(place)
            if found is not None and found.alive and _same_token(found.held, held):
                return found
            await self._drop(place)
            await self._drop_dead()
            connection = Connection(url, reach, held, sign, **self._times)
            await connection.open()
            self._open[place] = connection
            return connection

    async def drop(self, session_id: str, url: str) -> None:
        """Close the session's connection to a server, if there is one."""
        await self._drop((session_id, url))

    async def close(self) -> None:
        """Close all."""
        for place in list(self._open):
            await self._drop(place)

    async def _drop(self, place: tuple[str, str]) -> None:
        connection = self._open.pop(place, None)
        if connection is not None:
            await connection.close()

    async def _drop_dead(self) -> None:
        for place, connection in list(self._open.items()):
            if not connection.alive:
                await self._drop(place)
        for place, lock in list(self._opening.items()):
            if place not in self._open and not lock.locked():
                del self._opening[place]


def _same_token(one: Held | None, other: Held | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.credential_id == other.credential_id and one.token == other.token
