"""Three servers on one database: what nobody asks for happens once, whatever connections are lost."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from corral.settings import Settings
from corral.testing import ScriptedModel
from tests.corral_server import Corral, SessionUnderTest, running_corral
from tests.e2e.dreaming import Dreamer, call, until
from tests.e2e.test_replicas import stream, texts_of
from tests.e2e.test_schedules import due_deployment
from tests.e2e.test_webhooks import registered, settings_with
from tests.webhook_receiver import receiving


@asynccontextmanager
async def replicas(
    database_url: str, model: ScriptedModel, settings: Settings | None = None
) -> AsyncGenerator[list[Corral]]:
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(running_corral(database_url, model, settings=settings))
            for _ in range(3)
        ]


async def cut_listeners(corral: Corral) -> int:
    """End every connection on which a server hears of what the others do; how many there were."""
    return await corral.database.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where query = 'listen corral' and datname = current_database()"
    )


async def test_a_schedule_a_webhook_and_a_dream_happen_once(database_url: str, model: ScriptedModel) -> None:
    async with (
        receiving() as receiver,
        replicas(database_url, model, settings_with(model)) as (one, two, three),
    ):
        made = await registered(one, receiver.base_url + "/hook", "session.status_idled")
        dreamer = await Dreamer.on(two)
        write = call("memory_write", path="/new.md", content="Blanks.")
        dream = await dreamer.updating([{"tools": [write]}, {"text": "done"}])
        deployment_id = await due_deployment(three, "report")
        runs: list[Any] = []
        async with asyncio.timeout(60):
            while not runs:
                await asyncio.sleep(0.1)
                listed = one.client.beta.deployment_runs.list(deployment_id=deployment_id)
                runs = [run async for run in listed]
        assert runs[0].session_id is not None
        scheduled = SessionUnderTest(two, runs[0].session_id)
        await scheduled.idle()
        ended = await until(one, dream.id, "completed")
        assert ended.status == "completed"
        assert (await dreamer.contents())["/new.md"] == "Blanks."
        # One message for each turn that ended, whichever server sent it; none for what is looked at again.
        idles = await one.database.fetch_one(
            "select count(*) as turns from events where type = 'session.status_idle'"
        )
        assert idles is not None
        await receiver.until(idles["turns"])
        for corral in (one, two, three):
            await corral.services.deployment_runs.start_due()
            await corral.services.webhooks.deliveries.deliver_due()
        messages = receiver.messages
        sessions = [message.unwrapped(made["secret"]).data.id for message in messages]
        assert len({message.headers["webhook-id"] for message in messages}) == len(sessions) == idles["turns"]
        assert scheduled.id in sessions
        made_by_schedule = [s async for s in one.client.beta.sessions.list(deployment_id=deployment_id)]
        assert [session.id for session in made_by_schedule] == [scheduled.id]


async def test_a_stream_and_a_turn_survive_the_loss_of_every_listener(
    database_url: str, model: ScriptedModel
) -> None:
    async with (
        running_corral(database_url, model, brains=False) as front,
        running_corral(database_url, model),
        running_corral(database_url, model),
    ):
        session = await front.session()
        async with stream(front, session.id, "agent.message") as frames:
            await session.says("go", script=[{"text": "before", "hold": "there"}, {"text": "after"}])
            await model.until_holding("there")
            assert await cut_listeners(front) == 3
            model.release("there")
            seen = await frames.until("session.status_idle")
            assert await cut_listeners(front) >= 0
            await session.says("and on")
            seen += await frames.until("session.status_idle")
        listed = [event.id for event in await session.events()]
    assert [event["id"] for event in seen if event.get("processed_at")] == listed
    answers = [event["content"][0]["text"] for event in seen if event["type"] == "agent.message"]
    assert answers[0] == "before"
    assert len(answers) == 2
    # Previews may have been lost; of those that came each is the beginning of its event.
    final = {event["id"]: event["content"][0]["text"] for event in seen if event["type"] == "agent.message"}
    for event_id in {event["event_id"] for event in seen if event["type"] == "event_delta"}:
        pieces = [event for event in seen if event.get("event_id") == event_id]
        assert final[event_id].startswith("".join(texts_of(pieces)))


async def test_sessions_go_on_after_every_connection_to_the_database_was_cut(
    database_url: str, model: ScriptedModel
) -> None:
    """As a restart of PostgreSQL does it: pools, listeners, the log's writers, the brains' locks."""
    async with replicas(database_url, model) as servers:
        sessions = [await server.session() for server in servers]
        for number, session in enumerate(sessions):
            await session.says("go", script=[{"text": f"answer {number}", "hold": "there"}])
        await model.until_holding("there", 3)
        connection = await servers[0].database.dedicated()
        await connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        )
        await connection.close()
        model.release("there")
        async with asyncio.timeout(60):
            for number, session in enumerate(sessions):
                assert (await session.idle()).stop_reason.type == "end_turn"
                answers = [event for event in await session.events() if event.type == "agent.message"]
                assert [answer.content[0].text for answer in answers] == [f"answer {number}"]
