"""A schedule from end to end: servers make the session by themselves, once, and the agent answers in it."""

import asyncio
from typing import Any

from corral.store.database import Database
from corral.testing import ScriptedModel
from tests.corral_server import Corral, SessionUnderTest, running_corral

PATIENCE = 60.0


async def due_deployment(corral: Corral, text: str) -> str:
    """The id of a deployment whose time has come."""
    schedule: Any = {"type": "cron", "expression": "0 12 * * *", "timezone": "Asia/Seoul"}
    made = await corral.client.beta.deployments.create(
        name="Report",
        agent=await corral.agent(),
        environment_id=await corral.environment(),
        initial_events=[{"type": "user.message", "content": [{"type": "text", "text": text}]}],
        schedule=schedule,
    )
    await corral.database.execute(
        "update deployments set next_run_at = date_trunc('second', now()) - jitter where id = %s", (made.id,)
    )
    return made.id


async def started(database: Database) -> None:
    """Return when a session has been made: the bus says so in the database."""
    connection = await database.dedicated()
    try:
        await connection.execute("listen corral")
        row = await (await connection.execute("select 1 from deployment_runs")).fetchone()
        if row is not None:
            return
        async for notice in connection.notifies(timeout=PATIENCE):
            if '"wakes"' in notice.payload:
                return
    finally:
        await connection.close()
    raise AssertionError("no session was made")


async def test_servers_start_what_is_due_by_themselves_exactly_once(
    database_url: str, model: ScriptedModel
) -> None:
    async with running_corral(database_url, model) as one, running_corral(database_url, model) as other:
        deployment_id = await due_deployment(one, "report")
        await started(one.database)
        (session,) = [s async for s in other.client.beta.sessions.list(deployment_id=deployment_id)]
        idle = await SessionUnderTest(other, session.id).idle()
        assert idle.stop_reason.type == "end_turn"
        # Whoever else looks at it, at once or later, finds nothing left to do.
        await asyncio.gather(*(each.services.deployment_runs.start_due() for each in (one, other)))
        runs = [run async for run in one.client.beta.deployment_runs.list(deployment_id=deployment_id)]
    assert [run.session_id for run in runs] == [session.id]
    assert runs[0].trigger_context.type == "schedule"


async def test_what_came_due_while_no_server_ran_starts_with_the_next_server(
    database_url: str, model: ScriptedModel
) -> None:
    async with running_corral(database_url, model, brains=False) as before:
        deployment_id = await due_deployment(before, "report")
    async with running_corral(database_url, model) as after:
        await started(after.database)
        runs = [run async for run in after.client.beta.deployment_runs.list(deployment_id=deployment_id)]
    assert [run.error for run in runs] == [None]
