"""How does cost grow with servers, sessions, history and subscribers?  ``python -m benchmarks.scaling``

Four curves, each from one run on one machine, drawn into docs/images and put into docs/scaling.md:

- servers: turns of 16 sessions each on one, two, three servers of one database.
- sessions: turns while so many idle sessions, of ten events each, lie in the database.
- history: the n-th turn of one session.
- subscribers: what one event costs that so many streams of its session receive.

What is counted is processor time, of the servers and of PostgreSQL apart: it says what the work costs,
however many cores share it, and a busy neighbour changes it little. From it, the write-ahead log and the
size of the tables per turn, `capacity` says what larger machines carry.
"""

import argparse
import asyncio
import math
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import psycopg

from benchmarks.client import Stream
from benchmarks.curves import Capacity, Curve, Growth, Point, drawn, written
from benchmarks.machine import between, described, today, waiting
from benchmarks.managed_agents import ManagedAgents
from benchmarks.processes import cpu_seconds
from benchmarks.world import FULL, SHORT, World, quietly, world

UTILISATION: Final = 0.6
"""The share of a core to plan with: beyond it, waiting grows faster than work (M/M/1: 2.5x at 0.6)."""
_EVENTS: Final = 10
PAGE: Final = Path(__file__).parents[1] / "docs" / "scaling.md"
BEGIN: Final = "<!-- written by make scaling -->"
END: Final = "<!-- end of what make scaling writes -->"


class Followed:
    """Sessions of one server, each with an open stream."""

    def __init__(self, agents: ManagedAgents) -> None:
        self._agents = agents
        self._open: list[tuple[str, Stream]] = []

    async def open(self, sessions: int) -> None:
        """Make the sessions and follow each."""
        for _ in range(sessions):
            session = await self._agents.create()
            self._open.append((session, await self._agents.follow(session)))

    async def turns(self, seconds: float) -> int:
        """How many turns they have in so many seconds, each beginning its next when one is over."""
        done, end = 0, time.perf_counter() + seconds

        async def client(session: str, stream: Stream) -> None:
            nonlocal done
            while time.perf_counter() < end:
                await self._agents.turn(session, stream)
                done += 1

        await asyncio.gather(*(client(*each) for each in self._open))
        return done

    def close(self) -> None:
        """Stop following."""
        for _, stream in self._open:
            stream.close()


class Meter:
    """Processor time of servers and of PostgreSQL since it was made."""

    def __init__(self, world: World, servers: Sequence[ManagedAgents]) -> None:
        assert world.postgres.pid is not None
        self._postgres = world.postgres.pid
        self._servers = [each.pid for each in servers]
        self._began = time.perf_counter()
        self._before = self._read()

    def _read(self) -> tuple[float, float]:
        return sum(map(cpu_seconds, self._servers)), cpu_seconds(self._postgres)

    def point(self, x: int, done: int) -> Point:
        """What each of `done` cost since then."""
        server, postgres = (
            1000 * (now - then) / done for now, then in zip(self._read(), self._before, strict=True)
        )
        return Point(x, server, postgres, done / (time.perf_counter() - self._began))


async def servers(world: World) -> list[Point]:
    """Turns on one, two and three servers."""
    points: list[Point] = []
    for count in (1, 2, 3):
        async with AsyncExitStack() as stack:
            url = await world.database()
            fleet = [await stack.enter_async_context(world.another_corral(url)) for _ in range(count)]
            points.append(await _worked(world, fleet, count))
    return points


