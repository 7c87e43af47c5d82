"""A session's row and a log on it, on a real PostgreSQL."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass

import pytest_asyncio

from corral.bus.hub import Hub
from corral.bus.landed import Landed
from corral.session.log import PostgresSessionLog
from corral.session.records import NewSession, SessionRecords
from corral.session.writer import LogWriter
from corral.store.database import Database

AGENT = {"id": "agent_x", "name": "tester", "model": {"id": "claude-sonnet-4-5"}}


class SilentBus(Hub):
    """A bus within the process."""

    async def publish(self, *topics: str, landed: Mapping[str, Landed] | None = None) -> None:
        for topic in topics:
            self.poke(topic, None if landed is None else landed.get(topic))


@dataclass(frozen=True)
class LogUnderTest:
    """A log with its writer, and ways to look at what the database holds."""

    database: Database
    writer: LogWriter
    log: PostgresSessionLog
    bus: SilentBus

    async def sessions(self, count: int) -> list[str]:
        """Fresh sessions' ids."""
        records = SessionRecords(self.database)
        await self.database.execute(
            "insert into environments (id, name, config) values ('env_x', 'x', '{}') on conflict do nothing"
        )
        new = NewSession("env_x", "agent_x", 1, AGENT)
        made = [(await records.create(new, []))["id"] for _ in range(count)]
        # The thread on which these tests write.
        await self.database.execute(
            "update sessions set primary_thread_id = 'sthr_x' where id = any(%s)", (made,)
        )
        return made

    async def session(self) -> str:
        """A fresh session's id."""
        return (await self.sessions(1))[0]

    async def ids(self, session_id: str) -> Sequence[str]:
        """The ids of the events in the log, which has no gap."""
        events = [event async for event in self.log.replay(session_id)]
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        row = await self.database.fetch_one("select last_seq from sessions where id = %s", (session_id,))
        assert row is not None
        assert row["last_seq"] == len(events)
        return [event.id for event in events]


@pytest_asyncio.fixture
async def under_test(database: Database) -> AsyncGenerator[LogUnderTest]:
    """A log on an empty database."""
    bus = SilentBus()
    async with LogWriter(database, bus) as writer:
        yield LogUnderTest(database, writer, PostgresSessionLog(database, writer), bus)
