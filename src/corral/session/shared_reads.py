"""One read for all who want the same: the streams of one session are woken by the same word at one moment.

Nobody is answered with what was read before they asked, so whoever was told of a commit sees it.
"""

import asyncio
from collections.abc import Callable, Hashable, Sequence
from typing import Any, LiteralString, TypeVar

from psycopg.rows import DictRow

from corral.store.database import Database

T = TypeVar("T")


class _Abandoned(Exception):
    """Whoever was reading for the others has been cancelled."""


class SharedReads:
    """Reads of a database, each made once for all who ask before it begins; nothing is kept afterwards."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._joined: dict[Hashable, list[asyncio.Future[Sequence[Any]]]] = {}
        """Who waits for a read that has not begun, beside the one who makes it."""

    async def fetch(
        self, query: LiteralString, params: tuple[Hashable, ...], shape: Callable[[DictRow], T]
    ) -> Sequence[T]:
        """All rows of one statement, each in the shape that `shape` gives it; the sequence is shared.

        Raises what `Database.fetch` and `shape` raise.
        """
        # What a row is shaped into is part of what is asked for.
        asked = (query, params, shape)
        while (joined := self._joined.get(asked)) is not None:
            mine: asyncio.Future[Sequence[T]] = asyncio.get_running_loop().create_future()
            joined.append(mine)
            try:
                return await mine
            except _Abandoned:
                continue
        joined = self._joined[asked] = []
        try:
            try:
                # All who were woken together have their turn in this round, and join.
                await asyncio.sleep(0)
            finally:
                del self._joined[asked]
            rows = [shape(row) for row in await self._database.fetch(query, params)]
        except BaseException as error:
            for waiting in joined:
                if not waiting.done():
                    waiting.set_exception(error if isinstance(error, Exception) else _Abandoned())
            raise
        for waiting in joined:
            if not waiting.done():
                waiting.set_result(rows)
        return rows
