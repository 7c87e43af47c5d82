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
from corral.api.connection import BoundedProtocol
from corral.api.services import Services
from corral.server import open_services, provider_of
from corral.settings import Files, Gateway, Server, Settings, Vault
from corral.store.database import Database
from corral.vault.keys import PrivateKey, PublicKey
from tests.conforming import conforming
from tests.e2e.conftest import corral as corral
from tests.e2e.conftest import model as model

VAULT_KEY = PrivateKey.generate()
"""What opens the secrets that the API under test has sealed."""


@asynccontextmanager
async def serving(app: ASGIApp, *, http: type[BoundedProtocol] = BoundedProtocol) -> AsyncGenerator[str]:
    """The base URL of a server that serves an app on a free port of the loopback."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()  # who connects before the server is up waits
    config = uvicorn.Config(
        app, http=http, lifespan="off", log_config=None, ws="none", timeout_graceful_shutdown=5
    )
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
    gateway_url: str | None = None,
) -> AsyncGenerator[Api]:
    """The API on a database, without a brain: sessions take events and nobody answers them.

    Files lie in a folder that is gone afterwards, unless `files` names another.
    """
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="corral-test-files-"))
        given = files or Files()
        if given.store is None:
            given = structs.replace(given, store=folder)
        settings = Settings(
            server=Server(strict_beta=strict_beta),
            files=given,
            vault=Vault(public_key=vault_key.text if vault_key is not None else None),
            gateway=Gateway(url=gateway_url),
        )
        provider = provider_of(settings.inference)
        stack.push_async_callback(provider.close)
        services = await stack.enter_async_context(open_services(settings, database, provider, brains=False))
        watched = stack.enter_context(conforming(create_app(services)))
        base_url = await stack.enter_async_context(serving(watched))
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
