"""The bus between servers: pokes and previews cross, and no message can silence it."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from corral.bus.hub import Preview
from corral.bus.postgres import PostgresBus
from corral.store.database import Database

TOPIC = "session:sesn_x"


@asynccontextmanager
async def buses(database: Database) -> AsyncGenerator[tuple[PostgresBus, PostgresBus]]:
    async with PostgresBus(database) as one, PostgresBus(database) as other:
        yield one, other


async def until(database: Database, holds: Callable[[], bool]) -> None:
    """Returns once `holds`; each look costs a round trip to the database."""
    async with asyncio.timeout(10):
        while not holds():
            await database.execute("select 1")


def preview(position: int, size: int = 10) -> Preview:
    return Preview("sevt_x", "sthr_x", 1, b"x" * size, "agent.message", position)


async def test_a_poke_reaches_readers_here_and_elsewhere(database: Database) -> None:
    async with buses(database) as (one, other), one.subscribe(TOPIC) as here, other.subscribe(TOPIC) as there:
        there.take()
        await one.publish(TOPIC)
        assert here.take()[0]
        assert await there.wait(10)


async def test_previews_cross_only_to_a_server_that_watches(database: Database) -> None:
    async with buses(database) as (one, other):
        assert not one.has_readers(TOPIC)
        async with other.subscribe(TOPIC, previews=True) as there:
            await until(database, lambda: one.has_readers(TOPIC))
            there.take()
            for position in (0, 1, 2):
                one.preview(TOPIC, preview(position))
            seen: list[Preview] = []
            while len(seen) < 3:
                assert await there.wait(10)
                seen += there.take()[1]
    assert seen == [preview(0), preview(1), preview(2)]


async def test_a_preview_too_large_to_cross_leaves_a_gap_that_shows(database: Database) -> None:
    async with buses(database) as (one, other), other.subscribe(TOPIC, previews=True) as there:
        await until(database, lambda: one.has_readers(TOPIC))
        for position, size in ((0, 10), (1, 9_000), (2, 10)):
            one.preview(TOPIC, preview(position, size))
        seen: list[int] = []
        while len(seen) < 2:
            assert await there.wait(10)
            seen += [piece.position for piece in there.take()[1]]
        assert seen == [0, 2]


async def test_a_notice_that_cannot_be_read_does_not_silence_the_bus(database: Database) -> None:
    async with buses(database) as (one, other), other.subscribe(TOPIC) as there:
        for payload in ("not json", '{"sender": 1}', "[]"):
            await database.execute("select pg_notify('corral', %s)", (payload,))
        there.take()
        await one.publish(TOPIC)
        assert await there.wait(4)


async def test_readers_look_again_after_the_connection_was_lost(database: Database) -> None:
    async with PostgresBus(database) as bus, bus.subscribe(TOPIC) as reader:
        reader.take()
        cut = "select pg_terminate_backend(pid) from pg_stat_activity where query = 'listen corral'"
        assert await database.execute(cut + " and datname = current_database()") == 1
        assert await reader.wait(10)


async def test_a_busy_server_goes_on_saying_what_it_watches(database: Database) -> None:
    async with (
        PostgresBus(database, watch_seconds=0.3) as one,
        PostgresBus(database, watch_seconds=0.3) as two,
    ):
        async with two.subscribe(TOPIC, previews=True):
            await until(database, lambda: one.has_readers(TOPIC))
            loop = asyncio.get_running_loop()
            over = loop.time() + 1.0
            while loop.time() < over:
                await two.publish("session:another")
                await database.execute("select 1")
            assert one.has_readers(TOPIC)
