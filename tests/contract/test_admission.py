"""How much a server takes on: beyond it clients are told when to come back, and workers are served."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest
from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient
from msgspec import structs

from corral.api.body_room import BodyRoom
from corral.settings import Load
from corral.testing import ScriptedModel
from corral.wire.errors import Overloaded
from tests.corral_server import Corral, running_corral
from tests.e2e.mcp_house import settings_with
from tests.e2e.test_replicas import stream


@asynccontextmanager
async def bounded(
    database_url: str, model: ScriptedModel, *, brains: bool = False, **load: Any
) -> AsyncGenerator[tuple[Corral, httpx.AsyncClient]]:
    """A server with these bounds, and plain HTTP with its key."""
    settings = structs.replace(settings_with(None, model), load=Load(**load))
    async with running_corral(database_url, model, settings=settings, brains=brains) as corral:
        headers = {"x-api-key": corral.api_key}
        async with httpx.AsyncClient(base_url=corral.base_url, headers=headers, timeout=30) as http:
            yield corral, http


def check_refusal(response: httpx.Response, status: int, kind: str) -> None:
    assert response.status_code == status, response.text
    assert response.json()["error"]["type"] == kind
    assert int(response.headers["retry-after"]) >= 1
    assert response.headers["x-should-retry"] == "true"


async def hanging(corral: Corral, stack: AsyncExitStack) -> asyncio.StreamWriter:
    """A request whose body never comes, and which so stays under way."""
    host, port = corral.base_url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    stack.callback(writer.close)
    head = f"POST /v1/agents HTTP/1.1\r\nhost: x\r\nx-api-key: {corral.api_key}\r\ncontent-length: 9\r\n\r\n"
    writer.write(head.encode())
    await writer.drain()
    return writer


async def until(http: httpx.AsyncClient, path: str, status: int) -> httpx.Response:
    """The first answer of this status."""
    async with asyncio.timeout(20):
        while (response := await http.get(path)).status_code != status:
            pass
    return response


async def test_a_key_has_so_many_streams_and_another_key_as_many(
    database_url: str, model: ScriptedModel
) -> None:
    async with bounded(database_url, model, max_streams_per_key=2) as (corral, http):
        session = await corral.session()
        path = f"/v1/sessions/{session.id}/events/stream"
        async with AsyncExitStack() as stack:
            for _ in range(2):
                await stack.enter_async_context(stream(corral, session.id))
            check_refusal(await http.get(path), 429, "rate_limit_error")
            _, other = await corral.services.keys.create("api", "other")
            async with http.stream("GET", path, headers={"x-api-key": other}) as elsewhere:
                assert elsewhere.status_code == 200
        # A place is free again once a stream has ended.
        async with stream(corral, session.id):
            pass


async def test_a_server_holds_so_many_streams_whoever_asks(database_url: str, model: ScriptedModel) -> None:
    async with bounded(database_url, model, max_streams=1) as (corral, http):
        session = await corral.session()
        _, other = await corral.services.keys.create("api", "other")
        async with stream(corral, session.id):
            response = await http.get(
                f"/v1/sessions/{session.id}/events/stream", headers={"x-api-key": other}
            )
            check_refusal(response, 529, "overloaded_error")
            # Streams take no places of requests.
            assert (await http.get("/v1/agents")).status_code == 200


async def test_requests_beyond_the_bounds_are_refused_and_workers_are_not(
    database_url: str, model: ScriptedModel
) -> None:
    async with bounded(database_url, model, max_requests=2, max_requests_per_key=1) as (corral, http):
        environment = await corral.environment("self_hosted")
        _, worker = await corral.services.keys.create("environment", "worker", environment)
        _, other = await corral.services.keys.create("api", "other")
        async with AsyncExitStack() as stack:
            await hanging(corral, stack)
            check_refusal(await until(http, "/v1/agents", 429), 429, "rate_limit_error")
            mine = {"x-api-key": other}
            assert (await http.get("/v1/agents", headers=mine)).status_code == 200
            await hanging(replace(corral, api_key=other), stack)
            _, third = await corral.services.keys.create("api", "third")
            async with httpx.AsyncClient(base_url=corral.base_url, headers={"x-api-key": third}) as http_too:
                check_refusal(await until(http_too, "/v1/agents", 529), 529, "overloaded_error")
            polled = await http.get(
                f"/v1/environments/{environment}/work/poll", headers={"x-api-key": worker}
            )
            assert polled.status_code == 200
            assert (await http.get("/healthz")).status_code == 200
        await until(http, "/v1/agents", 200)


async def test_what_starts_work_is_refused_while_too_many_sessions_wait_and_an_interrupt_is_not(
    database_url: str, model: ScriptedModel
) -> None:
    async with bounded(database_url, model, max_waiting_sessions=2) as (corral, http):
        waiting = [await corral.session() for _ in range(2)]
        for session in waiting:
            await session.says("go")
        agent, environment = await corral.agent(), await corral.environment()
        message = {"type": "user.message", "content": [{"type": "text", "text": "go"}]}
        body = {"agent": agent, "environment_id": environment, "initial_events": [message]}
        # The count is a second old at most.
        async with asyncio.timeout(10):
            while (refused := await http.post("/v1/sessions", json=body)).status_code == 200:
                await asyncio.sleep(0.1)
        check_refusal(refused, 529, "overloaded_error")
        events = f"/v1/sessions/{waiting[0].id}/events"
        check_refusal(await http.post(events, json={"events": [message]}), 529, "overloaded_error")
        stopped = await http.post(events, json={"events": [{"type": "user.interrupt"}]})
        assert stopped.status_code == 200
        del body["initial_events"]
        assert (await http.post("/v1/sessions", json=body)).status_code == 200


async def test_the_sdk_hides_a_refusal_that_passes(database_url: str, model: ScriptedModel) -> None:
    async with bounded(database_url, model, max_requests_per_key=1) as (corral, http):
        statuses: list[int] = []
        async with AsyncExitStack() as stack:
            await hanging(corral, stack)
            await until(http, "/v1/agents", 429)

            async def seen(response: Any) -> None:
                statuses.append(response.status_code)
                await stack.aclose()  # what was under way ends

            async with (
                DefaultAsyncHttpxClient(event_hooks={"response": [seen]}) as hooked,
                AsyncAnthropic(
                    base_url=corral.base_url, api_key=corral.api_key, http_client=hooked
                ) as client,
            ):
                await client.beta.agents.list()
        assert statuses == [429, 200]


async def sending(
    corral: Corral, stack: AsyncExitStack, key: str, length: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A request that announces so long a body and sends nothing of it yet."""
    host, port = corral.base_url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    stack.callback(writer.close)
    head = f"POST /v1/agents HTTP/1.1\r\nhost: x\r\nx-api-key: {key}\r\ncontent-length: {length}\r\n\r\n"
    writer.write(head.encode())
    await writer.drain()
    return reader, writer


