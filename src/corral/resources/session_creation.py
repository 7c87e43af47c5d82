"""Makes sessions, for a request or for a deployment, by the same rules (contract section 8.3).

What a session refers to is resolved and checked first; then everything is written in one transaction.
"""

from collections.abc import Sequence
from typing import Protocol

from corral.resources.agents import Agents
from corral.resources.environments import Environments
from corral.resources.file_sources import FileSources
from corral.resources.session_resources import SessionResources
from corral.resources.vaults import Vaults
from corral.session.records import Attach, NewSession, Row
from corral.session.service import Sessions
from corral.store.database import Connection
from corral.wire import metadata as meta
from corral.wire.environments import SelfHosted, check_reach
from corral.wire.events import ClientEvent
from corral.wire.session_resources import check_available
from corral.wire.sessions import CreateSession


class WorkItems(Protocol):
    """Who sees to it that a session has a work item; `corral.hands.work.WorkQueue` does."""

    async def ensure(self, session_id: str, environment_id: str) -> bool:
        """Queue an item unless the session has one."""
        ...


class _Rehearsed(Exception):
    """Ends the transaction of a rehearsal."""


class SessionCreation:
    """Makes sessions out of the families that they refer to."""

    def __init__(
        self,
        *,
        agents: Agents,
        environments: Environments,
        sources: FileSources,
        session_resources: SessionResources,
        vaults: Vaults,
        sessions: Sessions,
        work: WorkItems,
    ) -> None:
        self._agents = agents
        self._environments = environments
        self._sources = sources
        self._session_resources = session_resources
        self._vaults = vaults
        self._sessions = sessions
        self._work = work

    async def create(
        self,
        params: CreateSession,
        *,
        initial_events: Sequence[ClientEvent] | None = None,
        deployment_id: str | None = None,
        attach: Attach | None = None,
    ) -> Row:
        """The row of a new session: all of it is there afterwards, or nothing.

        `initial_events` stand in for those of `params`, which a deployment may have more kinds of.
        `attach` runs last in the transaction that makes the session; what it raises undoes everything.

        Raises:
            NotFound: something that the session refers to does not exist.
            InvalidRequest: it is archived, or a rule does not hold; the message names the field.
        """
        return await self._make(params, initial_events, deployment_id, attach, check_network=True)

    async def rehearse(self, params: CreateSession, initial_events: Sequence[ClientEvent]) -> None:
        """Check that a session could be made, by making one and undoing it before anyone sees it.

        Whether the agent's hosts are open to it is left out: the environment may still change.

        Raises:
            NotFound, InvalidRequest: see `create`.
        """

        async def undo(connection: Connection, session_id: str) -> None:
            raise _Rehearsed

        try:
            await self._make(params, initial_events, None, undo, check_network=False)
        except _Rehearsed:
            return

    async def _make(
        self,
        params: CreateSession,
        initial_events: Sequence[ClientEvent] | None,
        deployment_id: str | None,
        attach: Attach | None,
        *,
        check_network: bool,
    ) -> Row:
        metadata = meta.created(params.metadata)
        agent_id, version, agent = await self._agents.resolve_for_session(params.agent)
        environment = await self._environments.for_session(params.environment_id)
        self_hosted = isinstance(environment.config, SelfHosted)
        if check_network:
            check_reach(environment.config, agent)
        resources = check_available(params.resources or [], environment.id, self_hosted=self_hosted)
        vault_ids = params.vault_ids or []
        await self._vaults.check_usable(vault_ids)
        initial: Sequence[ClientEvent] = params.initial_events or []
        if initial_events is not None:
            initial = initial_events
        await self._sources.check(initial, "initial_events")
        new = NewSession(
            environment_id=environment.id,
            agent_id=agent_id,
            agent_version=version,
            agent=agent,
            title=params.title,
            metadata=metadata,
            deployment_id=deployment_id,
            vault_ids=vault_ids,
        )
        steps = [self._session_resources.attaching(resources)] if resources else []
        row = await self._sessions.create(new, initial, _all_of([*steps, *([attach] if attach else [])]))
        if self_hosted:
            # A worker may attach before the first message (contract section 12.2).
            await self._work.ensure(row["id"], environment.id)
        return row


def _all_of(steps: Sequence[Attach]) -> Attach | None:
    if not steps:
        return None

    async def attach(connection: Connection, session_id: str) -> None:
        for step in steps:
            await step(connection, session_id)

    return attach
