"""Servers other than the Claude API speak dialects of the Messages API; each is read as it was meant.

The streams are short forms of what the servers named in the tests send.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import pytest
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from corral.inference.messages import MessagesProvider
from corral.inference.provider import ModelEvent, ModelFailed, ModelRequest, ModelResponse, TextDelta
from corral.server import listen, serving

LLAMA_CPP_TEXT = [
    'event: message_start\ndata: {"type":"message_start","message":{"id":"chatcmpl-h7","type":"message",'
    '"role":"assistant","content":[],"model":"smollm2","stop_reason":null,"stop_sequence":null,'
    '"usage":{"cache_read_input_tokens":22,"input_tokens":13,"output_tokens":0}}}',
    'event: content_block_start\ndata: {"type":"content_block_start","index":0,'
    '"content_block":{"type":"text","text":""}}',
    'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
    '"delta":{"type":"text_delta","text":"Bien"}}',
    'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
    '"delta":{"type":"text_delta","text":" sûr"}}',
    'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}',
    'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn",'
    '"stop_sequence":null},"usage":{"output_tokens":2}}',
    'event: message_stop\ndata: {"type":"message_stop"}',
]
START = 'data: {"type":"message_start","message":{"id":"m","role":"assistant","content":[]}}'
STOP = 'data: {"type":"message_stop"}'


def started(index: int, block: str) -> str:
    return f'data: {{"type":"content_block_start","index":{index},"content_block":{block}}}'


def delta(index: int, kind: str, field: str, text: str) -> str:
    shown = f'{{"type":"{kind}","{field}":"{text}"}}'
    return f'data: {{"type":"content_block_delta","index":{index},"delta":{shown}}}'


def stopped(index: int) -> str:
    return f'data: {{"type":"content_block_stop","index":{index}}}'


def ended(reason: str, usage: str = "{}") -> str:
    return f'data: {{"type":"message_delta","delta":{{"stop_reason":{reason}}},"usage":{usage}}}'


@asynccontextmanager
async def endpoint(
    body: bytes, status: int = 200, received: list[Headers] | None = None
) -> AsyncGenerator[MessagesProvider]:
    """A provider whose endpoint answers every request with `body`, and keeps the headers in `received`."""

    async def answer(request: Request) -> Response:
        if received is not None:
            received.append(request.headers)
        kind = "text/event-stream" if status == 200 else "application/json"
        return Response(body, status, media_type=kind)

    app = Starlette(routes=[Route("/v1/messages", answer, methods=["POST"])])
    async with serving(app, listen("127.0.0.1", 0)) as base_url:
        provider = MessagesProvider(
            base_url=base_url, api_key="a-key", models={}, max_tokens=64, timeout=10.0
        )
        try:
            yield provider
        finally:
            await provider.close()


async def events_of(stream: Sequence[str]) -> list[ModelEvent]:
    request = ModelRequest("a-model", [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}])
    async with endpoint("".join(f"{event}\n\n" for event in stream).encode()) as provider:
        return [event async for event in provider.stream(request)]


async def answer_to(stream: Sequence[str]) -> ModelResponse:
    last = (await events_of(stream))[-1]
    assert isinstance(last, ModelResponse)
    return last


async def failure_of(stream: Sequence[str]) -> ModelFailed:
    with pytest.raises(ModelFailed) as raised:
        await events_of(stream)
    return raised.value


async def test_a_llama_cpp_answer_keeps_its_text_and_its_counts() -> None:
    events = await events_of(LLAMA_CPP_TEXT)

    assert [event.text for event in events if isinstance(event, TextDelta)] == ["Bien", " sûr"]
    answer = events[-1]
    assert isinstance(answer, ModelResponse)
    assert answer.content == [{"type": "text", "text": "Bien sûr"}]
    assert answer.stop_reason == "end_turn"
    assert answer.usage == {"cache_read_input_tokens": 22, "input_tokens": 13, "output_tokens": 2}


async def test_an_answer_without_its_start_is_an_answer_whose_input_was_not_counted() -> None:
    """llama.cpp leaves `message_start` out if the first character takes several tokens, as 안 and Ç may."""
    answer = await answer_to(LLAMA_CPP_TEXT[1:])

    assert answer.content == [{"type": "text", "text": "Bien sûr"}]
    assert answer.usage == {"output_tokens": 2}
    assert answer.model == ""


async def test_a_call_announced_without_an_input_gets_the_input_that_follows() -> None:
    """llama.cpp leaves `input` out of the block's start."""
    answer = await answer_to(
        [
            START,
            started(0, '{"type":"tool_use","id":"a","name":"bash"}'),
            delta(0, "input_json_delta", "partial_json", '{\\"command\\":'),
            delta(0, "input_json_delta", "partial_json", '\\"ls\\"}'),
            stopped(0),
            ended('"tool_use"'),
            STOP,
        ]
    )

    assert answer.content == [{"type": "tool_use", "id": "a", "name": "bash", "input": {"command": "ls"}}]


