"""Wrapping all that is sealed for another key, while servers and gateways are at work.

A secret's ciphertext stays; its data key is wrapped anew (`corral.vault.sealing.rewrap`). Rows are locked for
as long as a batch of them takes, so a secret that is entered or renewed meanwhile waits for a moment and is
never written over.
"""

from collections.abc import Callable
from typing import Final, LiteralString, NamedTuple

from psycopg.rows import DictRow

from corral.store.database import Connection, Database
from corral.vault.keys import PublicKey
from corral.vault.sealing import KeyRing, Place, rewrap

_BATCH: Final = 100


class _Table(NamedTuple):
    """Where envelopes lie: what finds those of other keys, what replaces one, and the place of each."""

    find: LiteralString
    replace: LiteralString
    left: LiteralString
    forget: LiteralString
    place: Callable[[DictRow], Place]


def _of_credential(row: DictRow) -> Place:
    return Place(row["credential_id"], row["field"])


def _of_repository(row: DictRow) -> Place:
    return Place(row["resource_id"], "token")


def _of_authority(row: DictRow) -> Place:
    return Place("gateway_authority", "secret_value")


_TABLES: Final = (
    _Table(
        "select credential_id, field, sealed from vault_secrets where key_id <> %(key)s"
        " and not starts_with(key_id, 'backend:') limit %(batch)s for update skip locked",
        "update vault_secrets set key_id = %(key)s, sealed = %(sealed)s"
        " where credential_id = %(credential_id)s and field = %(field)s",
        "select count(*) as left from vault_secrets where key_id <> %(key)s"
        " and not starts_with(key_id, 'backend:')",
        "delete from vault_secrets where key_id = %(key)s",
        _of_credential,
    ),
    _Table(
        "select resource_id, sealed from session_repository_secrets where key_id <> %(key)s"
        " limit %(batch)s for update skip locked",
        "update session_repository_secrets set key_id = %(key)s, sealed = %(sealed)s"
        " where resource_id = %(resource_id)s",
        "select count(*) as left from session_repository_secrets where key_id <> %(key)s",
        "delete from session_repository_secrets where key_id = %(key)s",
        _of_repository,
    ),
    _Table(
        "select sealed from gateway_authority where key_id <> %(key)s limit %(batch)s for update skip locked",
        "update gateway_authority set key_id = %(key)s, sealed = %(sealed)s",
        "select count(*) as left from gateway_authority where key_id <> %(key)s",
        "delete from gateway_authority where key_id = %(key)s",
        _of_authority,
    ),
)


async def rewrap_all(database: Database, keys: KeyRing, new: PublicKey) -> int:
    """Wrap every secret that is sealed for another key for `new`; how many there were.

    What was done before an error stays done: calling it again goes on.

    Raises:
        CannotOpen: a secret's key is not among `keys`, or the secret was tampered with.
    """
    done = 0
    for table in _TABLES:
        while True:
            async with database.transaction() as connection:
                found = await _batch(connection, table, keys, new)
            done += found
            if found == 0:
                break
    return done


async def left(database: Database, key_id: str) -> int:
    """How many secrets are sealed for another key than this one."""
    counts = [await database.fetch_one(table.left, {"key": key_id}) for table in _TABLES]
    return sum(int(row["left"]) for row in counts if row is not None)


async def forget(database: Database, key_id: str) -> int:
    """Remove every secret that is sealed for a key which is lost; how many there were."""
    removed = [await database.execute(table.forget, {"key": key_id}) for table in _TABLES]
    return sum(removed)


async def _batch(connection: Connection, table: _Table, keys: KeyRing, new: PublicKey) -> int:
    cursor = await connection.execute(table.find, {"key": new.id, "batch": _BATCH})
    rows = await cursor.fetchall()
    for row in rows:
        envelope = rewrap(row["sealed"], table.place(row), keys, new)
        await connection.execute(table.replace, {**row, "key": new.id, "sealed": envelope})
    return len(rows)
