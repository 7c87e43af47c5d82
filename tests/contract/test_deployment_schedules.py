"""Runs of deployments by their schedule: once each, whichever server sees the time first (contract 19.3)."""

import asyncio
from typing import Any

import psycopg
import pytest

from corral.bus.postgres import PostgresBus
from corral.resources.deployment_runs import DeploymentRuns
from corral.resources.session_creation import SessionCreation
from corral.session.service import Sessions
from corral.session.writer import LogWriter
from corral.store.database import Database

from .conftest import Api, running
from .due import make_due, next_run_at, runs_of
from .test_deployments import NOON, deployment


async def test_what_is_due_runs_once_with_its_exact_time_and_the_next_one_is_planned(api: Api) -> None:
    made = await deployment(api, schedule=NOON)
    planned = await make_due(api, made.id)
    await api.services.deployment_runs.start_due()
    await api.services.deployment_runs.start_due()
    (run,) = await runs_of(api, made.id)
    assert run.trigger_context.type == "schedule"
    assert run.trigger_context.scheduled_at.isoformat() == planned
    assert run.session_id is not None
    assert (await api.sdk.beta.sessions.retrieve(run.session_id)).deployment_id == made.id
    shown = await api.sdk.beta.deployments.retrieve(made.id)
    assert shown.schedule is not None
    assert shown.schedule.last_run_at is not None
    assert shown.schedule.upcoming_runs_at
    assert await next_run_at(api, made.id) == shown.schedule.upcoming_runs_at[0]
    assert shown.updated_at == made.updated_at


async def test_nothing_starts_before_its_time_and_jitter(api: Api) -> None:
    made = await deployment(api, schedule=NOON)
    await make_due(api, made.id, "-1 second")
    await api.services.deployment_runs.start_due()
    await api.database.execute("update deployments set jitter = '1 hour' where id = %s", (made.id,))
    await make_due(api, made.id)
    await api.services.deployment_runs.start_due()
    assert await runs_of(api, made.id) == []


async def test_a_time_that_was_missed_for_long_is_left_out_and_the_schedule_goes_on(api: Api) -> None:
    made = await deployment(api, schedule=NOON)
    await make_due(api, made.id, "3 hours")
    # So that the last noon cannot be a fresh one, whenever this test runs.
    await api.database.execute(
        "update deployments set expression = to_char(now() - interval '1 hour', 'FMMI FMHH24') || ' * * *',"
        " timezone = 'UTC' where id = %s",
        (made.id,),
    )
    await api.services.deployment_runs.start_due()
    assert await runs_of(api, made.id) == []
    row = await api.database.fetch_one("select next_run_at > now() as ahead from deployments")
    assert row == {"ahead": True}


async def test_of_several_missed_times_the_last_one_runs(api: Api) -> None:
    made = await deployment(api, schedule={"type": "cron", "expression": "* * * * *", "timezone": "UTC"})
    await make_due(api, made.id, "2 days")
    await api.services.deployment_runs.start_due()
    (run,) = await runs_of(api, made.id)
    assert run.trigger_context.type == "schedule"
    assert 0 <= (run.created_at - run.trigger_context.scheduled_at).total_seconds() < 60


@pytest.mark.parametrize("action", ["pause", "archive"])
async def test_a_paused_or_archived_deployment_does_not_run_by_its_schedule(api: Api, action: str) -> None:
    made = await deployment(api, schedule=NOON)
    await make_due(api, made.id)
    await getattr(api.sdk.beta.deployments, action)(made.id)
    await api.services.deployment_runs.start_due()
    assert await runs_of(api, made.id) == []
    assert await next_run_at(api, made.id) is None


async def test_what_was_missed_during_a_pause_is_not_made_up_for(api: Api) -> None:
    made = await deployment(api, schedule=NOON)
    await make_due(api, made.id)
    await api.sdk.beta.deployments.pause(made.id)
    await api.sdk.beta.deployments.unpause(made.id)
    await api.services.deployment_runs.start_due()
    assert await runs_of(api, made.id) == []


