"""Streams that reach the client, whatever stands between, and cost little (docs/robustness.md, Streaming)."""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import httpx
import msgspec

from corral.store.database import Database
from corral.testing import ScriptedModel
from tests.corral_server import Corral, running_corral
from tests.e2e.test_replicas import stream

KEY = "corral_ak_a-key-for-tests-of-stopped-servers"


async def test_a_stream_tells_proxies_to_pass_it_on_at_once(corral: Corral) -> None:
    session = await corral.session()
    async with httpx.AsyncClient(base_url=corral.base_url, timeout=30) as client:
        path = f"/v1/sessions/{session.id}/events/stream"
        headers = {"x-api-key": corral.api_key, "accept-encoding": "gzip, br"}
        async with client.stream("GET", path, headers=headers) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            assert response.headers["cache-control"] == "no-cache"
            assert response.headers["x-accel-buffering"] == "no"
            assert "content-encoding" not in response.headers
            assert "content-length" not in response.headers


async def test_pings_come_with_the_period_that_was_asked_for(corral: Corral) -> None:
    session = await corral.session()
    frames = corral.services.sessions.following.follow(session.id, ping_seconds=0.05)
    assert await anext(frames) == b""
    assert [await anext(frames) for _ in range(3)] == [b'event: ping\ndata: {"type":"ping"}\n\n'] * 3
    await frames.aclose()


async def until_at_rest(database: Database) -> None:
    """Returns once every connection of the pool is back; one that a stream held would never be."""
    async with asyncio.timeout(10):
        while database.statistics["pool_available"] < database.statistics["pool_size"]:
            await database.fetch("select 1")


async def test_two_hundred_open_streams_leave_the_pool_at_rest_and_are_all_served(
    database_url: str, model: ScriptedModel
) -> None:
    async with running_corral(database_url, model, brains=False) as corral:
        session = await corral.session()
        following = corral.services.sessions.following
        streams = [following.follow(session.id) for _ in range(200)]
        await asyncio.gather(*(anext(frames) for frames in streams))
        await until_at_rest(corral.database)
        await session.says("hello")
        first = await asyncio.gather(*(anext(frames) for frames in streams))
        assert all(frame.startswith(b"event: user.message") for frame in first)
        await asyncio.gather(*(frames.aclose() for frames in streams))


async def test_a_client_that_does_not_read_holds_up_nobody(corral: Corral) -> None:
    session = await corral.session()
    async with stream(corral, session.id, "agent.message"), stream(corral, session.id) as reading:
        text = "word " * 20_000
        await session.says("go", script=[{"text": text, "chunk_chars": 8}])
        seen = await reading.until("session.status_idle")
    [message] = [event for event in seen if event["type"] == "agent.message"]
    assert message["content"][0]["text"] == text


async def test_an_answer_on_a_kept_connection_does_not_wait_for_an_acknowledgement(corral: Corral) -> None:
    """Without TCP_NODELAY each answer takes 40 ms more: its body waits for the client's delayed ACK."""
    async with httpx.AsyncClient(base_url=corral.base_url) as client:
        await client.get("/healthz")
        times: list[float] = []
        for _ in range(20):
            begun = time.perf_counter()
            await client.get("/healthz")
            times.append(time.perf_counter() - begun)
    assert min(times) < 0.03


async def test_a_server_stops_though_streams_are_open(
    database_url: str, model: ScriptedModel, tmp_path: Path
) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "corral.cli", "serve", "--json",
        env={
            **os.environ,
            "CORRAL_STORE__URL": database_url,
            "CORRAL_SERVER__PORT": "0",
            "CORRAL_SERVER__API_KEY": KEY,
            "CORRAL_INFERENCE__PROVIDER": "gateway",
            "CORRAL_INFERENCE__BASE_URL": model.base_url,
            "CORRAL_FILES__STORE": str(tmp_path),
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    base_url = msgspec.json.decode(await process.stdout.readline())["base_url"]
    async with httpx.AsyncClient(base_url=base_url, headers={"x-api-key": KEY}, timeout=30) as client:
        environment = (await client.post("/v1/environments", json={"name": "here"})).json()
        agent = (await client.post("/v1/agents", json={"name": "a", "model": "claude-sonnet-4-5"})).json()
        made = {"agent": agent["id"], "environment_id": environment["id"]}
        session = (await client.post("/v1/sessions", json=made)).json()
        path = f"/v1/sessions/{session['id']}/events/stream"
        async with client.stream("GET", path) as one, client.stream("GET", path) as other:
            process.send_signal(signal.SIGTERM)
            # Ended properly, not cut off: reading to the end raises nothing.
            assert await asyncio.gather(one.aread(), other.aread()) == [b"", b""]
            async with asyncio.timeout(15):
                assert await process.wait() == 0
    logged = (await process.stderr.read()).decode()
    assert "Traceback" not in logged
    assert KEY not in logged
    assert "HTTP Request" not in logged
