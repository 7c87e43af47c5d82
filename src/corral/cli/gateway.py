"""`corral gateway`: the process that opens secrets, speaks to MCP servers, and carries sandboxes' traffic."""

import asyncio
import socket
from pathlib import Path

import click
import msgspec

from corral.cli.descriptors import take_descriptors
from corral.cli.failure import Failure, WrongKeys
from corral.cli.options import config_option, json_option
from corral.cli.running import check_port, direct_url, read_settings, run_until_signal, unless_stopped
from corral.settings import Settings
from corral.store.database import Database


@click.command()
@config_option
@click.option(
    "--key-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder with the vault's keys, as `corral up` makes it, instead of CORRAL_VAULT__KEY.",
)
@click.option("--listen-fd", type=int, hidden=True, help="A listening socket that is open already.")
@click.option("--egress-fd", type=int, hidden=True, help="The same for workers.")
@json_option
def gateway(
    config: Path | None,
    key_dir: Path | None,
    listen_fd: int | None,
    egress_fd: int | None,
    as_json: bool,
) -> None:
    """The gateway: opens secrets for those who may use them, and is the agents' way to other machines.

    It alone has the vault's private key. Servers reach it at gateway.url. Any number of gateways may share
    one database; `corral up` runs one of its own.

    \b
    Example:
      export CORRAL_STORE__URL=postgresql://corral:...@db.internal/corral
      export CORRAL_VAULT__KEY=corral_vk_...
      corral gateway --config corral.yaml
    """
    settings = read_settings(config)
    if settings.store.url is None:
        raise Failure(
            "`corral gateway` needs the servers' database.",
            "set CORRAL_STORE__URL, or use `corral up`, which runs a gateway of its own.",
        )

    async def command(stop: asyncio.Event) -> None:
        await _run(settings, key_dir, (listen_fd, egress_fd), as_json, stop)

    take_descriptors()
    run_until_signal(command)


async def _run(
    settings: Settings,
    key_dir: Path | None,
    descriptors: tuple[int | None, int | None],
    as_json: bool,
    stop: asyncio.Event,
) -> None:
    from corral.gateway.app import create_app
    from corral.gateway.egress_service import serving_egress
    from corral.gateway.keyring import Keys, KeyTrouble
    from corral.gateway.secret_backends import open_backend
    from corral.gateway.services import open_gateway
    from corral.server import serving

    assert settings.store.url is not None
    try:
        if key_dir is not None:
            keys = Keys.in_folder(key_dir)
        else:
            keys = await unless_stopped(stop, Keys.of_settings(settings.vault))
    except KeyTrouble as error:
        raise WrongKeys(str(error), error.advice) from None
    listener = _listener(descriptors[0], settings.gateway.host, settings.gateway.port)
    door = _listener(descriptors[1], settings.gateway.egress_host, settings.gateway.egress_port)
    try:
        database = Database(
            settings.store.url.reveal(),
            max_size=settings.store.pool_size,
            name="corral-gateway",
            direct_url=direct_url(settings),
        )
        await unless_stopped(stop, database.__aenter__())
        try:
            async with (
                open_backend(settings.secret_manager) as backend,
                open_gateway(settings.gateway, database, keys, backend) as services,
                serving_egress(settings.gateway, database, keys, door, backend),
            ):
                async with serving(create_app(services), listener) as url:
                    told = msgspec.json.encode({"url": url}).decode()
                    click.echo(told if as_json else f"The gateway is ready at {url}")
                    await stop.wait()
        except KeyTrouble as error:
            raise WrongKeys(str(error), error.advice) from None
        finally:
            await database.__aexit__(None, None, None)
    finally:
        listener.close()
        door.close()


def _listener(descriptor: int | None, host: str, port: int) -> socket.socket:
    from corral.server import listen

    if descriptor is not None:
        return socket.socket(fileno=descriptor)
    check_port(host, port)
    return listen(host, port)
