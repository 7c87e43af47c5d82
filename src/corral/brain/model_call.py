"""One model request, streamed: previews go out as it comes, an interrupt cuts it off."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final

import msgspec

from corral.brain.emit import PreviewIds, preview_id
from corral.bus.hub import Bus, Preview, session_topic
from corral.inference.provider import (
    BlockStarted,
    InferenceProvider,
    ModelFailed,
    ModelRequest,
    ModelResponse,
    TextDelta,
)
from corral.session.stream_pages import frame


class Answered(msgspec.Struct, frozen=True):
    """The model answered; previews announced the events under these ids."""

    response: ModelResponse
    ids: PreviewIds
    asked: dict[str, str] = {}
    """What it was asked, as digests."""


class Failed(msgspec.Struct, frozen=True):
    """The request brought no answer."""

    failure: ModelFailed


class Interrupted(msgspec.Struct, frozen=True):
    """The client interrupted before the answer was there."""


Outcome = Answered | Failed | Interrupted


class _Previews:
    """Turns a response as it streams into previews on the bus (contract section 10.8)."""

    def __init__(
        self, bus: Bus, session_id: str, thread_id: str, after_seq: int, *, shown: bool = True
    ) -> None:
        self._bus = bus
        self._shown = shown
        self._topic = session_topic(session_id)
        self._thread_id = thread_id
        self._after_seq = after_seq
        self._texts: dict[int, int] = {}
        self._sent: dict[str, int] = {}
        self.ids = PreviewIds()

    def thinking(self) -> None:
        self.ids.thinking.append(preview_id())
        self._start(self.ids.thinking[-1], "agent.thinking")

    def text(self, delta: TextDelta) -> None:
        """Text blocks are numbered as in the final event, which leaves out the empty ones."""
        if not delta.text:
            return
        if not self.ids.message:
            self.ids.message = preview_id()
            self._start(self.ids.message, "agent.message")
        index = self._texts.setdefault(delta.index, len(self._texts))
        content = {"type": "text", "text": delta.text}
        body = {
            "type": "event_delta",
            "event_id": self.ids.message,
            "delta": {"type": "content_delta", "index": index, "content": content},
        }
        self._send(self.ids.message, "agent.message", body)

    def _start(self, event_id: str, event_type: str) -> None:
        body = {"type": "event_start", "event": {"type": event_type, "id": event_id}}
        self._send(event_id, event_type, body)

    def _send(self, event_id: str, event_type: str, body: dict[str, Any]) -> None:
        position = self._sent.get(event_id, 0)
        self._sent[event_id] = position + 1
        if not self._shown or not self._bus.has_readers(self._topic):
            return
        data = frame(body["type"], msgspec.json.encode(body))
        self._bus.preview(
            self._topic, Preview(event_id, self._thread_id, self._after_seq, data, event_type, position)
        )


async def call_model(
    provider: InferenceProvider,
    request: ModelRequest,
    *,
    bus: Bus,
    thread_id: str,
    after_seq: int,
    interrupted: Callable[[], Awaitable[None]],
    previewed: bool = True,
) -> Outcome:
    """Make one request. `interrupted` returns once the client has interrupted; it may wait for ever.
    `previewed`: readers are shown the answer as it comes.

    Whatever the outcome, and on cancellation, the request is closed when this returns.
    """
    previews = _Previews(bus, request.session_id, thread_id, after_seq, shown=previewed)
    streaming = asyncio.create_task(_stream(provider, request, previews))
    watching = asyncio.ensure_future(interrupted())
    try:
        await asyncio.wait({streaming, watching}, return_when=asyncio.FIRST_COMPLETED)
        if streaming.done():
            return streaming.result()
        watching.result()  # the watch itself may have failed, which is no interrupt
        return Interrupted()
    finally:
        streaming.cancel()
        watching.cancel()
        await asyncio.gather(streaming, watching, return_exceptions=True)


_NO_ANSWER: Final = "the provider's stream ended without an answer"


async def _stream(provider: InferenceProvider, request: ModelRequest, previews: _Previews) -> Outcome:
    try:
        async with aclosing(provider.stream(request)) as events:
            async for event in events:
                match event:
                    case BlockStarted(type="thinking" | "redacted_thinking"):
                        previews.thinking()
                    case BlockStarted():
                        pass
                    case TextDelta():
                        previews.text(event)
                    case ModelResponse():
                        return Answered(event, previews.ids, request.asked)
    except ModelFailed as failure:
        return Failed(failure)
    return Failed(ModelFailed("failed", _NO_ANSWER, retryable=True))
