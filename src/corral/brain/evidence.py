"""What the grader of an outcome is shown: the definition, the work, and the files that were handed over.

All of it comes from the log and from the session's collected outputs (contract section 9); nothing is asked
of the sandbox, which may be gone by now. How much is shown is bounded here.
"""

import asyncio
import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from corral.brain.grader import PART, Block, Deliverable, Evidence, Round, Wish, part_of
from corral.brain.office_text import OFFICE_TYPES, office_text
from corral.session.in_words import SPEAKERS, content_text, entry_text, shortened
from corral.session.outcome_state import Evaluation, Outcome
from corral.store.database import Database
from corral.wire.errors import InvalidRequest
from corral.wire.files import SessionOutput
from corral.wire.media import IMAGE_BASE64_BYTES, check_image

LISTED: Final = 200
"""Deliverables that are named."""
TEXT_CHARACTERS: Final = 150_000
"""Of all deliverables together that are shown as text; the rest can be read on request."""
RECORD_CHARACTERS: Final = 60_000
ENTRY_CHARACTERS: Final = 2_000
WORDS_CHARACTERS: Final = 40_000
"""Of the agent's last message."""
TEXT_BYTES: Final = 4 * 1024 * 1024
"""Of one deliverable that can be read as text, from its beginning."""
OFFICE_BYTES: Final = 8 * 1024 * 1024
"""Of a spreadsheet, document or set of slides whose text is shown."""
UNPACKED: Final = 20
"""Of those, how many are looked into without being asked for."""
_SAMPLE_BYTES: Final = 4096
IMAGES: Final = 10
DOCUMENTS: Final = 3
MEDIA_BYTES: Final = 12 * 1024 * 1024
"""Of all images and documents together, before they are encoded."""
_IMAGE_BYTES: Final = IMAGE_BASE64_BYTES // 4 * 3
_ENTRIES: Final = 500
_IMAGE_TYPES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_PDF: Final = "application/pdf"


class OutputReader(Protocol):
    """Reads the files that sessions have put out."""

    async def outputs(self, session_id: str, most: int) -> tuple[Sequence[SessionOutput], int]:
        """The first `most` of a session's outputs in the order of their paths, and how many there are."""
        ...

    async def output(self, session_id: str, path: str) -> SessionOutput | None:
        """The output at a path; None if there is none."""
        ...

    async def beginning(self, file_id: str, most: int) -> bytes | None:
        """Up to `most` bytes of a file, from its beginning; None if they are no longer to be had.

        Raises:
            Overloaded: they cannot be read at the moment.
        """
        ...