async def _worked(world: World, fleet: Sequence[ManagedAgents], x: int) -> Point:
    loads = [Followed(each) for each in fleet]
    for load in loads:
        await load.open(max(2, world.size.sessions // 2))
    await asyncio.gather(*(load.turns(world.size.seconds / 4) for load in loads))  # everything is warm
    meter = Meter(world, fleet)
    done = sum(await asyncio.gather(*(load.turns(world.size.seconds) for load in loads)))
    point = meter.point(x, done)
    for load in loads:
        load.close()
    return point


async def sessions(world: World) -> tuple[list[Point], Growth]:
    """Turns beside so many idle sessions, and what turns leave behind."""
    points: list[Point] = []
    growth = Growth(0, 0)
    async with _alone(world) as (agents, url):
        there = 0
        for wanted in sorted({world.size.listed // part for part in (100, 10, 1)} | {world.size.listed * 5}):
            await _fill(url, there, wanted)
            there = wanted
            before = await _written(url)
            point = await _worked(world, [agents], wanted)
            after = await _written(url)
            # The warming turns are written too.
            turns = max(1.0, point.rate * world.size.seconds * 1.25)
            growth = Growth((after.wal - before.wal) / turns, (after.table - before.table) / turns)
            points.append(point)
    return points, growth


async def history(world: World) -> list[Point]:
    """The n-th turn of one session."""
    points: list[Point] = []
    async with _alone(world) as (agents, _):
        session = await agents.create()
        stream = await agents.follow(session)
        number = 0
        for target in sorted({10, *(world.size.turns * part // 8 for part in (1, 2, 4, 8))}):
            while number < target - 8:
                await agents.turn(session, stream)
                number += 1
            meter = Meter(world, [agents])
            for _ in range(8):
                await agents.turn(session, stream)
            number += 8
            points.append(meter.point(target, 8))
        stream.close()
    return points


async def subscribers(world: World) -> list[Point]:
    """Events delivered to so many streams of one session."""
    points: list[Point] = []
    async with _alone(world) as (agents, _):
        for count in sorted({max(1, world.size.readers // part) for part in (500, 50, 10, 5, 1)}):
            session = await agents.create()
            streams = [await agents.follow(session) for _ in range(count)]
            await _said(agents, session, streams)
            before = await _length(agents, session)
            meter = Meter(world, [agents])
            for _ in range(max(3, 100 // count)):
                await _said(agents, session, streams)
            shown = await _length(agents, session) - before
            points.append(meter.point(count, count * shown))
            for stream in streams:
                stream.close()
    return points


async def _said(agents: ManagedAgents, session: str, streams: Sequence[Stream]) -> None:
    await agents.send(session, "and?")
    for stream in streams:
        await stream.until(b'"user.message"')
        await stream.until(b'"session.status_idle"')


async def _length(agents: ManagedAgents, session: str) -> int:
    return len((await agents.client.get(f"/v1/sessions/{session}/events?limit=1000"))["data"])


@asynccontextmanager
async def _alone(world: World) -> AsyncGenerator[tuple[ManagedAgents, str]]:
    url = await world.database()
    async with world.another_corral(url) as agents:
        yield agents, url


async def _fill(url: str, there: int, wanted: int) -> None:
    """Copies of a session that is idle, with events."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute(
            "insert into sessions (id, environment_id, agent_id, agent_version, agent, primary_thread_id,"
            " usage, last_seq) select 'sesn_filled_' || n, e.id, a.agent_id, a.version, a.config,"
            " 'sthr_filled_' || n, '{}', %(events)s from generate_series(%(there)s + 1, %(wanted)s) n,"
            " (select id from environments limit 1) e,"
            " (select agent_id, version, config from agent_versions limit 1) a",
            {"there": there, "wanted": wanted, "events": _EVENTS},
        )
        await connection.execute(
            "insert into events (session_id, seq, id, thread_id, type, body, processed_at)"
            " select 'sesn_filled_' || n, m, 'sevt_' || n || '_' || m, 'sthr_filled_' || n, 'agent.message',"
            " json_build_object('type', 'agent.message', 'text', repeat('x', 400)), now()"
            " from generate_series(%(there)s + 1, %(wanted)s) n, generate_series(1, %(events)s) m",
            {"there": there, "wanted": wanted, "events": _EVENTS},
        )
        await connection.execute("analyze")


async def _written(url: str) -> Growth:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        cursor = await connection.execute(
            "select pg_current_wal_lsn() - '0/0', pg_database_size(current_database())"
        )
        row = await cursor.fetchone()
    assert row is not None
    return Growth(float(row[0]), float(row[1]))


def capacity(point: Point, growth: Growth, cores: int) -> Capacity:
    """What `cores` of PostgreSQL carry at `UTILISATION`, if turns cost what they did at `point`."""
    turns = cores * UTILISATION * 1000 / point.postgres
    return Capacity(
        cores,
        turns,
        math.ceil(turns * point.server / 1000 / UTILISATION),
        turns * growth.wal,
        turns * growth.table * 86_400,
    )


async def scaling(short: bool) -> tuple[str, dict[str, Curve]]:
    """What the page says, and the curves to draw."""
    async with world(SHORT if short else FULL, rivals=False) as everything:
        about = await described(everything.postgres.url, everything.folder)
        idle, growth = await sessions(everything)
        curves = {
            "servers": Curve("servers", "turn", await servers(everything)),
            "sessions": Curve("idle sessions in the database", "turn", idle),
            "history": Curve("turns before it", "turn", await history(everything)),
            "subscribers": Curve("streams of the session", "delivered event", await subscribers(everything)),
        }
    of_postgres = [capacity(idle[-1], growth, cores) for cores in (4, 16, 64)]
    busy = f"processes that wanted each core at its end: {waiting():.1f}"
    return written([f"taken on {today()}", *about, busy], curves, growth, of_postgres), curves


def write(text: str, curves: Mapping[str, Curve], page: Path = PAGE) -> None:
    """Put the figures into the page, and the drawings beside it."""
    images = page.parent / "images"
    images.mkdir(exist_ok=True)
    for name, curve in curves.items():
        (images / f"scaling-{name}.svg").write_text(drawn(curve), "utf-8")
    page.write_text(between(page.read_text("utf-8"), BEGIN, END, text), "utf-8")


def main() -> None:
    """Measure, and unless told otherwise write the page and its drawings."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--short", action="store_true", help="a moment's run, which measures nothing")
    given = parser.parse_args()
    quietly()
    text, curves = asyncio.run(scaling(given.short))
    print(text, end="")
    if not given.short:
        write(text, curves)
        print(f"written to {PAGE}")


if __name__ == "__main__":
    main()
