"""`corral admin chain-key`: what seals of the chain are signed with."""

import click
import msgspec

from corral.cli.options import json_option


@click.group("chain-key")
def chain_key() -> None:
    """The pair of keys for seals of the chain over sessions' logs.

    \b
    Example:
      corral admin chain-key create
    """


@chain_key.command("create")
@json_option
def create(as_json: bool) -> None:
    """Make a pair: servers sign with the one, and whoever has the other can tell that they did.

    The signing key goes into CORRAL_CHAIN__SIGNING_KEY of the servers, and never into the database.

    \b
    Example:
      corral admin chain-key create --json
    """
    from corral.session.seals import SigningKey

    key = SigningKey.generate()
    told = {"id": key.public.id, "signing_key": key.text.reveal(), "public_key": key.public.text}
    if as_json:
        click.echo(msgspec.json.encode(told).decode())
        return
    click.echo(f"CORRAL_CHAIN__SIGNING_KEY={told['signing_key']}")
    click.echo(f"public key: {told['public_key']}")
