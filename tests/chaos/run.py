"""Kills server, worker and PostgreSQL at random while agents work, then counts what went wrong.

    python -m tests.chaos.run --turns 300 --kills 60 --postgres-kills 5 --sessions 8 --seed 1

A seed reproduces who is killed after how long; what they were doing at that moment is the machine's own.
Faults are counted from outside: the database's rows, the scripted model's refusals, and a file in each
sandbox to which every tool call adds a line of its own. Recovery is the time from the moment that the killed
process answers again to the next model request.
"""

import argparse
import asyncio
import random
import secrets
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psycopg

from corral.resources.environments import Environments
from corral.resources.keys import Keys
from corral.server import listen
from corral.store.database import Database
from corral.store.embedded import EmbeddedPostgres
from corral.store.migrate import migrate
from corral.testing import ScriptedModel
from tests.chaos.clients import ChaosClient
from tests.chaos.faults import Faults, count_faults
from tests.chaos.processes import Death, KeptProcess


class Plan(msgspec.Struct, frozen=True):
    """How much of everything; turns go on until all kills are done."""

    turns: int = 300
    sessions: int = 8
    kills: int = 60
    postgres_kills: int = 5
    seed: int = 1


class Outcome(msgspec.Struct):
    """What a run found."""

    faults: Faults
    turns: int
    stops: dict[str, int]
    deaths: list[Death]
    recoveries: list[float]
    seconds: float
    log: str

    @property
    def clean(self) -> bool:
        """True if nothing went wrong."""
        return not any(msgspec.structs.astuple(self.faults)) and set(self.stops) <= {"end_turn"}

    def table(self) -> str:
        """The outcome in words."""
        killed = Counter(death.victim for death in self.deaths)
        lines = [
            f"{self.turns} turns in {self.seconds:.0f} s; killed: "
            + ", ".join(f"{name} {count}x" for name, count in sorted(killed.items())),
            f"turns ended: {self.stops}",
            *(f"{name}: {getattr(self.faults, name)}" for name in self.faults.__struct_fields__),
        ]
        if len(self.recoveries) > 1:
            cuts = statistics.quantiles(self.recoveries, n=20, method="inclusive")
            lines.append(
                "recovery (process up again to next model request): "
                f"p50 {statistics.median(self.recoveries):.2f} s, p95 {cuts[18]:.2f} s, "
                f"of {len(self.recoveries)}"
            )
        return "\n".join(lines)


