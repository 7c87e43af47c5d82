"""How fast are sessions made, listed and read?  ``python -m benchmarks.sessions``

Against `open-managed-agents` on the same PostgreSQL. Every request waits for the one before it; with 16
clients each does so for itself. The list is of 20 sessions out of 10,000, newest first.
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, LiteralString

import psycopg

from benchmarks.managed_agents import ManagedAgents
from benchmarks.rivals import OPEN_MANAGED_AGENTS
from benchmarks.table import Row, at_least, interleaved, milliseconds, not_run
from benchmarks.world import World, main

_CREATE = "sessions.create, 1 client"
_CREATE_16 = "sessions.create, 16 clients"
_LIST = "list 20 of {} sessions"
_RETRIEVE = "retrieve a session"


async def sessions(world: World) -> Sequence[Row]:
    """The rows of the four questions."""
    corral, rival = await world.corral(), await world.rival()
    listing = _LIST.format(f"{world.size.listed:,}")
    bars = {_CREATE: 8.0, _CREATE_16: 10.0, listing: 50.0, _RETRIEVE: 10.0}
    if isinstance(rival, str):
        await _exercise(corral, world)
        return [not_run(name, OPEN_MANAGED_AGENTS, rival, at_least(bar)) for name, bar in bars.items()]
    both = (corral, rival)
    rows = [
        await _compare(_CREATE, {each.name: _timed(each.create) for each in both}, world, bars[_CREATE]),
        await _throughput(both, world, bars[_CREATE_16]),
    ]
    for each in both:
        await _fill(each, world.size.listed)
    ids = {each.name: await each.create() for each in both}
    rows.append(
        await _compare(listing, {each.name: _timed(_list(each)) for each in both}, world, bars[listing])
    )
    reads = {each.name: _timed(_read(each, ids[each.name])) for each in both}
    rows.append(await _compare(_RETRIEVE, reads, world, bars[_RETRIEVE]))
    return rows


def _list(agents: ManagedAgents) -> Callable[[], Awaitable[object]]:
    async def ask() -> None:
        listed = (await agents.client.get("/v1/sessions?limit=20"))["data"]
        assert len(listed) == 20, len(listed)

    return ask


def _read(agents: ManagedAgents, session: str) -> Callable[[], Awaitable[object]]:
    return lambda: agents.client.get(f"/v1/sessions/{session}")


def _timed(ask: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[float]]:
    async def sample() -> float:
        began = time.perf_counter()
        await ask()
        return time.perf_counter() - began

    return sample


async def _compare(
    question: str, contestants: dict[str, Callable[[], Awaitable[float]]], world: World, bar: float
) -> Row:
    # The rival takes many seconds for a list: three are enough of those.
    rounds = min(world.size.rounds, 3) if "list" in question else world.size.rounds
    taken = await interleaved(contestants, rounds)
    ours, theirs = (statistics.median(samples) for samples in taken.values())
    return Row(
        question,
        milliseconds(ours),
        f"{milliseconds(theirs)}, {OPEN_MANAGED_AGENTS}",
        theirs / ours,
        at_least(bar),
    )


async def _rate(agents: ManagedAgents, seconds: float) -> float:
    done, began = 0, time.perf_counter()

    async def client() -> None:
        nonlocal done
        while time.perf_counter() < began + seconds:
            await agents.create()
            done += 1

    await asyncio.gather(*(client() for _ in range(16)))
    return done / (time.perf_counter() - began)


async def _throughput(both: Sequence[ManagedAgents], world: World, bar: float) -> Row:
    contestants = {each.name: _sampler(each, world.size.seconds) for each in both}
    taken = await interleaved(contestants, world.size.repeats)
    ours, theirs = (statistics.median(rates) for rates in taken.values())
    peer = f"{theirs:.0f}/s, {OPEN_MANAGED_AGENTS}"
    return Row(_CREATE_16, f"{ours:.0f}/s", peer, ours / theirs, at_least(bar))


def _sampler(agents: ManagedAgents, seconds: float) -> Callable[[], Awaitable[float]]:
    return lambda: _rate(agents, seconds)


_COPY: Final[LiteralString] = """
insert into sessions select (jsonb_populate_record(s, jsonb_build_object(
    'id', s.id || '_' || number, 'created_at', s.created_at - number * interval '1 second'))).*
from sessions s cross join generate_series(1, %s) number where s.id = %s
"""


async def _fill(agents: ManagedAgents, wanted: int) -> None:
    """Copy a session's row in the database until there are so many more. Both call it `sessions`."""
    session = await agents.create()
    async with await psycopg.AsyncConnection.connect(agents.database_url, autocommit=True) as connection:
        await connection.execute(_COPY, (wanted, session))
        await connection.execute("analyze")


async def _exercise(corral: ManagedAgents, world: World) -> None:
    await _rate(corral, world.size.seconds)
    await _fill(corral, world.size.listed)
    await _timed(_list(corral))()
    await _timed(_read(corral, await corral.create()))()


if __name__ == "__main__":
    main(sessions, __doc__)
