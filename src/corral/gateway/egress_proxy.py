"""One connection of a sandbox: requests to a proxy, each judged by itself, carried out or refused."""

import asyncio
import base64
from contextlib import aclosing
from typing import Any, Final
from urllib.parse import urlsplit

import h11
import structlog

from corral.gateway.channel import Channel, ChannelClosed, TlsChannel, starts_tls
from corral.gateway.egress_body import RequestBody
from corral.gateway.egress_clearance import Clearance, Cleared, House
from corral.gateway.egress_upstream import UpstreamConnection
from corral.gateway.http_sides import Headers, Incoming, Outgoing, Refused, UpstreamFailed, end_to_end
from corral.gateway.injection import Injection
from corral.gateway.policy import Target, is_api, parse_target, repository_of
from corral.hands.work_token import TokenHash
from corral.vault.sealing import CannotOpen
from corral.wire.addresses import BadHost

_METHODS_TO_REPEAT: Final = frozenset({b"GET", b"HEAD", b"OPTIONS"})

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class EgressProxy:
    """Serves one connection. token: the work item's, asked about anew for each request."""

    def __init__(self, house: House, channel: Channel, token: TokenHash, session_id: str) -> None:
        self._house = house
        self._channel = channel
        self._session_id = session_id
        self._clearance = Clearance(house, token, session_id)
        self._upstream = UpstreamConnection(house)

    async def serve(self) -> None:
        """Answer requests until the client ends, or something cannot go on."""
        try:
            await self._requests(Incoming(self._channel, self._house.times), None)
        finally:
            await self._upstream.drop()

    async def _requests(self, incoming: Incoming, within: Target | None) -> None:
        """within: where a CONNECT has led; requests may then be for nothing else."""
        while True:
            try:
                request = await incoming.request()
                if request is None:
                    return
                if request.method == b"CONNECT":
                    if within is not None:
                        raise Refused(400, "a tunnel leads to one host")
                    await self._connect(incoming, request)
                    return
                await self._forward(incoming, request, within)
            except Refused as refused:
                await incoming.refuse(refused)
                return
            if not incoming.reusable:
                return

    async def _connect(self, incoming: Incoming, request: h11.Request) -> None:
        try:
            authority = request.target.decode("ascii")
            if ":" not in authority.rpartition("]")[2]:
                raise BadHost("CONNECT needs a port")
            asked = parse_target("https", authority)
            named = _host(request) or authority
            if parse_target("https", named) not in (asked, parse_target("https", asked.host)):
                raise BadHost("the Host header names another host than the request")
        except (BadHost, UnicodeDecodeError) as error:
            raise Refused(400, f"CONNECT: {error}") from None
        await self._clearance.clear(asked)
        await incoming.tunnel()
        if incoming.unparsed:
            raise ChannelClosed("the client did not wait for the tunnel")
        async with asyncio.timeout(self._house.times.head):
            under_tls = await starts_tls(self._channel)
            inner = self._channel
            if under_tls:
                inner = await TlsChannel.accept(self._channel, self._house.authority.leaf(asked.host))
        # Some clients put plain HTTP through a tunnel too.
        target = asked if under_tls else Target("http", asked.host, asked.port)
        await self._requests(Incoming(inner, self._house.times), target)
        if inner is not self._channel:
            await inner.close()

    async def _forward(self, incoming: Incoming, request: h11.Request, within: Target | None) -> None:
        target, path = _aim(request, within)
        if _wants_websocket(request):
            self._clearance.note(target, "denied", "WebSocket")
            raise Refused(501, "WebSockets are not passed on: use plain HTTP requests")
        if request.method == b"TRACE":
            self._clearance.note(target, "denied", "TRACE")
            raise Refused(405, "TRACE is not passed on: its answer would repeat the headers with the secrets")
        cleared = await self._clearance.clear(target)
        repository = repository_of(target, path, cleared.session.rules.repositories)
        if cleared.verdict.only and repository not in cleared.verdict.only:
            self._clearance.note(target, "denied", "outside the repository")
            raise Refused(403, f"{target.host} may be reached for the session's own repository alone")
        try:
            await self._carry(incoming, request, cleared, path)
        except UpstreamFailed as error:
            await self._upstream.drop()
            self._clearance.note(target, "failed", str(error))
            if not incoming.answering:
                raise ChannelClosed(str(error)) from error
            raise Refused(502, f"{target.host}: {error}") from error
        except CannotOpen as error:
            _log.error("a secret could not be opened", session_id=cleared.session.id, reason=str(error))
            raise Refused(502, "a credential of this session cannot be opened by the gateway") from None
        self._clearance.note(target, "allowed", cleared.verdict.reason)

    async def _headers(
        self, request: h11.Request, cleared: Cleared, path: str
    ) -> tuple[Headers, Injection | None]:
        """The headers to send, with what the gateway adds, and what is to be put into the body."""
        headers = [(name, value) for name, value in end_to_end(request.headers) if name.lower() != b"host"]
        headers.insert(0, (b"host", cleared.target.authority.encode()))
        if cleared.target.scheme != "https":
            return headers, None  # no secret is ever sent in the clear
        repository = repository_of(cleared.target, path, cleared.session.rules.repositories)
        if repository is not None and not any(name.lower() == b"authorization" for name, _ in headers):
            token = await self._house.rows.repository_token(repository.id)
            if token is not None:
                headers.append((b"authorization", _git_login(token.reveal(), api=is_api(cleared.target))))
        injectable = await self._house.rows.injectable(cleared.session)
        if not injectable:
            return headers, None
        injection = Injection(injectable, cleared.target.host, self._house.rows.secret_value)
        return await injection.headers(headers), injection

    async def _carry(self, incoming: Incoming, request: h11.Request, cleared: Cleared, path: str) -> None:
        headers, injection = await self._headers(request, cleared, path)
        async with RequestBody(incoming, request, injection, self._house, self._session_id) as body:
            head = _head(request.method, path, await body.prepare(headers))
            outgoing = await self._upstream.to(cleared)
            try:
                response, sending = await self._exchange(incoming, outgoing, head, body)
            except UpstreamFailed as error:
                # A kept connection may have been closed by the server just before; nothing was done then.
                may_repeat = not body.streams and request.method in _METHODS_TO_REPEAT
                if not (error.fresh and outgoing.used and may_repeat):
                    raise
                await self._upstream.drop()
                outgoing = await self._upstream.to(cleared)
                response, sending = await self._exchange(incoming, outgoing, head, body)
            try:
                await self._answer(incoming, outgoing, response)
            finally:
                complete = sending.done()
                await _ended(sending)
        if complete and outgoing.reusable:
            outgoing.next_exchange()
        else:
            await self._upstream.drop()

    async def _exchange(
        self, incoming: Incoming, outgoing: Outgoing, head: h11.Request, body: RequestBody
    ) -> tuple[h11.Response, asyncio.Task[None]]:
        """Send a request; its answer's head may come before its body has been sent.

        Raises:
            ChannelClosed: the client has left: nobody waits for the answer any more.
        """
        await outgoing.send(head)
        sending = asyncio.create_task(body.send(outgoing))
        answering = asyncio.create_task(outgoing.head())
        leaving: asyncio.Task[None] | None = None
        try:
            await asyncio.wait({sending, answering}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                await sending  # raises what went wrong with the body
                leaving = asyncio.create_task(incoming.left())
                await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
                if not answering.done():
                    raise ChannelClosed("the client left before its answer came")
            return await answering, sending
        except BaseException:
            await _ended(sending, answering)
            raise
        finally:
            if leaving is not None:
                await _ended(leaving)

    async def _answer(self, incoming: Incoming, outgoing: Outgoing, response: h11.Response) -> None:
        await incoming.begin(response.status_code, end_to_end(response.headers), bytes(response.reason))
        taken = 0
        async with aclosing(outgoing.body()) as pieces:
            async for piece in pieces:
                taken += len(piece)
                if taken > self._house.body_bytes:
                    raise UpstreamFailed("the answer is larger than gateway.egress_body_bytes")
                await incoming.piece(piece)
        await incoming.end()


def _aim(request: h11.Request, within: Target | None) -> tuple[Target, str]:
    """Where a request goes and which path it asks for. Raises `Refused`."""
    try:
        raw = request.target.decode("ascii")
        if within is not None:
            if not raw.startswith("/") and raw != "*":
                raise BadHost("a request within a tunnel names a path alone")
            target, path = within, raw
        else:
            parts = urlsplit(raw)
            if parts.scheme != "http":
                raise BadHost("a proxy is asked with the whole URL, and for https with CONNECT")
            prefix = f"{raw.partition('://')[0]}://{parts.netloc}"
            target, path = parse_target("http", parts.netloc), raw.removeprefix(prefix)
            path = path if path.startswith("/") else "/" + path
            path = path.partition("#")[0]
        named = parse_target(target.scheme, _host(request)) if _host(request) else target
    except (BadHost, UnicodeDecodeError, ValueError) as error:
        raise Refused(400, str(error)) from None
    if named != target:
        raise Refused(421, f"the Host header names {named.authority}, the request is for {target.authority}")
    return target, path


def _host(request: h11.Request) -> str:
    for name, value in request.headers:
        if name.lower() == b"host":
            return value.decode("ascii")
    return ""


def _wants_websocket(request: h11.Request) -> bool:
    return any(name == b"upgrade" and b"websocket" in value.lower() for name, value in request.headers)


def _git_login(token: str, *, api: bool) -> bytes:
    if api:
        return b"Bearer " + token.encode()
    return b"Basic " + base64.b64encode(b"x-access-token:" + token.encode())


def _head(method: bytes, path: str, headers: Headers) -> h11.Request:
    """The head of a request. Raises `Refused`; what does not fit may be a secret, and is not repeated."""
    try:
        return h11.Request(method=method, target=path.encode(), headers=headers)
    except h11.LocalProtocolError:
        raise Refused(502, "the request cannot be passed on: a header is not valid") from None


async def _ended(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
