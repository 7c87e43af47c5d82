"""What a worker reads of a session's events: the few fields that matter to it, of every type."""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final

import msgspec

#: The types that a worker asks for when it reads a session's history.
LISTED: Final = (
    "agent.tool_use",
    "agent.tool_result",
    "user.message",
    "user.interrupt",
    "user.tool_result",
    "user.tool_confirmation",
    "session.status_running",
    "session.status_idle",
    "session.status_rescheduled",
    "session.status_terminated",
    "session.thread_status_running",
    "session.thread_status_terminated",
)


class SeenEvent(msgspec.Struct, frozen=True):
    """An event. The fields mean what they mean for its type; other types may use the same names otherwise."""

    type: str
    id: Any = None
    name: Any = None
    input: Any = None
    evaluated_permission: Any = None
    tool_use_id: Any = None
    result: Any = None
    stop_reason: Any = None
    session_thread_id: Any = None


_DECODER: Final = msgspec.json.Decoder(SeenEvent)


def decode_event(data: bytes) -> SeenEvent:
    """Read an event. Raises ValueError if it is not one."""
    try:
        return _DECODER.decode(data)
    except msgspec.DecodeError:
        # A model's text may hold a lone surrogate, as an escape; only the standard library lets it pass.
        return msgspec.convert(json.loads(data), SeenEvent)


async def frames(chunks: AsyncIterator[bytes]) -> AsyncGenerator[tuple[str, bytes]]:
    """Split a stream of server-sent events into (event name, data). Comments and empty data are left out."""
    name, data = "", bytearray()
    async for line in _lines(chunks):
        if not line:
            if data:
                yield name, bytes(data)
            name, data = "", bytearray()
            continue
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"event":
            name = value.decode(errors="replace")
        elif field == b"data":
            if data:
                data += b"\n"
            data += value


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    # Not the HTTP client's own line splitting: that also splits at U+2028 and the like, which JSON may hold.
    pending = bytearray()
    async for chunk in chunks:
        searched = len(pending)
        pending += chunk
        start = 0
        while (end := pending.find(b"\n", max(start, searched))) >= 0:
            yield bytes(pending[start:end]).removesuffix(b"\r")
            start = end + 1
        del pending[:start]
