"""`corral admin identity`: the keys by which MCP servers check who an agent is."""

from pathlib import Path

import click
import msgspec

from corral.cli.failure import Failure
from corral.cli.options import config_option, data_option, json_option
from corral.cli.running import default_data_dir, read_settings, run_briefly
from corral.cli.vault_key import FOLDER


@click.group("identity")
def identity() -> None:
    """Who agents are, for the MCP servers that they use.

    \b
    Example:
      corral admin identity export > jwks.json
    """


@identity.command("export")
@config_option
@data_option
@json_option
def export(config: Path | None, data: Path | None, as_json: bool) -> None:
    """Print the public keys as a JSON Web Key Set: give it to your MCP servers.

    Run it with the gateway's variables, or with the --data of a `corral up`: the keys belong to the vault's.
    Print them again when those are replaced.

    \b
    Example:
      corral admin identity export --data /var/lib/corral > jwks.json
    """
    from corral.gateway.identity import public_keys
    from corral.gateway.keyring import Keys, KeyTrouble

    settings = read_settings(config)
    try:
        if settings.vault.key is not None and data is None:
            keys = run_briefly(Keys.of_settings(settings.vault))
        else:
            keys = Keys.in_folder((data or default_data_dir()).absolute() / FOLDER)
    except KeyTrouble as error:
        raise Failure(str(error), error.advice) from None
    told = msgspec.json.encode(public_keys(list(keys.ring.values())))
    click.echo((told if as_json else msgspec.json.format(told, indent=2)).decode())
