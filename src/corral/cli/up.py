"""`corral up`: everything on one machine, in this process and four of its children."""

import asyncio
import os
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import click
import msgspec

from corral.cli.credentials import Credentials, prepare_credentials, shown
from corral.cli.failure import Failure
from corral.cli.gateway_process import GatewayProcess, gateway_environment
from corral.cli.options import config_option, data_option, json_option
from corral.cli.running import (
    check_port,
    default_data_dir,
    direct_url,
    read_settings,
    run_until_signal,
    unless_stopped,
    write_private,
)
from corral.cli.vault_key import FOLDER as VAULT_FOLDER
from corral.cli.vault_key import kept_public_key, refuse_private_key
from corral.cli.worker_process import WorkerProcess, worker_environment
from corral.settings import Inference, Load, Settings
from corral.store.database import Database
from corral.store.embedded import EmbeddedPostgres
from corral.store.migrate import migrate
from corral.wire.secret import Secret

RUNNING: Final = "running.json"
"""In the data folder while this runs, for other commands on this machine. Mode 0600: it holds keys."""

_SERVER_STOP_SECONDS: Final = 1.5  # 5 at most, with the worker's 2 and PostgreSQL's 1.5


@click.command()
@data_option
@click.option("--host", help="Address to listen on.  [default: server.host, 127.0.0.1]")
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Port; 0 takes a free one.  [default: server.port, 8400]"
)
@click.option(
    "--ready-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Written as JSON (address and keys, mode 0600) once ready.",
)
@config_option
@json_option
def up(
    data: Path | None,
    host: str | None,
    port: int | None,
    ready_file: Path | None,
    config: Path | None,
    as_json: bool,
) -> None:
    """Everything on one machine, until Ctrl-C.

    Starts an embedded PostgreSQL (unless CORRAL_STORE__URL names another), the server, and a worker that runs
    agents' tools in sandboxes for every `cloud` environment. The first start makes an environment named
    `default` and the keys; later ones carry on every session with the same keys. Without an inference
    credential the built-in scripted model answers.

    \b
    Example:
      export ANTHROPIC_API_KEY=...        # a real model; leave it out to try without
      corral up --port 8400 --ready-file /tmp/corral.json
    """
    settings = read_settings(config)
    refuse_private_key(settings)
    server = msgspec.structs.replace(
        settings.server,
        host=settings.server.host if host is None else host,
        port=settings.server.port if port is None else port,
    )
    settings = msgspec.structs.replace(settings, server=server)
    data_dir = (data or default_data_dir()).absolute()
    house = _House(settings, data_dir, ready_file, as_json, None if config is None else config.absolute())
    run_until_signal(house.run)


