"""The log's writer and a database that goes away: nothing is lost, nothing doubled, every outcome is told."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Self

import psycopg
import pytest_asyncio

from corral.session.commit import Commit, Committed, Fence
from corral.session.log import PostgresSessionLog
from corral.session.writer import LogWriter
from corral.store.database import Database
from corral.store.embedded import EmbeddedPostgres
from corral.store.migrate import migrate
from tests.unit.session.conftest import LogUnderTest, SilentBus
from tests.unit.session.test_log import event, result_of

WRITER_ENDS = """
select pg_terminate_backend(pid) from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid()
    and position('with req as materialized' in query) > 0
"""


async def blocked(database: Database, *, besides: int = 0) -> list[int]:
    """The server processes that wait for a lock, once one of them is another than `besides`."""
    async with asyncio.timeout(10):
        while True:
            rows = await database.fetch(
                "select pid from pg_stat_activity where datname = current_database()"
                " and wait_event_type = 'Lock'"
            )
            if any(row["pid"] != besides for row in rows):
                return [row["pid"] for row in rows]


class Appending:
    """Tasks that append to sessions without end, fenced as a brain does, and what they were told."""

    def __init__(self, under_test: LogUnderTest, sessions: list[str]) -> None:
        self._under_test = under_test
        self.written: dict[str, list[str]] = {name: [] for name in sessions}
        self._stop = asyncio.Event()
        self._progress = asyncio.Event()
        self._tasks = [asyncio.create_task(self._append(name)) for name in sessions]

    async def _append(self, session_id: str) -> None:
        mine = self.written[session_id]
        while not self._stop.is_set():
            new = event(len(mine))
            commit = Commit(session_id, Fence(seq=len(mine)), events=(new,))
            committed = await self._under_test.writer.commit(commit)
            assert committed.base == len(mine)
            mine.append(new.id)
            self._progress.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def go_on(self, commits: int = 20) -> None:
        """Returns after some more commits."""
        for _ in range(commits):
            self._progress.clear()
            await asyncio.wait_for(self._progress.wait(), 30)

    async def end(self, reader: LogUnderTest) -> None:
        """Stop, and hold the log against what each task was told."""
        self._stop.set()
        await asyncio.gather(*self._tasks)
        for session_id, mine in self.written.items():
            assert await reader.ids(session_id) == mine


async def test_a_writer_whose_connection_is_cut_again_and_again_loses_and_doubles_nothing(
    under_test: LogUnderTest,
) -> None:
    async with Appending(under_test, await under_test.sessions(10)) as appending:
        for _ in range(8):
            await appending.go_on()
            assert await under_test.database.execute(WRITER_ENDS) in (1, 2)  # a lane may be resting
        await appending.go_on()
        await appending.end(under_test)


async def test_a_commit_at_fault_among_those_of_a_lost_connection_does_not_end_the_writer(
    under_test: LogUnderTest,
) -> None:
    good, bad = await under_test.sessions(2)
    await under_test.log.append(bad, [result_of("call")], fence=None)
    async with under_test.database.transaction() as connection:
        # The group waits for this lock, and its connection is cut there.
        await connection.execute("select 1 from sessions where id = %s for update", (good,))
        commits = (Commit(good, events=(event(),)), Commit(bad, events=(result_of("call"),)))
        outcomes = asyncio.gather(*map(under_test.writer.commit, commits), return_exceptions=True)
        await blocked(under_test.database)
        await under_test.database.execute(WRITER_ENDS)
    written, refused = await asyncio.wait_for(outcomes, 30)
    assert isinstance(written, Committed)
    assert isinstance(refused, psycopg.errors.UniqueViolation)
    assert len(await under_test.ids(good)) == 1
    await under_test.log.append(bad, [event()], fence=None)


async def test_a_statement_that_outlives_its_connection_cannot_write_after_its_commit_was_repeated(
    under_test: LogUnderTest,
) -> None:
    session_id = await under_test.session()
    async with under_test.database.transaction() as connection:
        await connection.execute("select 1 from sessions where id = %s for update", (session_id,))
        commit = asyncio.create_task(under_test.writer.commit(Commit(session_id, events=(event(),))))
        [pid] = await blocked(under_test.database)
        # The client's end of the connection breaks; at the server's end the statement still waits.
        lanes = under_test.writer._lanes  # pyright: ignore[reportPrivateUsage]
        connections = [lane._connection for lane in lanes]  # pyright: ignore[reportPrivateUsage]
        [lost] = [one for one in connections if one is not None and one.info.backend_pid == pid]
        with socket.socket(fileno=os.dup(lost.fileno())) as link:
            link.shutdown(socket.SHUT_RDWR)
        await blocked(under_test.database, besides=pid)
    assert (await asyncio.wait_for(commit, 30)).base == 0
    assert len(await under_test.ids(session_id)) == 1


@pytest_asyncio.fixture
async def own_cluster(open_folder: Path) -> AsyncGenerator[EmbeddedPostgres]:
    """A PostgreSQL that a test may kill, durable as the real one."""
    async with EmbeddedPostgres(open_folder / "data") as server:
        yield server


async def test_a_killed_postgresql_costs_time_and_nothing_else(own_cluster: EmbeddedPostgres) -> None:
    bus = SilentBus()
    async with Database(own_cluster.url) as database:
        await migrate(database)
        async with LogWriter(database, bus) as writer:
            under_test = LogUnderTest(database, writer, PostgresSessionLog(database, writer), bus)
            async with Appending(under_test, await under_test.sessions(10)) as appending:
                for times in (2, 3):
                    await appending.go_on()
                    assert own_cluster.pid is not None
                    os.kill(own_cluster.pid, signal.SIGKILL)
                    await own_cluster.wait_started(times)
                await appending.go_on()
                async with Database(own_cluster.url) as fresh:
                    log = PostgresSessionLog(fresh, writer)
                    await appending.end(LogUnderTest(fresh, writer, log, bus))
