"""Brings a database's schema up to this version, whoever else is trying to at the same moment.

Files are numbered and run in order, each in a transaction of its own, under one advisory lock held on a
connection of its own. A database that is ahead of this version (a newer server has migrated it) is accepted
as it is: version N+1's schema serves version N's servers.
"""

from collections.abc import Awaitable, Callable, Iterator
from importlib import resources
from typing import Final, LiteralString, NamedTuple, cast

import structlog

from corral.store import background_schema
from corral.store.database import Connection, Database

_LOCK_KEY: Final = 0x636F7272616C  # "corral"

_log = structlog.get_logger(__name__)


class Migration(NamedTuple):
    """One numbered step: a SQL file, or what another package brings."""

    number: int
    name: str
    apply: Callable[[Connection], Awaitable[None]]


def migrations() -> list[Migration]:
    """All migrations that this version knows, in their order."""
    return sorted(_read())


def _read() -> Iterator[Migration]:
    for file in resources.files("corral.store").joinpath("migrations").iterdir():
        if file.name.endswith(".sql"):
            yield Migration(int(file.name[:4]), file.name, _script(file.read_text("utf-8")))
    yield Migration(background_schema.NUMBER, background_schema.NAME, background_schema.apply)


def _script(text: str) -> Callable[[Connection], Awaitable[None]]:
    async def apply(connection: Connection) -> None:
        await connection.execute(cast("LiteralString", text))

    return apply


async def migrate(database: Database) -> list[str]:
    """Apply what is missing and return the names of the files applied.

    Waits for a migration that another server has under way. Raises psycopg's error of a file that failed,
    which leaves the schema as it was before that file.
    """
    connection = await database.dedicated()
    try:
        await connection.execute("select pg_advisory_lock(%s)", (_LOCK_KEY,))
        await connection.execute(
            "create table if not exists schema_migrations ("
            " number integer primary key, name text not null, applied_at timestamptz not null default now())"
        )
        rows = await (await connection.execute("select number from schema_migrations")).fetchall()
        done = {row["number"] for row in rows}
        applied: list[str] = []
        for migration in migrations():
            if migration.number in done:
                continue
            async with connection.transaction():
                await migration.apply(connection)
                await connection.execute(
                    "insert into schema_migrations (number, name) values (%s, %s)",
                    (migration.number, migration.name),
                )
            applied.append(migration.name)
            _log.info("schema migrated", migration=migration.name)
        return applied
    finally:
        await connection.close()