class _House:
    """One run of `corral up`."""

    def __init__(
        self,
        settings: Settings,
        data_dir: Path,
        ready_file: Path | None,
        as_json: bool,
        config: Path | None,
    ) -> None:
        self._config = config
        self._settings = settings
        self._data_dir = data_dir
        self._ready_file = ready_file
        self._as_json = as_json
        self._scripted = False
        self._began = self._step_began = time.monotonic()

    async def run(self, stop: asyncio.Event) -> None:
        """Start everything, serve until ``stop``, and leave nothing behind."""
        check_port(self._settings.server.host, self._settings.server.port)
        if self._ready_file is not None:
            self._ready_file.unlink(missing_ok=True)
        self._make_data_dir()
        async with AsyncExitStack() as stack:
            self._import_client(stack)
            public_key = self._public_key(stack)
            url = await unless_stopped(stop, self._database_url(stack))
            database = Database(
                url, max_size=self._settings.store.pool_size, direct_url=direct_url(self._settings)
            )
            await unless_stopped(stop, stack.enter_async_context(database))
            applied = await unless_stopped(stop, migrate(database))
            self._done("schema", f"{len(applied)} migration(s) applied" if applied else "up to date")
            credentials = await unless_stopped(
                stop, prepare_credentials(database, self._data_dir, self._settings.server.api_key)
            )
            settings = self._with_files(await self._with_model(stack))
            sealing = msgspec.structs.replace(
                settings.vault, public_key=await unless_stopped(stop, public_key)
            )
            settings = msgspec.structs.replace(settings, vault=sealing)
            settings, gateway = self._with_gateway(stack, settings, url)
            await self._serve(settings, database, credentials, gateway, stop)

    def _with_gateway(
        self, stack: AsyncExitStack, settings: Settings, database_url: str
    ) -> tuple[Settings, GatewayProcess | None]:
        """The settings with the address of a gateway of our own, which is to be started once we serve."""
        if settings.gateway.url is not None:
            self._done("gateway", f"your own, at {settings.gateway.url}")
            return settings, None
        if self._settings.vault.public_key is not None:
            self._done("gateway", "none: vault.public_key is yours, and we do not have its other half")
            self._say("      for MCP servers run `corral gateway` with it, and set gateway.url")
            return settings, None
        from corral.server import listen

        listener = listen("127.0.0.1", 0)
        stack.callback(listener.close)
        door = listen("127.0.0.1", 0)
        stack.callback(door.close)
        process = GatewayProcess(
            listener,
            door,
            self._data_dir / VAULT_FOLDER,
            gateway_environment(os.environ, settings, database_url),
            self._config,
        )
        gateway = msgspec.structs.replace(
            settings.gateway,
            url=f"http://127.0.0.1:{listener.getsockname()[1]}",
            egress_address=f"127.0.0.1:{door.getsockname()[1]}",
        )
        return msgspec.structs.replace(settings, gateway=gateway), process

    def _import_client(self, stack: AsyncExitStack) -> None:
        """Import the model client while the database starts: the first model request must not wait for it."""
        from corral.inference.messages import import_client

        importing = asyncio.create_task(asyncio.to_thread(import_client))

        async def imported() -> None:
            await asyncio.gather(importing, return_exceptions=True)

        stack.push_async_callback(imported)

    def _public_key(self, stack: AsyncExitStack) -> asyncio.Task[str]:
        """What secrets are sealed with: made, at the first start, while the database is."""

        async def found() -> str:
            return self._settings.vault.public_key or await kept_public_key(self._data_dir)

        finding = asyncio.create_task(found())

        async def ended() -> None:
            finding.cancel()
            await asyncio.gather(finding, return_exceptions=True)

        stack.push_async_callback(ended)
        return finding

    def _make_data_dir(self) -> None:
        try:
            # PostgreSQL's user must be able to pass through a folder of root's; what is in it is closed.
            self._data_dir.mkdir(parents=True, exist_ok=True, mode=0o711 if os.geteuid() == 0 else 0o700)
        except OSError as error:
            raise Failure(
                f"The data folder {self._data_dir} cannot be made: {error.strerror}.",
                "name another with --data, or make it and give it to your user.",
            ) from error

    async def _database_url(self, stack: AsyncExitStack) -> str:
        if self._settings.store.url is not None:
            self._done("database", "your own (store.url)")
            return self._settings.store.url.reveal()
        postgres = EmbeddedPostgres(self._data_dir, source=self._settings.store.postgres)
        await stack.enter_async_context(postgres)
        self._done("database", f"PostgreSQL in {postgres.cluster.home}")
        return postgres.url

    async def _with_model(self, stack: AsyncExitStack) -> Settings:
        inference = self._settings.inference
        if inference.is_configured:
            self._done("model", inference.base_url or "the Claude API")
            return self._settings
        from corral.testing.player import Player
        from corral.testing.serving import RunningServer

        self._scripted = True
        scripted = RunningServer(Player())
        base_url = await scripted.start("127.0.0.1", 0)
        stack.push_async_callback(scripted.stop)
        self._done("model", "no inference credential, so the built-in SCRIPTED MODEL answers, not a real one")
        self._say("      for a real one set ANTHROPIC_API_KEY, or CORRAL_INFERENCE__BASE_URL of a gateway")
        return msgspec.structs.replace(
            self._settings,
            inference=Inference(
                provider="gateway",
                base_url=base_url,
                api_key=Secret("scripted"),
                max_tokens=inference.max_tokens,
                capabilities=inference.capabilities,
            ),
        )

    def _with_files(self, settings: Settings) -> Settings:
        """The settings, with files in the data folder unless they name another place."""
        if settings.files.store is not None:
            return settings
        files = msgspec.structs.replace(settings.files, store=str(self._data_dir / "files"))
        return msgspec.structs.replace(settings, files=files)

    async def _serve(
        self,
        settings: Settings,
        database: Database,
        credentials: Credentials,
        gateway: GatewayProcess | None,
        stop: asyncio.Event,
    ) -> None:
        from corral.lifetime import run_server

        worker: WorkerProcess | None = None
        server_stop = asyncio.Event()

        async def on_ready(base_url: str) -> None:
            nonlocal worker
            self._done("server", base_url)
            worker = WorkerProcess(
                worker_environment(
                    os.environ,
                    settings,
                    _local(base_url),
                    credentials.pool_key,
                    str(self._data_dir / "workspaces"),
                )
            )
            worker.start()
            self._done("worker", f"sandboxes by {settings.worker.sandbox}")
            if gateway is not None:
                gateway.start()
                self._done("gateway", "MCP servers and credentials")
            self._tell_ready(_local(base_url), credentials)

        serving = asyncio.create_task(
            run_server(
                # Nobody else would go on with the sessions: this machine's next start does.
                msgspec.structs.replace(settings, load=Load(drain_seconds=0.0)),
                database,
                host=settings.server.host,
                port=settings.server.port,
                on_ready=on_ready,
                stop=server_stop,
            )
        )
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({serving, stopped}, return_when=asyncio.FIRST_COMPLETED)
            self._say("Stopping.")
        finally:
            stopped.cancel()
            (self._data_dir / RUNNING).unlink(missing_ok=True)
            children = [child for child in (worker, gateway) if child is not None]
            await asyncio.gather(*(child.stop() for child in children))
            server_stop.set()
            await _end(serving)

    def _tell_ready(self, base_url: str, credentials: Credentials) -> None:
        told = shown(base_url, credentials)
        write_private(self._data_dir / RUNNING, {**told, "scripted_model": self._scripted})
        if self._ready_file is not None:
            write_private(self._ready_file, told)
        seconds = time.monotonic() - self._began
        if self._as_json:
            click.echo(msgspec.json.encode(told).decode())
            return
        click.echo(
            f"\nCorral is ready after {seconds:.1f} s. Ctrl-C stops it.\n\n"
            f"  export ANTHROPIC_BASE_URL={told['base_url']}\n"
            f"  export ANTHROPIC_API_KEY={told['api_key']}\n"
            f"  environment `default`: {told['environment_id']}\n"
            f"  its key, for a worker of your own: {told['environment_key']}\n"
        )

    def _done(self, step: str, detail: str) -> None:
        now = time.monotonic()
        self._say(f"  {step:<9} {detail} ({now - self._step_began:.1f} s)")
        self._step_began = now

    def _say(self, line: str) -> None:
        click.echo(line, err=True)


def _local(base_url: str) -> str:
    """The address as seen from this machine: one listens on 0.0.0.0 or ::, but connects to an address."""
    return base_url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


async def _end(serving: asyncio.Task[None]) -> None:
    """Wait for the server's end, at most 1.5 seconds once it was asked; an error of its own is raised."""
    done, _ = await asyncio.wait({serving}, timeout=_SERVER_STOP_SECONDS)
    if not done:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        return
    await serving
