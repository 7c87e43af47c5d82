"""How fast is the session log, against a transaction per event and against the best of plain batched SQL?

Run with ``make bench`` or ``python benchmarks/log.py [--seconds 3] [--sessions 1,16,64,256]``. All three
write the same events to the same PostgreSQL on the same disk with fsync on, in turn, in one run; every
appender waits until its event is durable before it appends the next. Ratios are what to read; rates vary
with the machine.

- ours: `PostgresSessionLog.append`, fenced, through the group writer.
- transaction per event: each session has a connection and a transaction for each event, which checks the
  epoch, takes the next sequence number and inserts.
- plain batched: one loop takes whatever is waiting and inserts it with one ``insert ... select unnest``, with
  numbers that it was given: no fence, no gapless sequence, no session row. The second form of it sends its
  arrays in binary, which spares the driver most of its work: the limit of what one connection can do.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, LiteralString

import msgspec

from corral.bus.hub import Hub, Subscription
from corral.session.commit import Fence
from corral.session.events import NewEvent
from corral.session.log import PostgresSessionLog
from corral.session.records import NewSession, SessionRecords
from corral.session.writer import LogWriter
from corral.store.database import Connection, Database
from corral.store.embedded import EmbeddedPostgres
from corral.store.migrate import migrate

_BODY = {"content": [{"type": "text", "text": "x" * 400}]}
Append = Callable[[str, int], Awaitable[None]]
"""Appends event number `seq` (from 1) to a session and returns once it is durable."""


class LocalBus(Hub):
    """The bus of a benchmark: nobody listens."""

    async def publish(self, *topics: str) -> None:
        """Poke the readers here."""
        for topic in topics:
            self.poke(topic)

    def subscribe(self, *topics: str, previews: bool = False) -> Subscription:
        """See `Bus.subscribe`."""
        return super().subscribe(*topics, previews=previews)


class Measured(msgspec.Struct, frozen=True):
    """Events per second, and latencies in milliseconds."""

    rate: float
    p50: float
    p99: float


async def measure(append: Append, sessions: list[str], seconds: float) -> Measured:
    """Let every session append one event after another for `seconds`."""
    latencies: list[float] = []
    stop = time.perf_counter() + seconds

    async def appender(session: str) -> None:
        seq = 0
        while (began := time.perf_counter()) < stop:
            seq += 1
            await append(session, seq)
            latencies.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*map(appender, sessions))
    elapsed = time.perf_counter() - began
    cuts = statistics.quantiles(latencies, n=100)
    return Measured(len(latencies) / elapsed, cuts[49] * 1000, cuts[98] * 1000)


def event(session: str, seq: int) -> NewEvent:
    """The event that all contestants write."""
    return NewEvent(f"sevt_{session[-8:]}{seq}", "agent.message", "sthr_bench", _BODY)


async def new_sessions(database: Database, count: int) -> list[str]:
    """Fresh sessions to append to."""
    records = SessionRecords(database)
    return [(await records.create(NewSession("env_bench", "agent_b", 1, {}), ()))["id"] for _ in range(count)]


async def ours(database: Database, sessions: list[str], seconds: float) -> Measured:
    """Through the log's own group writer."""
    async with LogWriter(database, LocalBus()) as writer:
        log = PostgresSessionLog(database, writer)

        async def append(session: str, seq: int) -> None:
            await log.append(session, [event(session, seq)], fence=Fence(epoch=0, seq=seq - 1))

        return await measure(append, sessions, seconds)


async def transactions(database: Database, sessions: list[str], seconds: float) -> Measured:
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


async def batched(
    database: Database, sessions: list[str], seconds: float, *, binary: bool = False
) -> Measured:
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


async def run(counts: list[int], seconds: float, folder: Path) -> None:
    """Run all contestants for each number of sessions and print the table."""
    async with EmbeddedPostgres(folder / "data", settings={"max_connections": "400"}) as server:
        async with Database(server.url) as database:
            await migrate(database)
            await database.execute(
                "insert into environments (id, name, config)"
                " values ('env_bench', 'bench', '{\"type\": \"cloud\"}')"
            )
            print(f"{'sessions':>8}  {'contestant':<24}{'events/s':>10}{'p50 ms':>9}{'p99 ms':>9}   ours is")
            for count in counts:
                rows = {
                    "ours": await ours(database, await new_sessions(database, count), seconds),
                    "transaction per event": await transactions(
                        database, await new_sessions(database, count), seconds
                    ),
                    "plain batched": await batched(database, await new_sessions(database, count), seconds),
                    "plain batched, binary": await batched(
                        database, await new_sessions(database, count), seconds, binary=True
                    ),
                }
                for name, row in rows.items():
                    ratio = "" if name == "ours" else f"{rows['ours'].rate / row.rate:6.2f}x"
                    print(f"{count:>8}  {name:<24}{row.rate:>10.0f}{row.p50:>9.2f}{row.p99:>9.2f}   {ratio}")
                    sys.stdout.flush()


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--sessions", default="1,16,64,256")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="corral-bench-") as folder:
        Path(folder).chmod(0o711)
        counts = [int(count) for count in arguments.sessions.split(",")]
        asyncio.run(run(counts, arguments.seconds, Path(folder)))


if __name__ == "__main__":
    main()