class EvidenceReader:
    """Gathers what graders are shown of one session."""

    def __init__(self, database: Database, files: OutputReader, session_id: str, thread_id: str) -> None:
        self._database = database
        self._files = files
        self._session_id = session_id
        self._thread_id = thread_id

    async def gather(self, outcome: Outcome, evaluation: Evaluation, *, media: bool) -> Evidence:
        """All that an evaluation goes by, as it stands now. `media`: with images and documents.

        Raises:
            Overloaded: a file cannot be read at the moment.
        """
        defined = await self._database.fetch_one(
            "select body::text as body from events where session_id = %s and seq = %s",
            (self._session_id, outcome.defined),
        )
        assert defined is not None
        body = msgspec.json.decode(defined["body"])
        record, words = await self._record(outcome.defined, evaluation.start_seq)
        outputs, count = await self._files.outputs(self._session_id, LISTED)
        return Evidence(
            mark=evaluation.start_id,
            description=body["description"],
            rubric=body["rubric"].get("content", ""),
            iteration=outcome.iteration,
            max_iterations=outcome.max_iterations,
            earlier=outcome.last_explanation,
            deliverables=await self._deliverables(outputs, media=media),
            unlisted=count - len(outputs),
            last_words=words,
            record=record,
            rounds=await self._rounds(evaluation.start_seq),
        )

    async def answer(self, wish: Wish) -> Block:
        """A part of a deliverable that the grader asked for, or why it cannot have it."""
        output = await self._files.output(self._session_id, wish.path)
        text = None if output is None else await self._text(output, TEXT_BYTES)
        if text is None:
            reason = (
                "There is no such deliverable." if output is None else "It is no text that could be read."
            )
            return {"text": reason, "is_error": True}
        return {"text": part_of(text, wish.offset), "is_error": False}

    async def _record(self, defined: int, before: int) -> tuple[str, str]:
        """What was done, the latest that fits, and the last that the agent said.

        The definition is left out: it stands by itself.
        """
        rows = await self._database.fetch(
            "select type, body::text as body from events where session_id = %s and thread_id = %s"
            " and type = any(%s) and seq < %s and seq <> %s order by seq desc limit %s",
            (self._session_id, self._thread_id, list(SPEAKERS), before, defined, _ENTRIES),
        )
        events = [(row["type"], msgspec.json.decode(row["body"])) for row in rows]
        words = next((content_text(body["content"]) for kind, body in events if kind == "agent.message"), "")
        entries: list[str] = []
        size = 0
        for kind, body in events:
            entry = shortened(entry_text(kind, body), ENTRY_CHARACTERS)
            size += len(entry)
            if size > RECORD_CHARACTERS:
                entries.append("(What came before is left out.)")
                break
            entries.append(entry)
        return "\n\n".join(reversed(entries)), shortened(words, WORDS_CHARACTERS)

    async def _rounds(self, after: int) -> list[Round]:
        rows = await self._database.fetch(
            "select private::text as private from events where session_id = %s and seq > %s"
            " and type = 'span.outcome_evaluation_ongoing' and private is not null order by seq",
            (self._session_id, after),
        )
        kept: list[Mapping[str, Any]] = [msgspec.json.decode(row["private"]) for row in rows]
        return [
            Round(one["content"], one["results"], one.get("note", ""), one.get("model", ""))
            for one in kept
            if "content" in one
        ]

    async def _deliverables(self, outputs: Sequence[SessionOutput], *, media: bool) -> list[Deliverable]:
        room = _Room(media=media)
        return [await self._deliverable(output, room) for output in outputs]

    async def _deliverable(self, output: SessionOutput, room: "_Room") -> Deliverable:
        plain = Deliverable(output.path, output.mime_type, output.size_bytes)
        if output.mime_type in _IMAGE_TYPES or output.mime_type == _PDF:
            if not room.takes(output):
                return plain
            content = await self._files.beginning(output.file_id, output.size_bytes)
            block = None if content is None else await _media(output, content)
            return msgspec.structs.replace(plain, media=block)
        if not output.size_bytes:
            return plain
        if output.mime_type in OFFICE_TYPES and not room.unpacks():
            return plain
        # With no room left it is enough to know whether it can be read at all.
        most = TEXT_BYTES if room.characters else _SAMPLE_BYTES
        text = await self._text(output, most)
        if text is None:
            return plain
        if not room.characters:
            return msgspec.structs.replace(plain, text="", left=output.size_bytes)
        shown = text[: min(PART, room.characters)]
        room.characters -= len(shown)
        return msgspec.structs.replace(plain, text=shown, left=len(text) - len(shown))

    async def _text(self, output: SessionOutput, most: int) -> str | None:
        """The text of a deliverable, or of its first `most` bytes; None if it is none that could be read."""
        if output.mime_type not in OFFICE_TYPES:
            content = await self._files.beginning(output.file_id, most)
            return None if content is None else text_of(content)
        if output.size_bytes > OFFICE_BYTES:
            return None
        content = await self._files.beginning(output.file_id, OFFICE_BYTES)
        return None if content is None else await asyncio.to_thread(office_text, output.mime_type, content)


class _Room:
    """How much may still be shown."""

    def __init__(self, *, media: bool) -> None:
        self.characters = TEXT_CHARACTERS
        self._bytes = MEDIA_BYTES if media else 0
        self._images = IMAGES
        self._documents = DOCUMENTS
        self._unpacked = UNPACKED

    def unpacks(self) -> bool:
        """Whether another office file may be unpacked; then that is counted."""
        self._unpacked -= 1
        return self._unpacked >= 0

    def takes(self, output: SessionOutput) -> bool:
        """Whether an image or document can be shown; then its room is taken."""
        document = output.mime_type == _PDF
        left = self._documents if document else self._images
        most = self._bytes if document else min(self._bytes, _IMAGE_BYTES)
        if not left or not 0 < output.size_bytes <= most:
            return False
        self._bytes -= output.size_bytes
        if document:
            self._documents -= 1
        else:
            self._images -= 1
        return True


def text_of(content: bytes) -> str | None:
    """The text that bytes are, be it that a character was cut in half at their end; None if they are none."""
    for cut in range(4):
        try:
            text = content[: len(content) - cut].decode()
        except UnicodeDecodeError:
            continue
        return None if "\0" in text else text
    return None


async def _media(output: SessionOutput, content: bytes) -> Block | None:
    """An image or document as a block; None if it is not what its type says, which a model would refuse."""
    if output.mime_type == _PDF:
        kind = "document"
        if b"%PDF-" not in content[:1024]:
            return None
    else:
        kind = "image"
        try:
            check_image(output.mime_type, content, output.path)
        except InvalidRequest:
            return None
    encoded = await asyncio.to_thread(base64.b64encode, content)
    source = {"type": "base64", "media_type": output.mime_type, "data": encoded.decode("ascii")}
    return {"type": kind, "source": source}
