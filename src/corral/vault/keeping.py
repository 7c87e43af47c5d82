"""Where new secrets of credentials go: sealed into the database, or to a secret manager of the operator's."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Final

import structlog

from corral.store.database import Connection, Database
from corral.vault import rows
from corral.vault.backends.backend import BackendFailed, SecretBackend
from corral.vault.backends.locator import Locator
from corral.vault.keys import PublicKey
from corral.vault.sealing import Place, seal
from corral.wire.credentials import SecretField
from corral.wire.secret import Secret

_BATCH: Final = 50

_log = structlog.get_logger(__name__)


class Keeper:
    """Keeps secrets with a manager where there is one, and otherwise seals them with the key."""

    def __init__(self, key: PublicKey | None, backend: SecretBackend | None = None) -> None:
        self._key = key
        self._backend = backend

    @property
    def can_keep(self) -> bool:
        """Whether there is a place for secrets at all."""
        return self._key is not None or self._backend is not None

    @asynccontextmanager
    async def keeping(self) -> AsyncGenerator["Keeping"]:
        """Put it around the transaction that keeps secrets: what that fails to refer to is removed again.

        A process that dies in between may leave a secret with the manager that nothing refers to.
        """
        keeping = Keeping(self._key, self._backend)
        try:
            yield keeping
        except BaseException:
            await keeping.take_back()
            raise


class Keeping:
    """One transaction's secrets."""

    def __init__(self, key: PublicKey | None, backend: SecretBackend | None = None) -> None:
        self._key = key
        self._backend = backend
        self._written: list[str] = []

    async def keep(
        self, connection: Connection, credential_id: str, secrets: Mapping[SecretField, Secret]
    ) -> None:
        """Keep secrets of a credential; those of other fields stay.

        Raises:
            BackendFailed: the manager did not take one.
        """
        for field, secret in secrets.items():
            key_id, stored = await self._stored(secret, Place(credential_id, field))
            await rows.write(connection, credential_id, field, key_id, stored)

    async def take_back(self) -> None:
        """Remove what was written to the manager, as far as it can be reached."""
        for lies in self._written:
            try:
                assert self._backend is not None
                await self._backend.remove(lies)
            except BackendFailed as error:
                _log.warning("a secret is left with the secret manager", at=lies, reason=str(error))

    async def _stored(self, secret: Secret, place: Place) -> tuple[str, bytes]:
        if self._backend is None:
            assert self._key is not None, "whoever keeps secrets asks `can_keep` first"
            return self._key.id, seal(secret, place, self._key)
        lies = self._backend.fresh(place)
        self._written.append(lies)
        await self._backend.write(lies, secret)
        return rows.BACKEND + self._backend.name, Locator(self._backend.name, lies).encoded()


async def remove_dropped(database: Database, backend: SecretBackend) -> int:
    """Remove from the manager what no row refers to any more; how many there were. May run anywhere, twice.

    Raises:
        BackendFailed: the manager does not remove one; it is tried again at the next call.
    """
    removed = 0
    while True:
        async with database.transaction() as connection:
            cursor = await connection.execute(
                "select id, stored from secret_removals order by id limit %s for update skip locked",
                (_BATCH,),
            )
            found = await cursor.fetchall()
            for row in found:
                locator = Locator.parse(row["stored"])
                if locator.manager == backend.name:
                    await backend.remove(locator.place)
                else:
                    _log.warning(
                        "a secret is left with a secret manager that is not in use any more",
                        manager=locator.manager,
                        at=locator.place,
                    )
                await connection.execute("delete from secret_removals where id = %s", (row["id"],))
        removed += len(found)
        if len(found) < _BATCH:
            return removed
