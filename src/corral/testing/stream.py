"""A reply as the events of a stream, in the Messages API's order, encoded as server-sent events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from corral.testing.reply import Reply
from corral.testing.validation.blocks import NOVEL_BLOCK

Event = dict[str, Any]


def encode(event: Event) -> bytes:
    """One event as the bytes of a server-sent event."""
    data = json.dumps(event, separators=(",", ":"))
    return f"event: {event['type']}\ndata: {data}\n\n".encode()


def events(reply: Reply, *, chunk_chars: int, pings: int) -> list[Event]:
    """Every event of the stream: start, each block's start, deltas and stop, pings between them, delta and
    stop.

    Deltas carry up to `chunk_chars` characters. The first ping follows the first block's start, as the API's
    does; the others are spread over the stream.
    """
    message = reply.message
    usage = message["usage"]
    found: list[Event] = [
        {
            "type": "message_start",
            "message": {
                **{key: value for key, value in message.items() if key != "stop_details"},
                "content": [],
                "stop_reason": None,
                "stop_sequence": None,
                "usage": {**usage, "output_tokens": 1},
            },
        }
    ]
    last = len(message["content"]) - 1
    for index, block in enumerate(message["content"]):
        found += _block_events(index, block, chunk_chars, torn=reply.torn and index == last)
    found = _with_pings(found, pings)
    delta = {key: message[key] for key in ("stop_reason", "stop_sequence")}
    if "stop_details" in message:
        delta["stop_details"] = message["stop_details"]
    found.append({"type": "message_delta", "delta": delta, "usage": _closing_usage(usage)})
    found.append({"type": "message_stop"})
    return found


def _block_events(index: int, block: Event, chunk_chars: int, *, torn: bool) -> Iterator[Event]:
    def delta(kind: str, **fields: Any) -> Event:
        return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}}

    def start(shown: Event) -> Event:
        return {"type": "content_block_start", "index": index, "content_block": shown}

    match block["type"]:
        case "text":
            yield start({**block, "text": ""})
            for piece in _pieces(block["text"], chunk_chars):
                yield delta("text_delta", text=piece)
        case "thinking":
            yield start({**block, "thinking": "", "signature": ""})
            for piece in _pieces(block["thinking"], chunk_chars):
                yield delta("thinking_delta", thinking=piece)
            yield delta("signature_delta", signature=block["signature"])
        case "tool_use":
            yield start({**block, "input": {}})
            written = json.dumps(block["input"])
            yield delta("input_json_delta", partial_json="")
            for piece in _pieces(written[: len(written) // 2] if torn else written, chunk_chars):
                yield delta("input_json_delta", partial_json=piece)
        case _:
            yield start(block)
            if block["type"] == NOVEL_BLOCK:
                yield {"type": "scripted_event", "index": index, "note": "an event that no client knows"}
    yield {"type": "content_block_stop", "index": index}


def _pieces(text: str, size: int) -> list[str]:
    size = max(size, 1)
    return [text[at : at + size] for at in range(0, len(text), size)]


def _with_pings(found: list[Event], pings: int) -> list[Event]:
    if pings < 1:
        return found
    first = min(2, len(found))
    gap = max(1, (len(found) - first) // pings)
    places = [min(first + gap * number, len(found)) for number in range(pings)]
    for place in reversed(places):
        found.insert(place, {"type": "ping"})
    return found


def _closing_usage(usage: Event) -> Event:
    shown = ("cache_creation_input_tokens", "cache_read_input_tokens", "input_tokens", "output_tokens")
    return {
        **{key: usage[key] for key in shown},
        "output_tokens_details": usage["output_tokens_details"],
        "server_tool_use": usage["server_tool_use"],
    }
