"""An instant model provider, as a process: ``python -m benchmarks.provider PORT``.

It speaks the Messages API and, for others, OpenAI's chat completions; checks nothing, and answers ``ok``.
The text of the last user message may hold:

- ``mark:mN``: when the request arrived is kept under this name, for ``GET /arrival/mN?count=2``, which
  waits for the second of them
- ``first:MS``: the first token comes after so many milliseconds
- ``deltas:N``: the answer comes in so many pieces
- ``hold:once``: the first request with this mark is never answered

Times are `time.perf_counter`'s, which every process of a Linux machine shares.
"""

import asyncio
import json
import re
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from typing import Any, Final
from urllib.parse import parse_qs

import uvicorn

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]

_STREAMS: Final = re.compile(rb'"stream"\s*:\s*true')
_MARK: Final = re.compile(rb"\bmark:m\d+")
_WORD: Final = re.compile(rb"(mark|first|deltas|hold):(\w+)")
_USAGE: Final = {"input_tokens": 10, "output_tokens": 2}


def _words(body: bytes) -> dict[str, str]:
    """The words of the last marked message. Any order of messages and tools will do."""
    found: dict[str, str] = {}
    marks = list(_MARK.finditer(body))
    if marks:
        for match in _WORD.finditer(body, marks[-1].start(), marks[-1].start() + 200):
            found.setdefault(match[1].decode(), match[2].decode())
    return found


class Provider:
    """The provider as an ASGI application."""

    def __init__(self) -> None:
        self._arrivals: dict[str, list[float]] = {}
        self._changed = asyncio.Condition()
        self._answers: dict[str, Callable[[dict[str, str], bytes], AsyncGenerator[bytes]]] = {
            "/v1/messages": _messages,
            "/v1/chat/completions": _completions,
            "/chat/completions": _completions,
        }

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return
        path: str = scope["path"]
        if path.startswith("/arrival/"):
            count = int(parse_qs(scope["query_string"].decode()).get("count", ["1"])[0])
            await _whole(send, await self._arrival(path.removeprefix("/arrival/"), count))
        elif (answer := self._answers.get(path)) is not None:
            await self._play(answer, receive, send)
        else:
            await _whole(send, {"data": [], "has_more": False})

    async def _play(
        self,
        answer: Callable[[dict[str, str], bytes], AsyncGenerator[bytes]],
        receive: _Receive,
        send: _Send,
    ) -> None:
        parts: list[bytes] = []
        while (message := await receive())["type"] == "http.request":
            parts.append(message.get("body", b""))
            if not message.get("more_body"):
                break
        now = time.perf_counter()
        body = b"".join(parts)
        words = _words(body)
        mark = words.get("mark", "")
        arrived = self._arrivals.setdefault(mark, [])
        arrived.append(now)
        async with self._changed:
            self._changed.notify_all()
        if words.get("hold") and len(arrived) == 1:
            while (await receive())["type"] != "http.disconnect":
                pass
            return
        streaming = _STREAMS.search(body) is not None
        kind = b"text/event-stream" if streaming else b"application/json"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
        async for part in answer(words, body if not streaming else b""):
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _arrival(self, mark: str, count: int) -> list[float]:
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._arrivals.get(mark, [])) >= count)
        return self._arrivals[mark]


async def _messages(words: dict[str, str], whole: bytes) -> AsyncGenerator[bytes]:
    message: dict[str, Any] = {
        "id": "msg_benchmark", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5",
        "content": [], "stop_reason": None, "stop_sequence": None, "usage": _USAGE,
    }  # fmt: skip
    wait, texts = _timing(words)
    if whole:
        await asyncio.sleep(wait)
        message |= {"content": [{"type": "text", "text": "".join(texts)}], "stop_reason": "end_turn"}
        yield json.dumps(message).encode()
        return
    block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    yield _event("message_start", {"type": "message_start", "message": message}) + _event(
        block["type"], block
    )
    if wait:
        await asyncio.sleep(wait)
    deltas = [
        _event(
            "content_block_delta",
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}},
        )
        for text in texts
    ]
    stop = {"type": "content_block_stop", "index": 0}
    end = {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": _USAGE,
    }
    ending = _event("content_block_stop", stop) + _event("message_delta", end)
    ending += _event("message_stop", {"type": "message_stop"})
    if len(deltas) == 1:
        yield deltas[0] + ending
        return
    for delta in deltas:
        yield delta
        await asyncio.sleep(0)
    yield ending


async def _completions(words: dict[str, str], whole: bytes) -> AsyncGenerator[bytes]:
    base: dict[str, Any] = {"id": "chatcmpl-benchmark", "created": 1, "model": "benchmark"}
    usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
    wait, texts = _timing(words)
    await asyncio.sleep(wait)
    if whole:
        said = {"role": "assistant", "content": "".join(texts)}
        choice = {"index": 0, "message": said, "finish_reason": "stop"}
        yield json.dumps({**base, "object": "chat.completion", "choices": [choice], "usage": usage}).encode()
        return
    chunk = {**base, "object": "chat.completion.chunk"}
    deltas: list[tuple[dict[str, str], str | None]] = [({"role": "assistant", "content": ""}, None)]
    deltas += [({"content": text}, None) for text in texts]
    deltas.append(({}, "stop"))
    for delta, reason in deltas:
        choices = [{"index": 0, "delta": delta, "finish_reason": reason}]
        yield b"data: " + json.dumps({**chunk, "choices": choices}).encode() + b"\n\n"
    yield b"data: " + json.dumps({**chunk, "choices": [], "usage": usage}).encode() + b"\n\ndata: [DONE]\n\n"


def _timing(words: dict[str, str]) -> tuple[float, list[str]]:
    return float(words.get("first", 0)) / 1000, ["ok "] * int(words.get("deltas", 1))


def _event(name: Any, data: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()


async def _whole(send: _Send, value: Any) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(value).encode(), "more_body": False})


def main() -> None:
    """Serve until the process is ended."""
    uvicorn.run(Provider(), host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
