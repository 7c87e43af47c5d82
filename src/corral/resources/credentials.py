"""Credentials of vaults: rows in the open, secrets sealed beside them (contract section 15.2).

Whoever changes a credential locks its vault first. So the vault cannot be archived meanwhile, its credentials
are counted by one at a time, and nobody waits for somebody who waits for him.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Final

import msgspec
import structlog
from psycopg import errors
from psycopg.rows import DictRow

from corral.resources import listing
from corral.store.database import Connection, Database
from corral.vault.backends.backend import BackendFailed
from corral.vault.keeping import Keeper, Keeping
from corral.wire import credential_rules as rules
from corral.wire import metadata as meta
from corral.wire.credentials import (
    Auth,
    CreateCredential,
    Credential,
    OAuth,
    SecretField,
    UpdateCredential,
)
from corral.wire.errors import Conflict, InternalError, InvalidRequest, NotFound, Overloaded
from corral.wire.fields import UNSET
from corral.wire.ids import new_id
from corral.wire.pagination import Listing, Page
from corral.wire.secret import Secret
from corral.wire.times import to_wire
from corral.wire.vaults import CREDENTIALS

LIST: Final = "vault_credentials"

_COLUMNS: Final = (
    "c.id, c.vault_id, c.display_name, c.auth::text as auth, c.metadata, c.created_at, c.updated_at,"
    " c.archived_at"
)


_log = structlog.get_logger(__name__)


class Credentials:
    """The credentials in a database. Their secrets go in and, through here, never come out."""

    def __init__(self, database: Database, keeper: Keeper) -> None:
        self._database = database
        self._keeper = keeper

    async def create(self, vault_id: str, params: CreateCredential) -> Credential:
        """Put a credential into a vault. It is not tried out.

        Raises:
            NotFound: there is no such vault.
            Conflict: an active credential of the vault has the same URL or name.
            InvalidRequest: the vault is archived or full, a rule of contract section 15.2 does not hold, or
                ``vault_key_missing``: the server cannot seal.
        """
        metadata = meta.created(params.metadata)
        async with self._keeping() as keeping, self._database.transaction() as connection:
            now = await _vault_for_change(connection, vault_id)
            auth, secrets = rules.created(params.auth, now)
            await _check_key_is_free(connection, vault_id, auth)
            await _check_room(connection, vault_id)
            try:
                cursor = await connection.execute(
                    "insert into vault_credentials as c"
                    " (id, vault_id, display_name, auth, key_hash, metadata)"
                    " values (%s, %s, %s, %s::json, %s, %s::json) returning " + _COLUMNS,
                    (
                        new_id("vcrd"),
                        vault_id,
                        params.display_name,
                        _json(auth),
                        rules.key_hash(auth),
                        _json(metadata),
                    ),
                )
            except errors.UniqueViolation:
                raise _taken(auth) from None
            row = await cursor.fetchone()
            assert row is not None
            await self._keep(keeping, connection, row["id"], secrets)
            return _shown(row)

    async def retrieve(self, vault_id: str, credential_id: str) -> Credential:
        """A credential of this vault, archived or not.

        Raises:
            NotFound: the vault has no such credential.
        """
        row = await self._database.fetch_one(
            "select " + _COLUMNS + " from vault_credentials c where c.id = %s and c.vault_id = %s",
            (credential_id, vault_id),
        )
        return _shown(_found(row, credential_id))

    async def update(self, vault_id: str, credential_id: str, params: UpdateCredential) -> Credential:
        """Change a credential; what it is found by never changes. Running sessions use the new secret.

        Raises:
            NotFound: the vault has no such credential.
            InvalidRequest: it is archived, a rule of contract section 15.2 does not hold, or
                ``vault_key_missing``: the server cannot seal.
        """
        async with self._keeping() as keeping, self._database.transaction() as connection:
            stored, now = await _for_change(connection, vault_id, credential_id)
            if stored.archived_at is not None:
                raise archived()
            auth, secrets = stored.auth, dict[SecretField, Secret]()
            if params.auth is not UNSET:
                auth, secrets = rules.updated(stored.auth, params.auth, now)
            new = msgspec.structs.replace(
                stored,
                auth=auth,
                display_name=stored.display_name if params.display_name is UNSET else params.display_name,
                metadata=meta.patched(stored.metadata, params.metadata),
            )
            if new == stored and not secrets:
                return stored
            await self._keep(keeping, connection, credential_id, secrets)
            cursor = await connection.execute(
                "update vault_credentials c set auth = %s::json, display_name = %s, metadata = %s::json,"
                " updated_at = now() where c.id = %s returning " + _COLUMNS,
                (_json(new.auth), new.display_name, _json(new.metadata), credential_id),
            )
            return _shown(_found(await cursor.fetchone(), credential_id))

    async def archive(self, vault_id: str, credential_id: str) -> Credential:
        """Archive a credential: its secrets are gone, what it is found by is free; again changes nothing.

        Raises:
            NotFound: the vault has no such credential.
        """
        async with self._database.transaction() as connection:
            stored, _ = await _for_change(connection, vault_id, credential_id)
            if stored.archived_at is not None:
                return stored
            await connection.execute("delete from vault_secrets where credential_id = %s", (credential_id,))
            cursor = await connection.execute(
                "update vault_credentials c set archived_at = now(), updated_at = now() where c.id = %s"
                " returning " + _COLUMNS,
                (credential_id,),
            )
            return _shown(_found(await cursor.fetchone(), credential_id))

    async def delete(self, vault_id: str, credential_id: str) -> None:
        """Remove a credential with its secrets.

        Raises:
            NotFound: the vault has no such credential.
        """
        async with self._database.transaction() as connection:
            await _for_change(connection, vault_id, credential_id)
            await connection.execute("delete from vault_credentials where id = %s", (credential_id,))

    async def list(self, vault_id: str, page: Page, *, include_archived: bool = False) -> Listing:
        """The credentials of a vault, newest first.

        Raises:
            NotFound: there is no such vault.
        """
        moment, last = listing.start(page.after)
        if await self._database.fetch_one("select 1 from vaults where id = %s", (vault_id,)) is None:
            raise _no_vault(vault_id)
        rows = await self._database.fetch(
            "select " + _COLUMNS + " from vault_credentials c where c.vault_id = %(vault)s"
            " and (%(moment)s::timestamptz is null or (c.created_at, c.id) < (%(moment)s, %(last)s))"
            " and (%(archived)s or c.archived_at is null)"
            " order by c.created_at desc, c.id desc limit %(limit)s",
            {
                "vault": vault_id,
                "moment": moment,
                "last": last,
                "archived": include_archived,
                "limit": page.limit + 1,
            },
        )
        kept, next_page = listing.split(rows, page, LIST, scope=vault_id)
        return Listing(data=[_shown(row) for row in kept], next_page=next_page)

    async def for_server(self, vault_ids: Sequence[str], url: str) -> Credential | None:
        """The active credential for the MCP server at `url`: that of the first vault which has one.

        None where none has: the connection is then made without (contract section 15.3).

        Raises:
            ValueError: `url` is no URL.
        """
        row = await self._database.fetch_one(
            "select " + _COLUMNS + " from vault_credentials c where c.vault_id = any(%(vaults)s)"
            " and c.key_hash = %(key)s and c.archived_at is null"
            " order by array_position(%(vaults)s, c.vault_id) limit 1",
            {"vaults": list(vault_ids), "key": rules.server_hash(url)},
        )
        return None if row is None else _shown(row)

    async def for_validation(self, vault_id: str, credential_id: str) -> Credential:
        """A credential whose OAuth token can be tried out.

        Raises:
            NotFound: the vault has no such credential.
            InvalidRequest: it is not of type ``mcp_oauth``, or it is archived.
        """
        credential = await self.retrieve(vault_id, credential_id)
        if not isinstance(credential.auth, OAuth):
            raise InvalidRequest("Only credentials of type mcp_oauth can be validated.")
        if credential.archived_at is not None:
            raise archived()
        return credential

    async def by_id(self, credential_id: str) -> Credential:
        """A credential of whatever vault, archived or not.

        Raises:
            NotFound: there is no such credential.
        """
        row = await self._database.fetch_one(
            "select " + _COLUMNS + " from vault_credentials c where c.id = %s", (credential_id,)
        )
        return _shown(_found(row, credential_id))

    @asynccontextmanager
    async def _keeping(self) -> AsyncGenerator[Keeping]:
        try:
            async with self._keeper.keeping() as keeping:
                yield keeping
        except BackendFailed as error:
            _log.error("the secret manager did not take a secret", reason=str(error))
            if error.lasting:
                raise InternalError(
                    "The secret manager refuses the secret; the server's log says why."
                ) from None
            raise Overloaded(
                "The secret manager cannot be reached at the moment; try again.", retry_after=5
            ) from None

    async def _keep(
        self,
        keeping: Keeping,
        connection: Connection,
        credential_id: str,
        secrets: Mapping[SecretField, Secret],
    ) -> None:
        if secrets and not self._keeper.can_keep:
            raise InvalidRequest(
                "This server has no key to seal secrets with, so it takes none. Its operator makes a pair "
                "with `corral admin vault-key create` and sets CORRAL_VAULT__PUBLIC_KEY.",
                error_code="vault_key_missing",
            )
        await keeping.keep(connection, credential_id, secrets)


def archived() -> InvalidRequest:
    """The error for a change to a credential that is archived."""
    return InvalidRequest("Credential is archived.")


def _no_vault(vault_id: str) -> NotFound:
    return NotFound(f"Vault {vault_id} not found.")


async def _vault_for_change(connection: Connection, vault_id: str) -> datetime:
    """Lock a vault that is not archived; the time, by the database's clock."""
    cursor = await connection.execute(
        "select archived_at, now() as now from vaults where id = %s for update", (vault_id,)
    )
    row = await cursor.fetchone()
    if row is None:
        raise _no_vault(vault_id)
    if row["archived_at"] is not None:
        raise InvalidRequest(f"Vault {vault_id} is archived.")
    return row["now"]


