"""What a session's sandbox is to have, told to the worker that starts it; and what it did outside.

Nothing of it is a secret: variables hold placeholders, which the gateway alone can turn into secrets.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, LiteralString
from urllib.parse import urlsplit

import msgspec

from corral.session.service import Sessions
from corral.store.database import Database
from corral.wire.agents import SessionAgent
from corral.wire.credentials import NamedHosts, Variable
from corral.wire.egress import EgressDecision, PlannedRepository, SandboxPlan, Way
from corral.wire.environments import Cloud, Config, Limited, host_allowed
from corral.wire.errors import Overloaded
from corral.wire.placeholders import placeholder
from corral.wire.times import to_wire

_SESSION: Final[LiteralString] = """
select s.id, s.vault_ids, s.primary_thread_id, s.agent, e.config::text as config,
    (select certificate from gateway_authority) as certificate
from sessions s join environments e on e.id = s.environment_id where s.id = %(session)s
"""

# The first vault that has a variable of a name wins, as it does in the gateway.
_VARIABLES: Final[LiteralString] = """
select c.id, c.vault_id, c.auth::text as auth
from unnest(%(vaults)s::text[]) with ordinality as v (id, position)
    join vault_credentials c on c.vault_id = v.id
where c.archived_at is null and c.auth ->> 'type' = 'environment_variable'
order by v.position, c.created_at, c.id
"""

_REPOSITORIES: Final[LiteralString] = """
select r.id, r.body, coalesce(extract(epoch from t.updated_at)::text, '') as revision
from session_resources r left join session_repository_secrets t on t.resource_id = r.id
where r.session_id = %(session)s and r.type = 'github_repository' order by r.position
"""

# Of what a worker has to bring before a call: changes when a repository comes, goes, or gets another token.
_REVISION: Final[LiteralString] = """
select coalesce(md5(string_agg(r.id || coalesce(t.updated_at::text, ''), ',' order by r.position)), '')
    as revision
