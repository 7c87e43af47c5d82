"""How soon does a long session go on, on a server new to it?  ``python -m benchmarks.cold_turn``

A session has 50,000 events. A server that has just started, and has had a turn of another session, is sent a
message for it; the time runs until the whole model request has arrived at the provider, with all that was
said before in it. Once with the snapshot that an earlier server left, and once with the snapshot deleted, so
that the log is replayed.
"""

import asyncio
import statistics
import time
from collections.abc import Sequence

import psycopg

from benchmarks.client import SECONDS, Client
from benchmarks.history import history
from benchmarks.managed_agents import MODEL, ManagedAgents, fresh_mark
from benchmarks.processes import cpu_seconds
from benchmarks.table import Row, milliseconds, under
from benchmarks.world import World, main

Seen = list[tuple[float, float]]


async def cold_turn(world: World) -> Sequence[Row]:
    """The rows of the question."""
    url, provider = await world.database(), await world.provider_client()
    postgres = world.postgres.pid
    assert postgres is not None
    async with world.another_corral(url) as corral:
        session = await corral.create()
        count = await _fill(url, session, world.size.events)
        await _turn(corral, provider, session, postgres)
        await _written(url)
    kept: Seen = []
    replayed: Seen = []
    for _ in range(world.size.repeats):
        for seen in (kept, replayed):
            if seen is replayed:
                await _forget(url)
            async with world.another_corral(url) as corral:
                await _turn(corral, provider, await corral.create(), postgres)
                seen.append(await _turn(corral, provider, session, postgres))
                await _written(url)
    (soon, spent), (late, burnt) = _medians(kept), _medians(replayed)
    what = f"a cold turn after {count:,} events"
    return [
        Row(
            f"{what}: send to the model request arriving",
            milliseconds(soon), f"log replayed: {milliseconds(late)}", soon * 1000, under(150, "ms"),
        ),
        Row(
            f"{what}: processor time",
            milliseconds(spent), f"log replayed: {milliseconds(burnt)}", spent / burnt, under(0.5),
        ),
    ]  # fmt: skip


def _medians(seen: Seen) -> tuple[float, float]:
    return statistics.median(one for one, _ in seen), statistics.median(two for _, two in seen)


async def _turn(corral: ManagedAgents, provider: Client, session: str, postgres: int) -> tuple[float, float]:
    """A turn: seconds until its model request has arrived, and of processor time until it is over."""
    stream, mark = await corral.follow(session), fresh_mark()
    before = cpu_seconds(corral.pid) + cpu_seconds(postgres)
    began = time.perf_counter()
    await corral.send(session, f"mark:{mark} ")
    [arrived] = await provider.get(f"/arrival/{mark}")
    await stream.until(b'"session.status_idle"')
    stream.close()
    spent = cpu_seconds(corral.pid) + cpu_seconds(postgres) - before
    return arrived - began, max(spent, 0.001)


async def _fill(url: str, session: str, events: int) -> int:
    """Write a past into a session's log, as if it had happened; how many events it has."""
    async with await psycopg.AsyncConnection.connect(url) as connection:
        cursor = await connection.execute("select primary_thread_id from sessions where id = %s", (session,))
        row = await cursor.fetchone()
        assert row is not None
        seq = 0
        columns = "session_id, seq, id, thread_id, type, body, private, resolves, processed_at"
        async with cursor.copy(f"copy events ({columns}) from stdin") as copy:  # pyright: ignore
            for seq, event in enumerate(history(row[0], MODEL, events), 1):
                texts = event.body_text(), event.private_text()
                await copy.write_row(
                    (session, seq, event.id, event.thread_id, event.type, *texts, event.resolves, "now")
                )
        await connection.execute("update sessions set last_seq = %s where id = %s", (seq, session))
    return seq


async def _written(url: str) -> None:
    """Returns once there is a snapshot: it is written after the turn."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        async with asyncio.timeout(SECONDS):
            while True:
                cursor = await connection.execute("select from session_snapshots")
                if cursor.rowcount:
                    return
                await asyncio.sleep(0.05)


async def _forget(url: str) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute("delete from session_snapshots")


if __name__ == "__main__":
    main(cold_turn, __doc__)
