"""What benchmarks run on: one PostgreSQL with fsync, an instant provider, Corral, and others to compare."""

import argparse
import asyncio
import logging
import os
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec
import psycopg
import structlog
from psycopg import sql
from psycopg.conninfo import make_conninfo

from benchmarks.client import Client
from benchmarks.managed_agents import ManagedAgents, Sender, managed_agents, sender
from benchmarks.other_rivals import AEGRA, OPENHANDS, aegra, openhands
from benchmarks.processes import NotStarted, Running, free_port, module, server
from benchmarks.rivals import OPEN_MANAGED_AGENTS, NotInstalled, open_managed_agents
from benchmarks.table import Row, plain
from corral.store.embedded import EmbeddedPostgres

_KEY: Final = "corral_ak_a-key-of-the-benchmark"


class Size(msgspec.Struct, frozen=True):
    """How much of everything; the short form proves only that a benchmark works."""

    rounds: int = 40
    seconds: float = 4.0
    repeats: int = 3
    sessions: int = 32
    listed: int = 10_000
    readers: int = 500
    idle: int = 500
    kills: int = 20
    turns: int = 2000
    events: int = 50_000


FULL: Final = Size()
SHORT: Final = Size(
    rounds=2, seconds=0.2, repeats=1, sessions=4, listed=40, readers=8, idle=10, kills=1, turns=20, events=400
)


class World:
    """The processes of one run; what is not asked for is not started."""

    def __init__(
        self, folder: Path, postgres: EmbeddedPostgres, stack: AsyncExitStack, size: Size, rivals: bool
    ) -> None:
        self.folder = folder
        self.postgres = postgres
        self.size = size
        self.rivals = rivals
        self._stack = stack
        self._provider: Running | None = None
        self._corral: ManagedAgents | None = None
        self._bare: Client | None = None
        self._rival: ManagedAgents | str | None = None

    async def provider(self) -> Running:
        """The instant model provider."""
        if self._provider is None:
            port = free_port()
            command = module("benchmarks.provider", str(port))
            self._provider = await self._stack.enter_async_context(
                server(command, self.folder / "provider.log", folder=_ROOT, port=port)
            )
        return self._provider

    async def corral(self) -> ManagedAgents:
        """A `corral serve` that several questions share."""
        if self._corral is None:
            url = await self.database()
            self._corral = await self._stack.enter_async_context(self.another_corral(url))
        return self._corral

    async def rival(self) -> ManagedAgents | str:
        """`open-managed-agents` on the same PostgreSQL, or why it does not run."""
        if not self.rivals:
            return _LEFT_OUT
        if self._rival is None:
            provider = await self.provider()
            try:
                self._rival = await self._stack.enter_async_context(
                    open_managed_agents(await self.database(), provider.base_url, self.folder)
                )
            except (NotInstalled, NotStarted) as error:
                self._rival = str(error)
        return self._rival

    async def senders(self) -> dict[str, Sender | str]:
        """What sends a message to an idle session of each rival, or why it cannot be had."""
        rival = await self.rival()
        found: dict[str, Sender | str] = {
            OPEN_MANAGED_AGENTS: rival if isinstance(rival, str) else await sender(rival)
        }
        if not self.rivals:
            return {**found, **dict.fromkeys((OPENHANDS, AEGRA), _LEFT_OUT)}
        provider = await self.provider_client()
        others = {
            OPENHANDS: openhands(provider, self.folder),
            AEGRA: aegra(await self.database(), provider, self.folder),
        }
        for name, starting in others.items():
            try:
                found[name] = await self._stack.enter_async_context(starting)
            except (NotInstalled, NotStarted) as error:
                found[name] = str(error)
        return found

    async def bare(self) -> Client:
        """A client of the bare Starlette server."""
        if self._bare is None:
            port = free_port()
            running = await self._stack.enter_async_context(
                server(
                    module("benchmarks.bare", str(port)), self.folder / "bare.log", folder=_ROOT, port=port
                )
            )
            self._bare = await self._stack.enter_async_context(Client(running.base_url))
        return self._bare

    async def database(self) -> str:
        """The address of a fresh, empty database."""
        name = f"bench_{id(object())}_{free_port()}"
        async with await psycopg.AsyncConnection.connect(self.postgres.url, autocommit=True) as connection:
            await connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        return make_conninfo(self.postgres.url, dbname=name)

    @asynccontextmanager
    async def another_corral(self, database_url: str) -> AsyncGenerator[ManagedAgents]:
        """A `corral serve` on a database; several may share one."""
        provider = await self.provider()
        port = free_port()
        environment = {
            "CORRAL_STORE__URL": database_url,
            "CORRAL_SERVER__PORT": str(port),
            "CORRAL_SERVER__API_KEY": _KEY,
            "CORRAL_FILES__STORE": str(self.folder / "files"),
            "CORRAL_INFERENCE__PROVIDER": "gateway",
            "CORRAL_INFERENCE__BASE_URL": provider.base_url,
            "CORRAL_LOG__LEVEL": "warning",
        }
        log = self.folder / f"corral-{port}.log"
        async with server(module("corral.cli", "serve"), log, environment=environment, port=port) as running:
            headers = {"x-api-key": _KEY}
            async with managed_agents(
                "corral", running.base_url, running.pid, database_url, headers
            ) as agents:
                yield agents

    async def provider_client(self) -> Client:
        """A client of the provider, for direct calls and to ask when requests arrived."""
        provider = await self.provider()
        return await self._stack.enter_async_context(Client(provider.base_url, {"x-api-key": "none"}))


_LEFT_OUT: Final = "left out of this run"
_ROOT: Final = Path(__file__).parents[1]
Question = Callable[[World], Awaitable[Sequence[Row]]]


@asynccontextmanager
async def world(size: Size, *, rivals: bool) -> AsyncGenerator[World]:
    """Everything that benchmarks need; nothing of it is left afterwards."""
    with tempfile.TemporaryDirectory(prefix="corral-bench-") as name:
        folder = Path(name)
        os.chmod(name, 0o711)  # for PostgreSQL's own user
        async with EmbeddedPostgres(folder / "data", settings={"max_connections": "400"}) as postgres:
            async with AsyncExitStack() as stack:
                yield World(folder, postgres, stack, size, rivals)


def quietly() -> None:
    """Keep this process's own log to errors."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))


def main(question: Question, description: str | None) -> None:
    """Run one question by itself and print its rows."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--short", action="store_true", help="a moment's run, which measures nothing")
    parser.add_argument("--without-rivals", action="store_true", help="leave out what has to be installed")
    given = parser.parse_args()

    async def run() -> Sequence[Row]:
        size = SHORT if given.short else FULL
        async with world(size, rivals=not given.without_rivals) as everything:
            return await question(everything)

    quietly()
    print(plain(asyncio.run(run())), end="")
