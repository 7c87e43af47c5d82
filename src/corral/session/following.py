"""Following a session: its events as they come, for one reader (contract section 10.10).

Events are read from the log, so one is listable before it is streamed and none is lost or doubled; the bus
says when to read, and brings the previews. No database connection is held while waiting.
"""

from collections.abc import AsyncGenerator, Collection
from typing import Final

import msgspec

from corral.bus.hub import Bus, Preview, Subscription, session_topic
from corral.session.listing import stamped
from corral.session.records import not_found
from corral.store.database import Database
from corral.wire.ids import new_id
from corral.wire.times import to_wire

PING_SECONDS: Final = 15.0
"""Silence after which a ping is sent, and the log read in case a notification was lost."""
_PAGE: Final = 200

_PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'


class _Row(msgspec.Struct, frozen=True):
    thread_id: str
    last_seq: int
    last_input: int
    status: str


class Following:
    """Makes streams of sessions' events."""

    def __init__(self, database: Database, bus: Bus) -> None:
        self._database = database
        self._bus = bus

    async def follow(
        self,
        session_id: str,
        *,
        thread_id: str | None = None,
        deltas: Collection[str] = (),
        ping_seconds: float = PING_SECONDS,
    ) -> AsyncGenerator[bytes]:
        """The frames of one stream; the first is empty and says that the stream is open.

        Everything that is committed after that first frame comes, once and in log order. It ends after
        ``session.deleted`` and ``session.status_terminated``, and at once where the latter has been. `deltas`
        are the event types whose previews are wanted. Raises `NotFound` before the first frame if there is
        no such session or thread.
        """
        async with self._bus.subscribe(session_topic(session_id), previews=bool(deltas)) as subscription:
            row = await self._row(session_id)
            if row is None or thread_id not in (None, row.thread_id):
                raise not_found(session_id)
            yield b""
            if row.status == "terminated":
                return  # nothing more can come, so nobody is kept waiting for it
            reader = _Reader(self._database, session_id, row, deltas)
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
        row = await self._database.fetch_one(
            "select primary_thread_id, last_seq, last_input, status from sessions where id = %s",
            (session_id,),
        )
        if row is None:
            return None
        return _Row(row["primary_thread_id"], row["last_seq"], row["last_input"], row["status"])


class _Reader:
    """How far one stream has come."""

    def __init__(self, database: Database, session_id: str, row: _Row, deltas: Collection[str]) -> None:
        self._database = database
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
        if row.last_input > self._input:
            waiting = await self._database.fetch(
                "select type, body::text as body from inputs where session_id = %s and position > %s"
                " and position <= %s order by position",
                (self.session_id, self._input, row.last_input),
            )
            self._input = row.last_input
            for entry in waiting:
                yield frame(entry["type"], stamped(entry["body"], None))
        while row.last_seq > self.seq:
            rows = await self._database.fetch(
                "select seq, id, type, body::text as body, processed_at from events where session_id = %s"
                " and seq > %s order by seq limit %s",
                (self.session_id, self.seq, _PAGE),
            )
            for entry in rows:
                self.seq = entry["seq"]
                self._previewed.pop(entry["id"], None)
                yield frame(entry["type"], stamped(entry["body"], entry["processed_at"]))
                if entry["type"] == "session.status_terminated":
                    self.ended = True
                    return
            if len(rows) < _PAGE:
                return

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
        if self.seq > preview.after_seq:
            # Its request has ended, with the event or without: nothing may follow.
            return False
        if preview.position != self._previewed.get(preview.event_id, 0):
            # A piece was lost on the way. What is shown must stay a prefix, so no more of this event.
            self._previewed[preview.event_id] = -1
            return False
        self._previewed[preview.event_id] = preview.position + 1
        return True


def frame(event_type: str, data: bytes) -> bytes:
    """One server-sent event."""
    return b"event: " + event_type.encode() + b"\ndata: " + data + b"\n\n"