async def test_a_call_without_any_input_has_an_empty_one() -> None:
    answer = await answer_to(
        [
            START,
            started(0, '{"type":"tool_use","id":"a","name":"now"}'),
            stopped(0),
            ended('"tool_use"'),
            STOP,
        ]
    )

    assert answer.content == [{"type": "tool_use", "id": "a", "name": "now", "input": {}}]


async def test_a_call_whose_block_is_never_closed_keeps_its_input() -> None:
    answer = await answer_to(
        [
            START,
            started(0, '{"type":"tool_use","id":"a","name":"bash","input":{}}'),
            delta(0, "input_json_delta", "partial_json", '{\\"command\\":\\"ls\\"}'),
            ended('"tool_use"'),
            STOP,
        ]
    )

    assert answer.content[0]["input"] == {"command": "ls"}


async def test_blocks_that_are_open_side_by_side_stay_apart() -> None:
    """llama.cpp closes every block at the end of the answer, and signs thinking with nothing."""
    answer = await answer_to(
        [
            START,
            started(0, '{"type":"thinking","thinking":""}'),
            delta(0, "thinking_delta", "thinking", "Hm."),
            started(1, '{"type":"text","text":""}'),
            delta(1, "text_delta", "text", "I look."),
            started(2, '{"type":"tool_use","id":"a","name":"bash"}'),
            delta(2, "input_json_delta", "partial_json", "{}"),
            delta(0, "signature_delta", "signature", ""),
            stopped(0),
            stopped(1),
            stopped(2),
            ended('"tool_use"'),
            STOP,
        ]
    )

    assert answer.content == [
        {"type": "thinking", "thinking": "Hm.", "signature": ""},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "a", "name": "bash", "input": {}},
    ]


async def test_a_block_announced_twice_is_one_block() -> None:
    """llama.cpp announces an open block again when the answer's last piece belongs to it."""
    answer = await answer_to(
        [
            START,
            started(0, '{"type":"text","text":""}'),
            delta(0, "text_delta", "text", "One"),
            started(0, '{"type":"text","text":""}'),
            delta(0, "text_delta", "text", " piece"),
            stopped(0),
            ended('"end_turn"'),
            STOP,
        ]
    )

    assert answer.content == [{"type": "text", "text": "One piece"}]


async def test_two_blocks_under_one_index_are_no_answer() -> None:
    failure = await failure_of(
        [
            START,
            started(0, '{"type":"tool_use","id":"a","name":"bash","input":{}}'),
            started(0, '{"type":"tool_use","id":"b","name":"bash","input":{}}'),
        ]
    )

    assert "same index" in failure.message
    assert failure.retryable


async def test_blocks_are_numbered_as_they_come_where_a_gateway_leaves_numbers_out() -> None:
    """Gateways that take thinking out of a stream keep the other blocks' numbers."""
    events = await events_of(
        [
            START,
            started(1, '{"type":"text","text":""}'),
            delta(1, "text_delta", "text", "Hello"),
            stopped(1),
            ended('"end_turn"'),
            STOP,
        ]
    )

    assert [event for event in events if isinstance(event, TextDelta)] == [TextDelta(0, "Hello")]


async def test_text_that_comes_with_its_block_is_streamed_too() -> None:
    events = await events_of(
        [
            START,
            started(0, '{"type":"text","text":"Hel"}'),
            delta(0, "text_delta", "text", "lo"),
            stopped(0),
            ended('"end_turn"'),
            STOP,
        ]
    )

    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "Hello"


