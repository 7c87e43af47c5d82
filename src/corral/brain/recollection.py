"""What a brain holds of a session at one moment, in a form that can be kept: the folded state and what each
thread's model, and the judge of its calls, has been shown.

It is a projection of the log up to an event, and nothing else: whoever has it reads on from there, and is
where a replay of the whole log would be. Most of it are the settled pieces of the conversations, which never
change; the rest, the head, is small and encoded anew each time.
"""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from corral.brain.judge_context import KeptJudgeContext
from corral.brain.settled import Piece
from corral.brain.skills_note import KeptShelf
from corral.brain.transcript import KeptTranscript, Transcript
from corral.session.state import SessionState, with_inputs


class Unusable(Exception):
    """What was kept cannot be used: it is damaged, or was made of something else. The log has it all."""


class PieceNote(msgspec.Struct, frozen=True, array_like=True):
    """What the head says of a closed piece."""

    checksum: int
    is_media: bool


class _Thread(msgspec.Struct, frozen=True):
    transcript: KeptTranscript
    skills: KeptShelf
    pieces: list[PieceNote]
    open: msgspec.Raw
    """The messages of the piece that is still growing, as a JSON array."""


class _Head(msgspec.Struct, frozen=True):
    state: SessionState
    threads: dict[str, _Thread]
    judge: KeptJudgeContext


class ThreadRecollection(msgspec.Struct, frozen=True):
    """What is kept of one thread."""

    transcript: Transcript
    skills: KeptShelf


class Recalled(msgspec.Struct, frozen=True):
    """A session as it was after `state.seq` events. Its transcripts are the caller's own."""

    state: SessionState
    threads: Mapping[str, ThreadRecollection]
    judge: KeptJudgeContext


class Recollection(msgspec.Struct, frozen=True):
    """A session at one moment, encoded. The pieces are by thread, from the position `first` on."""

    seq: int
    head: bytes
    pieces: Mapping[str, Sequence[Piece]]
    first: Mapping[str, int]

    @property
    def size(self) -> int:
        """How many bytes it takes."""
        return len(self.head) + sum(len(piece.body) for pieces in self.pieces.values() for piece in pieces)


def recollection(
    state: SessionState, threads: Mapping[str, ThreadRecollection], judge: KeptJudgeContext
) -> Recollection:
    """What there is to keep of a session now. What waits in the queue is not of the log, and left out."""
    heads: dict[str, _Thread] = {}
    pieces: dict[str, Sequence[Piece]] = {}
    first: dict[str, int] = {}
    for thread_id, thread in threads.items():
        settled = thread.transcript.settled
        closed = pieces[thread_id] = settled.closed()
        first[thread_id] = settled.dropped
        heads[thread_id] = _Thread(
            thread.transcript.kept(),
            thread.skills,
            [PieceNote(zlib.crc32(piece.body), piece.message is not None) for piece in closed],
            msgspec.Raw(b"[" + settled.open() + b"]"),
        )
    head = msgspec.json.encode(_Head(with_inputs(state, (), 0), heads, judge))
    return Recollection(state.seq, head, pieces, first)


def recalled(kept: Recollection) -> Recalled:
    """The session that was kept; each call makes it anew.

    Raises:
        Unusable: the head says something else than what is there.
    """
    head = _decoded_head(kept.head)
    threads: dict[str, ThreadRecollection] = {}
    for thread_id, thread in head.threads.items():
        pieces = list(kept.pieces.get(thread_id, ()))
        if len(pieces) != len(thread.pieces):
            raise Unusable(f"{len(thread.pieces)} pieces of {thread_id} expected, {len(pieces)} found")
        if growing := bytes(thread.open)[1:-1]:
            pieces.append(Piece(growing))
        transcript = Transcript.recalled(thread.transcript, pieces)
        threads[thread_id] = ThreadRecollection(transcript, thread.skills)
    return Recalled(head.state, threads, head.judge)


def gathered(seq: int, head: bytes, bodies: Iterable[tuple[str, int, bytes]]) -> Recollection:
    """A recollection out of what was stored: its head, and its pieces as (thread, position, body).

    Raises:
        Unusable: a piece is missing, or is another one than the head was written with.
    """
    stored = {(thread_id, position): body for thread_id, position, body in bodies}
    pieces: dict[str, Sequence[Piece]] = {}
    first: dict[str, int] = {}
    for thread_id, thread in _decoded_head(head).threads.items():
        start = first[thread_id] = thread.transcript.dropped
        pieces[thread_id] = [
            _checked(stored.get((thread_id, position)), note, f"piece {position} of {thread_id}")
            for position, note in enumerate(thread.pieces, start)
        ]
    return Recollection(seq, head, pieces, first)


def _checked(body: bytes | None, note: PieceNote, what: str) -> Piece:
    if body is None:
        raise Unusable(f"{what} is missing")
    if zlib.crc32(body) != note.checksum:
        raise Unusable(f"{what} is damaged")
    return Piece(body, msgspec.json.decode(body, type=dict[str, Any]) if note.is_media else None)


def _decoded_head(head: bytes) -> _Head:
    try:
        return msgspec.json.decode(head, type=_Head)
    except msgspec.DecodeError as error:
        raise Unusable(f"the head cannot be read: {error}") from error
