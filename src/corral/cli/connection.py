"""How a client command finds its server, and with which key.

An option goes before the environment, and the environment before what a `corral up` on this machine has
left in its data folder. A key of the environment goes only to an address that was named as well:
ANTHROPIC_API_KEY is often set for the real Claude API, and must not reach another server by chance.
"""

import os
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from corral.cli.failure import Failure
from corral.cli.options import data_option
from corral.cli.running import default_data_dir

RUNNING: Final = "running.json"
"""In the data folder of a `corral up` while it runs."""


class Connection(msgspec.Struct, frozen=True, kw_only=True):
    """A server, and the key to it."""

    base_url: str
    api_key: str
    environment_id: str | None = None
    """The environment `default` of a `corral up` on this machine, if it is that."""
    source: str
    """Where the address came from, for error messages."""

    def __repr__(self) -> str:
        return f"Connection(base_url={self.base_url!r}, source={self.source!r})"


class Asked(msgspec.Struct, frozen=True):
    """What the command line said about the connection."""

    base_url: str | None
    api_key: str | None
    data: Path | None

    def connection(self) -> Connection:
        """The server to talk to; raises `Failure` if none was named and none runs here."""
        return find_connection(self, os.environ)


def connection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that name a server; the command gets them as ``asked``, an `Asked`. Put it innermost."""

    @wraps(command)
    def with_connection(
        *arguments: Any, base_url: str | None, api_key: str | None, data: Path | None, **options: Any
    ) -> Any:
        return command(*arguments, asked=Asked(base_url, api_key, data), **options)

    for option in (data_option, _api_key_option, _base_url_option):
        with_connection = option(with_connection)
    return with_connection


_base_url_option: Any = click.option(
    "--base-url", help="Address of the server.  [default: ANTHROPIC_BASE_URL, or that of `corral up` here]"
)
_api_key_option: Any = click.option(
    "--api-key",
    help="Its API key; others on this machine can see it here, so rather set ANTHROPIC_API_KEY.",
)


def find_connection(asked: Asked, environ: Mapping[str, str]) -> Connection:
    """The server that was named, or the one that runs on this machine.

    Raises:
        Failure: none was named and none runs here, or there is no key for the one that was named.
    """
    local = _running(asked.data or default_data_dir())
    if asked.base_url:
        return _named(asked.base_url, "--base-url", asked, environ, local)
    if asked.data is None and environ.get("ANTHROPIC_BASE_URL"):
        return _named(environ["ANTHROPIC_BASE_URL"], "ANTHROPIC_BASE_URL", asked, environ, local)
    if local is None:
        folder = asked.data or default_data_dir()
        raise Failure(
            f"No Corral was named, and none runs on this machine (no {RUNNING} in {folder}).",
            "start one with `corral up`, or set ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY to reach another.",
        )
    return msgspec.structs.replace(local, api_key=asked.api_key) if asked.api_key else local


def _named(
    base_url: str, source: str, asked: Asked, environ: Mapping[str, str], local: Connection | None
) -> Connection:
    base_url = base_url.rstrip("/")
    here = local is not None and local.base_url == base_url
    key = asked.api_key or environ.get("ANTHROPIC_API_KEY")
    if not key and local is not None and here:
        key = local.api_key
    if not key:
        raise Failure(
            f"There is no API key for {base_url} (from {source}).",
            "set ANTHROPIC_API_KEY; `corral admin api-key create` makes one, where the database is.",
        )
    environment_id = local.environment_id if local is not None and here else None
    return Connection(base_url=base_url, api_key=key, environment_id=environment_id, source=source)


def _running(data: Path) -> Connection | None:
    path = data / RUNNING
    try:
        told = msgspec.json.decode(path.read_bytes())
        return Connection(
            base_url=told["base_url"],
            api_key=told["api_key"],
            environment_id=told["environment_id"],
            source=str(path),
        )
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise Failure(
            f"{path} cannot be read: it holds keys, so only who runs `corral up` may.",
            "run this command as that user, or set ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY.",
        ) from error
    except (OSError, msgspec.DecodeError, KeyError, TypeError) as error:
        raise Failure(
            f"{path} is damaged: {error}", "start `corral up` again; it writes a new one."
        ) from error
