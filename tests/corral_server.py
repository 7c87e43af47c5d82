"""A whole Corral in the test's own process: real HTTP, real PostgreSQL, a scripted model over HTTP."""

import socket
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from anthropic import AsyncAnthropic

from corral.api.app import create_app
from corral.api.connection import bounded
from corral.api.services import Services
from corral.server import listen, open_services, provider_of, serving
from corral.settings import Brain, Inference, Settings
from corral.store.database import Database
from corral.testing import ScriptedModel
from tests.conforming import conforming

MODEL = "claude-sonnet-4-5"


@dataclass(frozen=True)
class Corral:
    """A server under test and the ways to reach it."""

    base_url: str
    api_key: str
    model: ScriptedModel
    database: Database
    services: Services
    client: AsyncAnthropic
    settings: Settings = field(default_factory=Settings)

    async def environment(self, kind: str = "cloud") -> str:
        """A fresh environment's id."""
        config: Any = {"type": kind}
        return (await self.client.beta.environments.create(name=f"a {kind} one", config=config)).id

    async def agent(self, *tools: Any, **fields: Any) -> str:
        """A fresh agent's id."""
        agents: Any = self.client.beta.agents
        made = await agents.create(**{"name": "tester", "model": MODEL, "tools": list(tools), **fields})
        return str(made.id)

    async def session(self, *tools: Any, kind: str = "cloud", **fields: Any) -> "SessionUnderTest":
        """A fresh session of a fresh agent on a fresh environment."""
        made = await self.client.beta.sessions.create(
            agent=await self.agent(*tools), environment_id=await self.environment(kind), **fields
        )
        return SessionUnderTest(self, made.id)


@dataclass(frozen=True)
class SessionUnderTest:
    """A session, spoken to in a test's own words."""

    corral: Corral
    id: str

    async def says(self, text: str, *, script: list[dict[str, Any]] | None = None) -> Any:
        """Send a user message; `script` is what the model plays from here on."""
        if script is not None:
            text = f"{text}\nscript: {msgspec.json.encode(script).decode()}"
        return await self.sends({"type": "user.message", "content": [{"type": "text", "text": text}]})

    async def sends(self, *events: Any) -> Any:
        """Send any events."""
        return await self.corral.client.beta.sessions.events.send(self.id, events=list(events))

    async def events(self, **query: Any) -> list[Any]:
        """All events, in order."""
        listed = self.corral.client.beta.sessions.events.list(self.id, **query)
        return [event async for event in listed]

    async def types(self) -> list[str]:
        """The types of all events, in order."""
        return [event.type for event in await self.events()]

    async def until(self, *types: str, where: Any = None, after: str | None = None) -> Any:
        """The first event of one of `types` (for which `where` holds) after event `after`.

        Waits on a stream, opened before the list is read, so nothing is missed and nothing is polled.
        """
        async with await self.corral.client.beta.sessions.events.stream(self.id) as stream:
            seen = after is None
            event: Any
            for event in await self.events():
                if seen and event.type in types and (where is None or where(event)):
                    return event
                seen = seen or event.id == after
            async for event in stream:
                if event.type in types and event.id != after and (where is None or where(event)):
                    return event
        raise AssertionError(f"the stream ended without any of {types}")

    async def idle(self, after: str | None = None) -> Any:
        """The next time the session goes idle."""
        return await self.until("session.status_idle", after=after)

    async def retrieve(self) -> Any:
        """The session as the API shows it."""
        return await self.corral.client.beta.sessions.retrieve(self.id)


@asynccontextmanager
async def running_corral(
    database_url: str,
    model: ScriptedModel,
    *,
    settings: Settings | None = None,
    brains: bool = True,
    port: int = 0,
    listener: socket.socket | None = None,
) -> AsyncGenerator[Corral]:
    """A server on the database, listening on a `listener` of the test's own if it is given one; several may
    run on one database, as replicas do.
    """
    given = settings or Settings(
        inference=Inference(
            provider="gateway",
            base_url=model.base_url,
            retry_backoff_seconds=0.01,
            retry_backoff_max_seconds=0.05,
        ),
        brain=Brain(lease_seconds=2.0),
    )
    async with AsyncExitStack() as stack:
        if given.files.store is None:
            folder = stack.enter_context(TemporaryDirectory(prefix="corral-test-files-"))
            given = msgspec.structs.replace(given, files=msgspec.structs.replace(given.files, store=folder))
        settings = given
        provider = provider_of(settings.inference)
        database = await stack.enter_async_context(Database(database_url))
        async with open_services(settings, database, provider, brains=brains) as services:
            _, api_key = await services.keys.create("api", "test")
            watched = stack.enter_context(conforming(create_app(services)))
            protocol = bounded(settings.load.stalled_seconds)
            async with serving(watched, listener or listen("127.0.0.1", port), protocol) as base_url:
                client = AsyncAnthropic(base_url=base_url, api_key=api_key, max_retries=0)
                async with client:
                    yield Corral(base_url, api_key, model, database, services, client, settings)
                services.closing.set()
    await provider.close()
