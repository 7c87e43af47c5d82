"""Makes sessions, for a request or for a deployment, by the same rules (contract section 8.3).

What a session refers to is resolved and checked first; then everything is written in one transaction.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from psycopg import errors

from corral.inference.prices import PriceTable, packaged_prices
from corral.resources import skill_references
from corral.resources.agents import Agents
from corral.resources.environments import Environments
from corral.resources.file_sources import FileSources
from corral.resources.session_resources import SessionResources
from corral.resources.vaults import Vaults
from corral.session.budget import budget_object
from corral.session.records import Attach, NewSession
from corral.session.service import Sessions
from corral.session.shown import Row
from corral.store.database import Connection
from corral.wire import metadata as meta
from corral.wire.environments import SelfHosted, check_reach
from corral.wire.errors import InvalidRequest
from corral.wire.events import ClientEvent
from corral.wire.multiagent import advisor_model, member_agents
from corral.wire.session_resources import check_available
from corral.wire.sessions import CreateSession

_T = TypeVar("_T")


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
        prices: PriceTable | None = None,
    ) -> None:
        self._agents = agents
        self._environments = environments
        self._sources = sources
        self._session_resources = session_resources
        self._vaults = vaults
        self._sessions = sessions
        self._work = work
        self._prices = prices or packaged_prices()

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
        # At the same time, for the sake of the round trip; of two errors, the agent's is told.
        found, place = await asyncio.gather(
            self._agents.resolve_for_session(params.agent),
            self._environments.for_session(params.environment_id),
            return_exceptions=True,
        )
        agent_id, version, agent = _had(found)
        if params.budget is not None:
            _check_budgetable(agent, self._prices)
        environment = _had(place)
        self_hosted = isinstance(environment.config, SelfHosted)
        if check_network:
            for one in (agent, *member_agents(agent)):
                check_reach(environment.config, one)
        resources = check_available(params.resources or [], environment.id, self_hosted=self_hosted)
        vault_ids = params.vault_ids or []
        await self._vaults.check_usable(vault_ids)
        initial: Sequence[ClientEvent] = params.initial_events or []
        if initial_events is not None:
            initial = initial_events
        await self._sources.check(initial, "initial_events")
        initial = await self._sources.rubrics(initial, "initial_events")
        new = NewSession(
            environment_id=environment.id,
            agent_id=agent_id,
            agent_version=version,
            agent=agent,
            title=params.title,
            metadata=metadata,
            deployment_id=deployment_id,
            vault_ids=vault_ids,
            budget=None if params.budget is None else budget_object(params.budget.cents),
        )
        attaching = self._session_resources.attaching(resources) if resources else None
        steps = [step for step in (attaching, skill_references.attaching(agent), attach) if step is not None]
        try:
            row = await self._sessions.create(new, initial, _all_of(steps))
        except errors.ForeignKeyViolation:
            # The environment may have been deleted since it was looked at; then this says so.
            await self._environments.for_session(environment.id)
            raise
        if self_hosted:
            # A worker may attach before the first message (contract section 12.2).
            await self._work.ensure(row["id"], environment.id)
        return row


def _had(result: _T | BaseException) -> _T:
    if isinstance(result, BaseException):
        raise result
    return result


def _check_budgetable(agent: Mapping[str, Any], prices: PriceTable) -> None:
    """Refuse a budget for an agent whose cost could not be measured (contract section 8.6)."""
    names = [one["model"]["id"] for one in (agent, *member_agents(agent))]
    for name in (*names, advisor_model(agent)):
        if name is not None and prices.find(name) is None:
            raise InvalidRequest(
                f"budget: no list price is available for the model {name}; give it one in inference.prices, "
                "or leave the budget out",
                error_code="model_not_budgetable",
            )


def _all_of(steps: Sequence[Attach]) -> Attach | None:
    if not steps:
        return None

    async def attach(connection: Connection, session_id: str) -> None:
        for step in steps:
            await step(connection, session_id)

    return attach
