"""Deployments: an agent with all that it needs to run by itself, and a schedule (contract section 19).

Whatever a deployment refers to is checked by making the session of a run and undoing it, so that a deployment
is refused for what would make its runs fail, and nothing else.
"""

from datetime import datetime
from typing import Any, Final

import msgspec
from psycopg.rows import DictRow

from corral.resources import deployment_rows as rows
from corral.resources import listing
from corral.resources.agents import Agents
from corral.resources.schedules import Cron, jitter_of
from corral.resources.session_creation import SessionCreation
from corral.store.database import Connection, Database
from corral.wire import metadata as meta
from corral.wire.deployments import (
    CreateDeployment,
    CronSchedule,
    Definition,
    Deployment,
    DeploymentStatus,
    ManualPause,
    PausedReason,
    UpdateDeployment,
)
from corral.wire.errors import Conflict, InvalidRequest
from corral.wire.events import SystemMessage
from corral.wire.fields import UNSET, Id, given
from corral.wire.ids import new_id
from corral.wire.models import supports_system_messages
from corral.wire.overrides import AgentRef
from corral.wire.pagination import Listing, Page, check_within
from corral.wire.query import TimeRange

LIST: Final = "deployments"
SCHEDULED: Final = 1000
"""Most deployments with a schedule that are not archived (contract section 19.1)."""
_ATTEMPTS: Final = 10


