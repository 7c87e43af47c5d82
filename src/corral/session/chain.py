"""The chain over a session's log: a hash of each event and of all that came before it. Pure.

What an event's row keeps is its digest, made before it is written: of its content byte for byte, of its place
where the writer knows it, and of what stands before it in the same commit. The chain's link goes over that,
the event's time and the link before. Links are computed where they are wanted, by whoever seals or verifies a
log (`corral.session.seals`), so that they cost no commit anything.

Whoever can write to the database can also make digests anew. What shows that is a link that was kept
elsewhere: signed, or noted by a person.
"""

import hashlib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import msgspec

from corral.session.events import NewEvent

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class StoredEvent(NamedTuple):
    """An event as its row has it; ``body`` and ``private`` are the JSON texts."""

    seq: int
    id: str
    type: str
    thread_id: str
    body: str
    private: str | None
    resolves: str | None
    crossposted: int
    processed_at: datetime
    digest: bytes | None


class Problem(msgspec.Struct, frozen=True):
    """The first thing at fault in a log. ``seq`` is the place of the first event that is not as it was."""

    kind: str
    """`altered`, `missing`, `seal` or `head`."""
    seq: int
    event_id: str | None
    message: str


def digested(event: StoredEvent, base: int | None, before: bytes) -> bytes:
    """The digest of an event whose commit was made on a log of length `base` (None: not known to its writer),
    behind the digest of the event before it in that commit (empty for the first).
    """
    return _digest(before, base, *event[1:8])


def digests_of(
    events: Sequence[NewEvent], texts: Sequence[tuple[str, str | None]], base: int | None
) -> list[str]:
    """The digests of one commit's events in hexadecimal; `texts` are their stored JSON (body, private)."""
    before, digests = b"", list[str]()
    for event, (body, private) in zip(events, texts, strict=True):
        before = _digest(
            before,
            base,
            event.id,
            event.type,
            event.thread_id,
            body,
            private,
            event.resolves,
            event.crossposted,
        )
        digests.append(before.hex())
    return digests


def _digest(
    before: bytes,
    base: int | None,
    id: str,
    type: str,
    thread_id: str,
    body: str,
    private: str | None,
    resolves: str | None,
    crossposted: int,
) -> bytes:
    # Ids and types hold no control characters, and the texts' lengths stand before them: parts can be told
    # apart.
    place = "" if base is None else base
    length = -1 if private is None else len(private)
    text = (
        f"{place}\x1f{id}\x1f{type}\x1f{thread_id}\x1f{resolves or ''}\x1f{crossposted}\x1f"
        f"{len(body)}\x1f{length}\x1f{body}{private or ''}"
    )
    return hashlib.sha256(before + text.encode()).digest()


def genesis(session_id: str) -> bytes:
    """What stands before the first link of a session."""
    return hashlib.sha256(session_id.encode()).digest()


def link(before: bytes, seq: int, at: datetime, digest: bytes) -> bytes:
    """The link of the event at `seq`, behind the link of the one before."""
    micros = (at - _EPOCH) // _MICROSECOND
    numbers = seq.to_bytes(8, "big") + micros.to_bytes(8, "big", signed=True)
    return hashlib.sha256(before + numbers + digest).digest()


def own_digest(event: StoredEvent) -> bytes:
    """The digest of an event that was written without one: of the row as it is."""
    return digested(event, event.seq - 1, b"")


class Walk:
    """Walks along a session's log from its start, and finds the first event that is not what its digest says.

    ``heads`` has the links at the places that `watch` names.
    """

    def __init__(self, session_id: str, watch: Iterable[int] = ()) -> None:
        self.head = genesis(session_id)
        self.seq = 0
        self.last_id: str | None = None
        self.heads: dict[int, bytes] = {}
        self.problem: Problem | None = None
        self._watch = frozenset(watch)
        self._base: int | None = None
        self._digest = b""

    def add(self, event: StoredEvent) -> None:
        """Take in the next event. After the first problem nothing is looked at any more."""
        if self.problem is not None:
            return
        if event.seq != self.seq + 1:
            self.missing(self.seq + 1)
            return
        self.seq, self.last_id = event.seq, event.id
        if event.digest is None:
            self._digest = own_digest(event)
        elif not self._fits(event, event.digest):
            message = "what is there is not what was written there, or the event before it is not"
            self.problem = Problem("altered", event.seq, event.id, message)
            return
        self.head = link(self.head, event.seq, event.processed_at, self._digest)
        if event.seq in self._watch:
            self.heads[event.seq] = self.head

    def _fits(self, event: StoredEvent, stored: bytes) -> bool:
        """Whether the digest is right, as that of the first event of a commit or of one further on."""
        for base, before in ((event.seq - 1, b""), (self._base, self._digest), (None, b"")):
            if digested(event, base, before) == stored:
                self._base, self._digest = base, stored
                return True
        return False

    def missing(self, seq: int) -> None:
        """Note that an event which was there is no longer."""
        self.problem = Problem("missing", seq, None, f"event {seq} is missing from the log")
