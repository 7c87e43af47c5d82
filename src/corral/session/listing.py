"""Lists of a session's events, assembled from the stored JSON without parsing it (contract section 10.9).

Waiting inputs come last in ascending order, with ``processed_at: null``.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, LiteralString

import msgspec
from msgspec.structs import replace

from corral.session.crossposting import NAMED, OWN_THREAD
from corral.store.database import Database
from corral.wire.times import to_wire


class Place(msgspec.Struct, frozen=True):
    """A position in a list: in the log by sequence number, or behind it among the waiting inputs.

    In ascending order it is always both, how far the log and how far the inputs have been read.
    """

    seq: int = 0
    input: int = 0


class EventFilter(msgspec.Struct, frozen=True):
    """What a list of events is narrowed to; times are compared with ``processed_at``."""

    thread_id: str
    shown: int = OWN_THREAD
    """Up to which mark events of other threads are there as well; see `corral.session.crossposting`."""
    types: Sequence[str] | None = None
    created_gt: datetime | None = None
    created_gte: datetime | None = None
    created_lt: datetime | None = None
    created_lte: datetime | None = None

    @property
    def timed(self) -> bool:
        """True if waiting inputs, which have no time yet, are left out."""
        return any((self.created_gt, self.created_gte, self.created_lt, self.created_lte))


class Listed(msgspec.Struct, frozen=True):
    """One event of a list in wire form, its place, and its time (None while it waits)."""

    id: str
    wire: bytes
    place: Place
    processed_at: datetime | None


class Listing:
    """Reads pages of a session's events."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(
        self, session_id: str, narrow: EventFilter, *, after: Place | None, descending: bool, limit: int
    ) -> list[Listed]:
        """Up to `limit` events beyond `after` (from the near end if None), in the given order.

        None is left out that is there from the first page to the last. An input that is taken up between two
        pages may come twice, under one id: while it waits, and with its time.
        """
        among_inputs = after is not None and after.input > 0
        # The inputs before the log: one that is taken up between the two reads is seen twice, never missed.
        waiting: list[Listed] = []
        if after is None or among_inputs or not descending:
            waiting = await self._inputs(session_id, narrow, after, descending, limit)
        place = None if descending and among_inputs else after
        logged = await self._events(session_id, narrow, place, descending, limit)
        taken = {entry.id for entry in logged}
        waiting = [entry for entry in waiting if entry.id not in taken]
        if not descending:
            logged, waiting = _placed(after or Place(), logged, waiting)
        return ([*waiting, *logged] if descending else [*logged, *waiting])[:limit]

    async def _events(
        self, session_id: str, narrow: EventFilter, after: Place | None, descending: bool, limit: int
    ) -> list[Listed]:
        if limit <= 0:
            return []
        direction: tuple[LiteralString, LiteralString] = ("<", "desc") if descending else (">", "asc")
        query: LiteralString = (
            "select id, seq, thread_id, type, body::text as body, processed_at from events"
            " where session_id = %(session)s"
            " and (%(after)s::bigint is null or seq " + direction[0] + " %(after)s)"
            " and (thread_id = %(thread_id)s or crossposted between 1 and %(shown)s)"
            " and (%(types)s::text[] is null or type = any(%(types)s))"
            " and (%(created_gt)s::timestamptz is null or processed_at > %(created_gt)s)"
            " and (%(created_gte)s::timestamptz is null or processed_at >= %(created_gte)s)"
            " and (%(created_lt)s::timestamptz is null or processed_at < %(created_lt)s)"
            " and (%(created_lte)s::timestamptz is null or processed_at <= %(created_lte)s)"
            " order by seq " + direction[1] + " limit %(limit)s"
        )
        values: dict[str, Any] = msgspec.structs.asdict(narrow)
        types = None if narrow.types is None else list(narrow.types)
        seq = after.seq if after is not None else None
        rows = await self._database.fetch(
            query, {**values, "types": types, "session": session_id, "after": seq, "limit": limit}
        )
        return [
            Listed(
                row["id"],
                stamped(row["body"], row["processed_at"], foreign(row, narrow.thread_id)),
                Place(seq=row["seq"]),
                row["processed_at"],
            )
            for row in rows
        ]

    async def _inputs(
        self, session_id: str, narrow: EventFilter, after: Place | None, descending: bool, limit: int
    ) -> list[Listed]:
        if narrow.timed or limit <= 0:
            return []
        direction: tuple[LiteralString, LiteralString] = ("<", "desc") if descending else (">", "asc")
        query: LiteralString = (
            "select id, position, thread_id, type, body::text as body from inputs"
            " where session_id = %(session)s"
            " and (%(after)s::bigint is null or position " + direction[0] + " %(after)s)"
            " and (thread_id = %(thread_id)s or %(shown)s > 0)"
            " and (%(types)s::text[] is null or type = any(%(types)s))"
            " order by position " + direction[1] + " limit %(limit)s"
        )
        rows = await self._database.fetch(
            query,
            {
                "session": session_id,
                "after": after.input if after is not None and after.input else None,
                "thread_id": narrow.thread_id,
                "shown": narrow.shown,
                "types": None if narrow.types is None else list(narrow.types),
                "limit": limit,
            },
        )
        return [
            Listed(
                row["id"],
                stamped(row["body"], None, foreign(row, narrow.thread_id)),
                Place(input=row["position"]),
                None,
            )
            for row in rows
        ]


def _placed(
    after: Place, logged: Sequence[Listed], waiting: Sequence[Listed]
) -> tuple[list[Listed], list[Listed]]:
    """The entries of an ascending page, each with both of its places."""
    read = logged[-1].place.seq if logged else after.seq
    return (
        [replace(entry, place=Place(entry.place.seq, after.input)) for entry in logged],
        [replace(entry, place=Place(read, entry.place.input)) for entry in waiting],
    )


def foreign(row: Mapping[str, Any], thread_id: str) -> str | None:
    """The thread that an event shown on `thread_id` has to name, as it is another's; None for its own."""
    return row["thread_id"] if row["thread_id"] != thread_id and row["type"] in NAMED else None


def stamped(body: str, processed_at: datetime | None, thread_id: str | None = None) -> bytes:
    """A stored body with its time added, as text: a JSON object never ends in anything but its brace.

    `thread_id` is added to the copy of an event that is another thread's.
    """
    stamp = "null" if processed_at is None else f'"{to_wire(processed_at)}"'
    named = "" if thread_id is None else f',"session_thread_id":"{thread_id}"'
    return f'{body[:-1]}{named},"processed_at":{stamp}}}'.encode()
