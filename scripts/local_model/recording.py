"""A proxy before a Messages API endpoint that passes every byte on at once and keeps what passed."""

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

_NOT_PASSED_ON: Final = frozenset({"host", "content-length", "transfer-encoding", "connection", "keep-alive"})


@dataclass
class Exchange:
    """One request to the model and its answer, as the bytes that went over the wire.

    Times are seconds of `time.monotonic`.
    """

    request: dict[str, Any]
    asked_at: float
    status: int = 0
    chunks: list[tuple[float, bytes]] = field(default_factory=list[tuple[float, bytes]])

    def events(self) -> list[dict[str, Any]]:
        """The payloads of the answer's server-sent events."""
        raw = b"".join(chunk for _, chunk in self.chunks)
        return [
            msgspec.json.decode(line[5:])
            for line in raw.splitlines()
            if line.startswith(b"data:") and line[5:]
        ]

    @property
    def text(self) -> str:
        """The text of the answer: its text deltas, put together."""
        deltas = [event["delta"] for event in self.events() if event.get("type") == "content_block_delta"]
        return "".join(delta["text"] for delta in deltas if delta["type"] == "text_delta")

    @property
    def usage(self) -> dict[str, int]:
        """The answer's own counts: those of its start, and over them those of its end; what it tells."""
        counts: dict[str, int] = {}
        for event in self.events():
            if event.get("type") == "message_start":
                counts.update(event["message"].get("usage") or {})
            elif event.get("type") == "message_delta":
                counts.update(event.get("usage") or {})
        return counts

    @property
    def stop_reason(self) -> str | None:
        """Why the model says that it stopped."""
        ends = [event["delta"] for event in self.events() if event.get("type") == "message_delta"]
        return ends[-1]["stop_reason"] if ends else None

    @property
    def first_text_at(self) -> float | None:
        """When the first piece of text passed."""
        return next((at for at, chunk in self.chunks if b'"text_delta"' in chunk), None)

    @property
    def tokens_a_second(self) -> float:
        """How fast the model wrote, its first token left out: that one waits for the prompt."""
        first = self.first_text_at
        if first is None or self.chunks[-1][0] <= first:
            return 0.0
        return (self.usage.get("output_tokens", 1) - 1) / (self.chunks[-1][0] - first)


class RecordingProxy:
    """An ASGI application before the endpoint at `target`; `exchanges` is what has passed, in order."""

    def __init__(self, target: str) -> None:
        self.exchanges: list[Exchange] = []
        self._http = httpx.AsyncClient(base_url=target, timeout=httpx.Timeout(600.0), trust_env=False)
        self.app = Starlette(routes=[Route("/v1/messages", self._pass_on, methods=["POST"])])

    async def close(self) -> None:
        """Close the connections to the endpoint."""
        await self._http.aclose()

    async def _pass_on(self, request: Request) -> StreamingResponse:
        body = await request.body()
        exchange = Exchange(msgspec.json.decode(body), time.monotonic())
        self.exchanges.append(exchange)
        headers = [(name, value) for name, value in request.headers.items() if name not in _NOT_PASSED_ON]
        asked = self._http.build_request("POST", request.url.path, content=body, headers=headers)
        answer = await self._http.send(asked, stream=True)
        exchange.status = answer.status_code
        return StreamingResponse(
            _recorded(answer, exchange), answer.status_code, media_type=answer.headers.get("content-type")
        )


async def _recorded(answer: httpx.Response, exchange: Exchange) -> AsyncGenerator[bytes]:
    try:
        async for chunk in answer.aiter_raw():
            exchange.chunks.append((time.monotonic(), chunk))
            yield chunk
    finally:
        await answer.aclose()


@asynccontextmanager
async def recording(target: str) -> AsyncGenerator[tuple[str, list[Exchange]]]:
    """A proxy on a free port of this machine: its base URL, and the exchanges as they come."""
    from corral.server import listen, serving

    proxy = RecordingProxy(target)
    try:
        async with serving(proxy.app, listen("127.0.0.1", 0)) as base_url:
            yield base_url, proxy.exchanges
    finally:
        await proxy.close()
