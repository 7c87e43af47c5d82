"""Finds the database that an administrator's command is about."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from corral.cli.failure import Failure
from corral.cli.running import default_data_dir
from corral.settings import Settings
from corral.store.database import Database
from corral.store.embedded import FALLBACK, EmbeddedPostgres, running_url


@asynccontextmanager
async def opened_database(settings: Settings, data: Path | None) -> AsyncGenerator[Database]:
    """The database of the settings, or else the embedded one of a data folder, which need not be running.

    Raises `Failure` if there is neither, and what `EmbeddedPostgres` raises.
    """
    if settings.store.url is not None and data is None:
        async with Database(settings.store.url.reveal(), max_size=2) as database:
            yield database
        return
    data_dir = (data or default_data_dir()).absolute()
    running = running_url(data_dir, FALLBACK)
    if running is not None:
        async with Database(running, max_size=2) as database:
            yield database
        return
    if not (data_dir / "postgres").exists() and not (data_dir / "postgres.location").exists():
        raise Failure(
            f"There is no database in {data_dir}.",
            "give the --data of a `corral up`, start one, or set CORRAL_STORE__URL.",
        )
    async with EmbeddedPostgres(data_dir, source=settings.store.postgres) as postgres:
        async with Database(postgres.url, max_size=2) as database:
            yield database