async def test_a_deployment_whose_agent_is_gone_is_archived_without_a_run(api: Api) -> None:
    made = await deployment(api, schedule=NOON)
    await make_due(api, made.id)
    await api.database.execute("delete from agents where id = %s", (made.agent.id,))
    await api.services.deployment_runs.start_due()
    assert await runs_of(api, made.id) == []
    assert (await api.sdk.beta.deployments.retrieve(made.id)).archived_at is not None


async def test_two_servers_that_see_the_same_time_come_start_one_run(api: Api, database: Database) -> None:
    made = [await deployment(api, schedule=NOON) for _ in range(4)]
    for each in made:
        await make_due(api, each.id)
    async with running(database) as other:
        await asyncio.gather(
            *(one.services.deployment_runs.start_due() for one in (api, other) for _ in range(3))
        )
    for each in made:
        assert len(await runs_of(api, each.id)) == 1
    assert len((await api.get("/v1/sessions")).json()["data"]) == len(made)


async def test_a_run_for_a_time_that_has_one_already_is_not_started_again(api: Api) -> None:
    made = await deployment(api, schedule=NOON)
    await make_due(api, made.id)
    await api.services.deployment_runs.start_due()
    await api.database.execute(
        "update deployments set next_run_at = (select scheduled_at from deployment_runs) where id = %s",
        (made.id,),
    )
    await api.services.deployment_runs.start_due()
    assert len(await runs_of(api, made.id)) == 1
    assert len((await api.get("/v1/sessions")).json()["data"]) == 1
    row = await api.database.fetch_one("select next_run_at > now() as ahead from deployments")
    assert row == {"ahead": True}


async def test_a_server_that_dies_in_the_middle_of_a_run_leaves_it_to_the_next_one(api: Api) -> None:
    made = await deployment(api, schedule=NOON)
    planned = await make_due(api, made.id)
    blocker = await api.database.dedicated()
    watcher = await api.database.dedicated()
    async with (
        PostgresBus(api.database) as bus,
        LogWriter(api.database, bus) as writer,
        Database(api.database.url, name="doomed") as doomed,
    ):
        dying = runs_on(doomed, api, writer, bus)
        try:
            # The session is written, the run's record is not, and then the server ends.
            await blocker.execute("begin")
            await blocker.execute("lock table deployment_runs in exclusive mode")
            task = asyncio.create_task(dying.start_due())
            await until_blocked(watcher, "doomed")
            task.cancel()
            await watcher.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'doomed'"
            )
            await blocker.execute("rollback")
            with pytest.raises(asyncio.CancelledError):
                await task
        finally:
            await blocker.close()
            await watcher.close()
    assert await runs_of(api, made.id) == []
    assert (await api.get("/v1/sessions")).json()["data"] == []
    await api.services.deployment_runs.start_due()
    (run,) = await runs_of(api, made.id)
    assert run.trigger_context.type == "schedule"
    assert run.trigger_context.scheduled_at.isoformat() == planned
    assert len((await api.get("/v1/sessions")).json()["data"]) == 1


def runs_on(doomed: Database, api: Api, writer: LogWriter, bus: PostgresBus) -> DeploymentRuns:
    """The service of a server whose connections can be told from the others'."""
    services = api.services
    creation = SessionCreation(
        agents=services.agents,
        environments=services.environments,
        sources=services.sources,
        session_resources=services.session_resources,
        vaults=services.vaults,
        sessions=Sessions(doomed, writer, bus),
        work=services.work,
    )
    return DeploymentRuns(doomed, creation)


async def until_blocked(watcher: psycopg.AsyncConnection[Any], name: str) -> None:
    """Return once a statement of the connections of this name waits for a lock."""
    for _ in range(10_000):
        cursor = await watcher.execute(
            "select 1 from pg_stat_activity where application_name = %s and wait_event_type = 'Lock'", (name,)
        )
        if await cursor.fetchone() is not None:
            return
    raise AssertionError("nothing came to wait for the lock")
