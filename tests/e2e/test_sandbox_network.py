"""A real sandbox, a real worker and the gateway: what programs inside reach with what they already know."""

import asyncio
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from corral.settings import Gateway
from corral.testing import ScriptedModel
from tests.corral_server import SessionUnderTest
from tests.e2e.worker_at_work import TOOLSET, at_work, bash, pool
from tests.egress_world import EgressWorld, egress_world
from tests.upstream_servers import upstream

HOST = "api.internal.example"
LIMITED = {"type": "limited", "allowed_hosts": [HOST]}


@pytest_asyncio.fixture
async def world(database_url: str, model: ScriptedModel, open_folder: Path) -> AsyncGenerator[EgressWorld]:
    """A gateway that may reach names below internal.example."""
    async with egress_world(database_url, model, open_folder) as world:
        yield world


@asynccontextmanager
async def worker(world: EgressWorld, folder: Path, **changes: Any) -> AsyncGenerator[None]:
    """A worker of the pool with bubblewrap sandboxes."""
    settings = await pool(world.corral, folder, sandbox="bubblewrap", **changes)
    async with at_work(settings):
        yield


async def ran(session: SessionUnderTest, command: str) -> tuple[str, bool]:
    """The output of a command that the agent runs, and whether it failed."""
    async with asyncio.timeout(30):
        sent = await session.says("go", script=[bash(command), {"text": "done"}])
        await session.idle(after=sent.data[0].id)
    results: list[Any] = [event for event in await session.events() if event.type == "agent.tool_result"]
    result = results[-1]
    blocks: list[Any] = result.content or []
    return "".join(block.text for block in blocks), bool(result.is_error)


async def agent_session(world: EgressWorld, networking: dict[str, Any] | None = None, **fields: Any) -> Any:
    """A session whose agent has the toolset."""
    return await world.session(networking, agent=await world.corral.agent(TOOLSET), **fields)


PROGRAMS = {
    "curl": "curl -sS --fail https://{authority}/x?q=1",
    "urllib": "python3 -c \"import urllib.request as u; print(u.urlopen('https://{authority}/x?q=1').read())\"",
    "http.client": (
        "python3 -c \"import http.client, ssl; c = http.client.HTTPSConnection('127.0.0.1', 3128);"
        "c.set_tunnel('{host}', {port}); c.request('GET', '/x?q=1'); print(c.getresponse().read())\""
    ),
    "node": (
        "node -e \"const http = require('http'), tls = require('tls');"
        "http.request({{host: '127.0.0.1', port: 3128, method: 'CONNECT', path: '{authority}',"
        "headers: {{host: '{authority}'}}}}).on('connect', (_, socket) => {{"
        "const s = tls.connect({{socket, servername: '{host}'}}, () => s.write("
        "'GET /x?q=1 HTTP/1.1\\\\r\\\\nHost: {authority}\\\\r\\\\nConnection: close\\\\r\\\\n\\\\r\\\\n'));"
        's.pipe(process.stdout) }}).end()"'
    ),
}


@pytest.mark.parametrize("program", PROGRAMS)
async def test_programs_reach_an_allowed_host_without_being_told_how(
    world: EgressWorld, open_folder: Path, program: str
) -> None:
    if shutil.which(program) is None and program in ("curl", "node"):
        pytest.fail(f"{program} must be installed to run the tests")
    async with upstream(world.outside.context(HOST)) as server, worker(world, open_folder):
        session = await agent_session(world, LIMITED)
        authority = f"{HOST}:{server.port}"
        command = PROGRAMS[program].format(authority=authority, host=HOST, port=server.port)
        output, failed = await ran(session, command)
        assert not failed, output
        assert "/x?q=1" in output


async def test_a_host_that_is_not_allowed_is_refused_and_said_so(
    world: EgressWorld, open_folder: Path
) -> None:
    async with worker(world, open_folder):
        session = await agent_session(world, LIMITED)
        output, failed = await ran(session, "curl -sS http://other.internal.example/")
        assert not failed
        assert "may not be reached from this sandbox" in output
        output, failed = await ran(session, "curl -sS https://other.internal.example/")
        assert failed
        assert "403" in output


