"""Webhooks from end to end: what happens in a running Corral reaches a real receiver, by the official SDK."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from corral.resources.webhook_services import open_webhooks
from corral.settings import Brain, Inference, Settings, Webhooks
from corral.settings.background import DeclaredWebhook
from corral.store.database import Database
from corral.testing import ScriptedModel
from corral.wire.secret import Secret
from corral.wire.webhook_signing import new_secret
from corral.wire.webhooks import CreateWebhook
from tests.corral_server import Corral, running_corral
from tests.webhook_receiver import authority, receiving


def settings_with(model: ScriptedModel, **webhooks: Any) -> Settings:
    """The settings of a server whose webhooks may go to the loopback, and are sent again without delay."""
    given: dict[str, Any] = {
        "internal": ["127.0.0.0/8", "localhost", "::1"],
        "retry_backoff_seconds": 0.01,
        "retry_backoff_max_seconds": 0.02,
        "timeout_seconds": 5.0,
        **webhooks,
    }
    return Settings(
        inference=Inference(
            provider="gateway",
            base_url=model.base_url,
            retry_backoff_seconds=0.01,
            retry_backoff_max_seconds=0.05,
        ),
        brain=Brain(lease_seconds=2.0),
        webhooks=Webhooks(**given),
    )


async def registered(corral: Corral, url: str, *events: str) -> dict[str, Any]:
    """A new endpoint, with its secret."""
    async with httpx.AsyncClient(base_url=corral.base_url, headers={"x-api-key": corral.api_key}) as http:
        response = await http.post("/corral/v1/webhooks", json={"url": url, "events": list(events)})
    assert response.status_code == 200, response.text
    return response.json()


async def test_a_turn_is_told_over_https_and_unwraps_with_the_official_sdk(
    database_url: str, model: ScriptedModel, tmp_path: Path
) -> None:
    folder = authority(tmp_path)
    settings = settings_with(model, ca_file=str(folder / "ca.pem"))
    async with (
        receiving(tls=folder) as receiver,
        running_corral(database_url, model, settings=settings) as corral,
    ):
        made = await registered(
            corral, receiver.base_url + "/hook?a=b", "session.status_run_started", "session.status_idled"
        )
        session = await corral.session()
        await session.says("go", script=[{"text": "done"}])
        await session.idle()
        messages = await receiver.until(2)
    events = [message.unwrapped(made["secret"]) for message in messages]
    assert sorted(event.data.type for event in events) == [
        "session.status_idled",
        "session.status_run_started",
    ]
    assert {event.data.id for event in events} == {session.id}
    for event, message in zip(events, messages, strict=True):
        assert message.headers["webhook-id"] == event.id
        assert message.headers["content-type"] == "application/json"
        assert message.headers["host"].startswith("localhost:")
        assert message.path == "/hook?a=b"


async def test_an_event_that_was_not_taken_is_sent_again_by_itself(
    database_url: str, model: ScriptedModel
) -> None:
    async with (
        receiving() as receiver,
        running_corral(database_url, model, settings=settings_with(model)) as corral,
    ):
        made = await registered(corral, receiver.base_url + "/", "agent.created")
        receiver.answers[:] = [(503, {}), (500, {})]
        agent = await corral.agent()
        messages = await receiver.until(3)
    events = [message.unwrapped(made["secret"]) for message in messages]
    assert len({event.id for event in events}) == 1
    assert [event.data.id for event in events] == [agent] * 3


async def test_several_servers_tell_each_event_once(database_url: str, model: ScriptedModel) -> None:
    settings = settings_with(model)
    async with (
        receiving() as receiver,
        running_corral(database_url, model, settings=settings) as one,
        running_corral(database_url, model, settings=settings) as other,
    ):
        made = await registered(one, receiver.base_url + "/", "session.status_idled")
        sessions = [await server.session() for server in (one, other) for _ in range(8)]
        await asyncio.gather(*(session.says("go", script=[{"text": "done"}]) for session in sessions))
        await asyncio.gather(*(session.idle() for session in sessions))
        await receiver.until(len(sessions))
        # Whoever looks once more, at once or later, finds nothing left.
        await asyncio.gather(*(each.services.webhooks.deliveries.deliver_due() for each in (one, other)))
        told = [message.unwrapped(made["secret"]).data.id for message in receiver.messages]
    assert sorted(told) == sorted(session.id for session in sessions)


async def test_what_a_server_without_webhooks_at_work_writes_is_told_by_another(
    database_url: str, model: ScriptedModel
) -> None:
    settings = settings_with(model)
    async with receiving() as receiver:
        async with running_corral(database_url, model, settings=settings, brains=False) as front:
            made = await registered(front, receiver.base_url + "/", "agent.created")
            agent = await front.agent()
            assert receiver.messages == []
            async with running_corral(database_url, model, settings=settings):
                (message,) = await receiver.until(1)
                await front.agent()
                await receiver.until(2)
    assert message.unwrapped(made["secret"]).data.id == agent


async def test_an_endpoint_of_the_settings_is_told_from_the_start(
    database_url: str, model: ScriptedModel
) -> None:
    secret = new_secret()
    async with receiving() as receiver:
        settings = settings_with(
            model,
            endpoints=[DeclaredWebhook(name="ci", url=receiver.base_url + "/", events=["agent.created"])],
            secrets=Secret(f"ci={secret.reveal()}"),
        )
        async with running_corral(database_url, model, settings=settings) as corral:
            agent = await corral.agent()
            (message,) = await receiver.until(1)
    assert message.unwrapped(secret.reveal()).data.id == agent


@asynccontextmanager
async def server(database_url: str, model: ScriptedModel) -> AsyncGenerator[asyncio.subprocess.Process]:
    """`corral serve` as a process of its own; killed at the end if it still lives."""
    given: Mapping[str, str] = {
        "CORRAL_STORE__URL": database_url,
        "CORRAL_SERVER__PORT": "0",
        "CORRAL_INFERENCE__PROVIDER": "gateway",
        "CORRAL_INFERENCE__BASE_URL": model.base_url,
        "CORRAL_WEBHOOKS__INTERNAL": "[127.0.0.1]",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "corral.cli", "serve", "--json",
        env={**os.environ, **given},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        assert await process.stdout.readline()
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await process.stdout.read()


async def test_what_a_killed_server_was_telling_is_told_again_by_the_next_with_the_same_id(
    database_url: str, database: Database, model: ScriptedModel
) -> None:
    async with receiving() as receiver:
        settings = Webhooks(internal=["127.0.0.1"])
        async with open_webhooks(database, settings) as webhooks:
            _, secret = await webhooks.endpoints.create(
                CreateWebhook(url=receiver.base_url + "/", events=["agent.created"])
            )
        async with server(database_url, model) as first:
            receiver.held = asyncio.Event()
            await database.execute("insert into agents (id, version) values ('agent_1', 1)")
            await receiver.until(1)
            first.kill()
            await first.wait()
        receiver.held.set()
        receiver.held = None
        # The time in which the dead server might still have come back goes by.
        await database.execute("update webhook_deliveries set due_at = now(), leased_until = now()")
        async with server(database_url, model):
            messages = await receiver.until(2)
    first_time, again = (message.unwrapped(secret.reveal()) for message in messages)
    assert first_time.id == again.id
    assert again.data.id == "agent_1"
