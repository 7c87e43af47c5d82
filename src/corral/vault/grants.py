"""Grants: what a server shows to the gateway, for one session or for one validation of one credential.

Whoever can write to the database can make one; the gateway accepts it only while it holds. A grant of a
session is bound to the fencing epoch, so it ends when another brain takes the session, when the session is
archived, terminated or deleted, and by its time.
"""

import hashlib
import secrets
from typing import Any, Final

import msgspec

from corral.store.database import Database
from corral.wire.secret import Secret

SESSION_SECONDS: Final = 3600.0
"""How long a session's grant holds; a brain that needs one for longer makes another."""

_VALIDATION_SECONDS: Final = 60.0
_MARK: Final = "corral_gg_"


class GrantedSession(msgspec.Struct, frozen=True):
    """The session that a grant is for, as it is now."""

    session_id: str
    environment_id: str
    environment_name: str
    environment_config: dict[str, Any]
    agent: dict[str, Any]
    agent_id: str
    vault_ids: list[str]
    callers: tuple[dict[str, Any], ...] = ()
    """The agents that this one works for, the nearest first."""

    def on_thread(self, agent: dict[str, Any]) -> "GrantedSession":
        """The same session for the agent of one of its child threads."""
        agent_id = agent.get("id", self.agent_id)
        return msgspec.structs.replace(self, agent=agent, agent_id=agent_id, callers=self.chain)

    @property
    def chain(self) -> tuple[dict[str, Any], ...]:
        """The agent and those that it works for, the nearest first."""
        return (self.agent, *self.callers)

    def server_url(self, server_name: str) -> str | None:
        """The URL of an MCP server of the session's agent; None if it has none by this name."""
        for server in self.agent["mcp_servers"]:
            if server["name"] == server_name:
                return str(server["url"])
        return None


class Grants:
    """Makes grants and accepts them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def for_session(self, session_id: str, epoch: int, *, seconds: float = SESSION_SECONDS) -> Secret:
        """A grant for the brain that has the session under this epoch; those that ran out are removed."""
        token = _new()
        await self._database.execute(
            "with gone as (delete from gateway_grants where expires_at < now())"
            " insert into gateway_grants (token_hash, session_id, epoch, expires_at)"
            " values (%s, %s, %s, now() + %s * interval '1 second')",
            (_hash(token.reveal()), session_id, epoch, seconds),
        )
        return token

    async def for_validation(self, credential_id: str) -> Secret:
        """A grant for one validation of a credential, within a minute."""
        token = _new()
        await self._database.execute(
            "insert into gateway_grants (token_hash, credential_id, expires_at)"
            " values (%s, %s, now() + %s * interval '1 second')",
            (_hash(token.reveal()), credential_id, _VALIDATION_SECONDS),
        )
        return token

    async def revoke(self, token: Secret) -> None:
        """End a grant; one that has ended already stays so."""
        await self._database.execute(
            "delete from gateway_grants where token_hash = %s", (_hash(token.reveal()),)
        )

    async def session(self, token: str) -> GrantedSession | None:
        """The session that a token opens now, or None."""
        row = await self._database.fetch_one(
            "select s.id, s.environment_id, e.name, e.config::text as config, s.agent::text as agent,"
            " s.agent_id, s.vault_ids from gateway_grants g join sessions s on s.id = g.session_id"
            " join environments e on e.id = s.environment_id"
            " where g.token_hash = %s and g.expires_at > now() and g.epoch = s.epoch"
            " and s.archived_at is null and s.status <> 'terminated'",
            (_hash(token),),
        )
        if row is None:
            return None
        return GrantedSession(
            row["id"],
            row["environment_id"],
            row["name"],
            msgspec.json.decode(row["config"]),
            msgspec.json.decode(row["agent"]),
            row["agent_id"],
            row["vault_ids"],
        )

    async def validation(self, token: str) -> str | None:
        """The id of the credential that a token lets be validated, once; None if it does not."""
        row = await self._database.fetch_one(
            "delete from gateway_grants where token_hash = %s and credential_id is not null"
            " returning credential_id, expires_at > now() as holds",
            (_hash(token),),
        )
        return row["credential_id"] if row is not None and row["holds"] else None


def _new() -> Secret:
    return Secret(_MARK + secrets.token_urlsafe(32))


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()
