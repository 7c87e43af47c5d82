"""Secrets of credentials as rows: written by servers, opened by the gateway alone (table ``vault_secrets``).

A row holds an envelope (`corral.vault.sealing`), or says where a secret manager keeps the secret.
"""

from typing import Final

from corral.store.database import Connection, Database
from corral.vault.backends.backend import BackendFailed, SecretBackend
from corral.vault.backends.locator import Locator, is_locator
from corral.vault.sealing import CannotOpen, KeyRing, Place, open_sealed
from corral.wire.credentials import SecretField
from corral.wire.secret import Secret

BACKEND: Final = "backend:"
"""What ``key_id`` begins with where a manager keeps the secret; its name follows."""


async def write(
    connection: Connection, credential_id: str, field: SecretField, key_id: str, stored: bytes
) -> None:
    """Store what there is of a secret, in the place of what was there."""
    await connection.execute(
        "insert into vault_secrets (credential_id, field, key_id, sealed) values (%s, %s, %s, %s)"
        " on conflict (credential_id, field) do update"
        " set key_id = excluded.key_id, sealed = excluded.sealed, updated_at = now()",
        (credential_id, field, key_id, stored),
    )


async def read(
    database: Database, credential_id: str, keys: KeyRing, backend: SecretBackend | None = None
) -> dict[SecretField, Secret]:
    """The secrets of a credential, opened: for the gateway. A purged or unknown credential has none.

    Raises:
        CannotOpen: a key is missing, a row is not what was stored there, or the manager does not give it out.
    """
    async with database.connection() as connection:
        return await read_with(connection, credential_id, keys, backend)


async def read_with(
    connection: Connection, credential_id: str, keys: KeyRing, backend: SecretBackend | None = None
) -> dict[SecretField, Secret]:
    """As `read`, on a connection that may be in a transaction."""
    cursor = await connection.execute(
        "select field, sealed from vault_secrets where credential_id = %s", (credential_id,)
    )
    return {
        row["field"]: await _opened(row["sealed"], Place(credential_id, row["field"]), keys, backend)
        for row in await cursor.fetchall()
    }


async def _opened(stored: bytes, place: Place, keys: KeyRing, backend: SecretBackend | None) -> Secret:
    if not is_locator(stored):
        return open_sealed(stored, place, keys)
    locator = Locator.parse(stored)
    if backend is None or backend.name != locator.manager:
        raise CannotOpen(
            f"the {place.field} of {place.credential_id} lies in the secret manager {locator.manager}; set "
            "secret_manager of the gateway as the servers have it"
        )
    try:
        return await backend.read(locator.place)
    except BackendFailed as error:
        raise CannotOpen(f"the {place.field} of {place.credential_id}: {error}") from None


async def key_ids(database: Database) -> dict[str, int]:
    """How many secrets are sealed for each key, by the key's id."""
    rows = await database.fetch(
        "select key_id, count(*) as secrets from vault_secrets where not starts_with(key_id, %s)"
        " group by key_id",
        (BACKEND,),
    )
    return {row["key_id"]: row["secrets"] for row in rows}