@pytest.mark.parametrize(
    ("at_start", "at_end"),
    [
        ('{"input_tokens":0,"output_tokens":0}', '{"input_tokens":13,"output_tokens":2}'),
        ('{"input_tokens":13,"output_tokens":0}', '{"input_tokens":0,"output_tokens":2}'),
        ('{"input_tokens":13}', '{"input_tokens":null,"output_tokens":2}'),
        ("null", '{"input_tokens":13,"output_tokens":2}'),
    ],
)
async def test_counts_may_come_at_the_start_or_at_the_end(at_start: str, at_end: str) -> None:
    """vLLM and LiteLLM know the input at the end, llama.cpp at the start, Ollama estimates it first."""
    answer = await answer_to(
        [
            f'data: {{"type":"message_start","message":{{"id":"m","usage":{at_start}}}}}',
            ended('"end_turn"', at_end),
            STOP,
        ]
    )

    assert answer.usage == {"input_tokens": 13, "output_tokens": 2}


@pytest.mark.parametrize("reason", ["null", '""'])
async def test_an_answer_that_does_not_say_why_it_ends_has_ended(reason: str) -> None:
    """Ollama's reason may be empty."""
    text = [START, started(0, '{"type":"text","text":"Hi"}'), stopped(0), ended(reason), STOP]
    call = [START, started(0, '{"type":"tool_use","id":"a","name":"now"}'), stopped(0), ended(reason), STOP]

    assert (await answer_to(text)).stop_reason == "end_turn"
    assert (await answer_to(call)).stop_reason == "tool_use"


async def test_an_answer_without_an_end_is_none() -> None:
    cut = await failure_of([START, started(0, '{"type":"text","text":"Hi"}'), stopped(0), STOP])
    lost = await failure_of([START, started(0, '{"type":"text","text":"Hi"}'), stopped(0)])

    assert cut.retryable
    assert lost.retryable


async def test_comments_pings_and_the_mark_of_the_end_change_nothing() -> None:
    """llama.cpp pings with comments, the Claude API with events; vLLM ends its stream with a word."""
    stream = [*LLAMA_CPP_TEXT]
    stream[3:3] = [": ping", 'event: ping\ndata: {"type": "ping"}', "event: ping\ndata: {}", "data: [DONE]"]

    answer = await answer_to([*stream, "data: [DONE]"])

    assert answer.content == [{"type": "text", "text": "Bien sûr"}]


async def test_an_event_without_a_type_has_its_name_for_one() -> None:
    stream = [event.replace('"type":"message_stop"', "") for event in LLAMA_CPP_TEXT]

    assert (await answer_to(stream)).stop_reason == "end_turn"


@pytest.mark.parametrize(
    "error",
    [
        'event: error\ndata: {"code":500,"message":"out of memory","type":"server_error"}',
        'event: error\ndata: {"error":{"code":500,"message":"out of memory","type":"server_error"}}',
        'event: error\ndata: {"type":"error","error":{"type":"internal_error","message":"out of memory"}}',
        'data: {"error":{"message":"out of memory"}}',
        'data: {"error":"out of memory"}',
    ],
)
async def test_an_error_in_the_stream_is_told_in_the_servers_words(error: str) -> None:
    failure = await failure_of([START, error])

    assert failure.message == "out of memory"
    assert failure.retryable


async def test_a_conversation_that_is_too_long_for_the_model_is_not_tried_again() -> None:
    """llama.cpp's own kind of error, as an answer and inside a stream."""
    error = '{"code":400,"message":"too long","type":"exceed_context_size_error"}'
    inside = await failure_of([START, f"event: error\ndata: {error}"])
    request = ModelRequest("a-model", [{"role": "user", "content": "Hello"}])
    async with endpoint(f'{{"error":{error}}}'.encode(), 400) as provider:
        with pytest.raises(ModelFailed, match="too long") as refused:
            _ = [event async for event in provider.stream(request)]

    assert not inside.retryable
    assert not refused.value.retryable


async def test_the_key_is_where_each_gateway_looks_for_it() -> None:
    """vLLM reads the bearer token alone, others `x-api-key`."""
    received: list[Headers] = []
    body = "".join(f"{event}\n\n" for event in LLAMA_CPP_TEXT).encode()
    async with endpoint(body, received=received) as provider:
        _ = [event async for event in provider.stream(ModelRequest("a-model", []))]

    assert received[0]["authorization"] == "Bearer a-key"
    assert received[0]["x-api-key"] == "a-key"
