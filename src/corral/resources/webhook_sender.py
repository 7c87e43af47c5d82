"""One attempt to tell an endpoint something: where it may go, and what comes of it (contract section 23).

The address is looked up once, checked, and connected to as it is; the name is for TLS and the Host header
alone, so that a name which means another address a moment later gains nothing. No redirect is followed, no
cookie kept, no proxy asked, and of the answer nothing but its status is read.
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, NamedTuple, Self, TypeAlias

import httpx

import corral
from corral.wire.addresses import Address, BadHost, Internal, checked_address, not_public, parse_host
from corral.wire.errors import InvalidRequest
from corral.wire.webhooks import check_endpoint

Resolver: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a name, as text. Raises OSError if it has none."""

_CONNECT_SECONDS: Final = 5.0
_TRIED: Final = 4
"""Most addresses of one name that are tried."""
_CONNECTIONS: Final = 1_000


class Outcome(NamedTuple):
    """What came of an attempt: taken, failed for now, or what disables the endpoint at once."""

    kind: Literal["taken", "failed", "redirected", "refused"]
    status: int | None
    """The HTTP status, if there was an answer."""
    error: str | None
    """Why it was not taken, in words without anything that the receiver sent."""
    seconds: float


class _Refused(Exception):
    """Nothing may be sent there."""


class _NoAnswer(Exception):
    """There is no answer; the message says why."""


class Sender:
    """Sends messages to endpoints. Open with ``async with``; attempts may be made at the same time."""

    def __init__(
        self,
        internal: Internal,
        *,
        timeout: float,
        ca_file: str | None = None,
        resolver: Resolver | None = None,
    ) -> None:
        """`timeout` is for a whole attempt, in seconds; `ca_file` has further authorities to trust."""
        self._internal = internal
        self._timeout = timeout
        self._ca_file = ca_file
        self._resolver = resolver or system_resolver
        self._transport: httpx.AsyncHTTPTransport | None = None
        self._opening = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._transport is not None:
            await self._transport.aclose()

    async def send(self, url: str, body: bytes, headers: Mapping[str, str]) -> Outcome:
        """Post `body` to `url` once. Never raises for what the receiver or the network does."""
        loop = asyncio.get_running_loop()
        began = loop.time()

        def outcome(
            kind: Literal["taken", "failed", "redirected", "refused"], status: int | None, error: str | None
        ) -> Outcome:
            return Outcome(kind, status, error, round(loop.time() - began, 3))

        try:
            async with asyncio.timeout(self._timeout):
                status = await self._post(self._checked(url), body, headers)
        except _Refused as error:
            return outcome("refused", None, str(error))
        except TimeoutError:
            return outcome("failed", None, f"no answer within {self._timeout:g} seconds")
        except _NoAnswer as error:
            return outcome("failed", None, str(error))
        if 200 <= status < 300:
            return outcome("taken", status, None)
        if 300 <= status < 400:
            return outcome("redirected", status, f"answered {status}, a redirect")
        return outcome("failed", status, f"answered {status}")

    def _checked(self, text: str) -> httpx.URL:
        try:
            check_endpoint(text, self._internal)
            url = httpx.URL(text)
            # As it is read by what connects: the two must not differ in what they take for the host.
            check_endpoint(str(url), self._internal)
        except InvalidRequest as error:
            raise _Refused(error.message) from None
        except httpx.InvalidURL:
            raise _Refused("url: not a valid URL") from None
        return url

    async def _post(self, url: httpx.URL, body: bytes, headers: Mapping[str, str]) -> int:
        last = "no address could be connected to"
        for address in (await self._addresses(url))[:_TRIED]:
            request = httpx.Request(
                "POST",
                url.copy_with(host=str(address), fragment=None),
                content=body,
                headers={
                    "host": url.netloc.decode("ascii"),
                    "content-type": "application/json",
                    "user-agent": f"corral/{corral.__version__}",
                    "accept": "*/*",
                    **headers,
                },
                extensions={
                    "sni_hostname": url.raw_host.decode("ascii"),
                    "timeout": httpx.Timeout(self._timeout, connect=_CONNECT_SECONDS).as_dict(),
                },
            )
            try:
                response = await (await self._open()).handle_async_request(request)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                last = _reason(error)
                continue
            except httpx.HTTPError as error:
                raise _NoAnswer(_reason(error)) from None
            await response.aclose()
            return response.status_code
        raise _NoAnswer(last)

    async def _addresses(self, url: httpx.URL) -> list[Address]:
        """What the host of `url` is, if a message may be sent to all of it."""
        try:
            host = parse_host(url.raw_host.decode("ascii"))
        except BadHost as error:
            raise _Refused(str(error)) from None
        port = url.port or (443 if url.scheme == "https" else 80)
        found = [host] if not isinstance(host, str) else await self._resolved(host, port)
        for address in found:
            refused = not_public(address)
            if refused is not None and not self._internal.admits(host, address):
                raise _Refused(f"{host} is {address}: {refused}")
        return found

    async def _resolved(self, name: str, port: int) -> list[Address]:
        try:
            found = await self._resolver(name, port)
        except (OSError, UnicodeError):
            raise _NoAnswer("its name does not resolve") from None
        addresses = list(dict.fromkeys(checked_address(text) for text in found))
        if not addresses:
            raise _NoAnswer("its name has no address")
        return addresses

    async def _open(self) -> httpx.AsyncHTTPTransport:
        async with self._opening:
            if self._transport is None:
                trusted = await asyncio.to_thread(_trusted, self._ca_file)
                self._transport = httpx.AsyncHTTPTransport(
                    verify=trusted,
                    trust_env=False,
                    limits=httpx.Limits(max_connections=_CONNECTIONS, max_keepalive_connections=0),
                )
            return self._transport


async def system_resolver(name: str, port: int) -> list[str]:
    """The addresses that this machine's resolver gives."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


def _trusted(ca_file: str | None) -> ssl.SSLContext:
    context = httpx.create_ssl_context(trust_env=False)
    context.load_default_certs()
    if ca_file is not None:
        context.load_verify_locations(Path(ca_file))
    return context


def _reason(error: httpx.HTTPError) -> str:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not accepted: {cause.verify_message}"
        if isinstance(cause, ssl.SSLError):
            return "TLS failed"
        if isinstance(cause, ConnectionRefusedError):
            return "the connection was refused"
        cause = cause.__cause__ or cause.__context__
    match error:
        case httpx.ConnectTimeout() | httpx.TimeoutException():
            return "no answer in time"
        case httpx.ConnectError():
            return "the connection could not be made"
        case _:
            return "the connection broke, or what came was no HTTP"
