"""The log lies in partitions by session: what was written before is there, and a session has one of them."""

from pathlib import Path
from typing import Final, LiteralString, cast

import pytest

from corral.store import migrate as migrating
from corral.store.database import Database
from corral.store.migrate import migrate, migrations

_PARTITIONED: Final = 31

_BEFORE: LiteralString = r"""
insert into environments (id, name, config) values ('env_x', 'x', '{}');
insert into sessions (id, environment_id, agent_id, agent_version, agent, primary_thread_id, usage)
    select 'sesn_' || n, 'env_x', 'agent_x', 1, '{}', 'sthr_' || n, '{}' from generate_series(1, 40) n;
insert into events (session_id, seq, id, thread_id, type, body, private, resolves, processed_at, crossposted)
    select 'sesn_' || n, seq, 'sevt_' || n || '_' || seq, 'sthr_' || n, 'agent.tool_result',
        '{"text": "\u0000"}', '{"kept": 1}', 'sevt_use_' || seq, now(), 1
    from generate_series(1, 40) n, generate_series(1, 5) seq;
"""
_ALL: LiteralString = (
    "select session_id, seq, id, thread_id, type, body::text as body, private::text as private, resolves,"
    " processed_at, crossposted from events order by session_id, seq"
)
_ONE: LiteralString = "select body from events where session_id = 'sesn_7' and seq > 2 order by seq"


async def test_a_log_written_before_the_partitions_is_all_there(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Database(database_url, max_size=2) as database:
        await database.execute("drop schema public cascade")
        await database.execute("create schema public")
        known = migrations()
        with monkeypatch.context() as before:
            earlier = [one for one in known if one.number < _PARTITIONED]
            before.setattr(migrating, "migrations", lambda: earlier)
            await migrate(database)
        await database.execute(_BEFORE)
        written = await database.fetch(_ALL)
        applied = await migrate(database)
        assert applied[0] == "0031_pre_events_partitions.sql"
        assert await database.fetch(_ALL) == written
        assert len(written) == 200


async def test_a_sessions_events_are_in_one_partition_and_go_with_it(database: Database) -> None:
    await database.execute(_BEFORE)
    where = "select distinct tableoid::regclass::text as partition, session_id from events"
    rows = await database.fetch(where)
    assert len(rows) == 40
    assert {row["partition"] for row in rows} == {f"events_p{part}" for part in range(8)}
    plan = "\n".join(str(row["QUERY PLAN"]) for row in await database.fetch("explain " + _ONE))
    assert sum(f"events_p{part}" in plan for part in range(8)) == 1
    await database.execute("delete from sessions where id = 'sesn_7'")
    assert await database.fetch(_ONE) == []
    assert len(await database.fetch(where)) == 39


async def test_a_partition_can_be_given_partitions_as_the_page_says(database: Database) -> None:
    page = (Path(__file__).parents[3] / "docs" / "scaling.md").read_text("utf-8")
    script = cast("LiteralString", page.partition("```sql\n")[2].partition("```")[0])
    await database.execute(_BEFORE)
    written = await database.fetch(_ALL)
    connection = await database.dedicated()
    await connection.execute(script)
    await connection.close()
    assert await database.fetch(_ALL) == written
    parts = await database.fetch("select distinct tableoid::regclass::text as part from events")
    assert {"events_p0_0", "events_p0_1", "events_p7"} <= {row["part"] for row in parts}
    await database.execute("delete from sessions")
    assert await database.fetch(_ALL) == []
