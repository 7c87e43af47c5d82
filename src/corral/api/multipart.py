"""Forms with files in them, read as they come: nothing of a part is kept but what the reader keeps.

A form is a sequence of `PartStart`, pieces of bytes, and `PartEnd`, in the order in which it was sent.
"""

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from typing import Final, TypeAlias

import msgspec
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from corral.wire.errors import InvalidRequest

_BOUNDARY_LENGTH: Final = 200
_PARTS: Final = 32
_DRAINED: Final = 128 * 1024 * 1024


class PartStart(msgspec.Struct, frozen=True):
    """A part begins. ``filename`` is None where none was sent; ``content_type`` likewise."""

    name: str
    filename: str | None
    content_type: str | None


class PartEnd(msgspec.Struct, frozen=True):
    """The part that began last has ended."""


FormEvent: TypeAlias = PartStart | bytes | PartEnd


async def form_events(
    content_type: str, body: AsyncIterable[bytes], *, field: str = "file", parts: int = _PARTS
) -> AsyncGenerator[FormEvent]:
    """The events of a form that is to have a part named `field`, and at most so many `parts`.

    Raises:
        InvalidRequest: the request carries no form, or a broken one.
    """
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not boundary or len(boundary) > _BOUNDARY_LENGTH:
        raise InvalidRequest(f"The request body must be multipart/form-data with a part named `{field}`")
    form = _Form(parts)
    try:
        parser = MultipartParser(
            boundary,
            {
                "on_part_begin": form.part_begin,
                "on_header_field": form.header_field,
                "on_header_value": form.header_value,
                "on_header_end": form.header_end,
                "on_headers_finished": form.headers_finished,
                "on_part_data": form.part_data,
                "on_part_end": form.part_end,
                "on_end": form.end,
            },
        )
        async for chunk in body:
            if chunk:
                parser.write(chunk)
            while form.events:
                yield form.events.popleft()
        parser.finalize()
    except FormParserError as error:
        raise InvalidRequest(f"The form in the request body is broken: {error}") from None
    if not form.ended:
        raise InvalidRequest("The form in the request body ends before its last boundary")


async def part_bytes(events: AsyncIterator[FormEvent]) -> AsyncGenerator[bytes]:
    """The bytes of the part that has just begun, up to its end; `events` goes on after it."""
    async for event in events:
        if not isinstance(event, bytes):
            return
        yield event


async def part_text(events: AsyncIterator[FormEvent], name: str, most: int) -> str:
    """The text of the part that has just begun.

    Raises:
        InvalidRequest: it has more than `most` bytes, or is no UTF-8.
    """
    content = b""
    async for piece in part_bytes(events):
        content += piece
        if len(content) > most:
            raise InvalidRequest(f"{name}: must have at most {most} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"{name}: Input should be a valid string") from None


async def drain(body: AsyncIterator[bytes]) -> None:
    """Read on, up to a limit, what is thrown away: whoever sends too much then gets to read the answer."""
    size = 0
    async for chunk in body:
        size += len(chunk)
        if size > _DRAINED:
            return


class _Form:
    """What the parser tells, turned into events."""

    def __init__(self, most: int) -> None:
        self.events: deque[FormEvent] = deque()
        self.ended = False
        self._most = most
        self._parts = 0
        self._headers: dict[bytes, bytes] = {}
        self._field, self._value = b"", b""

    def part_begin(self) -> None:
        self._parts += 1
        if self._parts > self._most:
            raise FormParserError(f"it has more than {self._most} parts")
        self._headers = {}

    def header_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def header_end(self) -> None:
        self._headers[self._field.lower()] = self._value
        self._field, self._value = b"", b""

    def headers_finished(self) -> None:
        disposition, options = parse_options_header(_header(self._headers, b"content-disposition"))
        if disposition != b"form-data" or b"name" not in options:
            raise FormParserError("a part has no name")
        filename = options.get(b"filename")
        self.events.append(
            PartStart(
                name=options[b"name"].decode("utf-8", "replace"),
                filename=None if filename is None else filename.decode("utf-8", "replace"),
                content_type=_header(self._headers, b"content-type") or None,
            )
        )

    def part_data(self, data: bytes, start: int, end: int) -> None:
        self.events.append(data[start:end])

    def part_end(self) -> None:
        self.events.append(PartEnd())

    def end(self) -> None:
        self.ended = True


def _header(headers: dict[bytes, bytes], name: bytes) -> str:
    return headers.get(name, b"").decode("latin-1")
