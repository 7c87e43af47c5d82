"""What the log says of a server that is not ready: it is asked every few seconds, and that is no fault."""

from collections.abc import Generator
from contextlib import contextmanager

import psycopg
import structlog
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from corral.store.database import Database
from tests.contract.conftest import running


@contextmanager
def shut(database_url: str) -> Generator[None]:
    """Let nobody into a database, and put out who is there."""
    name = sql.Identifier(str(conninfo_to_dict(database_url)["dbname"]))
    with psycopg.connect(make_conninfo(database_url, dbname="postgres"), autocommit=True) as elsewhere:
        elsewhere.execute(sql.SQL("alter database {} allow_connections false").format(name))
        elsewhere.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = %s",
            (conninfo_to_dict(database_url)["dbname"],),
        )
        try:
            yield
        finally:
            elsewhere.execute(sql.SQL("alter database {} allow_connections true").format(name))


async def test_a_server_that_is_not_ready_says_so_in_one_line_without_a_traceback(database: Database) -> None:
    async with running(database) as api:
        api.services.warm.clear()
        with structlog.testing.capture_logs() as lines:
            assert (await api.get("/readyz")).status_code == 529
    (line,) = lines
    assert (line["log_level"], line["route"], line["status"]) == ("info", "/readyz", 529)
    assert "exc_info" not in line


async def test_a_database_that_is_out_of_reach_is_one_line_with_its_reason(
    database: Database, database_url: str
) -> None:
    async with running(database) as api:
        api.services.warm.set()
        assert (await api.get("/readyz")).status_code == 200
        with shut(database_url), structlog.testing.capture_logs() as lines:
            assert (await api.get("/readyz")).status_code == 529
    ours = [line for line in lines if line.get("route") == "/readyz"]
    assert [line["log_level"] for line in ours] == ["warning"]
    assert "exc_info" not in ours[0]
    assert ours[0]["reason"]
