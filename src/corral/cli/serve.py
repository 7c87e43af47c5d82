"""`corral serve`: a server on an existing database."""

import asyncio
from pathlib import Path
from typing import Literal, TypeAlias

import click
import msgspec

from corral.cli.failure import Failure
from corral.cli.options import config_option, json_option
from corral.cli.running import Stop, check_port, direct_url, read_settings, run_until_signal, unless_stopped
from corral.cli.vault_key import refuse_private_key
from corral.settings import Settings
from corral.store.database import Database
from corral.store.migrate import migrate

Role: TypeAlias = Literal["all", "api", "brain"]


@click.command()
@config_option
@click.option("--migrate/--no-migrate", "migrating", default=True, help="Bring the schema up to date first.")
@click.option(
    "--role",
    type=click.Choice(["all", "api", "brain"]),
    help="Answer requests (api), run sessions (brain), or both.  [default: server.role, which is all]",
)
@json_option
def serve(config: Path | None, migrating: bool, role: Role | None, as_json: bool) -> None:
    """A server (API and brains) on an existing database.

    Any number of them may share one database; any of them serves any session. Told to stop (SIGTERM), it
    lets its sessions go to the others; a second signal cuts that short.

    \b
    Example:
      export CORRAL_STORE__URL=postgresql://corral:...@db.internal/corral
      export CORRAL_SERVER__API_KEY=$(openssl rand -hex 32)
      export ANTHROPIC_API_KEY=...
      corral serve --config corral.yaml
    """
    settings = read_settings(config)
    if role is not None:
        server = msgspec.structs.replace(settings.server, role=role)
        settings = msgspec.structs.replace(settings, server=server)
    refuse_private_key(settings)
    if settings.store.url is None:
        raise Failure(
            "`corral serve` needs a database.",
            "set CORRAL_STORE__URL, or use `corral up`, which brings its own.",
        )
    if not settings.inference.is_configured and settings.server.role != "api":
        raise Failure(
            "`corral serve` needs a model to call.",
            "set ANTHROPIC_API_KEY, or CORRAL_INFERENCE__PROVIDER=gateway and CORRAL_INFERENCE__BASE_URL; "
            "`corral model serve` is a scripted one to try with.",
        )
    url = settings.store.url.reveal()

    async def command(stop: Stop) -> None:
        await _serve(settings, url, migrating, as_json, stop)

    run_until_signal(command)


async def _serve(settings: Settings, url: str, migrating: bool, as_json: bool, stop: Stop) -> None:
    from corral.inference.messages import import_client
    from corral.lifetime import run_server

    check_port(settings.server.host, settings.server.port)
    importing = None
    if settings.server.role != "api":
        # While the database is connected: the first model request must not wait for it.
        importing = asyncio.create_task(asyncio.to_thread(import_client))
    database = Database(url, max_size=settings.store.pool_size, direct_url=direct_url(settings))
    await unless_stopped(stop, database.__aenter__())
    try:
        if migrating:
            await unless_stopped(stop, migrate(database))

        async def on_ready(base_url: str) -> None:
            told = msgspec.json.encode({"base_url": base_url}).decode()
            click.echo(told if as_json else f"Corral is ready at {base_url}")

        await run_server(
            settings,
            database,
            host=settings.server.host,
            port=settings.server.port,
            on_ready=on_ready,
            stop=stop,
            hurry=stop.again,
        )
    finally:
        await database.__aexit__(None, None, None)
        if importing is not None:
            await asyncio.gather(importing, return_exceptions=True)
