"""Who is let in: bounds on what one server works on at once, as a whole and for one API key.

A client that is refused is told when to come back: 429 where its own key has too much under way, 529 where
the server, or the whole deployment, has. Workers are never refused: a lease must not end, nor a result be
lost, for want of admission. All but the number of waiting sessions is counted in this process, so that no
request pays for it with a trip to the database.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Final

from corral.api.body_room import BodyRoom
from corral.store.database import Database
from corral.wire.errors import Overloaded, RateLimited
from corral.wire.events import ClientEvent, DefineOutcome, UserMessage

_COME_BACK_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 1.0
"""For how long a count of waiting sessions is believed."""


class Places:
    """So many places at once, in all and for one key."""

    def __init__(self, what: str, most: int, most_per_key: int) -> None:
        """``what`` is there a place for, in the plural; 0 places for a key are no limit."""
        self._what = what
        self._most = most
        self._most_per_key = most_per_key
        self._taken = 0
        self._by_key: Counter[str] = Counter()

    @contextmanager
    def take(self, key_id: str) -> Generator[None]:
        """Hold a place.

        Raises:
            RateLimited: the key has all that it may have.
            Overloaded: the server has none left.
        """
        if self._most_per_key and self._by_key[key_id] >= self._most_per_key:
            message = f"This key may have {self._most_per_key} {self._what} at the same moment."
            raise RateLimited(message, retry_after=_COME_BACK_SECONDS)
        if self._taken >= self._most:
            message = f"The server has {self._most} {self._what}, and takes no more at the moment; try again."
            raise Overloaded(message, retry_after=_COME_BACK_SECONDS)
        self._taken += 1
        self._by_key[key_id] += 1
        try:
            yield
        finally:
            self._taken -= 1
            self._by_key[key_id] -= 1
            if not self._by_key[key_id]:
                del self._by_key[key_id]


class Backlog:
    """How much waits already: changes to be written by this server, and sessions for a brain of any server.

    ``queued`` tells the former. ``most_sessions`` of 0 is no limit.
    """

    def __init__(
        self, database: Database, queued: Callable[[], int], *, most_queued: int, most_sessions: int
    ) -> None:
        self._database = database
        self._queued = queued
        self._most_queued = most_queued
        self._most_sessions = most_sessions
        self._looking = asyncio.Lock()
        self._looked_at = float("-inf")
        self._waiting = 0

    def check_queue(self) -> None:
        """Refuse a change while too many wait to be written.

        Raises:
            Overloaded: they do.
        """
        if self._queued() >= self._most_queued:
            raise Overloaded(
                "The server cannot write as fast as it is asked to.", retry_after=_COME_BACK_SECONDS
            )

    async def check_sessions(self, events: Iterable[ClientEvent]) -> None:
        """Refuse events that start work while too many sessions wait for a brain.

        Raises:
            Overloaded: they do.
        """
        if not self._most_sessions:
            return
        if not any(isinstance(event, UserMessage | DefineOutcome) for event in events):
            return
        loop = asyncio.get_running_loop()
        async with self._looking:
            if loop.time() - self._looked_at > _LOOK_SECONDS:
                self._waiting = await self._count()
                self._looked_at = loop.time()
        if self._waiting >= self._most_sessions:
            message = f"{self._most_sessions} sessions or more wait to be worked on already; try again later."
            raise Overloaded(message, retry_after=2 * _COME_BACK_SECONDS)

    async def _count(self) -> int:
        row = await self._database.fetch_one(
            "select count(*) as waiting from (select 1 from wakes where due_at <= now()"
            " and (brain_id is null or lease_until < now()) limit %s) as those",
            (self._most_sessions,),
        )
        assert row is not None
        return int(row["waiting"])


class Admission:
    """The bounds of one server."""

    def __init__(self, requests: Places, streams: Places, backlog: Backlog, bodies: BodyRoom) -> None:
        self.bodies = bodies
        self._requests = requests
        self._streams = streams
        self.backlog = backlog

    @contextmanager
    def admitted(self, key_id: str | None, *, write: bool, stream: bool) -> Generator[None]:
        """Hold a place for a request, or a stream, until its answer has been sent; None is no API key's.

        Raises:
            RateLimited: its key has too many under way.
            Overloaded: there are too many, or too much waits to be written.
        """
        if key_id is None:
            yield
            return
        if write:
            self.backlog.check_queue()
        places = self._streams if stream else self._requests
        with places.take(key_id):
            yield