class Deployments:
    """The deployments in a database."""

    def __init__(self, database: Database, agents: Agents, creation: SessionCreation) -> None:
        self._database = database
        self._agents = agents
        self._creation = creation

    async def create(self, params: CreateDeployment) -> Deployment:
        """Store a new deployment; its schedule, if it has one, runs from now on.

        Raises:
            NotFound: something that it refers to does not exist.
            InvalidRequest: a rule of contract section 19 does not hold, or no session could be made.
        """
        cron = None if params.schedule is None else Cron(params.schedule)
        definition = Definition(
            name=params.name,
            description=params.description or None,
            agent=AgentRef(id="", version=1),
            environment_id=params.environment_id,
            initial_events=params.initial_events,
            resources=params.resources or [],
            vault_ids=params.vault_ids or [],
            budget=params.budget,
            schedule=params.schedule,
            metadata=meta.created(params.metadata),
        )
        definition = await self._checked(definition, params.agent)
        deployment_id = new_id("depl")
        async with self._database.transaction() as connection:
            await _hold_agent(connection, definition.agent.id)
            if cron is not None:
                await _check_room(connection)
            values = rows.values(definition)
            cursor = await connection.execute(
                "insert into deployments as d (id, name, description, agent_id, agent_version,"
                " environment_id, initial_events, resources, vault_ids, budget, metadata, expression,"
                " timezone, next_run_at, jitter) values (%(id)s, %(name)s, %(description)s, %(agent_id)s,"
                " %(agent_version)s, %(environment_id)s, %(initial_events)s, %(resources)s, %(vault_ids)s,"
                " %(budget)s, %(metadata)s, %(expression)s, %(timezone)s, %(next_run_at)s, %(jitter)s)"
                " returning " + rows.COLUMNS,
                {
                    **values,
                    "id": deployment_id,
                    "next_run_at": None if cron is None else cron.next(await _now(connection)),
                    "jitter": jitter_of(deployment_id),
                },
            )
            return rows.shown(rows.found(await cursor.fetchone(), deployment_id))

    async def retrieve(self, deployment_id: str) -> Deployment:
        """A deployment, archived or not; raises `NotFound`."""
        return rows.shown(await self._row(deployment_id))

    async def update(self, deployment_id: str, params: UpdateDeployment) -> Deployment:
        """Change a deployment for the runs to come; where nothing changes, nothing is written.

        Raises:
            NotFound: there is no such deployment, or something that it would refer to does not exist.
            InvalidRequest: it is archived, or see `create`.
            Conflict: it was changed too often meanwhile.
        """
        cron = Cron(params.schedule) if isinstance(params.schedule, CronSchedule) else None
        for _ in range(_ATTEMPTS):
            row = await self._row(deployment_id)
            if row["archived_at"] is not None:
                raise _read_only("modify")
            stored = rows.definition_of(row)
            new = _merged(stored, params)
            if params.agent is not UNSET or _session_changed(stored, new):
                new = await self._checked(new, new.agent if params.agent is UNSET else params.agent)
            if new == stored:
                return rows.shown(row)
            written = await self._write(row, stored, new, cron)
            if written is not None:
                return rows.shown(written)
        raise Conflict("The deployment is being changed by others; fetch it and try again.")

    async def pause(self, deployment_id: str) -> Deployment:
        """Let the schedule rest; runs by hand go on. A paused deployment stays as it is.

        Raises:
            NotFound: there is no such deployment.
            InvalidRequest: it is archived.
        """
        return await self._set_paused(deployment_id, ManualPause())

    async def unpause(self, deployment_id: str) -> Deployment:
        """Let the schedule go on with its next time; what was missed is not made up for.

        Raises:
            NotFound: there is no such deployment.
            InvalidRequest: it is archived.
        """
        return await self._set_paused(deployment_id, None)

    async def archive(self, deployment_id: str) -> Deployment:
        """Stop a deployment for good; an archived one stays as it is. Raises `NotFound`."""
        await self._database.execute(
            "update deployments set archived_at = now(), updated_at = now(), next_run_at = null,"
            " paused_reason = null where id = %s and archived_at is null",
            (deployment_id,),
        )
        return await self.retrieve(deployment_id)

    async def list(
        self,
        page: Page,
        times: TimeRange,
        *,
        agent_id: str | None = None,
        status: DeploymentStatus | None = None,
        include_archived: bool = False,
    ) -> Listing:
        """Deployments, newest first.

        Raises:
            InvalidRequest: ``times`` excludes the position of the cursor.
        """
        check_within(page.after, times)
        moment, last = listing.start(page.after)
        found = await self._database.fetch(
            "select " + rows.COLUMNS + " from deployments d"
            " where (%(moment)s::timestamptz is null or (d.created_at, d.id) < (%(moment)s, %(last)s))"
            " and (%(archived)s or d.archived_at is null)"
            " and (%(agent_id)s::text is null or d.agent_id = %(agent_id)s)"
            " and (%(paused)s::boolean is null or (d.paused_reason is not null) = %(paused)s)"
            " and (%(gte)s::timestamptz is null or d.created_at >= %(gte)s)"
            " and (%(lte)s::timestamptz is null or d.created_at <= %(lte)s)"
            " order by d.created_at desc, d.id desc limit %(limit)s",
            {
                "moment": moment,
                "last": last,
                "archived": include_archived,
                "agent_id": agent_id,
                "paused": None if status is None else status == "paused",
                "gte": times.gte,
                "lte": times.lte,
                "limit": page.limit + 1,
            },
        )
        kept, next_page = listing.split(found, page, LIST)
        return Listing(data=[rows.shown(row) for row in kept], next_page=next_page)

    async def _checked(self, definition: Definition, agent: Id | AgentRef) -> Definition:
        """The definition with its agent pinned, once its session could be made."""
        agent_id, version, snapshot = await self._agents.resolve_for_session(agent)
        for index, event in enumerate(definition.initial_events):
            if isinstance(event, SystemMessage) and not supports_system_messages(snapshot["model"]["id"]):
                raise InvalidRequest(
                    f"initial_events[{index}]: model {snapshot['model']['id']} does not support system"
                    " messages in mid-conversation",
                    error_code="model_does_not_support_mid_conversation_system",
                )
        pinned = msgspec.structs.replace(definition, agent=AgentRef(id=agent_id, version=version))
        session = pinned.session
        session.check()
        await self._creation.rehearse(session, pinned.initial_events)
        return pinned

    async def _write(
        self, row: DictRow, stored: Definition, new: Definition, cron: Cron | None
    ) -> DictRow | None:
        """The row after an update; None if somebody else has changed it since it was read."""
        async with self._database.transaction() as connection:
            if new.agent != stored.agent:
                await _hold_agent(connection, new.agent.id)
            if new.schedule is not None and stored.schedule is None:
                await _check_room(connection)
            next_run_at = row["next_run_at"]
            if new.schedule != stored.schedule:
                rests = cron is None or row["paused_reason"] is not None
                next_run_at = None if cron is None or rests else cron.next(await _now(connection))
            # A run may have started since: the time that it set stays where the schedule does.
            cursor = await connection.execute(
                "update deployments d set name = %(name)s, description = %(description)s,"
                " agent_id = %(agent_id)s, agent_version = %(agent_version)s,"
                " environment_id = %(environment_id)s, initial_events = %(initial_events)s,"
                " resources = %(resources)s, vault_ids = %(vault_ids)s, budget = %(budget)s,"
                " metadata = %(metadata)s, expression = %(expression)s, timezone = %(timezone)s,"
                " next_run_at = case when %(rescheduled)s then %(next_run_at)s else d.next_run_at end,"
                " updated_at = clock_timestamp()"
                " where d.id = %(id)s and d.updated_at = %(read)s and d.archived_at is null"
                " returning " + rows.COLUMNS,
                {
                    **rows.values(new),
                    "id": row["id"],
                    "read": row["updated_at"],
                    "rescheduled": new.schedule != stored.schedule,
                    "next_run_at": next_run_at,
                },
            )
            return await cursor.fetchone()

    async def _set_paused(self, deployment_id: str, reason: PausedReason | None) -> Deployment:
        async with self._database.transaction() as connection:
            cursor = await connection.execute(
                "select " + rows.COLUMNS + " from deployments d where d.id = %s for update", (deployment_id,)
            )
            row = rows.found(await cursor.fetchone(), deployment_id)
            if row["archived_at"] is not None:
                raise _read_only("pause" if reason is not None else "unpause")
            if (row["paused_reason"] is None) == (reason is None):
                return rows.shown(row)
            cron = rows.cron_of(row)
            active = reason is None and cron is not None
            cursor = await connection.execute(
                "update deployments d set paused_reason = %s, next_run_at = %s,"
                " updated_at = clock_timestamp() where d.id = %s returning " + rows.COLUMNS,
                (
                    None if reason is None else rows.encoded(reason),
                    cron.next(row["read_at"]) if active and cron is not None else None,
                    deployment_id,
                ),
            )
            return rows.shown(rows.found(await cursor.fetchone(), deployment_id))

    async def _row(self, deployment_id: str) -> DictRow:
        return await rows.fetch(self._database, deployment_id)


