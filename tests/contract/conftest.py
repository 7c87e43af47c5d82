"""The API as its clients meet it: a real server on a free port, the official SDK, and plain HTTP."""

import asyncio
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import pytest_asyncio
import uvicorn
from anthropic import AsyncAnthropic
from msgspec import structs
from starlette.types import ASGIApp

from corral.api.app import create_app
from corral.api.services import Services
from corral.bus.postgres import PostgresBus
from corral.hands.work import WorkQueue
from corral.resources.agent_memory import AgentMemory
from corral.resources.agents import Agents
from corral.resources.deployment_runs import DeploymentRuns
from corral.resources.deployments import Deployments
from corral.resources.environments import Environments
from corral.resources.file_services import open_file_services
from corral.resources.keys import Keys
from corral.resources.session_creation import SessionCreation
from corral.resources.vaults import Vaults
from corral.session.service import Sessions
from corral.session.writer import LogWriter
from corral.settings import Files
from corral.store.database import Database
from corral.vault.keys import PrivateKey, PublicKey
from tests.e2e.conftest import corral as corral
from tests.e2e.conftest import model as model

VAULT_KEY = PrivateKey.generate()
"""What opens the secrets that the API under test has sealed."""


@asynccontextmanager
async def serving(app: ASGIApp) -> AsyncGenerator[str]:
    """The base URL of a server that serves an app on a free port of the loopback."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    config = uvicorn.Config(app, lifespan="off", log_config=None, ws="none", timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)
    # `_serve` is `serve` without the signal handlers, which belong to the test runner here.
    task = asyncio.create_task(server._serve([listener]))  # pyright: ignore[reportPrivateUsage]
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
        listener.close()


@dataclass(frozen=True)
class Api:
    """A running API with an API key, and the ways to talk to it."""

    base_url: str
    api_key: str
    services: Services
    database: Database
    sdk: AsyncAnthropic
    http: httpx.AsyncClient
    """Plain HTTP with the API key; nothing is retried."""

    def client(self, key: str) -> AsyncAnthropic:
        """The SDK with another credential; it does not retry. Close it with ``async with``."""
        return AsyncAnthropic(base_url=self.base_url, api_key=key, max_retries=0)

    async def environment_key(self, environment_id: str) -> str:
        """A fresh key of an environment."""
        _, key = await self.services.keys.create("environment", "test", environment_id)
        return key

    async def pool_key(self) -> str:
        """A fresh key of the pool."""
        _, key = await self.services.keys.create("pool", "test")
        return key

    async def get(self, path: str, **options: Any) -> httpx.Response:
        """GET with the API key."""
        return await self.http.get(path, **options)

    async def post(self, path: str, json: Any = None, **options: Any) -> httpx.Response:
        """POST with the API key."""
        return await self.http.post(path, json=json, **options)

    async def agent(self, **fields: Any) -> dict[str, Any]:
        """A new agent as JSON."""
        response = await self.post("/v1/agents", {"name": "Agent", "model": "claude-opus-5-5", **fields})
        assert response.status_code == 200, response.text
        return response.json()

    async def environment(self, **fields: Any) -> dict[str, Any]:
        """A new environment as JSON."""
        response = await self.post("/v1/environments", {"name": "Environment", **fields})
        assert response.status_code == 200, response.text
        return response.json()

    async def session(self, **fields: Any) -> dict[str, Any]:
        """A new session as JSON, on a new agent and environment unless they are given."""
        body: dict[str, Any] = dict(fields)
        if "agent" not in body:
            body["agent"] = (await self.agent())["id"]
        if "environment_id" not in body:
            body["environment_id"] = (await self.environment())["id"]
        response = await self.post("/v1/sessions", body)
        assert response.status_code == 200, response.text
        return response.json()


@asynccontextmanager
async def running(
    database: Database,
    *,
    strict_beta: bool = False,
    files: Files | None = None,
    vault_key: PublicKey | None = VAULT_KEY.public,
) -> AsyncGenerator[Api]:
    """The API on a database, without a brain: sessions take events and nobody answers them.

    Files lie in a folder that is gone afterwards, unless `files` names another.
    """
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(PostgresBus(database))
        writer = await stack.enter_async_context(LogWriter(database, bus))
        folder = stack.enter_context(TemporaryDirectory(prefix="corral-test-files-"))
        settings = files or Files()
        if settings.store is None:
            settings = structs.replace(settings, store=folder)
        stored = await open_file_services(database, settings)
        vaults = Vaults(database, vault_key)
        agents, environments = Agents(database), Environments(database)
        work, sessions = WorkQueue(database, bus), Sessions(database, writer, bus)
        creation = SessionCreation(
            agents=agents,
            environments=environments,
            sources=stored.sources,
            session_resources=stored.session_resources,
            vaults=vaults,
            sessions=sessions,
            work=work,
        )
        services = Services(
            agents=agents,
            environments=environments,
            work=work,
            keys=Keys(database),
            sessions=sessions,
            files=stored.files,
            outputs=stored.outputs,
            sources=stored.sources,
            session_resources=stored.session_resources,
            session_creation=creation,
            deployments=Deployments(database, agents, creation),
            deployment_runs=DeploymentRuns(database, creation),
            memory=AgentMemory(database),
            vaults=vaults,
            strict_beta=strict_beta,
        )
        base_url = await stack.enter_async_context(serving(create_app(services)))
        stack.callback(services.closing.set)
        _, key = await services.keys.create("api", "test")
        sdk = await stack.enter_async_context(
            AsyncAnthropic(base_url=base_url, api_key=key, max_retries=0, timeout=20)
        )
        http = await stack.enter_async_context(
            httpx.AsyncClient(base_url=base_url, headers={"x-api-key": key}, timeout=20)
        )
        yield Api(base_url, key, services, database, sdk, http)


@pytest_asyncio.fixture
async def api(database: Database) -> AsyncIterator[Api]:
    """The API on a fresh database."""
    async with running(database) as api:
        yield api


@pytest_asyncio.fixture
async def strict_api(database: Database) -> AsyncIterator[Api]:
    """The API in strict mode: without the documented beta header it does as if it were not there."""
    async with running(database, strict_beta=True) as api:
        yield api
