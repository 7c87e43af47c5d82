"""Reading a stream of server-sent events, whatever the pieces that it comes in."""

from collections.abc import AsyncGenerator

import pytest

from corral.hands.worker.events import decode_event, frames


async def pieces(data: bytes, size: int) -> AsyncGenerator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
async def test_frames_are_found_in_pieces_of_any_size(size: int) -> None:
    data = b': hello\n\nevent: a\ndata: {"x": 1}\n\nevent: ping\ndata: {}\r\n\r\n'
    data += b"data: one\ndata: two\n\nevent: n\n\n"
    read = [frame async for frame in frames(pieces(data, size))]
    assert read == [("a", b'{"x": 1}'), ("ping", b"{}"), ("", b"one\ntwo")]


async def test_a_line_separator_inside_of_text_splits_no_frame() -> None:
    data = 'event: a\ndata: {"t":"one\u2028two\u0085three"}\n\n'.encode()
    read = [frame async for frame in frames(pieces(data, 5))]
    assert read == [("a", '{"t":"one\u2028two\u0085three"}'.encode())]


def test_a_lone_surrogate_in_an_event_is_read() -> None:
    event = decode_event(rb'{"type":"agent.tool_use","id":"a","name":"bash","input":{"command":"\ud800"}}')
    assert event.input == {"command": "\ud800"}


def test_what_is_no_event_is_refused() -> None:
    for data in (b"{", b"[]", b'{"id": "a"}'):
        with pytest.raises(ValueError, match=r"."):
            decode_event(data)
