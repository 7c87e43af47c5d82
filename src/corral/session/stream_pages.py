"""What a stream shows next: made once, of the log or of a commit that has just been made, for all who follow.

Of the log it is read in pages, which are bounded in number and in bytes, so that a client that does not read
holds little.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Final, LiteralString, NamedTuple

import msgspec
from psycopg.rows import DictRow

from corral.bus.landed import Landed, LandedEvent
from corral.session.crossposting import NAMED, OWN_THREAD
from corral.session.listing import stamped

_PAGE: Final = 200
_PAGE_BYTES: Final = 1024 * 1024
"""What a stream whose client does not read holds of the log, at most, beside one event."""
_SESSION_ENDED: Final = "session.status_terminated"
_THREAD_ENDED: Final = "session.thread_status_terminated"

NEXT: Final[LiteralString] = """
select s.last_seq, s.last_input, n.* from sessions s left join lateral (
    select seq, id, type, thread_id, crossposted, body::text as body, processed_at from (
        select *, sum(octet_length(body::text)) over (order by seq) - octet_length(body::text) as bytes_before
        from (
            select * from events where session_id = s.id and seq > %s
                and (thread_id = %s or crossposted between 1 and %s or type = 'session.status_terminated')
            order by seq limit %s
        ) as next
    ) as measured
    where bytes_before < %s
) as n on true
where s.id = %s order by n.seq
"""
"""The session's lengths and the next page of its log, as of one moment. A page is bounded in number and in
bytes, which are known without reading the bodies."""

WAITING: Final[LiteralString] = """
select id, type, thread_id, body::text as body from inputs
where session_id = %s and position > %s and position <= %s and (thread_id = %s or %s > 0)
order by position
"""


class View(NamedTuple):
    """Whose stream it is, and up to which mark it holds events of other threads."""

    thread_id: str
    shown: int


class StreamPage(msgspec.Struct, frozen=True):
    """Consecutive events as one view shows them, ready to send."""

    seq: int
    """How far it goes in the log."""
    frames: bytes
    own_seq: int
    """The last of them that is the thread's own whose stream it is, or 0."""
    ids: tuple[str, ...]
    ended: bool
    """Whether nothing can come after it."""


class News(msgspec.Struct, frozen=True):
    """What a reader finds in the database: the session's lengths, and the page that follows its position."""

    last_seq: int
    last_input: int
    page: StreamPage


def next_parameters(session_id: str, view: View, seq: int) -> tuple[str | int, ...]:
    """The parameters of `NEXT` for a reader at position `seq`."""
    return seq, view.thread_id, view.shown, _PAGE, _PAGE_BYTES, session_id


def news_in(view: View) -> Callable[[Sequence[DictRow]], News | None]:
    """Makes of the rows of `NEXT` what is new; None if there is no such session."""

    def made(rows: Sequence[DictRow]) -> News | None:
        if not rows:
            return None
        last_seq: int = rows[0]["last_seq"]
        found = [row for row in rows if row["seq"] is not None]
        entries = ((row["seq"], row["processed_at"], _stored(row)) for row in found)
        page = _page(view, found[-1]["seq"] if found else last_seq, entries)
        if not page.ended and len(found) < _PAGE and len(page.frames) < _PAGE_BYTES:
            page = msgspec.structs.replace(page, seq=last_seq)  # what else there is, is not shown here
        return News(last_seq, rows[0]["last_input"], page)

    return made


def waiting_in(view: View) -> Callable[[Sequence[DictRow]], bytes]:
    """Makes of the rows of `WAITING` the frames that announce them."""
    return lambda rows: b"".join(_shown(view, _stored(row), None) for row in rows)


def landed_in(view: View, landed: Landed) -> tuple[bytes, StreamPage]:
    """What a view shows of a commit: inputs that wait are announced, then come its events."""
    made: tuple[bytes, StreamPage] | None = landed.shown.get(view)
    if made is None:
        waiting = [one for one in landed.inputs if one.thread_id == view.thread_id or view.shown > 0]
        entries = (
            (seq, landed.at, one)
            for seq, one in enumerate(landed.events, landed.base + 1)
            if one.thread_id == view.thread_id
            or 1 <= one.crossposted <= view.shown
            or one.type == _SESSION_ENDED
        )
        announced = b"".join(_shown(view, one, None) for one in waiting)
        made = landed.shown[view] = announced, _page(view, landed.seq, entries)
    return made


def frame(event_type: str, data: bytes) -> bytes:
    """One server-sent event."""
    return b"event: " + event_type.encode() + b"\ndata: " + data + b"\n\n"


def _page(view: View, seq: int, entries: Iterable[tuple[int, datetime, LandedEvent]]) -> StreamPage:
    frames: list[bytes] = []
    ids: list[str] = []
    own_seq = 0
    for at_seq, processed_at, one in entries:
        ids.append(one.id)
        if one.thread_id == view.thread_id:
            own_seq = at_seq
        ends = one.type == _SESSION_ENDED
        if not ends or view.shown:
            frames.append(_shown(view, one, processed_at))
        if ends or (view.shown == OWN_THREAD and one.type == _THREAD_ENDED):
            return StreamPage(at_seq, b"".join(frames), own_seq, tuple(ids), ended=True)
    return StreamPage(seq, b"".join(frames), own_seq, tuple(ids), ended=False)


def _shown(view: View, one: LandedEvent, processed_at: datetime | None) -> bytes:
    named = one.thread_id if one.thread_id != view.thread_id and one.type in NAMED else None
    return frame(one.type, stamped(one.body, processed_at, named))


def _stored(row: DictRow) -> LandedEvent:
    return LandedEvent(row["id"], row["type"], row["thread_id"], row["body"])
