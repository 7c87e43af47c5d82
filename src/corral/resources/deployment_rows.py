"""The rows of deployments: what is kept of one, and how the API shows it (contract section 19.1)."""

from datetime import datetime
from typing import Any, Final, LiteralString

import msgspec
from psycopg.rows import DictRow

from corral.resources.schedules import Cron
from corral.store.database import Database
from corral.wire.deployments import (
    CronSchedule,
    Definition,
    Deployment,
    InitialEvent,
    PausedReason,
    Reference,
    Schedule,
    shown_resource,
)
from corral.wire.errors import NotFound
from corral.wire.fields import given
from corral.wire.overrides import AgentRef
from corral.wire.session_resources import ResourceParams
from corral.wire.sessions import BudgetLimit
from corral.wire.times import to_wire

COLUMNS: Final[LiteralString] = (
    "d.id, d.name, d.description, d.agent_id, d.agent_version, d.environment_id,"
    " d.initial_events::text as initial_events, d.resources::text as resources,"
    " d.vault_ids::text as vault_ids, d.budget::text as budget, d.metadata::text as metadata,"
    " d.expression, d.timezone, d.next_run_at, d.last_run_at, d.paused_reason::text as paused_reason,"
    " d.created_at, d.updated_at, d.archived_at, clock_timestamp() as read_at"
)


async def fetch(database: Database, deployment_id: str) -> DictRow:
    """The row of a deployment; raises `NotFound`."""
    row = await database.fetch_one(
        "select " + COLUMNS + " from deployments d where d.id = %s", (deployment_id,)
    )
    return found(row, deployment_id)


def found(row: DictRow | None, deployment_id: str) -> DictRow:
    """The row, if there is one; raises `NotFound`."""
    if row is None:
        raise NotFound(f"Deployment {deployment_id} not found.")
    return row


def definition_of(row: DictRow) -> Definition:
    """What the deployment of a row consists of."""
    schedule = None
    if row["expression"] is not None:
        schedule = CronSchedule(expression=row["expression"], timezone=row["timezone"])
    return Definition(
        name=row["name"],
        description=row["description"],
        agent=AgentRef(id=row["agent_id"], version=row["agent_version"]),
        environment_id=row["environment_id"],
        initial_events=msgspec.json.decode(row["initial_events"], type=list[InitialEvent]),
        resources=msgspec.json.decode(row["resources"], type=list[ResourceParams]),
        vault_ids=msgspec.json.decode(row["vault_ids"], type=list[str]),
        budget=None if row["budget"] is None else msgspec.json.decode(row["budget"], type=BudgetLimit),
        schedule=schedule,
        metadata=msgspec.json.decode(row["metadata"], type=dict[str, str]),
    )


def cron_of(row: DictRow) -> Cron | None:
    """The schedule of a row, or None where it has none.

    Raises:
        InvalidRequest: this machine's time zone database does not know the zone any more.
    """
    if row["expression"] is None:
        return None
    return Cron(CronSchedule(expression=row["expression"], timezone=row["timezone"]))


def shown(row: DictRow) -> Deployment:
    """The deployment of a row as the API shows it."""
    definition = definition_of(row)
    archived = row["archived_at"]
    reason = None
    if row["paused_reason"] is not None:
        reason = msgspec.json.decode(row["paused_reason"], type=PausedReason)
    return Deployment(
        id=row["id"],
        name=definition.name,
        description=definition.description,
        agent=Reference(id=row["agent_id"], version=row["agent_version"]),
        environment_id=definition.environment_id,
        initial_events=[msgspec.to_builtins(event) for event in definition.initial_events],
        resources=[shown_resource(resource) for resource in definition.resources],
        vault_ids=definition.vault_ids,
        budget=None if definition.budget is None else msgspec.to_builtins(definition.budget),
        metadata=definition.metadata,
        schedule=_shown_schedule(row),
        status="active" if reason is None else "paused",
        paused_reason=reason,
        created_at=to_wire(row["created_at"]),
        updated_at=to_wire(row["updated_at"]),
        archived_at=None if archived is None else to_wire(archived),
    )


def _shown_schedule(row: DictRow) -> Schedule | None:
    cron = None if row["archived_at"] is not None else cron_of(row)
    if row["expression"] is None:
        return None
    upcoming = [] if cron is None else cron.upcoming(row["read_at"])
    last: datetime | None = row["last_run_at"]
    return Schedule(
        expression=row["expression"],
        timezone=row["timezone"],
        last_run_at=None if last is None else to_wire(last),
        upcoming_runs_at=[to_wire(moment) for moment in upcoming],
    )


def values(definition: Definition) -> dict[str, Any]:
    """What a definition comes to, by column."""
    schedule = definition.schedule
    return {
        "name": definition.name,
        "description": definition.description,
        "agent_id": definition.agent.id,
        "agent_version": given(definition.agent.version, 1),
        "environment_id": definition.environment_id,
        "initial_events": encoded(definition.initial_events),
        "resources": encoded(definition.resources),
        "vault_ids": encoded(definition.vault_ids),
        "budget": None if definition.budget is None else encoded(definition.budget),
        "metadata": encoded(definition.metadata),
        "expression": None if schedule is None else schedule.expression,
        "timezone": None if schedule is None else schedule.timezone,
    }


def encoded(value: object) -> str:
    """A value as the JSON text that a row keeps."""
    return msgspec.json.encode(value).decode()