class Chaos:
    """One run: a PostgreSQL, a scripted model, a server process, a worker process, and clients."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan = plan
        self._folder = folder
        self._random = random.Random(plan.seed)
        self._deaths: list[Death] = []
        self._remaining = plan.turns
        self._postgres_deaths = 0
        self._storm_over = False

    async def run(self) -> Outcome:
        """Run it to the end; nothing of it is left afterwards."""
        began = time.monotonic()
        async with AsyncExitStack() as stack:
            log = stack.enter_context((self._folder / "chaos.log").open("wb"))
            postgres = await stack.enter_async_context(EmbeddedPostgres(self._folder / "data"))
            model = await stack.enter_async_context(ScriptedModel())
            database = await stack.enter_async_context(Database(postgres.url))
            await migrate(database)
            api_key, pool_key = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
            keys = Keys(database)
            await keys.ensure("api", api_key, "chaos")
            await keys.ensure("pool", pool_key, "chaos")
            environment = await Environments(database).ensure_named("default")
            with listen("127.0.0.1", 0) as probe:
                port = probe.getsockname()[1]
            base_url = f"http://127.0.0.1:{port}"
            http = httpx.AsyncClient(
                base_url=base_url, headers={"authorization": f"Bearer {api_key}"}, timeout=10, trust_env=False
            )
            await stack.enter_async_context(http)

            async def healthy(_: float) -> bool:
                try:
                    return (await http.get("/readyz")).is_success
                except httpx.HTTPError:
                    return False

            async def polls(started: float) -> bool:
                try:
                    row = await database.fetch_one(
                        "select 1 as seen from workers where seen_at > to_timestamp(%s)", (started,)
                    )
                except psycopg.Error:
                    return False
                return row is not None

            server = KeptProcess(
                "server",
                ["serve"],
                {
                    "CORRAL_STORE__URL": postgres.url,
                    "CORRAL_SERVER__PORT": str(port),
                    "CORRAL_INFERENCE__PROVIDER": "gateway",
                    "CORRAL_INFERENCE__BASE_URL": model.base_url,
                    "CORRAL_INFERENCE__RETRY_BACKOFF_SECONDS": "0.2",
                    "CORRAL_LOG__FORMAT": "json",
                },
                log,
                healthy,
            )
            worker = KeptProcess(
                "worker",
                ["worker"],
                {
                    "CORRAL_WORKER__BASE_URL": base_url,
                    "CORRAL_WORKER__POOL_KEY": pool_key,
                    "CORRAL_WORKER__WORKSPACE_DIR": str(self._folder / "workspaces"),
                    "CORRAL_LOG__FORMAT": "json",
                },
                log,
                polls,
            )
            await server.start()
            await worker.start()
            clients = await self._clients(http, environment.id)
            recoveries = await self._storm(clients, postgres, server, worker, model)
            stops = Counter(stop for client in clients for stop in client.stops)
            await worker.stop()
            await server.stop()
            # The connections of before have not all survived.
            fresh = await stack.enter_async_context(Database(postgres.url))
            faults = await count_faults(fresh, clients, model, self._folder / "workspaces")
            return Outcome(
                faults,
                sum(stops.values()),
                dict(stops),
                self._deaths,
                recoveries,
                time.monotonic() - began,
                str(self._folder / "chaos.log"),
            )

    async def _clients(self, http: httpx.AsyncClient, environment_id: str) -> list[ChaosClient]:
        tools: list[dict[str, Any]] = [{"type": "agent_toolset_20260401"}]
        agent = {"name": "chaos", "model": "claude-sonnet-4-5", "tools": tools}
        agent_id = (await http.post("/v1/agents", json=agent)).raise_for_status().json()["id"]
        clients: list[ChaosClient] = []
        for number in range(self._plan.sessions):
            body = {"agent": agent_id, "environment_id": environment_id}
            session = (await http.post("/v1/sessions", json=body)).raise_for_status().json()
            clients.append(ChaosClient(http, session["id"], f"s{number}"))
        return clients

    async def _storm(
        self,
        clients: list[ChaosClient],
        postgres: EmbeddedPostgres,
        server: KeptProcess,
        worker: KeptProcess,
        model: ScriptedModel,
    ) -> list[float]:
        driving = asyncio.gather(*(self._drive(client) for client in clients))
        recoveries: list[float] = []
        storm = asyncio.create_task(self._kill(postgres, server, worker, model, recoveries))
        storm.add_done_callback(lambda _: setattr(self, "_storm_over", True))
        try:
            await driving
        finally:
            storm.cancel()
            await asyncio.gather(storm, return_exceptions=True)
        return recoveries

    async def _drive(self, client: ChaosClient) -> None:
        number = 0
        while self._remaining > 0 or not self._storm_over:
            self._remaining -= 1
            await client.turns(1, number)
            number += 1

    async def _kill(
        self,
        postgres: EmbeddedPostgres,
        server: KeptProcess,
        worker: KeptProcess,
        model: ScriptedModel,
        recoveries: list[float],
    ) -> None:
        victims = ["postgres"] * self._plan.postgres_kills
        victims += [self._random.choice(("server", "worker")) for _ in range(self._plan.kills)]
        self._random.shuffle(victims)
        for victim in victims:
            await asyncio.sleep(self._random.uniform(0.1, 1.5))
            if victim == "postgres":
                self._postgres_deaths += 1
                await self._kill_postgres(postgres)
                await postgres.wait_started(self._postgres_deaths + 1)
            else:
                target = server if victim == "server" else worker
                death = target.kill()
                assert death is not None, f"the {victim} was not up"
                self._deaths.append(death)
                await target.up.wait()
            requests = model.stats["requests"]
            up_at = time.monotonic()
            await model.until_requests(requests + 1)
            recoveries.append(time.monotonic() - up_at)
            print(f"  {victim} killed, back, next model request after {recoveries[-1]:.2f} s", flush=True)
            # Whatever was killed, the next victim must be at work again.
            await server.up.wait()
            await worker.up.wait()

    async def _kill_postgres(self, postgres: EmbeddedPostgres) -> None:
        import os
        import signal

        pid = postgres.pid
        if pid is None:
            return
        os.kill(pid, signal.SIGKILL)
        self._deaths.append(Death("postgres", time.monotonic()))


async def storm(plan: Plan) -> Outcome:
    """Run a plan in a folder of its own, kept if something went wrong."""
    folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="corral-chaos-"))
    folder.chmod(0o711)
    outcome = await Chaos(plan, folder).run()
    if outcome.clean:
        await asyncio.to_thread(shutil.rmtree, folder)
    return outcome


def main() -> None:
    """Read the plan, run it, print the outcome; exit status 1 if anything went wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for field in msgspec.structs.fields(Plan):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=int, default=field.default)
    plan = Plan(**vars(parser.parse_args()))
    print(f"chaos: {plan}", flush=True)
    outcome = asyncio.run(storm(plan))
    print(outcome.table())
    if not outcome.clean:
        print(f"NOT CLEAN; the processes' log is {outcome.log}")
        sys.exit(1)


if __name__ == "__main__":
    main()
