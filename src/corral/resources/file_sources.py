"""Files as sources of images and documents in messages: what is admitted, and what the model then gets.

The log keeps the file's id alone. The bytes are read when a model request is built, so that they stay where
they are, and can expire (contract sections 10.2 and 18).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import structlog
from msgspec import structs
from psycopg.rows import DictRow

from corral.resources.files import Files, refuse_expired
from corral.wire.content import DocumentBlock, FileSource, ImageBlock, MessageBlock, ResultBlock
from corral.wire.errors import ApiError, InvalidRequest, NotFound
from corral.wire.events import (
    RUBRIC_CHARACTERS,
    ClientEvent,
    DefineOutcome,
    FileRubric,
    TextRubric,
    UserCustomToolResult,
    UserMessage,
    UserToolResult,
)
from corral.wire.files import SessionOutput
from corral.wire.media import IMAGE_BASE64_BYTES, check_image

DOCUMENT_BYTES: Final = 20 * 1024 * 1024
"""As base64 it still fits into a model request of 32 MB."""
_HEADER_BYTES: Final = 256 * 1024

_log = structlog.get_logger(__name__)


class FileSources:
    """The files in a database as sources of content."""

    def __init__(self, files: Files) -> None:
        self._files = files

    async def check(self, events: Sequence[ClientEvent], path: str, *, session_id: str | None = None) -> None:
        """Check every file that is named in events; where `session_id` is given it must be that session's.

        Raises:
            InvalidRequest: a file does not exist, has expired, or is nothing that a model takes there.
        """
        checked: set[tuple[str, str]] = set()
        for index, event in enumerate(events):
            for block, source, where in _sources(event, f"{path}[{index}]"):
                if (block.__struct_config__.tag, source.file_id) not in checked:
                    await self._check(block, source.file_id, f"{where}.file_id", session_id)
                    checked.add((str(block.__struct_config__.tag), source.file_id))

    async def rubrics(self, events: Sequence[ClientEvent], path: str) -> list[ClientEvent]:
        """The events with the text of rubrics in place of the files that hold them.

        Raises:
            InvalidRequest: such a file does not exist, has expired, or is no text of admissible length.
        """
        return [
            structs.replace(event, rubric=await self._rubric(event.rubric.file_id, f"{path}[{index}].rubric"))
            if isinstance(event, DefineOutcome) and isinstance(event.rubric, FileRubric)
            else event
            for index, event in enumerate(events)
        ]

    async def _rubric(self, file_id: str, path: str) -> TextRubric:
        where = f"{path}.file_id"
        try:
            row = await self._files.row(file_id)
            refuse_expired(row)
        except NotFound as missing:
            raise _inadmissible(missing, file_id, where) from None
        # A character has four bytes at most, so nothing longer can be of admissible length.
        content = await self._files.blobs.read(row["blob_id"], RUBRIC_CHARACTERS * 4 + 1)
        _check_text(content, where)
        text = content.decode()
        if len(text) > RUBRIC_CHARACTERS:
            raise InvalidRequest(f"{where}: the rubric has more than {RUBRIC_CHARACTERS} characters")
        return TextRubric(content=text)

    async def read(self, file_id: str) -> tuple[str, bytes] | None:
        """The media type and the bytes of a file, or None if they are no longer to be had.

        Raises:
            Overloaded: the blob store does not answer.
        """
        try:
            row = await self._files.row(file_id)
            refuse_expired(row)
            return row["mime_type"], await self._files.blobs.read(row["blob_id"], DOCUMENT_BYTES)
        except NotFound:
            return None
        except FileNotFoundError:
            _log.error("the bytes of a file are missing from the blob store", file_id=file_id)
            return None

    async def outputs(self, session_id: str, most: int) -> tuple[list[SessionOutput], int]:
        """The first `most` of a session's outputs in the order of their paths, and how many there are."""
        rows = await self._files.output_rows(session_id, most)
        return [_output(row) for row in rows], rows[0]["total"] if rows else 0

    async def output(self, session_id: str, path: str) -> SessionOutput | None:
        """The output of a session at a path; None if there is none."""
        rows = await self._files.output_rows(session_id, 1, path)
        return _output(rows[0]) if rows else None

    async def beginning(self, file_id: str, most: int) -> bytes | None:
        """Up to `most` bytes of a file, from its beginning; None if they are no longer to be had.

        Raises:
            Overloaded: the blob store does not answer.
        """
        try:
            row = await self._files.row(file_id)
            refuse_expired(row)
            return await self._files.blobs.read(row["blob_id"], most)
        except (NotFound, FileNotFoundError):
            return None

    async def _check(
        self, block: ImageBlock | DocumentBlock, file_id: str, where: str, session_id: str | None
    ) -> None:
        try:
            row = await self._files.row(file_id, session_id=session_id)
            refuse_expired(row)
        except NotFound as missing:
            raise _inadmissible(missing, file_id, where) from None
        mime, size = row["mime_type"], row["size_bytes"]
        if isinstance(block, ImageBlock):
            if (size + 2) // 3 * 4 > IMAGE_BASE64_BYTES:
                raise InvalidRequest(f"{where}: image is larger than {IMAGE_BASE64_BYTES * 3 // 4} bytes")
            check_image(mime, await self._files.blobs.read(row["blob_id"], _HEADER_BYTES), where)
            return
        if size > DOCUMENT_BYTES:
            raise InvalidRequest(f"{where}: document is larger than {DOCUMENT_BYTES} bytes")
        if not size:
            raise InvalidRequest(f"{where}: the file is empty")
        if mime == "application/pdf":
            if b"%PDF-" not in await self._files.blobs.read(row["blob_id"], 1024):
                raise InvalidRequest(f"{where}: not a PDF document")
        elif mime.startswith("text/"):
            _check_text(await self._files.blobs.read(row["blob_id"], DOCUMENT_BYTES), where)
        else:
            raise InvalidRequest(f"{where}: a document must be a PDF or text, and the file is {mime}")


def _output(row: DictRow) -> SessionOutput:
    return SessionOutput(row["output_path"], row["id"], row["mime_type"], row["size_bytes"])


def _check_text(content: bytes, where: str) -> None:
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"{where}: the file is not UTF-8 text") from None
    if not text.strip() or "\0" in text:
        raise InvalidRequest(f"{where}: the file holds no text, or NUL characters")


def _inadmissible(missing: NotFound, file_id: str, where: str) -> ApiError:
    code = missing.details.get("error_code")
    reason = "has expired" if code == "file_expired" else "not found"
    return InvalidRequest(f"{where}: file {file_id} {reason}", error_code=code)


def _sources(event: ClientEvent, path: str) -> Iterator[tuple[ImageBlock | DocumentBlock, FileSource, str]]:
    content: Iterable[MessageBlock | ResultBlock] = ()
    if isinstance(event, UserMessage | UserToolResult | UserCustomToolResult):
        content = event.content
    for index, block in enumerate(content):
        if isinstance(block, ImageBlock | DocumentBlock) and isinstance(block.source, FileSource):
            yield block, block.source, f"{path}.content[{index}].source"