async def test_the_bodies_of_all_requests_together_are_bounded_and_their_room_comes_back(
    database_url: str, model: ScriptedModel
) -> None:
    mebibyte = 1024 * 1024
    async with (
        bounded(database_url, model, max_body_bytes=32 * mebibyte) as (corral, http),
        AsyncExitStack() as stack,
    ):
        room = corral.services.admission.bodies
        reader, writer = await sending(corral, stack, corral.api_key, 30 * mebibyte)
        async with asyncio.timeout(20):
            while room.held < 30 * mebibyte:
                await asyncio.sleep(0.01)
        large = {"name": "x" * (3 * mebibyte), "model": "claude-sonnet-4-5"}
        check_refusal(await http.post("/v1/agents", json=large), 529, "overloaded_error")
        # What is small finds room still, and the large one when the first has been answered.
        assert (await http.post("/v1/agents", json={"name": "small"})).status_code == 400
        assert room.held == 30 * mebibyte
        for _ in range(30):
            writer.write(b" " * mebibyte)
            await writer.drain()
        assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")
        async with asyncio.timeout(20):
            while room.held:
                await asyncio.sleep(0.01)
        assert (await http.post("/v1/agents", json=large)).status_code == 400
        assert not room.held


async def test_a_worker_waits_for_room_instead_of_being_refused() -> None:
    room = BodyRoom(100)
    with room.hold(wait_seconds=600) as worker, room.hold() as small:
        with room.hold() as first:
            await first.reach(90)
            waiting = asyncio.create_task(worker.reach(50))
            await small.reach(10)
            await asyncio.sleep(0)
            assert not waiting.done()
            with room.hold() as application, pytest.raises(Overloaded):
                await application.reach(50)
        await waiting
        assert room.held == 60
    assert not room.held
    # A body that is alone finds room, however large.
    room = BodyRoom(100)
    with room.hold() as alone:
        await alone.reach(1_000)
