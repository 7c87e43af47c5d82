"""Sealed secrets as rows: written by servers, opened by the gateway alone (table ``vault_secrets``)."""

from collections.abc import Mapping

from corral.store.database import Connection, Database
from corral.vault.keys import PublicKey
from corral.vault.sealing import KeyRing, Place, open_sealed, seal
from corral.wire.credentials import SecretField
from corral.wire.secret import Secret


async def write(
    connection: Connection, credential_id: str, secrets: Mapping[SecretField, Secret], key: PublicKey
) -> None:
    """Seal secrets of a credential and store them; those of other fields stay."""
    for field, secret in secrets.items():
        await connection.execute(
            "insert into vault_secrets (credential_id, field, key_id, sealed) values (%s, %s, %s, %s)"
            " on conflict (credential_id, field) do update"
            " set key_id = excluded.key_id, sealed = excluded.sealed, updated_at = now()",
            (credential_id, field, key.id, seal(secret, Place(credential_id, field), key)),
        )


async def read(database: Database, credential_id: str, keys: KeyRing) -> dict[SecretField, Secret]:
    """The secrets of a credential, opened: for the gateway. A purged or unknown credential has none.

    Raises:
        CannotOpen: a key is missing, or a row is not what was stored there.
    """
    rows = await database.fetch(
        "select field, sealed from vault_secrets where credential_id = %s", (credential_id,)
    )
    return {
        row["field"]: open_sealed(row["sealed"], Place(credential_id, row["field"]), keys) for row in rows
    }


async def key_ids(database: Database) -> dict[str, int]:
    """How many secrets are stored for each key, by the key's id."""
    rows = await database.fetch("select key_id, count(*) as secrets from vault_secrets group by key_id")
    return {row["key_id"]: row["secrets"] for row in rows}
