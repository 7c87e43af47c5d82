"""Following a session: its events as they come, for one reader (contract section 10.10).

An event is in the log, and listable, before it is streamed, and none is lost or doubled. The bus brings the
commits of this process, which are taken where they go on exactly where the stream is; it says when to read
what others have written; and it brings the previews. No database connection is held while waiting.
"""

from collections.abc import AsyncGenerator, Collection, Sequence
from typing import Final

import msgspec
from psycopg.rows import DictRow

from corral.bus.hub import Bus, Preview, Subscription, session_topic
from corral.bus.landed import Landed
from corral.session.crossposting import EVERYBODY, OWN_THREAD, WORKERS
from corral.session.shared_reads import SharedReads
from corral.session.shown import not_found, thread_not_found
from corral.session.stream_pages import (
    NEXT,
    WAITING,
    StreamPage,
    View,
    frame,
    landed_in,
    news_in,
    next_parameters,
    waiting_in,
)
from corral.store.database import Database
from corral.wire.ids import new_id
from corral.wire.times import to_wire

PING_SECONDS: Final = 15.0
"""Silence after which a ping is sent, and the log read in case a notification was lost."""
_PREVIEWED: Final = 64
"""Events whose previews are under way in one stream, at most; of more, the oldest show no further piece."""
_TOGETHER_BYTES: Final = 16 * 1024
"""Previews that wait are sent together, up to about so much."""
_PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'


class _Row(msgspec.Struct, frozen=True):
    primary: str
    last_seq: int
    last_input: int
    status: str


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
        topic = session_topic(session_id)
        async with self._bus.subscribe(topic, previews=bool(deltas), commits=True) as subscription:
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
            view = View(thread_id or row.primary, shown)
            reader = _Reader(self._database, self._reads, session_id, row, view, deltas)
            async for frame in self._frames(reader, subscription, ping_seconds):
                yield frame

    async def _frames(
        self, reader: "_Reader", subscription: Subscription, ping_seconds: float
    ) -> AsyncGenerator[bytes]:
        while not reader.ended:
            arrived = await subscription.wait(ping_seconds)
            poked, previews = subscription.take()
            taken, handed = reader.take_in(subscription.take_commits())
            if handed:
                yield handed
            if poked or not taken or not arrived:
                async for frame in reader.news():
                    yield frame
            together = bytearray()
            for preview in previews:
                if preview.after_seq > reader.seq:
                    if together:
                        yield bytes(together)
                        together.clear()
                    async for frame in reader.news():
                        yield frame
                if reader.wants(preview):
                    together += preview.frame
                    if len(together) >= _TOGETHER_BYTES:
                        yield bytes(together)
                        together.clear()
            if together:
                yield bytes(together)
            if not arrived and not reader.ended:
                yield _PING

    async def _row(self, session_id: str) -> _Row | None:
        return await self._reads.fetch(
            "select primary_thread_id, last_seq, last_input, status from sessions where id = %s",
            (session_id,),
            _Row,
            _row,
        )

    async def _thread_status(self, session_id: str, thread_id: str) -> str:
        row = await self._database.fetch_one(
            "select status from threads where session_id = %s and id = %s", (session_id, thread_id)
        )
        if row is None:
            raise thread_not_found(thread_id)
        return str(row["status"])


class _Reader:
    """How far one stream has come."""

    def __init__(
        self,
        database: Database,
        reads: SharedReads,
        session_id: str,
        row: _Row,
        view: View,
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

    def take_in(self, commits: Sequence[Landed]) -> tuple[bool, bytes]:
        """The frames of commits that were handed over, as far as they go on exactly where this stream is.

        The first value is False if one does not: something came between, which has to be read.
        """
        frames: list[bytes] = []
        for landed in commits:
            if self.ended:
                break
            if landed.seq <= self.seq and landed.last_input <= self._input:
                continue  # it has been read
            if landed.base != self.seq or landed.input_base != self._input:
                return False, b"".join(frames)
            announced, page = landed_in(self._view, landed)
            self._input = landed.last_input
            frames += (announced, page.frames) if announced else (page.frames,)
            self._pass(page)
        return True, frames[0] if len(frames) == 1 else b"".join(frames)

    async def news(self) -> AsyncGenerator[bytes]:
        """Frames of what has come since: waiting inputs first announced, then events."""
        while not self.ended:
            news = await self._reads.fetch(
                NEXT,
                next_parameters(self.session_id, self._view, self.seq),
                self._view,
                news_in(self._view),
            )
            if news is None:
                self.ended = True
                yield frame("session.deleted", await self._deleted())
                return
            if news.last_input > self._input:
                waiting = await self._reads.fetch(
                    WAITING,
                    (self.session_id, self._input, news.last_input, *self._view),
                    self._view,
                    waiting_in(self._view),
                )
                self._input = news.last_input
                if waiting:
                    yield waiting
            self._pass(news.page)
            if news.page.frames:
                yield news.page.frames
            if self.seq >= news.last_seq:
                return

    def _pass(self, page: StreamPage) -> None:
        self.seq = page.seq
        self._own_seq = page.own_seq or self._own_seq
        self.ended = page.ended
        if self._previewed:
            for event_id in page.ids:
                self._previewed.pop(event_id, None)

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


def _row(rows: Sequence[DictRow]) -> _Row | None:
    for row in rows:
        return _Row(row["primary_thread_id"], row["last_seq"], row["last_input"], row["status"])
    return None
