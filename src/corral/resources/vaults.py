"""Vaults: named collections of credentials that a session may use (contract section 15.1)."""

from collections.abc import Sequence
from typing import Final

import msgspec
from psycopg.rows import DictRow

from corral.resources import listing
from corral.resources.credentials import Credentials
from corral.store.database import Connection, Database
from corral.vault.keeping import Keeper
from corral.wire import metadata as meta
from corral.wire.errors import InvalidRequest, NotFound
from corral.wire.ids import new_id
from corral.wire.pagination import Listing, Page
from corral.wire.times import to_wire
from corral.wire.vaults import CreateVault, UpdateVault, Vault

LIST: Final = "vaults"

_COLUMNS: Final = "id, display_name, metadata, created_at, updated_at, archived_at"


class Vaults:
    """The vaults in a database, and in `credentials` what they hold.

    `keeper` knows where secrets go; where it has no place for them, there are vaults, but nothing secret can
    be put in.
    """

    def __init__(self, database: Database, keeper: Keeper) -> None:
        self._database = database
        self.credentials = Credentials(database, keeper)

    async def create(self, params: CreateVault) -> Vault:
        """Make an empty vault; names need not be unique.

        Raises:
            InvalidRequest: the metadata is out of bounds.
        """
        row = await self._database.fetch_one(
            "insert into vaults (id, display_name, metadata) values (%s, %s, %s::json) returning " + _COLUMNS,
            (new_id("vlt"), params.display_name, _json(meta.created(params.metadata))),
        )
        assert row is not None
        return _shown(row)

    async def retrieve(self, vault_id: str) -> Vault:
        """A vault, archived or not.

        Raises:
            NotFound: there is no such vault.
        """
        row = await self._database.fetch_one("select " + _COLUMNS + " from vaults where id = %s", (vault_id,))
        if row is None:
            raise not_found(vault_id)
        return _shown(row)

    async def update(self, vault_id: str, params: UpdateVault) -> Vault:
        """Change a vault's name and metadata.

        Raises:
            NotFound: there is no such vault.
            InvalidRequest: it is archived, or the metadata is out of bounds.
        """
        async with self._database.transaction() as connection:
            row = await _locked(connection, vault_id)
            if row["archived_at"] is not None:
                raise archived(vault_id)
            stored = _shown(row)
            new = msgspec.structs.replace(
                stored,
                display_name=stored.display_name if params.display_name is None else params.display_name,
                metadata=meta.patched(stored.metadata, params.metadata),
            )
            if new == stored:
                return stored
            cursor = await connection.execute(
                "update vaults set display_name = %s, metadata = %s::json, updated_at = now() where id = %s"
                " returning " + _COLUMNS,
                (new.display_name, _json(new.metadata), vault_id),
            )
            row = await cursor.fetchone()
            assert row is not None
            return _shown(row)

    async def archive(self, vault_id: str) -> Vault:
        """Archive a vault and its credentials, whose secrets are gone from then on; again changes nothing.

        New sessions may not name it; those that have it find no credential in it any more.

        Raises:
            NotFound: there is no such vault.
        """
        async with self._database.transaction() as connection:
            row = await _locked(connection, vault_id)
            if row["archived_at"] is not None:
                return _shown(row)
            await connection.execute(
                "with archived as (update vault_credentials set archived_at = now(), updated_at = now()"
                " where vault_id = %s and archived_at is null returning id)"
                " delete from vault_secrets s using archived a where s.credential_id = a.id",
                (vault_id,),
            )
            cursor = await connection.execute(
                "update vaults set archived_at = now(), updated_at = now() where id = %s returning "
                + _COLUMNS,
                (vault_id,),
            )
            row = await cursor.fetchone()
            assert row is not None
            return _shown(row)

    async def delete(self, vault_id: str) -> None:
        """Remove a vault with its credentials and their secrets. Sessions that have it keep its id.

        Raises:
            NotFound: there is no such vault.
        """
        if not await self._database.execute("delete from vaults where id = %s", (vault_id,)):
            raise not_found(vault_id)

    async def list(self, page: Page, *, include_archived: bool = False) -> Listing:
        """Vaults, newest first."""
        moment, last = listing.start(page.after)
        rows = await self._database.fetch(
            "select " + _COLUMNS + " from vaults"
            " where (%(moment)s::timestamptz is null or (created_at, id) < (%(moment)s, %(last)s))"
            " and (%(archived)s or archived_at is null)"
            " order by created_at desc, id desc limit %(limit)s",
            {"moment": moment, "last": last, "archived": include_archived, "limit": page.limit + 1},
        )
        kept, next_page = listing.split(rows, page, LIST)
        return Listing(data=[_shown(row) for row in kept], next_page=next_page)

    async def check_usable(self, vault_ids: Sequence[str]) -> None:
        """Whether a new session may have these vaults.

        Raises:
            NotFound: one does not exist; the message has its place in ``vault_ids``.
            InvalidRequest: one is archived.
        """
        if not vault_ids:
            return
        rows = await self._database.fetch(
            "select id, archived_at from vaults where id = any(%s)", (list(vault_ids),)
        )
        archived_at = {row["id"]: row["archived_at"] for row in rows}
        for index, vault_id in enumerate(vault_ids):
            if vault_id not in archived_at:
                raise NotFound(f"vault_ids[{index}]: vault {vault_id} not found")
            if archived_at[vault_id] is not None:
                raise InvalidRequest(f"vault_ids[{index}]: vault {vault_id} is archived")


def not_found(vault_id: str) -> NotFound:
    """The error for a vault that does not exist."""
    return NotFound(f"Vault {vault_id} not found.")


def archived(vault_id: str) -> InvalidRequest:
    """The error for a change to a vault that is archived."""
    return InvalidRequest(f"Vault {vault_id} is archived.")


async def _locked(connection: Connection, vault_id: str) -> DictRow:
    cursor = await connection.execute(
        "select " + _COLUMNS + " from vaults where id = %s for update", (vault_id,)
    )
    row = await cursor.fetchone()
    if row is None:
        raise not_found(vault_id)
    return row


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _shown(row: DictRow) -> Vault:
    archived_at = row["archived_at"]
    return Vault(
        id=row["id"],
        display_name=row["display_name"],
        metadata=row["metadata"],
        created_at=to_wire(row["created_at"]),
        updated_at=to_wire(row["updated_at"]),
        archived_at=to_wire(archived_at) if archived_at is not None else None,
    )
