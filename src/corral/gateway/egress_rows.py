"""What the database says about a sandbox's connection: whose it is, what it may reach, its secrets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, LiteralString

import msgspec
from psycopg.rows import DictRow

from corral.gateway.injection import Injectable
from corral.gateway.keyring import Keys
from corral.gateway.policy import Rules
from corral.hands.work_token import TokenHash
from corral.store.database import Database
from corral.vault import rows as secret_rows
from corral.vault.backends.backend import SecretBackend
from corral.vault.sealing import KeyRing, Place, open_sealed
from corral.wire.credentials import Auth, Variable
from corral.wire.environments import Cloud, Config, Limited
from corral.wire.errors import InvalidRequest
from corral.wire.repositories import Repository, parse_repository
from corral.wire.secret import Secret

# No row: the item is stopped or claimed by another worker, or its session has ended.
_SESSION: Final[LiteralString] = """
select s.id, s.vault_ids, e.id as environment_id, e.name as environment_name, e.config::text as config,
    (
        select coalesce(json_agg(json_build_array(r.id, r.body ->> 'url') order by r.position), '[]')
        from session_resources r where r.session_id = s.id and r.type = 'github_repository'
    ) as repositories
from work w join sessions s on s.id = w.session_id join environments e on e.id = s.environment_id
where w.token_hash = %(hash)s and w.state <> 'stopped'
    and s.archived_at is null and s.status <> 'terminated'
"""

_LIVE: Final[LiteralString] = """
select w.token_hash from work w join sessions s on s.id = w.session_id
where w.token_hash = any(%(hashes)s) and w.state <> 'stopped'
    and s.archived_at is null and s.status <> 'terminated'
"""

# Of the agent itself, and of those that it may set to work.
_MCP_URLS: Final[LiteralString] = """
select m ->> 'url' as url
from sessions s,
    lateral (
        select s.agent as agent
        union all
        select json_array_elements(
            case when json_typeof(s.agent #> '{multiagent,agents}') = 'array'
            then s.agent #> '{multiagent,agents}' else '[]' end
        )
        union all
        select json_array_elements(
            case when json_typeof(s.agent #> '{multiagent,subagents,predefined_agents}') = 'array'
            then s.agent #> '{multiagent,subagents,predefined_agents}' else '[]' end
        )
    ) a,
    lateral json_array_elements(
        case when json_typeof(a.agent -> 'mcp_servers') = 'array' then a.agent -> 'mcp_servers' else '[]' end
    ) m
where s.id = %(session)s
"""

# The first vault that has a variable of a name wins.
_VARIABLES: Final[LiteralString] = """
select c.id, c.vault_id, c.auth::text as auth
from unnest(%(vaults)s::text[]) with ordinality as v (id, position)
    join vault_credentials c on c.vault_id = v.id
where c.archived_at is null and c.auth ->> 'type' = 'environment_variable'
order by v.position, c.created_at, c.id
"""


@dataclass(frozen=True, slots=True)
class EgressSession:
    """The session of a connection, as it is now."""

    id: str
    environment_id: str
    environment_name: str
    vault_ids: tuple[str, ...]
    rules: Rules


class EgressRows:
    """Reads of a database. keys, backend: what opens secrets."""

    def __init__(self, database: Database, keys: Keys, backend: SecretBackend | None = None) -> None:
        self._database = database
        self._keys = keys
        self._backend = backend

    async def session(self, token: TokenHash) -> EgressSession | None:
        """The session whose work item has this token; None if nobody may use it any more."""
        row = await self._database.fetch_one(_SESSION, {"hash": token})
        if row is None:
            return None
        config = msgspec.json.decode(row["config"], type=Config)
        networking = config.networking if isinstance(config, Cloud) else None
        urls = list[str]()
        if isinstance(networking, Limited) and networking.allow_mcp_servers:
            found = await self._database.fetch(_MCP_URLS, {"session": row["id"]})
            urls = [str(one["url"]) for one in found]
        return EgressSession(
            row["id"],
            row["environment_id"],
            row["environment_name"],
            tuple(row["vault_ids"]),
            Rules(config, urls, [_repository(id, url) for id, url in row["repositories"]]),
        )

    async def live(self, tokens: Sequence[TokenHash]) -> frozenset[TokenHash]:
        """Which of these tokens are still good."""
        rows = await self._database.fetch(_LIVE, {"hashes": list(tokens)})
        return frozenset(bytes(row["token_hash"]) for row in rows)

    async def injectable(self, session: EgressSession) -> list[Injectable]:
        """The secrets that the session's sandbox knows by placeholders."""
        if not session.vault_ids or not isinstance(session.rules.config, Cloud):
            return []
        rows = await self._database.fetch(_VARIABLES, {"vaults": list(session.vault_ids)})
        return [
            Injectable.of(session.id, row["id"], row["vault_id"], variable)
            for row, variable in first_of_each_name(rows)
        ]

    async def secret_value(self, credential_id: str) -> Secret | None:
        """A variable's secret; None if it was purged. Raises `CannotOpen`."""

        async def read(ring: KeyRing) -> Secret | None:
            secrets = await secret_rows.read(self._database, credential_id, ring, self._backend)
            return secrets.get("secret_value")

        return await self._keys.opening(read)

    async def repository_token(self, resource_id: str) -> Secret | None:
        """The token of an attached repository; None if it has none. Raises `CannotOpen`."""
        row = await self._database.fetch_one(
            "select sealed from session_repository_secrets where resource_id = %s", (resource_id,)
        )
        if row is None:
            return None

        async def opened(ring: KeyRing) -> Secret:
            return open_sealed(row["sealed"], Place(resource_id, "token"), ring)

        return await self._keys.opening(opened)


def first_of_each_name(rows: Sequence[DictRow]) -> list[tuple[Mapping[str, Any], Variable]]:
    """Rows of `_VARIABLES` with what is in them, once for each variable's name."""
    found = dict[str, tuple[Mapping[str, Any], Variable]]()
    for row in rows:
        auth = msgspec.json.decode(row["auth"], type=Auth)
        if isinstance(auth, Variable):
            found.setdefault(auth.secret_name, (row, auth))
    return list(found.values())


def _repository(id: str, url: str) -> Repository:
    # It was checked when it was attached; the operator may have narrowed the hosts since.
    host = url.removeprefix("https://").partition("/")[0]
    try:
        return parse_repository(url, [host], "", id)
    except InvalidRequest as error:
        raise ValueError(f"resource {id} has a URL that is none") from error
