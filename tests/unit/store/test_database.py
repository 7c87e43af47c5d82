"""The pool, when the database or the caller goes away at the wrong moment."""

import asyncio

import psycopg
import pytest

from corral.store.database import Database


async def cut_all_other_connections(database: Database) -> None:
    connection = await database.dedicated()
    try:
        await connection.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        )
    finally:
        await connection.close()


async def fill_the_pool(database: Database, connections: int) -> None:
    held = asyncio.Barrier(connections)

    async def hold() -> None:
        async with database.connection():
            await held.wait()

    await asyncio.gather(*(hold() for _ in range(connections)))


async def test_reads_survive_a_restart_of_the_database(database: Database) -> None:
    await fill_the_pool(database, 5)
    await cut_all_other_connections(database)
    for _ in range(10):
        assert await database.fetch("select 1 as one") == [{"one": 1}]


async def test_a_write_on_a_dead_connection_fails_once_and_is_never_repeated(database: Database) -> None:
    await fill_the_pool(database, 5)
    await cut_all_other_connections(database)
    insert = "insert into keys (id, kind, name, hash) values (%s, 'api', 'x', %s)"
    with pytest.raises(psycopg.OperationalError):
        await database.execute(insert, ("a", b"a"))
    for name in ("b", "c", "d"):
        assert await database.execute(insert, (name, name.encode())) == 1
    assert await database.fetch("select id from keys order by id") == [{"id": n} for n in ("b", "c", "d")]


async def test_a_cancellation_while_waiting_for_a_connection_is_not_lost(database_url: str) -> None:
    async with Database(database_url, max_size=1) as database:
        used: list[int] = []

        async def use(number: int) -> None:
            async with database.connection():
                used.append(number)

        for number in range(50):
            async with database.connection():
                waiting = asyncio.create_task(use(number))
                while not database.statistics.get("requests_waiting"):
                    await asyncio.sleep(0)
            # Freed and cancelled in the same moment.
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        assert used == []


async def test_a_connection_on_which_nobody_answers_is_given_up_unless_the_address_says_otherwise(
    database_url: str,
) -> None:
    async with Database(database_url) as database:
        connection = await database.dedicated()
        given = connection.info.get_parameters()
        await connection.close()
        assert (given["tcp_user_timeout"], given["keepalives_idle"]) == ("15000", "10")
    async with Database(f"{database_url} tcp_user_timeout=4000") as database, database.connection() as pooled:
        assert pooled.info.get_parameters()["tcp_user_timeout"] == "4000"


async def test_json_with_nul_can_be_looked_into_and_what_is_no_escape_stays(database: Database) -> None:
    values = [
        r'{"a":"x\u0000y"}',
        r'{"a":"x\\u0000y"}',
        r'{"a":"x\\\u0000y"}',
        r'{"a":"\u0000\u0000","b\u0000":1}',
    ]
    found = [
        (await database.fetch_one("select readable(%s::json) ->> 'a' as a", (value,)) or {})["a"]
        for value in values
    ]
    assert found == ["x\ufffdy", r"x\u0000y", "x\\\ufffdy", "\ufffd\ufffd"]
    assert await database.fetch_one("select readable(null) is null as same") == {"same": True}
