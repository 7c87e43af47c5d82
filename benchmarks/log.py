"""How fast is the session log, against the best of plain batched SQL?  ``python -m benchmarks.log``

All contestants write the same events of 64 sessions to the same PostgreSQL; every session waits until its
event is durable before it appends the next.

- ours: `PostgresSessionLog.append`, fenced, through the group writer.
- plain batched: one loop takes whatever is waiting and inserts it with one ``insert ... select unnest``,
  with numbers that it was given: no fence, no gapless sequence, no session row. The second form of it
  sends its arrays in binary, which spares the driver most of its work: the limit of what one connection
  can do.
- transaction per event: each session has a connection and a transaction for each event, which checks the
  epoch, takes the next sequence number and inserts.
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Final, LiteralString

from benchmarks.table import Row, Sample, at_least, interleaved
from benchmarks.world import World, main
from corral.bus.hub import Hub
from corral.bus.landed import Landed
from corral.session.commit import Fence
from corral.session.events import NewEvent
from corral.session.log import PostgresSessionLog
from corral.session.records import NewSession, SessionRecords
from corral.session.writer import LogWriter
from corral.store.database import Connection, Database
from corral.store.migrate import migrate

_BODY = {"content": [{"type": "text", "text": "x" * 400}]}
Append = Callable[[str, int], Awaitable[None]]
"""Appends event number `seq` (from 1) to a session and returns once it is durable."""
Run = Callable[[Database, list[str], float], Awaitable[float]]
"""Appends to the sessions for so many seconds; events per second."""


_OURS = "corral"
_BARS = {
    "plain batched SQL": at_least(0.7),
    "the same, its arrays in binary": None,
    "a transaction per event": None,
}


async def log(world: World) -> Sequence[Row]:
    """The rows of the question: one for each peer."""
    async with Database(await world.database()) as database:
        await migrate(database)
        await database.execute(
            "insert into environments (id, name, config)"
            " values ('env_bench', 'bench', '{\"type\": \"cloud\"}')"
        )
        seconds, sessions = world.size.seconds, 2 * world.size.sessions

        def contestant(run: Run) -> Sample:
            async def sample() -> float:
                return await run(database, await new_sessions(database, sessions), seconds)

            return sample

        contestants = dict(zip((_OURS, *_BARS), (ours, batched, batched_binary, transactions), strict=True))
        taken = await interleaved(
            {name: contestant(run) for name, run in contestants.items()}, world.size.repeats
        )
    rates = {name: statistics.median(samples) for name, samples in taken.items()}
    mine = rates.pop(_OURS)
    question = f"events into the log, {sessions} sessions"
    return [
        Row(question, f"{mine:,.0f}/s", f"{rate:,.0f}/s, {name}", mine / rate, _BARS[name])
        for name, rate in rates.items()
    ]


class LocalBus(Hub):
    """The bus of a benchmark: nobody listens."""

    async def publish(self, *topics: str, landed: Mapping[str, Landed] | None = None) -> None:
        """Poke the readers here."""
        for topic in topics:
            self.poke(topic, None if landed is None else landed.get(topic))


async def measure(append: Append, sessions: list[str], seconds: float) -> float:
    """Let every session append one event after another for `seconds`; events per second."""
    appended = 0
    began = time.perf_counter()
    stop = began + seconds

    async def appender(session: str) -> None:
        nonlocal appended
        seq = 0
        while time.perf_counter() < stop:
            seq += 1
            await append(session, seq)
            appended += 1

    await asyncio.gather(*map(appender, sessions))
    return appended / (time.perf_counter() - began)


def event(session: str, seq: int) -> NewEvent:
    """The event that all contestants write."""
    return NewEvent(f"sevt_{session[-8:]}{seq}", "agent.message", "sthr_bench", _BODY)


async def new_sessions(database: Database, count: int) -> list[str]:
    """Fresh sessions to append to."""
    records = SessionRecords(database)
    return [(await records.create(NewSession("env_bench", "agent_b", 1, {}), ()))["id"] for _ in range(count)]


async def ours(database: Database, sessions: list[str], seconds: float) -> float:
    """Through the log's own group writer."""
    async with LogWriter(database, LocalBus()) as writer:
        log = PostgresSessionLog(database, writer)

        async def append(session: str, seq: int) -> None:
            await log.append(session, [event(session, seq)], fence=Fence(epoch=0, seq=seq - 1))

        return await measure(append, sessions, seconds)


async def transactions(database: Database, sessions: list[str], seconds: float) -> float:
    """A connection per session and a transaction per event."""
    async with AsyncExitStack() as stack:
        connections: dict[str, Connection] = {}
        for session in sessions:
            connections[session] = await database.dedicated()
            stack.push_async_callback(connections[session].close)

        async def append(session: str, seq: int) -> None:
            new = event(session, seq)
            connection = connections[session]
            async with connection.transaction():
                cursor = await connection.execute(
                    "update sessions set last_seq = last_seq + 1 where id = %s and epoch = 0"
                    " returning last_seq",
                    (session,),
                )
                row = await cursor.fetchone()
                assert row is not None
                await connection.execute(
                    "insert into events (session_id, seq, id, thread_id, type, body, processed_at)"
                    " values (%s, %s, %s, %s, %s, %s, now())",
                    (session, row["last_seq"], new.id, new.thread_id, new.type, new.body_text()),
                )

        return await measure(append, sessions, seconds)


_BATCH: Final[LiteralString] = (
    "insert into events (session_id, seq, id, thread_id, type, body, processed_at)"
    " select s, n, i, t, k, b::json, now() from unnest(%s::text[], %s::bigint[], %s::text[], %s::text[],"
    " %s::text[], %s::text[]) as e (s, n, i, t, k, b)"
)
_BATCH_BINARY: Final[LiteralString] = (
    "insert into events (session_id, seq, id, thread_id, type, body, processed_at)"
    " select s, n, i, t, k, b::json, now() from unnest(%b::text[], %s::bigint[], %b::text[], %b::text[],"
    " %b::text[], %b::text[]) as e (s, n, i, t, k, b)"
)


async def batched(database: Database, sessions: list[str], seconds: float, *, binary: bool = False) -> float:
    """One loop, one insert per batch, and nothing else."""
    waiting: list[tuple[str, int, asyncio.Future[None]]] = []
    wanted = asyncio.Event()
    connection = await database.dedicated()

    async def write() -> None:
        while True:
            await wanted.wait()
            wanted.clear()
            batch, waiting[:] = list(waiting), []
            if not batch:
                continue
            events = [event(session, seq) for session, seq, _ in batch]
            await connection.execute(
                _BATCH_BINARY if binary else _BATCH,
                (
                    [session for session, _, _ in batch],
                    [seq for _, seq, _ in batch],
                    [new.id for new in events],
                    [new.thread_id for new in events],
                    [new.type for new in events],
                    [new.body_text() for new in events],
                ),
            )
            for _, _, done in batch:
                done.set_result(None)

    async def append(session: str, seq: int) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append((session, seq, done))
        wanted.set()
        await done

    writer = asyncio.create_task(write())
    try:
        return await measure(append, sessions, seconds)
    finally:
        writer.cancel()
        await asyncio.gather(writer, return_exceptions=True)
        await connection.close()


async def batched_binary(database: Database, sessions: list[str], seconds: float) -> float:
    """The same with the arrays in binary."""
    return await batched(database, sessions, seconds, binary=True)


if __name__ == "__main__":
    main(log, __doc__)
