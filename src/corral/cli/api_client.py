"""The API as the command line uses it: a few calls and the event stream, over httpx.

The official package would do as well, but importing it takes seconds, which a command must not.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Final, Self

import httpx
import msgspec

from corral.cli.failure import Failure

_BETA: Final = "managed-agents-2026-04-01"
_READ_SECONDS: Final = 45.0
"""Silence after which a stream is taken for dead: three missed pings."""


class ApiClient:
    """A client of one server. Open with ``async with``."""

    def __init__(self, base_url: str, api_key: str) -> None:
        self._http = httpx.AsyncClient(
            base_url=base_url,
            headers={"authorization": f"Bearer {api_key}", "anthropic-beta": _BETA},
            timeout=httpx.Timeout(30.0, read=_READ_SECONDS),
            trust_env=False,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def get(self, path: str, **query: Any) -> Any:
        """The answer of a GET, decoded; raises `Failure` with the server's own words."""
        return _decoded(await self._http.get(path, params=query))

    async def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The answer of a POST, decoded; raises `Failure` with the server's own words."""
        content = b"" if body is None else msgspec.json.encode(body)
        return _decoded(
            await self._http.post(path, content=content, headers={"content-type": "application/json"})
        )

    async def send(self, session_id: str, *events: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Send events to a session."""
        return (await self.post(f"/v1/sessions/{session_id}/events", {"events": list(events)}))["data"]

    @asynccontextmanager
    async def stream(
        self, session_id: str, *, deltas: Sequence[str] = ("agent.message", "agent.thinking")
    ) -> AsyncGenerator[AsyncIterator[dict[str, Any]]]:
        """The events of a session from now on, previews included; open once entered."""
        path = f"/v1/sessions/{session_id}/events/stream"
        async with self._http.stream("GET", path, params={"event_deltas[]": list(deltas)}) as response:
            if response.is_error:
                await response.aread()
                _decoded(response)
            yield _events(response.aiter_lines())


async def _events(lines: AsyncIterator[str]) -> AsyncGenerator[dict[str, Any]]:
    async for line in lines:
        if line.startswith("data:"):
            event: dict[str, Any] = msgspec.json.decode(line[5:])
            if event["type"] != "ping":
                yield event


def _decoded(response: httpx.Response) -> Any:
    if response.is_success:
        return msgspec.json.decode(response.content)
    try:
        error = msgspec.json.decode(response.content)["error"]["message"]
    except (msgspec.DecodeError, KeyError, TypeError):
        error = f"HTTP {response.status_code}"
    raise Failure(f"The server refused {response.request.url.path}: {error}", "see the server's log.")
