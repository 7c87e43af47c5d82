"""Fetching a page for an agent: every hop is held against all rules, and what comes is bounded.

Nothing of the session goes out but the URL: no cookies, no credentials, no Referer. The connection goes to an
address that was resolved and checked (`corral.gateway.http`); a redirect is a new request under the same
rules.
"""

import asyncio
import ssl
import zlib
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import httpx2
import msgspec

from corral.gateway.addresses import NotReachable, Pinned, Reach
from corral.gateway.egress_log import Decision
from corral.gateway.http import CheckedTransport, Refused, client_for
from corral.wire.addresses import BadHost, parse_host
from corral.wire.web_results import ErrorCode
from corral.wire.web_rules import WebSettings

USER_AGENT: Final = "Corral-Web-Fetch/1.0"
REDIRECTS: Final = 5
"""Most redirects that are followed."""
URL_CHARACTERS: Final = 2048

_HEADERS: Final = {
    "user-agent": USER_AGENT,
    "accept": "text/html, application/xhtml+xml, text/*, application/json, application/pdf, image/*;q=0.8, "
    "*/*;q=0.5",
    "accept-encoding": "gzip",
    "accept-language": "en, *;q=0.5",
}
_REDIRECTED: Final = frozenset({301, 302, 303, 307, 308})
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_READ_SECONDS: Final = 15.0
# Of gzip or zlib, whichever it is.
_ANY_HEADER: Final = zlib.MAX_WBITS | 32

_Unpack: TypeAlias = Callable[[bytes, int], bytes]
Note: TypeAlias = Callable[[str, int, Decision, str], None]
"""Takes down what was decided about a host and port, and why."""


class NotFetched(Exception):
    """There is no page to show; `code` is one that models know."""

    def __init__(self, code: ErrorCode, detail: str) -> None:
        super().__init__(detail)
        self.code: Final[ErrorCode] = code
        self.detail: Final = detail


class Page(msgspec.Struct, frozen=True):
    """What was fetched. url: where it was in the end. content_type: as the server says; it may be empty."""

    url: str
    content_type: str
    body: bytes


def parse_url(text: str) -> httpx2.URL:
    """A URL that may be fetched, in its plain form and without its fragment.

    Raises:
        NotFetched: it is none, is too long, or could be read in two ways.
    """
    if len(text) > URL_CHARACTERS:
        raise NotFetched("url_too_long", f"a URL has at most {URL_CHARACTERS} characters.")
    if "\\" in text or any(character.isspace() or not character.isprintable() for character in text):
        raise NotFetched("invalid_tool_input", "a URL has no spaces, backslashes or control characters.")
    try:
        url = httpx2.URL(text).copy_with(fragment=None)
        host = parse_host(url.raw_host.decode("ascii"))
    except (httpx2.InvalidURL, BadHost, ValueError) as error:
        raise NotFetched("invalid_tool_input", f"that is no URL that can be fetched: {error}.") from None
    if url.scheme not in _DEFAULT_PORTS or not 0 < _place(url)[1] < 65536:
        raise NotFetched("invalid_tool_input", "give an http or https URL.")
    if url.userinfo or "@" in url.netloc.decode("ascii"):
        raise NotFetched("url_not_allowed", "a URL with a user name or password is not fetched.")
    return url.copy_with(host=str(host))