async def _for_change(
    connection: Connection, vault_id: str, credential_id: str
) -> tuple[Credential, datetime]:
    """A credential with its vault locked, and the time by the database's clock."""
    await connection.execute("select 1 from vaults where id = %s for update", (vault_id,))
    cursor = await connection.execute(
        "select " + _COLUMNS + ", now() as now from vault_credentials c"
        " where c.id = %s and c.vault_id = %s for update",
        (credential_id, vault_id),
    )
    row = _found(await cursor.fetchone(), credential_id)
    return _shown(row), row["now"]


async def _check_key_is_free(connection: Connection, vault_id: str, auth: Auth) -> None:
    cursor = await connection.execute(
        "select id from vault_credentials where vault_id = %s and key_hash = %s and archived_at is null",
        (vault_id, rules.key_hash(auth)),
    )
    row = await cursor.fetchone()
    if row is not None:
        raise _taken(auth, row["id"])


async def _check_room(connection: Connection, vault_id: str) -> None:
    cursor = await connection.execute(
        "select count(*) as active from vault_credentials where vault_id = %s and archived_at is null",
        (vault_id,),
    )
    row = await cursor.fetchone()
    if row is not None and row["active"] >= CREDENTIALS:
        raise InvalidRequest(
            f"A vault holds at most {CREDENTIALS} credentials. Archive one, or use another vault."
        )


def _taken(auth: Auth, by: str = "another credential") -> Conflict:
    return Conflict(
        f"{rules.key_field(auth)}: {by} of this vault is for the same one. Update it, or archive it first."
    )


def _found(row: DictRow | None, credential_id: str) -> DictRow:
    if row is None:
        raise NotFound(f"Credential {credential_id} not found.")
    return row


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _shown(row: DictRow) -> Credential:
    archived_at = row["archived_at"]
    return Credential(
        id=row["id"],
        vault_id=row["vault_id"],
        display_name=row["display_name"],
        auth=msgspec.json.decode(row["auth"], type=Auth),
        metadata=row["metadata"],
        created_at=to_wire(row["created_at"]),
        updated_at=to_wire(row["updated_at"]),
        archived_at=to_wire(archived_at) if archived_at is not None else None,
    )
