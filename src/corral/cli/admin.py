"""`corral admin`: environments, keys, schema; straight on the database, so that it works without a server."""

from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, Literal, TypeVar

import click
import msgspec
from rich.console import Console
from rich.table import Table

from corral.cli.audit import audit, carried_out
from corral.cli.chain_key import chain_key
from corral.cli.databases import opened_database
from corral.cli.identity import identity
from corral.cli.options import config_option, data_option, json_option
from corral.cli.rotate_keys import rotate_keys
from corral.cli.running import read_settings, run_briefly
from corral.cli.vault_key import vault_key
from corral.cli.webhooks import webhook
from corral.resources.environments import Environments
from corral.resources.keys import Key, KeyKind, Keys
from corral.store.database import Database
from corral.store.migrate import migrate
from corral.wire.environments import CloudParams, CreateEnvironment, Environment, SelfHosted
from corral.wire.pagination import Page

T = TypeVar("T")


@click.group()
def admin() -> None:
    """Environments, keys, schema.

    Works on the database of the settings (CORRAL_STORE__URL), or on that of a `corral up` (--data).

    \b
    Example:
      corral admin environment create build --type self_hosted
      corral admin environment-key create env_01...
      corral admin api-key list --json
    """


def _shared_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --config, --data and --json."""
    for option in (json_option, data_option, config_option):
        command = option(command)
    return wraps(command)(command)


def _with_database(config: Path | None, data: Path | None, action: Callable[[Database], Awaitable[T]]) -> T:
    settings = read_settings(config)

    async def run() -> T:
        async with opened_database(settings, data) as database:
            return await action(database)

    return run_briefly(run())


def _print(as_json: bool, plain: object, rows: Sequence[Sequence[str]], columns: Sequence[str]) -> None:
    if as_json:
        click.echo(msgspec.json.encode(plain).decode())
        return
    table = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    Console(soft_wrap=True).print(table)


admin.add_command(audit)
admin.add_command(vault_key)
admin.add_command(chain_key)
admin.add_command(rotate_keys)
admin.add_command(identity)
admin.add_command(webhook)


@admin.command("openapi")
@json_option
def openapi(as_json: bool) -> None:
    """Print the OpenAPI document of the API that this version serves; with --json on one line.

    \b
    Example:
      corral admin openapi > openapi.json
    """
    from corral.api.app import ROUTES  # takes a second to import
    from corral.api.openapi import render

    document = render(ROUTES)
    click.echo(msgspec.json.format(document, indent=0) if as_json else document, nl=as_json)


@admin.group("environment")
def environment() -> None:
    """Where sessions' tools run.

    \b
    Example:
      corral admin environment create build --type self_hosted
    """


@environment.command("create")
@click.argument("name")
@click.option(
    "--type",
    "kind",
    type=click.Choice(["cloud", "self_hosted"]),
    default="cloud",
    show_default=True,
    help="Who serves it.",
)
@click.option("--description", help="What it is for.")
@_shared_options
def environment_create(
    name: str,
    kind: Literal["cloud", "self_hosted"],
    description: str | None,
    config: Path | None,
    data: Path | None,
    as_json: bool,
) -> None:
    """Make an environment and print its id.

    Workers with a pool key serve a `cloud` one, those with its own key a `self_hosted` one.

    \b
    Example:
      corral admin environment create build --type self_hosted
    """
    params = CreateEnvironment(
        name=name, description=description, config=CloudParams() if kind == "cloud" else SelfHosted()
    )

    async def create(database: Database) -> Environment:
        return await carried_out(
            database, lambda at: Environments(at).create(params), made=lambda made: made.id
        )

    made = _with_database(config, data, create)
    if as_json:
        click.echo(msgspec.json.encode(made).decode())
        return
    click.echo(made.id)
    if kind == "self_hosted":
        click.echo(f"Make a key for its worker: corral admin environment-key create {made.id}", err=True)


@environment.command("list")
@_shared_options
def environment_list(config: Path | None, data: Path | None, as_json: bool) -> None:
    """All environments that are not archived, newest first.

    \b
    Example:
      corral admin environment list --json
    """
    page = Page(limit=10_000, order="desc")
    listing = _with_database(config, data, lambda database: Environments(database).list(page))
    found: list[Environment] = listing.data
    rows = [(one.id, one.name, _type_of(one), one.created_at) for one in found]
    _print(as_json, found, rows, ("ID", "NAME", "TYPE", "CREATED"))


def _type_of(one: Environment) -> str:
    return "self_hosted" if isinstance(one.config, SelfHosted) else "cloud"


@admin.group("environment-key")
def environment_key() -> None:
    """Keys of the workers of one environment.

    \b
    Example:
      corral admin environment-key create env_01... --name build-host
    """


@environment_key.command("create")
@click.argument("environment_id")
@click.option("--name", default="worker", show_default=True, help="To tell it from others.")
@_shared_options
def environment_key_create(
    environment_id: str, name: str, config: Path | None, data: Path | None, as_json: bool
) -> None:
    """Make a key for an environment's workers and print it, this once.

    \b
    Example:
      corral admin environment-key create env_01...
    """
    _create_key("environment", name, environment_id, config, data, as_json)


@environment_key.command("list")
@click.argument("environment_id", required=False)
@_shared_options
def environment_key_list(
    environment_id: str | None, config: Path | None, data: Path | None, as_json: bool
) -> None:
    """The keys of one environment, or of all.

    \b
    Example:
      corral admin environment-key list
    """
    _list_keys("environment", environment_id, config, data, as_json)


@environment_key.command("revoke")
@click.argument("key_id")
@_shared_options
def environment_key_revoke(key_id: str, config: Path | None, data: Path | None, as_json: bool) -> None:
    """Make a key invalid, at once.

    \b
    Example:
      corral admin environment-key revoke ekey_01...
    """
    _revoke_key("environment", key_id, config, data, as_json)


def _plain_key_group(kind: KeyKind, name: str, whose: str, example_id: str) -> None:
    """Add ``create``, ``list`` and ``revoke`` for a kind of key that belongs to no environment."""

    def example(command: str) -> str:
        return f"\n\n\b\nExample:\n  corral admin {name} {command}"

    @admin.group(name, help=f"Keys of {whose}.{example('create --name first')}")
    def group() -> None:
        pass

    @group.command(
        "create", help=f"Make a key of {whose} and print it, this once.{example('create --name first')}"
    )
    @click.option("--name", "key_name", default="unnamed", show_default=True, help="To tell it from others.")
    @_shared_options
    def create(key_name: str, config: Path | None, data: Path | None, as_json: bool) -> None:
        _create_key(kind, key_name, None, config, data, as_json)

    @group.command("list", help=f"The keys of {whose}, newest first.{example('list --json')}")
    @_shared_options
    def listed(config: Path | None, data: Path | None, as_json: bool) -> None:
        _list_keys(kind, None, config, data, as_json)

    @group.command("revoke", help=f"Make a key invalid, at once.{example(f'revoke {example_id}')}")
    @click.argument("key_id")
    @_shared_options
    def revoke(key_id: str, config: Path | None, data: Path | None, as_json: bool) -> None:
        _revoke_key(kind, key_id, config, data, as_json)

    assert all((create, listed, revoke))


_plain_key_group("pool", "pool-key", "workers that serve every cloud environment", "pkey_01...")
_plain_key_group("api", "api-key", "applications and administrators", "apikey_01...")


def _create_key(
    kind: KeyKind,
    name: str,
    environment_id: str | None,
    config: Path | None,
    data: Path | None,
    as_json: bool,
) -> None:

    async def create(database: Database) -> tuple[Key, str]:
        return await carried_out(
            database,
            lambda at: Keys(at).create(kind, name, environment_id),
            environment_id,
            made=lambda made: made[0].id,
        )

    key, text = _with_database(config, data, create)
    if as_json:
        click.echo(msgspec.json.encode({**msgspec.to_builtins(key), "key": text}).decode())
        return
    click.echo(text)
    click.echo(f"This is {key.id}. It is not stored and cannot be shown again.", err=True)


def _list_keys(
    kind: KeyKind, environment_id: str | None, config: Path | None, data: Path | None, as_json: bool
) -> None:
    found = _with_database(config, data, lambda database: Keys(database).list(kind, environment_id))
    rows = [
        (one.id, one.name, one.environment_id or "-", f"{one.created_at:%Y-%m-%d %H:%M}", _state(one))
        for one in found
    ]
    _print(as_json, found, rows, ("ID", "NAME", "ENVIRONMENT", "CREATED", "STATE"))


def _state(key: Key) -> str:
    return "valid" if key.revoked_at is None else f"revoked {key.revoked_at:%Y-%m-%d %H:%M}"


def _revoke_key(kind: KeyKind, key_id: str, config: Path | None, data: Path | None, as_json: bool) -> None:

    async def revoke(database: Database) -> Key:
        return await carried_out(database, lambda at: Keys(at).revoke(key_id, kind), key_id)

    key = _with_database(config, data, revoke)
    click.echo(msgspec.json.encode(key).decode() if as_json else f"{key.id} ({key.name}) is revoked.")


@admin.command("migrate")
@_shared_options
def migrate_schema(config: Path | None, data: Path | None, as_json: bool) -> None:
    """Bring the database's schema up to this version.

    Servers of this version and of the one before may run meanwhile. `corral up` and `corral serve` do it by
    themselves.

    \b
    Example:
      CORRAL_STORE__URL=postgresql://... corral admin migrate
    """
    applied = _with_database(config, data, migrate)
    if as_json:
        click.echo(msgspec.json.encode({"applied": applied}).decode())
    else:
        click.echo("\n".join(applied) if applied else "The schema is up to date.")