class WebFetcher:
    """Fetches pages.

    ports: those of the internet that may be asked, empty for all. seconds: for everything together. most:
    bytes of a body, as it comes and unpacked.
    """

    def __init__(
        self, *, ports: frozenset[int], seconds: float, most: int, internal_tls: ssl.SSLContext | None
    ) -> None:
        self._ports = ports
        self._seconds = seconds
        self._most = most
        self._internal_tls = internal_tls

    async def fetch(self, url: httpx2.URL, settings: WebSettings, reach: Reach, note: Note) -> Page:
        """The page at a URL of `parse_url`, after redirects.

        Raises:
            NotFetched: a rule forbids it, it cannot be reached, or it is too large or of no use.
        """
        try:
            async with asyncio.timeout(self._seconds):
                for _ in range(REDIRECTS + 1):
                    found = await self._hop(url, settings, reach, note)
                    if isinstance(found, Page):
                        return found
                    url = found
        except TimeoutError:
            raise NotFetched(
                "url_not_accessible", f"it did not answer in full within {self._seconds:g} s."
            ) from None
        raise NotFetched("url_not_accessible", f"it redirects more than {REDIRECTS} times.")

    def check(self, url: httpx2.URL, settings: WebSettings, note: Note) -> None:
        """Hold a URL against the lists of domains and hosts; its address and port are checked on the way.

        Raises:
            NotFetched: a list forbids it.
        """
        host, port = _place(url)
        if reason := settings.refusal(host, url.path):
            note(host, port, "denied", f"web_fetch: {reason}")
            raise NotFetched("url_not_allowed", f"{reason}.")

    async def _hop(
        self, url: httpx2.URL, settings: WebSettings, reach: Reach, note: Note
    ) -> Page | httpx2.URL:
        """One request: the page, or where it leads to."""
        self.check(url, settings, note)
        host, port = _place(url)
        transport = _Transport(reach, url, self._ports, self._internal_tls)
        try:
            async with client_for(transport, seconds=_READ_SECONDS) as client:
                async with client.stream("GET", url, headers=_HEADERS) as answer:
                    note(host, port, "allowed", "web_fetch")
                    if answer.status_code in _REDIRECTED and "location" in answer.headers:
                        return _location(url, answer.headers["location"])
                    return await self._page(url, answer)
        except Refused as error:
            note(host, port, "denied" if error.by_rule else "failed", f"web_fetch: {error}")
            raise NotFetched(
                "url_not_allowed" if error.by_rule else "url_not_accessible", f"{error}."
            ) from None
        except (httpx2.HTTPError, httpx2.StreamError, OSError) as error:
            note(host, port, "failed", f"web_fetch: {type(error).__name__}")
            raise NotFetched("url_not_accessible", f"{host}: {_why(error)}.") from None

    async def _page(self, url: httpx2.URL, answer: httpx2.Response) -> Page:
        if not 200 <= answer.status_code < 300:
            raise NotFetched("url_not_accessible", f"the server answered {answer.status_code}.")
        unpack = _unpacker(answer.headers.get("content-encoding", ""))
        body = bytearray()
        received = 0
        async for chunk in answer.aiter_raw():
            received += len(chunk)
            body += chunk if unpack is None else _unpacked(unpack, chunk, self._most + 1 - len(body))
            if max(received, len(body)) > self._most:
                raise NotFetched("content_too_large", f"it has more than {self._most} bytes.")
        return Page(str(url), answer.headers.get("content-type", ""), bytes(body))


class _Transport(CheckedTransport):
    """Plain HTTP may go to the internet, since nothing of ours goes along, but to the given ports alone."""

    def __init__(
        self, reach: Reach, url: httpx2.URL, ports: frozenset[int], internal_tls: ssl.SSLContext | None
    ) -> None:
        super().__init__(reach, str(url), internal_tls=internal_tls)
        self._ports = ports

    def admitted(self, pinned: Sequence[Pinned], scheme: str) -> Sequence[Pinned]:
        """See `CheckedTransport.admitted`."""
        kept = [pin for pin in pinned if pin.is_internal or not self._ports or pin.port in self._ports]
        if not kept:
            raise NotReachable(pinned[0].host, "its port is not in gateway.egress_ports", refused=True)
        return kept


def _place(url: httpx2.URL) -> tuple[str, int]:
    return url.raw_host.decode("ascii"), _DEFAULT_PORTS[url.scheme] if url.port is None else url.port


def _location(url: httpx2.URL, location: str) -> httpx2.URL:
    """Where a redirect leads to."""
    try:
        target = str(url.join(location))
    except (httpx2.InvalidURL, ValueError):
        raise NotFetched("url_not_accessible", "it redirects to something that is no URL.") from None
    try:
        return parse_url(target)
    except NotFetched as refused:
        raise NotFetched("url_not_allowed", f"it redirects elsewhere, and {refused.detail}") from None


def _unpacker(encoding: str) -> _Unpack | None:
    match encoding.strip().lower():
        case "" | "identity":
            return None
        case "gzip" | "x-gzip" | "deflate":
            return zlib.decompressobj(_ANY_HEADER).decompress
        case other:
            raise NotFetched("unsupported_content_type", f"it is compressed as {other[:40]}.")


def _unpacked(unpack: _Unpack, chunk: bytes, most: int) -> bytes:
    """No more than `most` bytes, however much the chunk would unpack to."""
    try:
        return unpack(chunk, max(1, most))
    except zlib.error:
        raise NotFetched("url_not_accessible", "what came is not compressed as it says.") from None


def _why(error: Exception) -> str:
    if isinstance(error, httpx2.TimeoutException):
        return "it did not answer in time"
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not accepted: {cause.verify_message}"
        cause = cause.__cause__ or cause.__context__
    return "the connection failed"