from session_resources r left join session_repository_secrets t on t.resource_id = r.id
where r.session_id = %(session)s and r.type = 'github_repository'
"""

_DECISIONS: Final[LiteralString] = """
select host, port, decision, reason, requests, first_at, last_at from egress_decisions
where session_id = %(session)s order by last_at desc, host, port, decision, reason
"""

# A gateway needs about a second to start.
_TRIES: Final = 60
_PAUSE_SECONDS: Final = 0.25
_UNREACHABLE: Final = "credential_host_unreachable_error"


class SandboxPlans:
    """The plans of a database's sessions.

    egress_address: where workers reach the gateway, if they do. package_hosts: what the gateway opens where
    an environment allows package managers.
    """

    def __init__(
        self,
        database: Database,
        sessions: Sessions,
        egress_address: str | None,
        package_hosts: Sequence[str] = (),
    ) -> None:
        self._database = database
        self._sessions = sessions
        self._egress_address = egress_address
        self._package_hosts = tuple(package_hosts)

    async def plan(self, session_id: str) -> SandboxPlan:
        """The plan of a session; raises `NotFound`.

        A credential for hosts that the environment does not let a sandbox reach is told in the session's log,
        once.
        """
        await self._sessions.records.retrieve(session_id)
        row = await self._database.fetch_one(_SESSION, {"session": session_id})
        assert row is not None
        config = msgspec.json.decode(row["config"], type=Config)
        if not isinstance(config, Cloud):
            return SandboxPlan()
        variables = await self._variables(row["vault_ids"])
        if isinstance(config.networking, Limited):
            reachable = self._reachable(config.networking, msgspec.convert(row["agent"], SessionAgent))
            await self._tell_unreachable(session_id, reachable, variables)
        repositories = await self._database.fetch(_REPOSITORIES, {"session": session_id})
        way = None
        if self._egress_address is not None:
            way = Way(self._egress_address, row["certificate"] or await self._first_certificate())
        return SandboxPlan(
            way=way,
            environment={
                variable.secret_name: placeholder(session_id, credential_id)
                for credential_id, (_, variable) in variables.items()
            },
            repositories=[
                PlannedRepository(
                    found["id"],
                    found["body"]["url"],
                    found["body"]["mount_path"],
                    found["body"]["checkout"],
                    found["revision"],
                )
                for found in repositories
            ],
        )

    async def _first_certificate(self) -> str:
        """The certificate that the first gateway of a deployment is about to make.

        Raises:
            Overloaded: there is no gateway.
        """
        for _ in range(_TRIES):
            row = await self._database.fetch_one("select certificate from gateway_authority")
            if row is not None:
                return str(row["certificate"])
            await asyncio.sleep(_PAUSE_SECONDS)
        raise Overloaded("the gateway has not started yet; see its log", retry_after=1)

    async def revision(self, session_id: str) -> str:
        """A text that changes whenever the session's repositories or their tokens do; empty without any."""
        row = await self._database.fetch_one(_REVISION, {"session": session_id})
        assert row is not None
        return str(row["revision"])

    async def report_repository(self, session_id: str, resource_id: str, kind: str, message: str) -> None:
        """Tell in the session's log that a repository could not be cloned; nothing if it is detached.

        Raises:
            NotFound: there is no such session.
        """
        row = await self._database.fetch_one(
            "select body ->> 'url' as url from session_resources"
            " where session_id = %s and id = %s and type = 'github_repository'",
            (session_id, resource_id),
        )
        if row is not None:
            await self._sessions.report(session_id, kind, message, repository_url=row["url"])

    async def decisions(self, session_id: str) -> Sequence[EgressDecision]:
        """Which hosts the session's sandbox has asked for, the latest first; raises `NotFound`."""
        await self._sessions.records.retrieve(session_id)
        rows = await self._database.fetch(_DECISIONS, {"session": session_id})
        return [
            EgressDecision(
                host=row["host"],
                port=row["port"],
                decision=row["decision"],
                reason=row["reason"],
                requests=row["requests"],
                first_at=to_wire(row["first_at"]),
                last_at=to_wire(row["last_at"]),
            )
            for row in rows
        ]

    async def _variables(self, vault_ids: Sequence[str]) -> dict[str, tuple[str, Variable]]:
        """Vault and variable by the credential's id."""
        if not vault_ids:
            return {}
        found: dict[str, tuple[str, Variable]] = {}
        names: set[str] = set()
        for row in await self._database.fetch(_VARIABLES, {"vaults": list(vault_ids)}):
            variable = msgspec.json.decode(row["auth"], type=Variable)
            if variable.secret_name not in names:
                names.add(variable.secret_name)
                found[row["id"]] = (row["vault_id"], variable)
        return found

    def _reachable(self, networking: Limited, agent: SessionAgent) -> list[str]:
        """What the environment opens, as the gateway will see it."""
        hosts = list(networking.allowed_hosts)
        if networking.allow_mcp_servers:
            hosts += [urlsplit(server.url).hostname or "" for server in agent.mcp_servers]
        if networking.allow_package_managers:
            hosts += self._package_hosts
        return hosts

    async def _tell_unreachable(
        self, session_id: str, reachable: list[str], variables: Mapping[str, tuple[str, Variable]]
    ) -> None:
        for credential_id, (vault_id, variable) in variables.items():
            barred = _barred(variable, reachable)
            if barred and not await self._was_told(session_id, credential_id):
                await self._sessions.report(
                    session_id,
                    _UNREACHABLE,
                    f"The environment does not let the sandbox reach {', '.join(barred)}, where the secret "
                    f"of {variable.secret_name} may be sent. Add it to the environment's allowed_hosts.",
                    credential_id=credential_id,
                    vault_id=vault_id,
                )

    async def _was_told(self, session_id: str, credential_id: str) -> bool:
        told: Any = await self._database.fetch_one(
            "select 1 from events where session_id = %s and type = 'session.error'"
            " and readable(body) #>> '{error,type}' = %s"
            " and readable(body) #>> '{error,credential_id}' = %s limit 1",
            (session_id, _UNREACHABLE, credential_id),
        )
        return told is not None


def _barred(variable: Variable, reachable: list[str]) -> list[str]:
    """The hosts of a credential that its environment does not let a sandbox reach."""
    if not isinstance(variable.networking, NamedHosts):
        return []
    # A wildcard is covered by whatever covers a name below it.
    return [
        host
        for host in variable.networking.allowed_hosts
        if not host_allowed(host.replace("*", "any", 1), reachable)
    ]
