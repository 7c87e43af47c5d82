"""Sends one performance over ASGI: holds, delays, errors, a whole message or a stream, or a connection cut
short.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from corral.testing import stream
from corral.testing.player import Performance, Player
from corral.testing.record import RecordedRequest
from corral.testing.refusal import error_body

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class PerformanceResponse:
    """An ASGI response that plays one performance and notes how it ended.

    It ends at once when the client goes away (`disconnected`), and stops waiting when `closing` is set.
    """

    def __init__(
        self,
        performance: Performance,
        player: Player,
        request: RecordedRequest,
        *,
        streaming: bool,
        closing: asyncio.Event,
    ) -> None:
        self._performance = performance
        self._player = player
        self._request = request
        self._streaming = streaming
        self._closing = closing

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Plays the performance to its end or to the client's."""
        playing = asyncio.create_task(self._play(send))
        gone = asyncio.create_task(_until_disconnected(receive))
        try:
            await asyncio.wait({playing, gone}, return_when=asyncio.FIRST_COMPLETED)
            outcome = await playing if playing.done() else "disconnected"
        except OSError:
            outcome = "disconnected"
        finally:
            for task in (playing, gone):
                task.cancel()
            await asyncio.gather(playing, gone, return_exceptions=True)
        await self._player.record.ended(self._request, outcome)

    async def _play(self, send: Send) -> str:
        step = self._performance.step
        if step.hold is not None and step.hold_at == "start":
            await self._player.holds.wait(step.hold)
        await self._pause(step.delay_ms)
        error = self._performance.error
        if error is not None and (error.at == "start" or (error.at == "mid" and not self._streaming)):
            await self._send_error(send)
            return "error"
        if self._streaming:
            return await self._stream(send)
        return await self._send_whole(send)

    async def _send_error(self, send: Send) -> None:
        error = self._performance.error
        assert error is not None
        headers: dict[str, str] = {}
        if error.retry_after is not None:
            headers["retry-after"] = f"{error.retry_after:g}"
        await self._start(send, error.status, "application/json", headers)
        await send({"type": "http.response.body", "body": json.dumps(self._error_event()).encode()})

    async def _send_whole(self, send: Send) -> str:
        body = json.dumps(self._performance.reply.message).encode()
        await self._start(send, 200, "application/json", {"content-length": str(len(body))})
        if self._performance.error is not None:
            # Returning with more to come makes the server close the connection.
            await send({"type": "http.response.body", "body": body[: len(body) // 2], "more_body": True})
            return "cut"
        await send({"type": "http.response.body", "body": body})
        return "complete"

    async def _stream(self, send: Send) -> str:
        step, error = self._performance.step, self._performance.error
        found = stream.events(self._performance.reply, chunk_chars=step.chunk_chars, pings=step.pings)
        middle = max(len(found) // 2, min(4, len(found) - 2))
        await self._start(send, 200, "text/event-stream; charset=utf-8", {"cache-control": "no-cache"})
        for index, event in enumerate(found):
            if index == middle:
                if step.hold is not None and step.hold_at == "mid":
                    await self._player.holds.wait(step.hold)
                if error is not None:
                    if error.at == "mid":
                        await send(_part(stream.encode(self._error_event())))
                        await send({"type": "http.response.body", "body": b""})
                        return "error"
                    return "cut"
            await send(_part(stream.encode(event)))
            await self._pause(step.chunk_ms)
        await send({"type": "http.response.body", "body": b""})
        return "complete"

    def _error_event(self) -> dict[str, Any]:
        error = self._performance.error
        assert error is not None
        message = error.message or f"scripted error {error.status}"
        return error_body(error.status, message, self._request.request_id, error_type=error.type)

    async def _start(self, send: Send, status: int, content_type: str, headers: dict[str, str]) -> None:
        self._player.record.answered(self._request, status)
        sent = {"content-type": content_type, "request-id": self._request.request_id, **headers}
        await send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
            }
        )

    async def _pause(self, milliseconds: int) -> None:
        if milliseconds > 0:
            try:
                await asyncio.wait_for(self._closing.wait(), milliseconds / 1000)
            except TimeoutError:
                return


def _part(body: bytes) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": True}


async def _until_disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
