"""`corral session show`: which hosts a session's sandbox has asked for, and what the gateway decided."""

import json
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest_asyncio

from corral.testing import ScriptedModel
from tests.e2e.terminal import run
from tests.e2e.test_sandbox_network import agent_session, ran, worker
from tests.egress_world import EgressWorld, egress_world
from tests.upstream_servers import upstream

HOST = "api.internal.example"
LIMITED = {"type": "limited", "allowed_hosts": [HOST, "away.internal.example"]}


@pytest_asyncio.fixture
async def world(database_url: str, model: ScriptedModel, open_folder: Path) -> AsyncGenerator[EgressWorld]:
    """A gateway that may reach names below internal.example."""
    async with egress_world(database_url, model, open_folder) as world:
        yield world


async def test_an_operator_sees_what_was_decided_for_each_host(world: EgressWorld, open_folder: Path) -> None:
    async with upstream() as gone:
        away = f"away.internal.example:{gone.port}"
    async with upstream() as server, worker(world, open_folder):
        session = await agent_session(world, LIMITED)
        url = f"http://{HOST}:{server.port}"
        await ran(
            session,
            f"curl -sS {url}/secret-path?secret-query {url}/2 {url}/3; curl -sS http://evil.example/;"
            f"curl -sS http://{away}/; true",
        )
        await world.decisions(session.id)
        code, out, _ = await run(world.corral, "session", "show", session.id)
        assert code == 0
        assert f"allowed {HOST}:{server.port}, 3 requests, last 20" in out
        assert "denied evil.example:80, 1 request, last 20" in out
        assert "not in the environment's allowed_hosts" in out
        assert f"failed {away}, 1 request" in out
        assert out.index("denied evil.example") < out.index(f"allowed {HOST}")
        assert "secret" not in out
        _, out, _ = await run(world.corral, "session", "show", session.id, "--json")
        told = {(one["host"], one["decision"], one["requests"]) for one in json.loads(out)["egress"]}
        assert told == {
            (HOST, "allowed", 3),
            ("evil.example", "denied", 1),
            ("away.internal.example", "failed", 1),
        }


async def test_hosts_beyond_a_screenful_are_counted_and_a_session_without_any_shows_none(
    world: EgressWorld,
) -> None:
    session = await agent_session(world, LIMITED)
    _, out, _ = await run(world.corral, "session", "show", session.id)
    assert "network" not in out
    token = await world.token(session)
    for number in range(25):
        client = await world.client(token)
        assert (await client.connect(f"host{number}.example:443")).status == 403
    await world.decisions(session.id)
    _, out, _ = await run(world.corral, "session", "show", session.id)
    assert out.count("denied host") == 20
    assert "and 5 more; --json shows all" in out
