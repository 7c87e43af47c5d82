"""Following a session: its events as they come, for one reader (contract section 10.10).

Events are read from the log, so one is listable before it is streamed and none is lost or doubled; the bus
says when to read, and brings the previews. No database connection is held while waiting.
"""

from collections.abc import AsyncGenerator, Collection
from typing import Final, LiteralString

import msgspec
from psycopg.rows import DictRow

from corral.bus.hub import Bus, Preview, Subscription, session_topic
from corral.session.crossposting import EVERYBODY, OWN_THREAD, WORKERS
from corral.session.listing import foreign, stamped
from corral.session.shared_reads import SharedReads
from corral.session.shown import not_found, thread_not_found
from corral.store.database import Database
from corral.wire.ids import new_id
from corral.wire.times import to_wire

PING_SECONDS: Final = 15.0
"""Silence after which a ping is sent, and the log read in case a notification was lost."""
_PAGE: Final = 200
_PAGE_BYTES: Final = 1024 * 1024
"""What a stream whose client does not read holds of the log, at most, beside one event."""
_PREVIEWED: Final = 64
"""Events whose previews are under way in one stream, at most; of more, the oldest show no further piece."""

# A page is bounded in number and in bytes, which are known without reading the bodies.
_NEXT: Final[LiteralString] = """
select seq, id, type, thread_id, body::text as body, processed_at, %s::text as viewer from (
    select *, sum(octet_length(body::text)) over (order by seq) - octet_length(body::text) as bytes_before
    from (
        select * from events where session_id = %s and seq > %s and seq <= %s
            and (thread_id = %s or crossposted between 1 and %s or type = 'session.status_terminated')
        order by seq limit %s
    ) as next
) as measured
where bytes_before < %s order by seq
"""
_THREAD_ENDED: Final = "session.thread_status_terminated"
_PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'


class _Row(msgspec.Struct, frozen=True):
    primary: str
    last_seq: int
    last_input: int
    status: str


class _Told(msgspec.Struct, frozen=True):
    """One event, ready to send; the same for all who follow."""

    seq: int
    id: str
    type: str
    own: bool
    """Whether it is the thread's own whose stream it is."""
    frame: bytes


class Following:
    """Makes streams of sessions' events."""

    def __init__(self, database: Database, bus: Bus) -> None:
        self._database = database
        self._reads = SharedReads(database)
        self._bus = bus

    async def follow(
        self,
        session_id: str,
        *,
        thread_id: str | None = None,
        worker: bool = False,
        deltas: Collection[str] = (),
        ping_seconds: float = PING_SECONDS,
    ) -> AsyncGenerator[bytes]:
        """The frames of one stream, those together that come together.

        The first piece is empty and says that the stream is open. Everything that is committed after it
        comes, once and in log order. It ends after ``session.deleted`` and ``session.status_terminated``, and
        at once where the latter has been; that of a child thread ends with the thread. Without `thread_id` it
        is the session's, which is the primary thread's and what the others show there (contract section
        11.4), to a `worker` the calls of all. `deltas` are the event types whose previews are wanted. Raises
        `NotFound` before the first piece if there is no such session or thread.
        """
        async with self._bus.subscribe(session_topic(session_id), previews=bool(deltas)) as subscription:
            row = await self._row(session_id)
            if row is None:
                raise not_found(session_id)
            shown = (WORKERS if worker else EVERYBODY) if thread_id in (None, row.primary) else OWN_THREAD
            status = row.status
            if thread_id is not None and shown == OWN_THREAD:
                status = await self._thread_status(session_id, thread_id)
            yield b""
            if "terminated" in (row.status, status):
                return  # nothing more can come, so nobody is kept waiting for it
            view = _View(thread_id or row.primary, shown)
            reader = _Reader(self._database, self._reads, session_id, row, view, deltas)
            async for frame in self._frames(reader, subscription, ping_seconds):
                yield frame

    async def _frames(
        self, reader: "_Reader", subscription: Subscription, ping_seconds: float
    ) -> AsyncGenerator[bytes]:
        while not reader.ended:
            arrived = await subscription.wait(ping_seconds)
            poked, previews = subscription.take()
            if poked or not arrived:
                async for frame in reader.news(await self._row(reader.session_id)):
                    yield frame
            for preview in previews:
                if preview.after_seq > reader.seq:
                    async for frame in reader.news(await self._row(reader.session_id)):
                        yield frame
                if reader.wants(preview):
                    yield preview.frame
            if not arrived and not reader.ended:
                yield _PING

    async def _row(self, session_id: str) -> _Row | None:
        rows = await self._reads.fetch(
            "select primary_thread_id, last_seq, last_input, status from sessions where id = %s",
            (session_id,),
            _row,
        )
        return rows[0] if rows else None

    async def _thread_status(self, session_id: str, thread_id: str) -> str:
        row = await self._database.fetch_one(
            "select status from threads where session_id = %s and id = %s", (session_id, thread_id)
        )
        if row is None:
            raise thread_not_found(thread_id)
        return str(row["status"])


