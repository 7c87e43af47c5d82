"""`corral admin vault-key`, and the pair of keys that a `corral up` keeps in its data folder.

Whatever runs a server never calls what reads or makes a private key here: `corral up` has it made by a
process of its own, and reads the public half alone.
"""

import asyncio
import os
import sys
import tempfile
from pathlib import Path
from typing import Final

import click
import msgspec

from corral.cli.failure import Failure
from corral.cli.options import config_option, data_option, json_option
from corral.cli.running import read_settings, run_briefly
from corral.settings import Settings
from corral.wire.secret import Secret

FOLDER: Final = "vault"
"""Below the data folder."""
PRIVATE: Final = "private.key"
PUBLIC: Final = "public.key"


@click.group("vault-key")
def vault_key() -> None:
    """The pair of keys for credentials in vaults.

    \b
    Example:
      corral admin vault-key create
    """


@vault_key.command("create")
@click.option(
    "--into",
    type=click.Path(path_type=Path, file_okay=False),
    help="A folder to make and to put them into (mode 0600), instead of printing them.",
)
@click.option(
    "--kms",
    is_flag=True,
    help="Print the private key as the ciphertext that the KMS of the settings (vault.kms) makes of it.",
)
@config_option
@json_option
def create(into: Path | None, kms: bool, config: Path | None, as_json: bool) -> None:
    """Make a pair: the public key for servers, the private one for the gateway alone.

    Servers seal secrets with the one and can never read them again; whoever has the other can. Keep a copy of
    it in a safe place: without it nobody can read what is sealed.

    With --kms the private key is never shown: what is printed is its ciphertext, which is of use only to a
    gateway that may have it decrypted by the KMS.

    \b
    Example:
      corral admin vault-key create
    """
    from corral.vault.keys import PrivateKey

    if kms and into is not None:
        raise click.UsageError("--kms prints the keys, so it goes without --into.")
    key = PrivateKey.generate()
    told = {"id": key.public.id, "public_key": key.public.text}
    if kms:
        told["key"] = run_briefly(_encrypted(read_settings(config), key.text))
    elif into is not None:
        _write_pair(into, key.text.reveal(), key.public.text)
    else:
        told["key"] = key.text.reveal()
    if as_json:
        click.echo(msgspec.json.encode(told).decode())
    elif into is not None:
        click.echo(f"Key {key.public.id} is in {into}.")
    else:
        click.echo(f"CORRAL_VAULT__PUBLIC_KEY={told['public_key']}")
        click.echo(f"CORRAL_VAULT__KEY={told['key']}")
        also = ", and see that the KMS's key is never removed" if kms else ""
        click.echo(
            "The first is for servers, the second for the gateway alone. They are not stored and cannot be "
            f"shown again: keep the second in a safe place too{also}.",
            err=True,
        )


async def _encrypted(settings: Settings, private: Secret) -> str:
    """What the KMS of the settings makes of a private key."""
    from corral.gateway.key_services import open_key_service
    from corral.vault.backends.backend import BackendFailed

    if settings.vault.kms == "none":
        raise Failure(
            "No KMS is set, so there is none that could encrypt the private key.",
            "set vault.kms and vault.kms_key, as they will be for the gateway (docs/gateway.md).",
        )
    try:
        async with open_key_service(settings.vault) as service:
            return await service.encrypt(private)
    except BackendFailed as error:
        raise Failure(
            f"The KMS does not encrypt the private key: {error}.",
            "see that the KMS runs, that vault.kms_key is the name of a key there, and that your credential "
            "may encrypt with it.",
        ) from None


@vault_key.command("forget")
@click.argument("key_id")
@click.confirmation_option(prompt="Remove every secret that is sealed for this key?")
@config_option
@data_option
@json_option
def forget(key_id: str, config: Path | None, data: Path | None, as_json: bool) -> None:
    """Remove what is sealed for a key that is lost, so that a gateway can start without it.

    Credentials stay, without their secrets: have those entered again.

    \b
    Example:
      corral admin vault-key forget 0123456789abcdef
    """
    from corral.cli.audit import carried_out
    from corral.cli.databases import opened_database
    from corral.store.database import Database
    from corral.vault import rotation

    settings = read_settings(config)

    async def change(database: Database) -> int:
        return await rotation.forget(database, key_id)

    async def run() -> int:
        async with opened_database(settings, data) as database:
            return await carried_out(database, change, key_id)

    removed = run_briefly(run())
    if as_json:
        click.echo(msgspec.json.encode({"key": key_id, "removed": removed}).decode())
    else:
        click.echo(f"{removed} secret(s) were removed.")


def _write_pair(folder: Path, private: str, public: str) -> None:
    """Both files or none, at a name that must be free, or an empty folder: no key is ever overwritten."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        _write(draft / PRIVATE, private)
        _write(draft / PUBLIC, public)
        draft.rename(folder)
    except OSError as error:
        for name in (PRIVATE, PUBLIC):
            (draft / name).unlink(missing_ok=True)
        draft.rmdir()
        raise Failure(
            f"The keys cannot be put into {folder}: {error.strerror}.",
            "name a folder that does not exist yet; keys that are there already are never overwritten.",
        ) from None


def _write(path: Path, text: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())


def refuse_private_key(settings: Settings) -> None:
    """Keep the gateway's key out of a process that serves the API.

    Raises:
        Failure: the settings have it.
    """
    vault = settings.vault
    given = {"KEY": vault.key, "FORMER_KEYS": vault.former_keys, "KMS_TOKEN": vault.kms_token}
    for name, value in given.items():
        if value is not None:
            raise Failure(
                f"CORRAL_VAULT__{name} is set, but a server must not be able to read secrets.",
                "set it for the gateway alone, and CORRAL_VAULT__PUBLIC_KEY for servers.",
            )


async def kept_public_key(data_dir: Path) -> str:
    """The public key of the pair in a data folder, which is made first where there is none.

    Raises:
        Failure: a half of the pair is missing or damaged, or it cannot be made.
    """
    from corral.vault.keys import PublicKey, WrongKey

    folder = data_dir / FOLDER
    if not folder.exists():
        await _make_pair(folder)
    if not (folder / PRIVATE).exists():
        raise Failure(
            f"{folder / PRIVATE} is missing: without it nobody can read what is sealed in vaults.",
            f"put it back from a copy. If there is none, remove {folder}: a new pair is made at the next "
            "start. The gateway then names the lost key; `corral admin vault-key forget` removes what it "
            "sealed, and the secrets of every credential have to be entered again.",
        )
    try:
        return PublicKey.parse((folder / PUBLIC).read_text("utf-8")).text
    except FileNotFoundError:
        raise Failure(
            f"{folder / PUBLIC} is missing.", "put it back from a copy; it belongs to the other file there."
        ) from None
    except (WrongKey, UnicodeDecodeError) as error:
        raise Failure(f"{folder / PUBLIC}: {error}.", "put it back from a copy.") from None


async def _make_pair(folder: Path) -> None:
    """Have a pair made by a process of its own, so that this one never has the private key in its memory."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "corral.cli", "admin", "vault-key", "create", "--into", str(folder)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, said = await process.communicate()
    except BaseException:
        if process.returncode is None:
            process.kill()
            await process.wait()
        raise
    if process.returncode:
        raise Failure(f"The vault's keys could not be made: {said.decode(errors='replace').strip()}")
