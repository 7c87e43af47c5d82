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
        self._joined: dict[Hashable, list[asyncio.Future[Any]]] = {}
        """Who waits for a read that has not begun, beside the one who makes it."""

    async def fetch(
        self,
        query: LiteralString,
        params: tuple[Hashable, ...],
        asked: Hashable,
        shape: Callable[[Sequence[DictRow]], T],
    ) -> T:
        """The rows of one statement, in the shape that `shape` gives them once for all.

        `asked` names the shape: whoever asks for the same rows in the same one shares it. Raises what
        `Database.fetch` and `shape` raise.
        """
        key = (query, params, asked)
        while (joined := self._joined.get(key)) is not None:
            mine: asyncio.Future[T] = asyncio.get_running_loop().create_future()
            joined.append(mine)
            try:
                return await mine
            except _Abandoned:
                continue
        joined = self._joined[key] = []
        try:
            try:
                # All who were woken together have their turn in this round, and join.
                await asyncio.sleep(0)
            finally:
                del self._joined[key]
            made = shape(await self._database.fetch(query, params))
        except BaseException as error:
            for waiting in joined:
                if not waiting.done():
                    waiting.set_exception(error if isinstance(error, Exception) else _Abandoned())
            raise
        for waiting in joined:
            if not waiting.done():
                waiting.set_result(made)
        return made
