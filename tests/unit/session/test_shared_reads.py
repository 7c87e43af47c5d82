"""Reads are shared by those who ask before one begins, and nobody gets what is older than the question."""

import asyncio
from collections.abc import Sequence

import pytest

from corral.session.shared_reads import SharedReads
from corral.store.database import Database


class _Counting:
    """A statement whose every run leaves a trace."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.reads = SharedReads(database)

    async def prepare(self) -> None:
        await self._database.execute("create table runs (number serial)")

    async def run(self) -> int:
        return await self.reads.fetch(
            "insert into runs default values returning number", (), "number", _number
        )


def _number(rows: Sequence[dict[str, int]]) -> int:
    return rows[0]["number"]


@pytest.fixture
async def counting(database: Database) -> _Counting:
    made = _Counting(database)
    await made.prepare()
    return made


async def test_many_who_ask_at_the_same_moment_are_answered_by_one_read(counting: _Counting) -> None:
    assert await asyncio.gather(*(counting.run() for _ in range(50))) == [1] * 50


async def test_who_asks_when_the_read_has_begun_is_answered_by_another(counting: _Counting) -> None:
    early = asyncio.create_task(counting.run())
    for _ in range(3):
        await asyncio.sleep(0)
    late = asyncio.create_task(counting.run())
    # Each has a read of its own; which of two connections is quicker is nobody's promise.
    assert {await early, await late} == {1, 2}


async def test_one_who_gives_up_takes_nobody_along(counting: _Counting) -> None:
    asking = [asyncio.create_task(counting.run()) for _ in range(4)]
    await asyncio.sleep(0)
    # The first is the one who reads for the others.
    asking[0].cancel()
    asking[2].cancel()
    outcomes = await asyncio.gather(*asking, return_exceptions=True)
    assert isinstance(outcomes[0], asyncio.CancelledError)
    assert isinstance(outcomes[2], asyncio.CancelledError)
    assert outcomes[1] == outcomes[3]
    assert isinstance(outcomes[1], int)


async def test_an_error_is_everybodys(counting: _Counting) -> None:
    asking = [counting.reads.fetch("select 1 / %s as number", (0,), "number", _number) for _ in range(3)]
    outcomes = await asyncio.gather(*asking, return_exceptions=True)
    assert [type(outcome).__name__ for outcome in outcomes] == ["DivisionByZero"] * 3
