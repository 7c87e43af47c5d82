"""The pool of connections to PostgreSQL, and the few ways in which the house uses it.

Every statement is a single round trip in autocommit unless it is inside `transaction()`. Rows come back as
named tuples' plain cousin, dicts, since most are handed on to the wire as they are.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, LiteralString, Self

import psycopg
from psycopg import AsyncConnection, AsyncCursor, sql
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool

_CONNECT_SECONDS: Final = 10
_DEAD_PEER: Final[dict[str, Any]] = {
    "tcp_user_timeout": 15_000,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
"""When a connection over TCP is given up that nobody answers on: after 15 seconds with something sent (in
milliseconds), 25 without. The system's own bounds are a quarter of an hour, and two hours.
"""

Params = Sequence[Any] | Mapping[str, Any]
Connection = AsyncConnection[DictRow]


def connection_bounds(url: str) -> dict[str, Any]:
    """How long a connection to `url` is waited for; what the address itself says of it counts."""
    bounds = {"connect_timeout": _CONNECT_SECONDS, **_DEAD_PEER}
    return {name: value for name, value in bounds.items() if name not in url}


class Database:
    """A pool on one database. Open it with ``async with``; nothing is connected before.

    `direct_url`: where `url` leads through a pooler in transaction mode, the address that goes past it. Such
    a pooler gives each statement another connection, so it can neither listen nor hold a session's lock, and
    statements must not be prepared through it.
    """

    def __init__(
        self, url: str, *, max_size: int = 10, name: str = "corral", direct_url: str | None = None
    ) -> None:
        self.url = url
        self._direct_url = direct_url
        self._name = name
        self._pool: AsyncConnectionPool[Connection] = AsyncConnectionPool(
            url,
            connection_class=AsyncConnection[DictRow],
            min_size=1,
            max_size=max_size,
            open=False,
            timeout=15,
            kwargs=self._connect_arguments() | ({"prepare_threshold": None} if direct_url else {}),
        )

    def _connect_arguments(self) -> dict[str, Any]:
        return {
            "autocommit": True,
            "row_factory": dict_row,
            "application_name": self._name,
            **connection_bounds(self.url),
        }

    async def __aenter__(self) -> Self:
        # A pool hides why it cannot connect and tries for long; an attempt of our own says why at once.
        await (await self.dedicated()).close()
        try:
            await self._pool.open(wait=True)
        except BaseException:
            await self._pool.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pool.close()

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[Connection]:
        """A pooled connection in autocommit; hold it for as short as can be, never across a wait."""
        task = asyncio.current_task()
        cancelled = 0 if task is None else task.cancelling()
        async with self._pool.connection() as connection:
            if task is not None and task.cancelling() > cancelled:
                # asyncio.wait_for of Python 3.11, by which the pool waits for a free connection, swallows a
                # cancellation that comes as its wait ends.
                raise asyncio.CancelledError
            yield connection

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Connection]:
        """A pooled connection inside one transaction: committed on leaving, rolled back on an exception."""
        async with self.connection() as connection, connection.transaction():
            yield connection

    @property
    def direct_url(self) -> str:
        """The address at which connections are the caller's own, past a pooler if there is one."""
        return self._direct_url or self.url

    async def dedicated(self) -> Connection:
        """A connection of the caller's own, outside the pool (listening, advisory locks, the log's writer).

        The caller closes it.
        """
        url = self._direct_url or self.url
        return await AsyncConnection[DictRow].connect(url, **self._connect_arguments())

    async def fetch(self, query: LiteralString | sql.Composed, params: Params = ()) -> list[DictRow]:
        """All rows of one statement."""
        async with self._run(query, params) as cursor:
            return await cursor.fetchall()

    async def fetch_one(self, query: LiteralString | sql.Composed, params: Params = ()) -> DictRow | None:
        """The first row of one statement, or None."""
        async with self._run(query, params) as cursor:
            return await cursor.fetchone()

    async def execute(self, query: LiteralString | sql.Composed, params: Params = ()) -> int:
        """Run one statement; the number of rows that it touched."""
        async with self._run(query, params) as cursor:
            return cursor.rowcount

    @asynccontextmanager
    async def _run(
        self, query: LiteralString | sql.Composed, params: Params
    ) -> AsyncGenerator[AsyncCursor[DictRow]]:
        """The cursor of one statement that has been run.

        After a restart of PostgreSQL all idle connections are dead. The first statement to meet one has them
        all looked over, and if it only reads it is run again; so nobody sees more of the restart than a wait.
        """
        async with AsyncExitStack() as stack:
            connection = await stack.enter_async_context(self.connection())
            try:
                cursor = await connection.execute(query, params)
            except (psycopg.OperationalError, psycopg.InterfaceError):
                if not connection.closed:
                    raise
                await stack.aclose()
                await self._pool.check()
                if not (isinstance(query, str) and query.lstrip().startswith("select")):
                    raise
                connection = await stack.enter_async_context(self.connection())
                cursor = await connection.execute(query, params)
            yield cursor

    @property
    def statistics(self) -> dict[str, int]:
        """The pool's counters (psycopg_pool's names), for health checks and tests."""
        return self._pool.get_stats()