async def test_there_is_no_route_and_no_resolver_beside_the_door(
    world: EgressWorld, open_folder: Path
) -> None:
    async with upstream() as server, worker(world, open_folder):
        session = await agent_session(world, {"type": "unrestricted"})
        output, _ = await ran(
            session,
            f"curl --noproxy '*' -sS -m 5 http://127.0.0.1:{server.port}/; "
            f"curl --noproxy '*' -sS -m 5 http://{HOST}:{server.port}/; cat /proc/net/route | wc -l; "
            "cat /etc/resolv.conf; ls /sys/class/net 2>/dev/null; echo end",
        )
        assert "Could not resolve host" in output
        assert "Failed to connect" in output
        assert server.asked == []


async def test_a_sandbox_without_a_gateway_has_no_network(
    database_url: str, model: ScriptedModel, open_folder: Path
) -> None:
    async with egress_world(database_url, model, open_folder, gateway=Gateway(), told=False) as world:
        async with worker(world, open_folder):
            session = await agent_session(world)
            output, _ = await ran(
                session, "env | grep -i proxy; ls /run/corral; curl -sS -m 5 http://1.1.1.1/"
            )
            assert "proxy" not in output.lower().replace("could not resolve proxy", "")
            assert "egress.sock" not in output


async def test_the_sandbox_holds_no_token_and_no_key(world: EgressWorld, open_folder: Path) -> None:
    async with worker(world, open_folder):
        session = await agent_session(world, LIMITED)
        output, _ = await ran(
            session,
            "env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'; cat /run/corral/ca.pem;"
            "grep -rIl 'PRIVATE KEY' /run /etc /tmp /workspace 2>/dev/null; true",
        )
        assert "BEGIN CERTIFICATE" in output
        assert "corral_wt_" not in output
        assert "PRIVATE KEY" not in output


async def test_a_sandbox_is_let_out_again_by_the_next_work_item(
    world: EgressWorld, open_folder: Path
) -> None:
    async with upstream(world.outside.context(HOST)) as server:
        async with worker(world, open_folder, session_idle_seconds=0.05):
            session = await agent_session(world, LIMITED)
            command = f"curl -sS --fail https://{HOST}:{server.port}/x"
            for _ in range(3):
                output, failed = await ran(session, command)
                assert not failed, output


async def test_secrets_of_the_environment_are_placeholders_inside_and_values_outside(
    world: EgressWorld, open_folder: Path
) -> None:
    vaults = world.corral.client.beta.vaults
    vault = await vaults.create(display_name="one")
    value = "s3cret-" + "value-1"
    auth: Any = {
        "type": "environment_variable",
        "secret_name": "API_TOKEN",
        "secret_value": value,
        "networking": {"type": "limited", "allowed_hosts": [HOST]},
    }
    credential = await vaults.credentials.create(vault.id, auth=auth)
    async with upstream(world.outside.context(HOST)) as server, worker(world, open_folder):
        session = await agent_session(world, LIMITED, vault_ids=[vault.id])
        url = f"https://{HOST}:{server.port}/x"
        output, failed = await ran(session, "echo $API_TOKEN")
        assert not failed
        assert output.strip().startswith("corral_placeholder_")
        command = f'curl -sS -H "Authorization: Bearer $API_TOKEN" -d "a=$API_TOKEN" {url} > /dev/null'
        _, failed = await ran(session, command)
        assert not failed
        assert server.asked[-1].header("authorization") == f"Bearer {value}"
        assert server.asked[-1].body == f"a={value}".encode()
        changed: Any = {"type": "environment_variable", "secret_value": "rotated"}
        await vaults.credentials.update(credential.id, vault_id=vault.id, auth=changed)
        await ran(session, command)
        assert server.asked[-1].header("authorization") == "Bearer rotated"
        await vaults.credentials.archive(credential.id, vault_id=vault.id)
        await ran(session, command)
        assert server.asked[-1].header("authorization") == f"Bearer {output.strip()}"
