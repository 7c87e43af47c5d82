"""`corral admin rotate-keys`: another pair of keys in the place of the vault's, while everything runs."""

import os
from pathlib import Path
from typing import Final

import click
import msgspec

from corral.cli.audit import carried_out
from corral.cli.databases import opened_database
from corral.cli.failure import Failure
from corral.cli.options import config_option, data_option, json_option
from corral.cli.running import default_data_dir, read_settings, run_briefly
from corral.cli.vault_key import FOLDER, PRIVATE, PUBLIC
from corral.settings import Settings
from corral.store.database import Database

_FORMER: Final = "former.key"


class Rotated(msgspec.Struct):
    """What was done, and what is left to do."""

    key: str
    """The id of the key that everything is sealed for now."""
    rewrapped: int
    left: int
    """Secrets that are sealed for another key still, by servers that have not been told of this one."""


@click.command("rotate-keys")
@click.option("--new", is_flag=True, help="With --data: make a new pair first.")
@config_option
@data_option
@json_option
def rotate_keys(new: bool, config: Path | None, data: Path | None, as_json: bool) -> None:
    """Wrap every sealed secret for the vault's present key, while servers and gateways run.

    For a `corral up`: run it with --new, start that again when it suits, and run it once more without --new.

    \b
    For servers and gateways of your own:
      1. corral admin vault-key create
      2. start gateways with the new CORRAL_VAULT__KEY and the old one as CORRAL_VAULT__FORMER_KEYS
      3. start servers with the new CORRAL_VAULT__PUBLIC_KEY
      4. run this with the gateways' variables; once nothing is left, CORRAL_VAULT__FORMER_KEYS can go

    \b
    Example:
      corral admin rotate-keys --data /var/lib/corral --new
    """
    settings = read_settings(config)
    folder = _folder(settings, data)
    if new:
        if folder is None:
            raise Failure(
                "--new is for the pair that a `corral up` keeps in its data folder.",
                "make a pair with `corral admin vault-key create` and give it to gateways and servers.",
            )
        _renew(folder)
    rotated = run_briefly(_rotate(settings, data, folder))
    if rotated.left == 0 and folder is not None and not new:
        (folder / _FORMER).unlink(missing_ok=True)
    if as_json:
        click.echo(msgspec.json.encode(rotated).decode())
        return
    click.echo(f"{rotated.rewrapped} secret(s) were wrapped for key {rotated.key}; {rotated.left} left.")
    if folder is not None and (folder / _FORMER).exists():
        click.echo("Start `corral up` again when it suits, then run this once more, without --new.")
    elif folder is None and rotated.left == 0:
        click.echo("CORRAL_VAULT__FORMER_KEYS can go once every server has the new public key.")


def _folder(settings: Settings, data: Path | None) -> Path | None:
    """The folder of keys; None where the keys are in the environment."""
    if settings.vault.key is not None and data is None:
        return None
    return (data or default_data_dir()).absolute() / FOLDER


def _renew(folder: Path) -> None:
    """Put a new pair in the place of the present one, which is kept as a former one.

    At every moment the files hold a key for whatever is sealed: the former keys are written first, and a
    gateway reads them all.
    """
    from corral.vault.keys import PrivateKey

    made = PrivateKey.generate()
    try:
        present = (folder / PRIVATE).read_text("utf-8").strip()
        former = folder / _FORMER
        before = former.read_text("utf-8") if former.exists() else ""
        _replace(former, f"{present}\n{before}")
        _replace(folder / PRIVATE, made.text.reveal() + "\n")
        _replace(folder / PUBLIC, made.public.text + "\n")
    except OSError as error:
        raise Failure(
            f"The keys in {folder} cannot be replaced: {error.strerror}.",
            "name the data folder of a `corral up` with --data, and run this as its user.",
        ) from None


def _replace(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


async def _rotate(settings: Settings, data: Path | None, folder: Path | None) -> Rotated:
    from corral.gateway.keyring import Keys, KeyTrouble
    from corral.vault import rotation
    from corral.vault.sealing import CannotOpen

    try:
        keys = await Keys.of_settings(settings.vault) if folder is None else Keys.in_folder(folder)
    except KeyTrouble as error:
        raise Failure(str(error), error.advice) from None
    present = keys.present.public

    async def change(database: Database) -> Rotated:
        done = await rotation.rewrap_all(database, keys.ring, present)
        return Rotated(present.id, done, await rotation.left(database, present.id))

    async with opened_database(settings, data) as database:
        try:
            return await carried_out(database, change, present.id)
        except CannotOpen as error:
            raise Failure(
                f"Not everything could be wrapped: {error}.",
                "set the key that it names as one of CORRAL_VAULT__FORMER_KEYS and run this again; what was "
                "done stays done. `corral admin vault-key forget ID` removes what a lost key has sealed.",
            ) from None