def _merged(stored: Definition, params: UpdateDeployment) -> Definition:
    """The definition after an update, but for the agent."""
    changes: dict[str, Any] = {
        field: value
        for field in ("name", "environment_id", "initial_events", "budget", "schedule")
        if (value := getattr(params, field)) is not UNSET
    }
    if params.description is not UNSET:
        changes["description"] = params.description or None
    if params.resources is not UNSET:
        changes["resources"] = params.resources or []
    if params.vault_ids is not UNSET:
        changes["vault_ids"] = params.vault_ids or []
    changes["metadata"] = meta.patched(stored.metadata, given(params.metadata, {}))
    return msgspec.structs.replace(stored, **changes)


def _session_changed(stored: Definition, new: Definition) -> bool:
    names = ("environment_id", "initial_events", "resources", "vault_ids", "budget")
    return any(getattr(stored, name) != getattr(new, name) for name in names)


async def _hold_agent(connection: Connection, agent_id: str) -> None:
    """Keep the agent from being archived until the deployment is there, or is archived with it."""
    cursor = await connection.execute("select archived_at from agents where id = %s for share", (agent_id,))
    row = await cursor.fetchone()
    if row is None or row["archived_at"] is not None:
        raise InvalidRequest(f"Agent {agent_id} is archived.")


async def _check_room(connection: Connection) -> None:
    await connection.execute("select pg_advisory_xact_lock(hashtext('corral scheduled deployments'))")
    cursor = await connection.execute(
        "select count(*) as scheduled from deployments where expression is not null and archived_at is null"
    )
    row = await cursor.fetchone()
    if row is not None and row["scheduled"] >= SCHEDULED:
        raise InvalidRequest(f"schedule: at most {SCHEDULED} deployments may have one; archive some first")


async def _now(connection: Connection) -> datetime:
    row = await (await connection.execute("select clock_timestamp() as moment")).fetchone()
    assert row is not None
    return row["moment"]


def _read_only(verb: str) -> InvalidRequest:
    return InvalidRequest(f"Cannot {verb} archived deployment")
