"""The tokens of credentials for MCP servers: opened here, and renewed once for all who need them.

One at a time renews a credential, whatever server or gateway asked: within a process callers share the
exchange, between processes the credential's row is locked. Who has waited reads again and finds the new
token. A token that somebody else has put there is never written over and never cleared.
"""

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import msgspec
import structlog

from corral.gateway.addresses import Reach
from corral.gateway.keyring import Keys
from corral.gateway.oauth import Exchanged, NewTokens, Rejected, Unreachable, exchange
from corral.gateway.scrubbing import Scrubber
from corral.store.database import Connection, Database
from corral.vault import rows as secret_rows
from corral.vault.backends.backend import SecretBackend
from corral.vault.keeping import Keeper, Keeping
from corral.wire.credentials import Auth, Credential, OAuth, SecretField
from corral.wire.secret import Secret
from corral.wire.times import from_wire, to_wire

_AHEAD: Final = timedelta(seconds=60)
"""A token is renewed this long before it runs out."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Held:
    """A token to send, and what masks every secret of its credential."""

    credential_id: str
    token: Secret
    scrubber: Scrubber
    renewable: bool


class NoToken(Exception):
    """A credential has no usable token; the message says why and holds no secret."""


class Tokens:
    """Opens and renews tokens. Close it with `close`: an exchange under way is waited for."""

    def __init__(
        self, database: Database, keys: Keys, reach: Reach, backend: SecretBackend | None = None
    ) -> None:
        self._database = database
        self._backend = backend
        self._keys = keys
        self._reach = reach
        self._renewing: dict[str, asyncio.Task[Exchanged | None]] = {}

    async def held(self, credential: Credential) -> Held:
        """The token of a credential; one of OAuth that has run out, or soon will, is renewed first.

        Raises:
            NoToken: there is none, and none can be had.
        """
        held = await self.present(credential)
        if not isinstance(credential.auth, OAuth) or not held.renewable:
            return held
        expires_at = credential.auth.expires_at
        if expires_at is None:
            return held
        now = await self._now()
        if from_wire(expires_at) - _AHEAD > now:
            return held
        outcome = await self.renew(credential.id, held.token)
        if outcome is None or isinstance(outcome, NewTokens):
            return await self.present(credential)
        if from_wire(expires_at) > now:
            return held  # it still holds, if not for long
        raise NoToken(_told(outcome))

    async def present(self, credential: Credential) -> Held:
        """The token that a credential has now, run out or not.

        Raises:
            NoToken: its secret is gone.
        """
        secrets = await self._opened(credential.id)
        match credential.auth:
            case OAuth() as auth:
                renewable = auth.refresh is not None and "refresh_token" in secrets
                return _held(credential.id, secrets, "access_token", renewable=renewable)
            case _:
                return _held(credential.id, secrets, "token", renewable=False)

    async def renewed(self, credential: Credential, refused: Held) -> Held:
        """The token that takes the place of one which the MCP server refused.

        Raises:
            NoToken: none can be had.
        """
        if not isinstance(credential.auth, OAuth) or not refused.renewable:
            raise NoToken("the MCP server refused the credential's token")
        outcome = await self.renew(credential.id, refused.token)
        if outcome is not None and not isinstance(outcome, NewTokens):
            raise NoToken(_told(outcome))
        return await self.present(credential)

    async def renew(self, credential_id: str, stale: Secret) -> Exchanged | None:
        """Have the token renewed unless another has taken the place of `stale` already (None).

        What a caller that is cancelled has begun goes on: half an exchange would lose the refresh token.
        """
        task = self._renewing.get(credential_id)
        if task is None:
            task = asyncio.create_task(self._renew(credential_id, stale), name=f"refresh {credential_id}")
            self._renewing[credential_id] = task
            task.add_done_callback(lambda _: self._renewing.pop(credential_id, None))
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Wait for the exchanges that are under way."""
        await asyncio.gather(*self._renewing.values(), return_exceptions=True)

    async def _renew(self, credential_id: str, stale: Secret) -> Exchanged | None:
        keeper = Keeper(self._keys.present.public, self._backend)
        async with keeper.keeping() as keeping, self._database.transaction() as connection:
            # The vault's row is left alone: whoever locks both locks that one first.
            cursor = await connection.execute(
                "select vault_id, auth::text as auth from vault_credentials"
                " where id = %s and archived_at is null for update",
                (credential_id,),
            )
            row = await cursor.fetchone()
            if row is None:
                return Unreachable("the credential is archived or deleted")
            secrets = await self._keys.opening(
                lambda ring: secret_rows.read_with(connection, credential_id, ring, self._backend)
            )
            if secrets.get("access_token") != stale:
                return None
            auth = msgspec.json.decode(row["auth"], type=Auth)
            if not isinstance(auth, OAuth) or auth.refresh is None or "refresh_token" not in secrets:
                return Unreachable("the credential has no refresh token")
            outcome = await exchange(self._reach, auth.refresh, secrets)
            if isinstance(outcome, NewTokens):
                await self._keep(keeping, connection, credential_id, auth, outcome)
                _log.info("a token was renewed", credential_id=credential_id)
                return outcome
            _log.warning("a token could not be renewed", credential_id=credential_id, reason=_told(outcome))
            if isinstance(outcome, Rejected) and outcome.final:  # what may pass is no failure to be told
                await connection.execute(
                    "select webhook_emit(array['vault_credential.refresh_failed'], %s,"
                    " json_build_object('vault_id', %s::text))",
                    (credential_id, row["vault_id"]),
                )
            return outcome

    async def _keep(
        self,
        keeping: Keeping,
        connection: Connection,
        credential_id: str,
        auth: OAuth,
        tokens: NewTokens,
    ) -> None:
        new: dict[SecretField, Secret] = {"access_token": tokens.access}
        if tokens.refresh is not None:
            new["refresh_token"] = tokens.refresh
        await keeping.keep(connection, credential_id, new)
        expires_at = None
        if tokens.expires_in is not None:
            cursor = await connection.execute("select clock_timestamp() as now")
            row = await cursor.fetchone()
            assert row is not None
            expires_at = to_wire(row["now"] + timedelta(seconds=tokens.expires_in))
        shown = msgspec.structs.replace(auth, expires_at=expires_at)
        await connection.execute(
            "update vault_credentials set auth = %s::json, updated_at = now() where id = %s",
            (msgspec.json.encode(shown).decode(), credential_id),
        )

    async def _opened(self, credential_id: str) -> dict[SecretField, Secret]:
        return await self._keys.opening(
            lambda ring: secret_rows.read(self._database, credential_id, ring, self._backend)
        )

    async def _now(self) -> datetime:
        row = await self._database.fetch_one("select now() as now")
        assert row is not None
        return row["now"]


def _held(
    credential_id: str, secrets: dict[SecretField, Secret], field: SecretField, *, renewable: bool
) -> Held:
    if field not in secrets:
        raise NoToken("the credential was archived, or its secret is gone")
    return Held(credential_id, secrets[field], Scrubber(secrets.values()), renewable)


def _told(outcome: Rejected | Unreachable) -> str:
    if isinstance(outcome, Unreachable):
        return f"its token has run out and could not be renewed: {outcome.reason}"
    return (
        "its token has run out and could not be renewed: the token endpoint answered "
        f"{outcome.response.status_code}"
    )
