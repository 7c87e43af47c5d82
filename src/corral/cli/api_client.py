"""The API as the command line uses it: a few calls and the event stream, over httpx.

The official package would do as well, but importing it takes seconds, which a command must not.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from ipaddress import ip_address
from types import TracebackType
from typing import Any, Final, Self

import httpx
import msgspec

from corral.cli.failure import Failure

Event = dict[str, Any]
"""An event as the API sends it."""

_BETA: Final = "managed-agents-2026-04-01"
_READ_SECONDS: Final = 45.0
"""Silence after which a stream is taken for dead: three missed pings."""


class Unreachable(Failure):
    """The server did not answer, or the connection to it broke."""


class Refused(Failure):
    """The server answered with an error."""

    def __init__(self, status: int, message: str, advice: str | None = None) -> None:
        super().__init__(message, advice)
        self.status = status


class ApiClient:
    """A client of one server. Open with ``async with``.

    Every call raises `Unreachable` or `Refused`; nothing is tried twice.
    """

    def __init__(self, base_url: str, api_key: str) -> None:
        self._base_url = base_url
        self._http = httpx.AsyncClient(
            base_url=base_url,
            headers={"authorization": f"Bearer {api_key}", "anthropic-beta": _BETA},
            timeout=httpx.Timeout(30.0, read=_READ_SECONDS),
            # A proxy of the environment is for the world outside, not for this machine.
            trust_env=not _is_local(base_url),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def get(self, path: str, **query: Any) -> Any:
        """The answer of a GET, decoded."""
        return await self._call("GET", path, params=query)

    async def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The answer of a POST, decoded."""
        content = b"" if body is None else msgspec.json.encode(body)
        return await self._call("POST", path, content=content, headers={"content-type": "application/json"})

    async def delete(self, path: str) -> Any:
        """The answer of a DELETE, decoded."""
        return await self._call("DELETE", path)

    async def download(self, path: str) -> AsyncGenerator[bytes]:
        """The bytes of an answer as they come."""
        try:
            async with self._http.stream("GET", path) as response:
                if response.is_error:
                    await response.aread()
                    _decoded(response)
                async for piece in response.aiter_raw():
                    yield piece
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    async def upload(self, path: str, content: AsyncIterator[bytes], **query: Any) -> Any:
        """The answer of a POST of bytes, decoded. The server may take its time over them."""
        headers = {"content-type": "application/octet-stream"}
        return await self._call(
            "POST",
            path,
            content=content,
            headers=headers,
            params=query,
            timeout=httpx.Timeout(30.0, read=600.0),
        )

    async def pages(self, path: str, **query: Any) -> AsyncGenerator[list[Any]]:
        """The pages of a list, one request each."""
        while True:
            page = await self.get(path, **query)
            yield page["data"]
            if not page["next_page"]:
                return
            query["page"] = page["next_page"]

    async def send(self, session_id: str, *events: Mapping[str, Any]) -> list[Event]:
        """Send events to a session; returns them as the server has taken them."""
        return (await self.post(f"/v1/sessions/{session_id}/events", {"events": list(events)}))["data"]

    @asynccontextmanager
    async def stream(
        self, session_id: str, *, deltas: Sequence[str] = ("agent.message", "agent.thinking")
    ) -> AsyncGenerator[AsyncIterator[Event]]:
        """The events of a session from now on, previews included; open once entered."""
        path = f"/v1/sessions/{session_id}/events/stream"
        try:
            async with self._http.stream("GET", path, params={"event_deltas[]": list(deltas)}) as response:
                if response.is_error:
                    await response.aread()
                    _decoded(response)
                yield _events(response.aiter_lines())
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    async def _call(self, method: str, path: str, **parts: Any) -> Any:
        try:
            return _decoded(await self._http.request(method, path, **parts))
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: httpx.TransportError) -> Unreachable:
        why = str(error) or type(error).__name__
        return Unreachable(
            f"No answer from {self._base_url}: {why}",
            "see that the server runs there (`corral up` starts one on this machine).",
        )


async def _events(lines: AsyncIterator[str]) -> AsyncGenerator[Event]:
    async for line in lines:
        if line.startswith("data:"):
            event: Event = msgspec.json.decode(line[5:])
            if event["type"] != "ping":
                yield event


def _decoded(response: httpx.Response) -> Any:
    if response.is_success:
        return msgspec.json.decode(response.content)
    try:
        error = msgspec.json.decode(response.content)["error"]["message"]
    except (msgspec.DecodeError, KeyError, TypeError):
        error = f"HTTP {response.status_code}"
    raise Refused(
        response.status_code,
        f"The server refused {response.request.method} {response.request.url.path}: {error}",
        _advice(response.status_code),
    )


def _advice(status: int) -> str | None:
    match status:
        case 401 | 403:
            return "check ANTHROPIC_API_KEY; `corral admin api-key list` shows the keys that are valid."
        case 404:
            return (
                "check the id, and that the address is Corral's; `corral session list` shows what is there."
            )
        case 429 | 529:
            return "try again in a moment."
        case status if status >= 500:
            return "see the server's log."
        case _:
            return None


def _is_local(base_url: str) -> bool:
    host = httpx.URL(base_url).host
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
