"""Writes a copy of a log as the log of a new session: new ids, the same content, closed at its end.

Everything is written in the caller's transaction, page by page, so a long log needs no memory for it.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from corral.brain.voice import Voice
from corral.extensions.closing import closing, marker
from corral.extensions.renaming import Renaming
from corral.inference.prices import PriceTable
from corral.session.chain import StoredEvent, digested
from corral.session.crossposting import marked
from corral.session.events import Event, NewEvent
from corral.session.state import SessionState, fold
from corral.session.thread_state import ThreadState
from corral.store.database import Connection

_INSERT: Final = (
    "insert into events (session_id, seq, id, thread_id, type, body, private, resolves, crossposted,"
    " processed_at, digest)"
    " select %(session)s, * from unnest(%(seq)s::bigint[], %(id)b::text[], %(thread)b::text[],"
    " %(type)b::text[], %(body)b::text[]::json[], %(private)b::text[]::json[], %(resolves)b::text[],"
    " %(crossposted)s::smallint[], %(at)s::timestamptz[], %(digest)b::bytea[])"
)
_ENDED: Final = "session.status_terminated"


class LogCopy:
    """The log of a new session that is being made; its row is there, and is this transaction's alone."""

    def __init__(
        self,
        connection: Connection,
        session_id: str,
        primary: str,
        renaming: Renaming,
        *,
        self_hosted: bool,
        agent: Mapping[str, Any],
        prices: PriceTable,
    ) -> None:
        self._connection = connection
        self._session_id = session_id
        self._renaming = renaming
        self._self_hosted = self_hosted
        self._agent = dict(agent)
        self._prices = prices
        self._at: datetime | None = None
        self.state = SessionState(primary)
        self.born: dict[str, datetime] = {}
        """When each child thread was made."""

    async def add(self, events: Sequence[StoredEvent], look: Callable[[Event], None] | None = None) -> None:
        """Copy events, the log's next. The end of a whole session is left out: a copy can go on."""
        copies = [self._copy(event, look) for event in events if event.type != _ENDED]
        await self._write(copies)

    def _copy(self, event: StoredEvent, look: Callable[[Event], None] | None) -> StoredEvent:
        names = self._renaming
        body = names.value(msgspec.json.decode(event.body))
        private = None if event.private is None else names.value(msgspec.json.decode(event.private))
        if private is not None:
            # It was paid for once, there; and what was asked there named other threads.
            for name in ("usage", "request", "origin"):
                private.pop(name, None)
        copied = Event(
            self.state.seq + 1,
            names.name(event.id),
            event.type,
            names.name(event.thread_id),
            body,
            event.processed_at,
            private or None,
        )
        self._take(copied)
        if look is not None:
            look(copied)
        return _stored(copied, names.resolves(event.resolves), event.crossposted)

    def _take(self, event: Event) -> None:
        self.state = fold(self.state, event)
        self._at = event.processed_at
        if event.type == "session.thread_created":
            self.born[event.body["session_thread_id"]] = event.processed_at

    async def close(self, origin: dict[str, Any], now: datetime, **changes: Any) -> datetime:
        """End the copy, so that the session is idle; returns the time of its last event.

        Raises what folding raises over events that are none.
        """
        if self._at is not None:
            now = max(now, self._at)
        await self._append([marker(self.state.primary, origin, **changes)], now)
        await self._append(closing(self.state, self._voice, now), now)
        return now

    async def _append(self, events: Sequence[NewEvent], now: datetime) -> None:
        rows: list[StoredEvent] = []
        for new in marked(events, self.state.primary, self_hosted=self._self_hosted):
            body = {"id": new.id, "type": new.type, **new.body}
            event = Event(self.state.seq + 1, new.id, new.type, new.thread_id, body, now, new.private)
            self._take(event)
            rows.append(_stored(event, new.resolves, new.crossposted))
        await self._write(rows)

    def _voice(self, thread: ThreadState) -> Voice:
        primary = self.state.primary if thread.parent else ""
        agent = thread.agent or self._agent
        return Voice(thread.id, agent, self._self_hosted, self._prices, primary=primary)

    async def _write(self, rows: Sequence[StoredEvent]) -> None:
        if not rows:
            return
        digests = [digested(row, row.seq - 1, b"") for row in rows]
        await self._connection.execute(
            _INSERT,
            {
                "session": self._session_id,
                "seq": [row.seq for row in rows],
                "id": [row.id for row in rows],
                "thread": [row.thread_id for row in rows],
                "type": [row.type for row in rows],
                "body": [row.body for row in rows],
                "private": [row.private for row in rows],
                "resolves": [row.resolves for row in rows],
                "crossposted": [row.crossposted for row in rows],
                "at": [row.processed_at for row in rows],
                "digest": digests,
            },
        )

    async def write_threads(self, archived: frozenset[str]) -> None:
        """Write the rows of the threads, where there are children; `archived` are ids of the copy."""
        if len(self.state.threads) < 2:
            return
        for thread in self.state.threads.values():
            await self._connection.execute(
                "insert into threads (session_id, id, parent_thread_id, agent, status, created_at,"
                " updated_at, archived_at) values (%s, %s, %s, %s, %s, coalesce(%s, now()), now(),"
                " case when %s then now() end)",
                (
                    self._session_id,
                    thread.id,
                    thread.parent,
                    None if thread.agent is None else msgspec.json.encode(thread.agent).decode(),
                    thread.status,
                    self.born.get(thread.id),
                    thread.id in archived and thread.status == "terminated",
                ),
            )


def _stored(event: Event, resolves: str | None, crossposted: int) -> StoredEvent:
    private = None if event.private is None else msgspec.json.encode(event.private).decode()
    return StoredEvent(
        event.seq,
        event.id,
        event.type,
        event.thread_id,
        msgspec.json.encode(event.body).decode(),
        private,
        resolves,
        crossposted,
        event.processed_at,
        None,
    )


async def silence_webhooks(connection: Connection, session_id: str) -> None:
    """Take back what the copied events would tell webhooks: it happened in another session, and was told."""
    await connection.execute(
        "delete from webhook_deliveries where subject = %s and type <> 'session.created'", (session_id,)
    )