class _View(msgspec.Struct, frozen=True):
    """Whose stream it is, and up to which mark it holds events of other threads."""

    thread_id: str
    shown: int


class _Reader:
    """How far one stream has come."""

    def __init__(
        self,
        database: Database,
        reads: SharedReads,
        session_id: str,
        row: _Row,
        view: _View,
        deltas: Collection[str],
    ) -> None:
        self._database = database
        self._reads = reads
        self._view = view
        self._own_seq = 0
        """The last event of the thread itself: with its next one a preview of the thread is over."""
        self.session_id = session_id
        self.seq = row.last_seq
        self.ended = False
        self._opened_at = row.last_seq
        self._input = row.last_input
        self._deltas = frozenset(deltas)
        self._previewed: dict[str, int] = {}
        """How many pieces of each event have been shown."""

    async def news(self, row: _Row | None) -> AsyncGenerator[bytes]:
        """Frames of what has come since: waiting inputs first announced, then events."""
        if row is None:
            self.ended = True
            yield frame("session.deleted", await self._deleted())
            return
        viewer = self._view.thread_id
        if row.last_input > self._input:
            waiting = await self._reads.fetch(
                "select type, thread_id, body::text as body, %s::text as viewer from inputs"
                " where session_id = %s and position > %s and position <= %s and (thread_id = %s or %s > 0)"
                " order by position",
                (viewer, self.session_id, self._input, row.last_input, viewer, self._view.shown),
                _announced,
            )
            self._input = row.last_input
            if waiting:
                yield b"".join(waiting)
        while row.last_seq > self.seq:
            page = await self._page(row.last_seq)
            if page:
                yield page
            if self.ended:
                return

    async def _page(self, last_seq: int) -> bytes:
        """The frames of the next events, so that nothing else of them is held while they are sent."""
        frames: list[bytes] = []
        view = self._view
        viewer = view.thread_id
        page = (viewer, self.session_id, self.seq, last_seq, viewer, view.shown, _PAGE, _PAGE_BYTES)
        told = await self._reads.fetch(_NEXT, page, _told)
        if not told:
            self.seq = last_seq
        for event in told:
            self.seq = event.seq
            if event.own:
                self._own_seq = self.seq
            self._previewed.pop(event.id, None)
            ends = event.type == "session.status_terminated"
            if not ends or view.shown:
                frames.append(event.frame)
            if ends or (view.shown == OWN_THREAD and event.type == _THREAD_ENDED):
                self.ended = True
                break
        return b"".join(frames)

    async def _deleted(self) -> bytes:
        row = await self._database.fetch_one("select clock_timestamp() as at")
        assert row is not None
        return msgspec.json.encode(
            {"id": new_id("sevt"), "type": "session.deleted", "processed_at": to_wire(row["at"])}
        )

    def wants(self, preview: Preview) -> bool:
        """Whether to show a preview: asked for, of a request begun since the stream opened, not yet over."""
        if preview.event_type not in self._deltas or preview.after_seq <= self._opened_at:
            return False
        if preview.thread_id != self._view.thread_id:
            return False
        if self._own_seq > preview.after_seq:
            # Its request has ended, with the event or without: nothing may follow.
            return False
        if preview.position != self._previewed.get(preview.event_id, 0):
            # A piece was lost on the way. What is shown must stay a prefix, so no more of this event.
            self._previewed[preview.event_id] = -1
            return False
        self._previewed[preview.event_id] = preview.position + 1
        if len(self._previewed) > _PREVIEWED:
            del self._previewed[next(iter(self._previewed))]
        return True


def _row(row: DictRow) -> _Row:
    return _Row(row["primary_thread_id"], row["last_seq"], row["last_input"], row["status"])


def _announced(row: DictRow) -> bytes:
    return frame(row["type"], stamped(row["body"], None, foreign(row, row["viewer"])))


def _told(row: DictRow) -> _Told:
    shown = frame(row["type"], stamped(row["body"], row["processed_at"], foreign(row, row["viewer"])))
    return _Told(row["seq"], row["id"], row["type"], row["thread_id"] == row["viewer"], shown)


def frame(event_type: str, data: bytes) -> bytes:
    """One server-sent event."""
    return b"event: " + event_type.encode() + b"\ndata: " + data + b"\n\n"
