"""The keys of a `corral up`: made at the first start, kept in the data folder, the same ever after."""

from pathlib import Path
from typing import Any, Final

import msgspec

from corral.cli.failure import Failure
from corral.cli.running import write_private
from corral.resources.environments import Environments
from corral.resources.keys import KeyKind, Keys
from corral.store.database import Database
from corral.wire.errors import NotFound
from corral.wire.secret import Secret

NAME: Final = "corral up"
ENVIRONMENT: Final = "default"


class Kept(msgspec.Struct, kw_only=True):
    """What ``credentials.json`` holds. Its mode is 0600: these are keys."""

    api_key: str | None = None
    environment_id: str | None = None
    environment_key: str | None = None
    pool_key_id: str | None = None


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of this run, all valid."""

    api_key: Secret
    environment_id: str
    environment_key: Secret
    pool_key: Secret
    """For the worker of this run alone; gone with the next."""


async def prepare_credentials(database: Database, data_dir: Path, own_api_key: Secret | None) -> Credentials:
    """The kept keys where they are still good, fresh ones otherwise; and the environment `default`.

    ``own_api_key`` is the operator's (server.api_key) and takes the place of a generated one;
    the server makes it known.
    """
    path = data_dir / "credentials.json"
    kept, keys = _read(path), Keys(database)
    environment_id = await _environment(database, kept.environment_id)
    if own_api_key is not None:
        api_key = own_api_key.reveal()
    else:
        api_key = kept.api_key = await _good(keys, "api", kept.api_key, None)
    environment_key = await _good(keys, "environment", kept.environment_key, environment_id)
    if kept.pool_key_id is not None:
        await _revoke(keys, kept.pool_key_id)
    record, pool_key = await keys.create("pool", NAME)
    kept = Kept(
        api_key=kept.api_key,
        environment_id=environment_id,
        environment_key=environment_key,
        pool_key_id=record.id,
    )
    write_private(path, kept)
    return Credentials(
        api_key=Secret(api_key),
        environment_id=environment_id,
        environment_key=Secret(environment_key),
        pool_key=Secret(pool_key),
    )


def _read(path: Path) -> Kept:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Kept)
    except FileNotFoundError:
        return Kept()
    except msgspec.DecodeError as error:
        raise Failure(
            f"{path} is damaged: {error}", "remove it; new keys are made at the next start."
        ) from None


async def _environment(database: Database, kept_id: str | None) -> str:
    environments = Environments(database)
    if kept_id is not None:
        try:
            environment = await environments.retrieve(kept_id)
        except NotFound:
            pass  # another database than last time
        else:
            if environment.archived_at is None:
                return environment.id
    return (await environments.ensure_named(ENVIRONMENT)).id


async def _good(keys: Keys, kind: KeyKind, kept: str | None, environment_id: str | None) -> str:
    if kept is not None:
        record = await keys.verify(kept)
        if record is not None and (record.kind, record.environment_id) == (kind, environment_id):
            return kept
    _, text = await keys.create(kind, NAME, environment_id)
    return text


async def _revoke(keys: Keys, key_id: str) -> None:
    try:
        await keys.revoke(key_id)
    except NotFound:
        pass  # another database than last time


def shown(base_url: str, credentials: Credentials) -> dict[str, Any]:
    """What the ready file and ``--json`` tell."""
    return {
        "base_url": base_url,
        "api_key": credentials.api_key.reveal(),
        "environment_id": credentials.environment_id,
        "environment_key": credentials.environment_key.reveal(),
        "console_url": f"{base_url}/",
    }
