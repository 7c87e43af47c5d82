"""Answers as real endpoints send them: cut anywhere, with text that trips line and surrogate handling."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from corral.inference.assemble import Assembler
from corral.inference.messages import MessagesProvider
from corral.inference.provider import ModelFailed, ModelRequest, ModelResponse, TextDelta
from corral.server import listen, serving

Events = list[dict[str, Any]]


def text_events(*pieces: str, stop: str = "end_turn") -> Events:
    deltas = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}}
        for piece in pieces
    ]
    return [*_opened({"type": "text", "text": ""}), *deltas, *_closed(stop)]


def call_events(*pieces: str, stop: str = "tool_use") -> Events:
    deltas = [
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "input_json_delta", "partial_json": piece},
        }
        for piece in pieces
    ]
    block: dict[str, Any] = {"type": "tool_use", "id": "toolu_x", "name": "bash", "input": {}}
    return [*_opened(block), *deltas, *_closed(stop)]


def _opened(block: dict[str, Any]) -> Events:
    start = {"type": "message_start", "message": {"model": "m", "usage": {"input_tokens": 1}}}
    return [start, {"type": "content_block_start", "index": 0, "content_block": block}]


def _closed(stop: str) -> Events:
    return [
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]


def raw(events: Events, encode: Callable[[Any], bytes] = msgspec.json.encode, end: bytes = b"\n") -> bytes:
    """The stream's bytes, with text as UTF-8, as the Claude API sends it, and not escaped."""
    frames = [
        b"event: " + event["type"].encode() + end + b"data: " + encode(event) + end + end for event in events
    ]
    return b"".join(frames)


@asynccontextmanager
async def endpoint(body: bytes, chunk: int) -> AsyncGenerator[MessagesProvider]:
    """A provider whose endpoint answers with `body` in pieces of `chunk` bytes."""

    async def pieces() -> AsyncGenerator[bytes]:
        for at in range(0, len(body), chunk):
            yield body[at : at + chunk]

    async def messages(_: Request) -> StreamingResponse:
        return StreamingResponse(pieces(), media_type="text/event-stream")

    app = Starlette(routes=[Route("/v1/messages", messages, methods=["POST"])])
    async with serving(app, listen("127.0.0.1", 0)) as base_url:
        provider = MessagesProvider(base_url=base_url, api_key="k", models={}, max_tokens=9, timeout=10)
        try:
            yield provider
        finally:
            await provider.close()


async def answered(body: bytes, chunk: int = 7) -> tuple[str, ModelResponse]:
    """The text as it streamed, and the response."""
    request = ModelRequest("m", [{"role": "user", "content": "hi"}])
    streamed = ""
    async with endpoint(body, chunk) as provider, aclosing(provider.stream(request)) as events:
        async for event in events:
            if isinstance(event, TextDelta):
                streamed += event.text
            elif isinstance(event, ModelResponse):
                return streamed, event
    raise AssertionError("no answer")


@pytest.mark.parametrize("chunk", [1, 1_000])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["lf", "crlf"])
async def test_line_separators_of_unicode_are_text_and_not_ends_of_lines(chunk: int, end: bytes) -> None:
    text = "a\u2028b\u2029c\u0085d\u000be\u001cf\u0000g\rh\n💥"
    streamed, response = await answered(raw(text_events(text[:5], text[5:]), end=end), chunk)
    assert streamed == text
    assert response.content == [{"type": "text", "text": text}]


async def test_a_character_cut_in_two_by_a_gateway_costs_that_character_alone() -> None:
    def cut(event: Any) -> bytes:
        return msgspec.json.encode(event).replace(b"HALF", b"\\ud83d")

    streamed, response = await answered(raw(text_events("a HALF b"), cut))
    assert streamed == "a \ufffd b"
    assert response.content == [{"type": "text", "text": "a \ufffd b"}]


def assembled(events: Events) -> ModelResponse:
    assembler = Assembler()
    for event in events:
        assembler.feed(event)
    assert assembler.response is not None
    return assembler.response


def test_a_call_torn_at_the_output_limit_is_left_out() -> None:
    assert assembled(call_events('{"command": "ls', stop="max_tokens")).content == []


def test_a_call_whose_input_is_no_object_is_a_failure_to_repeat_and_no_silent_end() -> None:
    for pieces in (['{"command": "ls'], ["[]"], ["null"], ["NaN"]):
        with pytest.raises(ModelFailed) as failed:
            assembled(call_events(*pieces))
        assert failed.value.retryable


def test_a_call_with_half_a_character_in_its_input_is_kept() -> None:
    [block] = assembled(call_events('{"command": "\\ud83d', ' x"}')).content
    assert block["input"] == {"command": "\ufffd x"}


def test_a_call_without_any_input_has_an_empty_one() -> None:
    assert assembled(call_events()).content[0]["input"] == {}


@pytest.mark.parametrize("length", range(1, 5))
async def test_an_answer_that_ends_before_its_end_is_a_failure_to_repeat(length: int) -> None:
    with pytest.raises(ModelFailed) as failed:
        await answered(raw(text_events("hi")[:length]))
    assert failed.value.retryable
