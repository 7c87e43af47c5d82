"""The tables of background jobs: procrastinate's own schema, in the version that is installed."""

from importlib import resources
from typing import Final, LiteralString, cast

from corral.store.database import Connection

NUMBER: Final = 7
NAME: Final = "0007_pre_background"


async def apply(connection: Connection) -> None:
    """Make the tables, unless the database has them.

    They change only with procrastinate's version: a later one brings its changes along as files, which a
    later migration has to apply.
    """
    cursor = await connection.execute("select to_regclass('procrastinate_jobs') as jobs")
    row = await cursor.fetchone()
    if row is not None and row["jobs"] is not None:
        return
    script = resources.files("procrastinate").joinpath("sql", "schema.sql").read_text("utf-8")
    await connection.execute(cast("LiteralString", script))
