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
from corral.cli.options import json_option
from corral.settings import Settings

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
@json_option
def create(into: Path | None, as_json: bool) -> None:
    """Make a pair: the public key for servers, the private one for the gateway alone.

    Servers seal secrets with the one and can never read them again; whoever has the other can. Keep a copy of
    it in a safe place: without it nobody can read what is sealed.

    \b
    Example:
      corral admin vault-key create
    """
    from corral.vault.keys import PrivateKey

    key = PrivateKey.generate()
    if into is not None:
        _write_pair(into, key.text.reveal(), key.public.text)
    told = {"id": key.public.id, "public_key": key.public.text}
    if into is None:
        told["key"] = key.text.reveal()
    if as_json:
        click.echo(msgspec.json.encode(told).decode())
    elif into is not None:
        click.echo(f"Key {key.public.id} is in {into}.")
    else:
        click.echo(f"CORRAL_VAULT__PUBLIC_KEY={told['public_key']}")
        click.echo(f"CORRAL_VAULT__KEY={told['key']}")
        click.echo(
            "The first is for servers, the second for the gateway alone. They are not stored and cannot be "
            "shown again: keep the second in a safe place too.",
            err=True,
        )


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
    if settings.vault.key is not None:
        raise Failure(
            "CORRAL_VAULT__KEY is set, but a server must not be able to read secrets.",
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
            "start, and the secrets of every credential have to be entered again.",
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
