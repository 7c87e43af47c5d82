"""A server with web tools, its gateway, and a web of its own: sites on the loopback under names of a test."""

import asyncio
import gzip
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from corral.settings import Brain, Gateway, Inference, Settings
from corral.store.database import Database
from corral.testing import ScriptedModel
from tests.corral_server import Corral, SessionUnderTest, running_corral
from tests.e2e.mcp_house import KEY
from tests.mcp_parts import GatewayUnderTest, gateway_at_work
from tests.upstream_servers import Answer, Asked, Upstream, upstream

ALLOW: dict[str, Any] = {"type": "always_allow"}
SAYS: dict[str, Any] = {"text": "it said: {result}"}


@dataclass
class Site:
    """A web server whose pages a test puts up: a path's answer is a status, headers and pieces of a body."""

    pages: dict[str, Answer] = field(default_factory=dict[str, Answer])
    port: int = 0
    server: Upstream = field(default_factory=lambda: Upstream(0))
    held: set[str] = field(default_factory=set[str])
    """Paths that are not answered before `proceed` is set."""
    waiting: asyncio.Queue[str] = field(default_factory=asyncio.Queue[str])
    """Those that were asked for, as they come."""
    proceed: asyncio.Event = field(default_factory=asyncio.Event)

    def puts(self, path: str, body: bytes | str, kind: str = "text/html", **headers: str) -> None:
        """Put up a page."""
        content = body.encode() if isinstance(body, str) else body
        named = [(name.replace("_", "-"), value) for name, value in headers.items()]
        length = ("content-length", str(len(content)))
        self.pages[path] = (200, [("content-type", kind), length, *named], [content])

    def leads(self, path: str, location: str, status: int = 302) -> None:
        """Let a path redirect."""
        self.pages[path] = (status, [("location", location), ("content-length", "0")], [])

    def zips(self, path: str, body: bytes) -> None:
        """Put up a page that is compressed."""
        self.puts(path, gzip.compress(body), "text/plain", content_encoding="gzip")

    def paths(self) -> list[str]:
        """What was asked for, in order."""
        return [asked.path for asked in self.server.asked]

    async def respond(self, asked: Asked) -> Answer:
        """The answer to a request."""
        if asked.path in self.held:
            self.waiting.put_nowait(asked.path)
            await self.proceed.wait()
        return self.pages.get(asked.path, (404, [("content-length", "0")], []))

    def url(self, path: str, host: str = "docs.example.com") -> str:
        """The address of a path under one of the names."""
        return f"http://{host}:{self.port}{path}"


@asynccontextmanager
async def site(*, context: Any = None, host: str = "127.0.0.1") -> AsyncGenerator[Site]:
    """A running web server."""
    made = Site()
    async with upstream(context, respond=made.respond, host=host) as server:
        made.server, made.port = server, server.port
        yield made


@dataclass(frozen=True)
class WebWorld:
    """Everything that a session with web tools needs. `names` is what the gateway's resolver knows."""

    corral: Corral
    gateway: GatewayUnderTest
    site: Site
    names: dict[str, list[str]]

    async def session(
        self,
        *configs: dict[str, Any],
        networking: dict[str, Any] | None = None,
        kind: str = "cloud",
        tools: Sequence[Any] = (),
        **fields: Any,
    ) -> SessionUnderTest:
        """A session whose agent has the toolset, with these entries in it."""
        toolset = {"type": "agent_toolset_20260401", "configs": list(configs)}
        environments: Any = self.corral.client.beta.environments
        config = {"type": kind, **({"networking": networking} if networking else {})}
        environment = await environments.create(name=f"a {kind} one", config=config)
        made = await self.corral.client.beta.sessions.create(
            agent=await self.corral.agent(toolset, *tools), environment_id=environment.id, **fields
        )
        return SessionUnderTest(self.corral, made.id)

    async def says(self, session: SessionUnderTest, text: str, *steps: dict[str, Any]) -> None:
        """Send a message; the model plays the steps, which do not stand in it: they would show their URLs."""
        name = f"steps-{len(self.corral.model.player.script_names)}"
        await session.says(f"{text}\n{self.corral.model.script(name, list(steps))}")

    async def fetched(self, session: SessionUnderTest, url: str, said: str | None = None) -> Any:
        """The result of fetching a URL, after a message of the user's that names it (or says `said`)."""
        events = await session.events()
        before = events[-1].id if events else None
        await self.says(session, said or f"Read {url} .", fetch(url), SAYS)
        await session.idle(after=before)
        return (await session.events(types=["agent.tool_result"]))[-1]


def fetch(url: str) -> dict[str, Any]:
    """A step in which the model fetches."""
    return {"tools": [{"name": "web_fetch", "input": {"url": url}}]}


def search(query: str) -> dict[str, Any]:
    """A step in which the model searches."""
    return {"tools": [{"name": "web_search", "input": {"query": query}}]}


def web_settings(gateway_url: str | None, model: ScriptedModel, **gateway: Any) -> Settings:
    """A server's settings, with this gateway."""
    return Settings(
        inference=Inference(
            provider="gateway",
            base_url=model.base_url,
            retry_backoff_seconds=0.01,
            retry_backoff_max_seconds=0.05,
        ),
        brain=Brain(lease_seconds=2.0),
        gateway=Gateway(url=gateway_url, **gateway),
    )


@asynccontextmanager
async def web_world(database_url: str, model: ScriptedModel, **gateway: Any) -> AsyncGenerator[WebWorld]:
    """A world in which names below example.com lead to the loopback, which the operator has named."""
    names: dict[str, list[str]] = {}

    async def resolve(name: str, port: int) -> list[str]:
        if name in names:
            return names[name]
        if name.endswith("example.com"):
            return ["127.0.0.1"]
        raise OSError("no such name")

    given: dict[str, Any] = {"web_fetch": True, "internal": ["*.example.com"], **gateway}
    async with AsyncExitStack() as stack:
        made = await stack.enter_async_context(site())
        database = await stack.enter_async_context(Database(database_url))
        at_work = await stack.enter_async_context(gateway_at_work(database, KEY, resolver=resolve, **given))
        settings = web_settings(at_work.url, model, **given)
        corral = await stack.enter_async_context(running_corral(database_url, model, settings=settings))
        yield WebWorld(corral, at_work, made, names)
