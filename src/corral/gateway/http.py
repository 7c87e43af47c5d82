"""HTTP to other machines, to addresses that were checked and to no other.

A client of `client_for` speaks to one host. The host's name is resolved and checked when a connection is
made; the connection goes to the address, while TLS, its certificate and the Host header go by the name.
Redirects are not followed here. Plain HTTP is for internal hosts, unless a transport says otherwise: over the
internet a credential would be readable.
"""

import ssl
from collections.abc import AsyncIterator, Sequence
from contextvars import ContextVar
from functools import cache
from typing import Final

import httpx2

from corral.gateway.addresses import NotReachable, Pinned, Reach

RESPONSE_BYTES: Final = 64 * 1024 * 1024
"""Most that one answer may hold."""

_IDLE_CONNECTION_SECONDS: Final = 60.0


class Exchange:
    """What happens to the requests of one step, seen from below the layers that turn statuses into words.

    ``status`` is that of the last answer to a POST or a stream's opening, ``denied`` that of the last one
    that refused the credential (401 or 403). ``key`` goes out as ``Idempotency-Key``, so that a server can
    tell a request that is made again from a new one.
    """

    def __init__(self, key: str | None = None) -> None:
        self.key: Final = key
        self.status: int | None = None
        self.denied: int | None = None


exchange: ContextVar[Exchange | None] = ContextVar("exchange", default=None)
"""The step that the running task is in."""


class Refused(httpx2.ConnectError):
    """The host may not be connected to: a `NotReachable` as an error of the HTTP client.

    ``by_rule``: a rule forbids it, as opposed to a name that does not resolve.
    """

    def __init__(self, message: str, *, request: httpx2.Request, by_rule: bool = True) -> None:
        super().__init__(message, request=request)
        self.by_rule: Final = by_rule


class TooLarge(httpx2.ReadError):
    """An answer is longer than `RESPONSE_BYTES`."""


class CheckedTransport(httpx2.AsyncBaseTransport):
    """Sends requests to one origin, over connections to checked addresses.

    ``internal_tls`` says how internal servers are verified, if otherwise than those of the internet.
    """

    def __init__(self, reach: Reach, url: str, *, internal_tls: ssl.SSLContext | None = None) -> None:
        self._reach = reach
        self._origin = _origin(httpx2.URL(url))
        self._inner = _connections(_tls())
        self._internal = self._inner if internal_tls is None else _connections(internal_tls)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request to the first address of the host that answers.

        Raises:
            Refused: the request is for another origin, or no address of the host may be connected to.
        """
        origin = _origin(request.url)
        if origin != self._origin:
            raise Refused("a request for another origin was not sent", request=request)
        scheme, host, port = origin
        try:
            pinned = self.admitted(await self._reach.resolve(host, port), scheme)
        except NotReachable as error:
            raise Refused(str(error), request=request, by_rule=error.refused) from None
        for pin in pinned[:-1]:
            try:
                return await self._send(request, pin)
            except httpx2.ConnectError:
                continue
        return await self._send(request, pinned[-1])

    def admitted(self, pinned: Sequence[Pinned], scheme: str) -> Sequence[Pinned]:
        """Those of the host's addresses that this transport connects to; at least one.

        Raises:
            NotReachable: there is none.
        """
        if scheme == "http":
            pinned = [pin for pin in pinned if pin.is_internal]
        if not pinned:
            raise NotReachable(self._origin[1], "it is of the internet, and needs https", refused=True)
        return pinned

    async def _send(self, request: httpx2.Request, pin: Pinned) -> httpx2.Response:
        host = self._origin[1]
        headers = request.headers
        seen = exchange.get()
        if seen is not None and seen.key is not None and request.method == "POST":
            headers = httpx2.Headers([*headers.multi_items(), ("idempotency-key", seen.key)])
        sent = httpx2.Request(
            request.method,
            request.url.copy_with(host=pin.address),
            headers=headers,
            stream=request.stream,
            extensions={**request.extensions, "sni_hostname": host},
        )
        inner = self._internal if pin.is_internal else self._inner
        response = await inner.handle_async_request(sent)
        if seen is not None and request.method != "DELETE":
            seen.status = response.status_code
            if response.status_code in (401, 403):
                seen.denied = response.status_code
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Bounded(response.stream)
        return response

    async def aclose(self) -> None:
        """Close every connection."""
        await self._inner.aclose()
        await self._internal.aclose()


def _connections(tls: ssl.SSLContext) -> httpx2.AsyncHTTPTransport:
    return httpx2.AsyncHTTPTransport(
        verify=tls,
        trust_env=False,
        limits=httpx2.Limits(max_connections=None, keepalive_expiry=_IDLE_CONNECTION_SECONDS),
    )


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = RESPONSE_BYTES
        async for chunk in self._inner:
            left -= len(chunk)
            if left < 0:
                raise TooLarge(f"the answer is longer than {RESPONSE_BYTES} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()


def client_for(transport: CheckedTransport, *, seconds: float) -> httpx2.AsyncClient:
    """A client on a transport; `seconds` bound connecting and every silence between two bytes."""
    return httpx2.AsyncClient(
        transport=transport, timeout=httpx2.Timeout(seconds), follow_redirects=False, trust_env=False
    )


def _origin(url: httpx2.URL) -> tuple[str, str, int]:
    return (
        url.scheme,
        url.raw_host.decode("ascii").lower(),
        url.port or (443 if url.scheme == "https" else 80),
    )


@cache
def _tls() -> ssl.SSLContext:
    # With what SSL_CERT_FILE names, where internal servers have certificates of the operator's own.
    return httpx2.create_ssl_context(trust_env=True)
