"""A whole deployment as processes: servers and gateways behind balancers, workers, and what kills them."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import IO, Any

import httpx
import msgspec

from corral.resources.environments import Environments
from corral.resources.keys import Keys
from corral.server import listen
from corral.store.database import Database
from corral.testing import ScriptedModel
from corral.vault.keys import PrivateKey
from tests.balancer import Balancer, balancing
from tests.chaos.clients import ChaosClient
from tests.chaos.processes import KeptProcess
from tests.e2e.mcp_house import ALLOW
from tests.mcp_parts import McpUnderTest, mcp_server
from tests.network import Machine, database_at, machine, passed_on
from tests.stress.budgets import Fleet

API_KEY = "corral_ak_a-key-for-the-stress-tests-of-fleets"
POOL_KEY = "corral_pk_a-key-for-the-stress-tests-of-fleets"


class FleetClient(ChaosClient):
    """Drives a session whose turns call sandbox tools and a tool of an MCP server."""

    def steps(self, token: str) -> list[dict[str, Any]]:
        """The first two calls at once, one of each kind."""
        adding = {"name": "mcp__calc__add", "input": {"a": 1, "b": 2}}
        first, *others = super().steps(token)
        return [{**first, "tools": [*first["tools"], adding]}, *others]


class RunningFleet:
    """Everything of a deployment, up."""

    def __init__(self, plan: Fleet, database: Database, workspaces: Path, mcp: McpUnderTest) -> None:
        self._plan = plan
        self._random = random.Random(plan.seed)
        self.database = database
        self.workspaces = workspaces
        self.mcp = mcp
        self.processes: list[KeptProcess] = []
        self.clients: list[ChaosClient] = []
        self.killed: Counter[str] = Counter()
        self.machines: list[Machine] = []
        """Those whose cables are pulled out."""

    async def storm(self) -> None:
        """Drive all sessions until all kills are done and all turns have ended."""
        remaining = self._plan.turns
        over = asyncio.Event()

        async def drive(client: ChaosClient) -> None:
            nonlocal remaining
            number = 0
            while remaining > 0 or not over.is_set():
                remaining -= 1
                await client.turns(1, number)
                number += 1

        firing = asyncio.create_task(self._fire(over))
        try:
            await asyncio.gather(*map(drive, self.clients))
            await firing
        finally:
            firing.cancel()
            await asyncio.gather(firing, return_exceptions=True)

    async def _fire(self, over: asyncio.Event) -> None:
        await asyncio.gather(self._kill(), self._cut())
        for process in self.processes:
            await process.up.wait()
        over.set()

    async def _cut(self) -> None:
        for _ in range(self._plan.cuts):
            await asyncio.sleep(self._random.uniform(0.5, 3))
            there = self._random.choice(self.machines)
            await there.cut()
            await asyncio.sleep(self._random.uniform(1, 12))
            await there.mend()

    async def _kill(self) -> None:
        for _ in range(self._plan.kills):
            await asyncio.sleep(self._random.uniform(0.1, 1.5))
            victim = self._random.choice(self.processes)
            await victim.up.wait()
            if victim.kill() is not None:
                self.killed[victim.name] += 1

    async def stop(self) -> None:
        """Stop workers first, then who serves them."""
        for name in ("worker", "server", "gateway"):
            await asyncio.gather(*(one.stop() for one in self.processes if one.name == name))


async def running_fleet(
    plan: Fleet, stack: AsyncExitStack, database_url: str, model: ScriptedModel, folder: Path
) -> RunningFleet:
    """A deployment that has come up; what it writes to its logs is in `folder`."""
    log = stack.enter_context((folder / "fleet.log").open("wb"))
    database = await stack.enter_async_context(Database(database_url))
    keys = Keys(database)
    await keys.ensure("api", API_KEY, "stress")
    await keys.ensure("pool", POOL_KEY, "stress")
    mcp = await stack.enter_async_context(mcp_server())
    fleet = RunningFleet(plan, database, folder / "workspaces", mcp)
    stack.push_async_callback(fleet.stop)
    key = PrivateKey.generate()
    store = {"CORRAL_STORE__URL": database_url, "CORRAL_LOG__FORMAT": "json"}
    gateways = {
        **store,
        "CORRAL_VAULT__KEY": key.text.reveal(),
        "CORRAL_GATEWAY__INTERNAL": '["127.0.0.0/8"]',
        "CORRAL_GATEWAY__EGRESS_PORT": "0",
    }
    gateway_urls = await _start(fleet, "gateway", plan.gateways, gateways, "GATEWAY", "/healthz", log)
    to_gateways = await stack.enter_async_context(balancing(*gateway_urls, probe="/healthz"))
    servers = {
        **store,
        "CORRAL_INFERENCE__PROVIDER": "gateway",
        "CORRAL_INFERENCE__BASE_URL": model.base_url,
        "CORRAL_INFERENCE__RETRY_BACKOFF_SECONDS": "0.2",
        "CORRAL_VAULT__PUBLIC_KEY": key.public.text,
        "CORRAL_GATEWAY__URL": to_gateways.base_url,
        "CORRAL_FILES__STORE": str(folder / "files"),
        # What is cut off keeps its sessions for so long.
        **({"CORRAL_BRAIN__LEASE_SECONDS": "3"} if plan.cuts else {}),
    }
    apart = 1 if plan.cuts else 0
    server_urls = await _start(fleet, "serve", plan.servers - apart, servers, "SERVER", "/readyz", log)
    if apart:
        server_urls.append(await _start_server_apart(fleet, stack, database_url, servers, log))
    to_servers = await stack.enter_async_context(balancing(*server_urls))
    await _start_workers(fleet, plan.workers - apart, to_servers.base_url, log)
    if apart:
        there = await stack.enter_async_context(machine())
        fleet.machines.append(there)
        url = await _seen_from(there, stack, to_servers.base_url)
        await _start_workers(fleet, 1, url, log, there.launcher)
    await _make_sessions(fleet, plan.sessions, stack, to_servers)
    return fleet


async def _start(
    fleet: RunningFleet,
    command: str,
    count: int,
    settings: dict[str, str],
    section: str,
    probe: str,
    log: IO[bytes],
) -> list[str]:
    urls: list[str] = []
    started: list[Awaitable[None]] = []
    for _ in range(count):
        with listen("127.0.0.1", 0) as free:
            port = free.getsockname()[1]
        urls.append(f"http://127.0.0.1:{port}")
        process = KeptProcess(
            "server" if command == "serve" else command,
            [command],
            {**settings, f"CORRAL_{section}__PORT": str(port)},
            log,
            _answers(urls[-1] + probe),
        )
        fleet.processes.append(process)
        started.append(process.start())
    await asyncio.gather(*started)
    return urls


async def _start_server_apart(
    fleet: RunningFleet,
    stack: AsyncExitStack,
    database_url: str,
    settings: dict[str, str],
    log: IO[bytes],
) -> str:
    """A server on a machine of its own, which reaches everything through its cable alone; its address."""
    there = await stack.enter_async_context(machine())
    fleet.machines.append(there)
    given = {
        **settings,
        "CORRAL_STORE__URL": await stack.enter_async_context(database_at(there.host, database_url)),
        "CORRAL_SERVER__HOST": there.address,
        "CORRAL_SERVER__PORT": "8400",
        **{
            name: await _seen_from(there, stack, settings[name])
            for name in ("CORRAL_INFERENCE__BASE_URL", "CORRAL_GATEWAY__URL")
        },
    }
    url = f"http://{there.address}:8400"
    process = KeptProcess("server", ["serve"], given, log, _answers(f"{url}/readyz"), there.launcher)
    fleet.processes.append(process)
    await process.start()
    return url


async def _seen_from(there: Machine, stack: AsyncExitStack, base_url: str) -> str:
    """The address under which a machine reaches what listens on the loopback here."""
    port = httpx.URL(base_url).port
    assert port is not None
    return f"http://{there.host}:{await stack.enter_async_context(passed_on(there.host, port=port))}"


async def _start_workers(
    fleet: RunningFleet, count: int, base_url: str, log: IO[bytes], launcher: Sequence[str] = ()
) -> None:
    async def ready(_: float) -> bool:
        return True

    for _ in range(count):
        settings = {
            "CORRAL_WORKER__BASE_URL": base_url,
            "CORRAL_WORKER__POOL_KEY": POOL_KEY,
            "CORRAL_WORKER__WORKSPACE_DIR": str(fleet.workspaces),
            "CORRAL_LOG__FORMAT": "json",
        }
        process = KeptProcess("worker", ["worker"], settings, log, ready, launcher)
        fleet.processes.append(process)
        await process.start()


async def _make_sessions(fleet: RunningFleet, count: int, stack: AsyncExitStack, servers: Balancer) -> None:
    http = httpx.AsyncClient(
        base_url=servers.base_url, headers={"x-api-key": API_KEY}, timeout=10, trust_env=False
    )
    await stack.enter_async_context(http)
    environment = await Environments(fleet.database).ensure_named("default")
    body = {
        "name": "stress",
        "model": "claude-sonnet-4-5",
        "tools": [
            {"type": "agent_toolset_20260401"},
            {"type": "mcp_toolset", "mcp_server_name": "calc", "default_config": ALLOW},
        ],
        "mcp_servers": [{"type": "url", "name": "calc", "url": fleet.mcp.url}],
    }
    agent = (await http.post("/v1/agents", json=body)).raise_for_status().json()
    for number in range(count):
        made = {"agent": agent["id"], "environment_id": environment.id}
        session = (await http.post("/v1/sessions", json=made)).raise_for_status().json()
        fleet.clients.append(FleetClient(http, session["id"], f"s{number}"))


def _answers(url: str) -> Callable[[float], Awaitable[bool]]:
    async def ask(_: float) -> bool:
        try:
            async with httpx.AsyncClient(trust_env=False, timeout=2) as http:
                return (await http.get(url)).is_success
        except httpx.HTTPError:
            return False

    return ask


async def mcp_results(database: Database) -> tuple[Counter[str], int]:
    """How often each answer of the MCP server is in the log, and how many calls are."""
    rows = await database.fetch(
        "select type, body::text as body from events"
        " where type in ('agent.mcp_tool_use', 'agent.mcp_tool_result')"
    )
    results = [msgspec.json.decode(row["body"]) for row in rows if row["type"] == "agent.mcp_tool_result"]
    return Counter(result["content"][0]["text"] for result in results), len(rows) - len(results)
