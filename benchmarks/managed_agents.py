"""A client of the managed agents API, which Corral and one of its rivals both speak."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, Final

import msgspec

from benchmarks.client import Client, Stream

_NUMBERS: Final = count(1)
Sender = Callable[[str], Awaitable[None]]
MODEL: Final = "claude-sonnet-4-5"


def fresh_mark() -> str:
    """A word that no message has held before."""
    return f"m{next(_NUMBERS):06d}"


class ManagedAgents(msgspec.Struct, frozen=True):
    """A server, an agent without tools and an environment on it."""

    name: str
    client: Client
    pid: int
    database_url: str
    agent: str
    environment: str

    async def create(self) -> str:
        """A fresh session's id."""
        body = {"agent": self.agent, "environment_id": self.environment}
        return (await self.client.post("/v1/sessions", body))["id"]

    async def send(self, session: str, text: str) -> None:
        """Send a user's message."""
        message = {"type": "user.message", "content": [{"type": "text", "text": text}]}
        await self.client.post(f"/v1/sessions/{session}/events", {"events": [message]})

    async def follow(self, session: str, *, previews: bool = False) -> Stream:
        """The session's stream of events."""
        query = "?event_deltas[]=agent.message" if previews else ""
        return await self.client.stream(f"/v1/sessions/{session}/events/stream{query}")

    async def turn(self, session: str, stream: Stream, words: str = "") -> None:
        """Send a message and wait until the stream says that its turn is over."""
        mark = fresh_mark()
        await self.send(session, f"mark:{mark} {words}")
        await stream.until(b'"user.message"', mark.encode())
        await stream.until(b'"session.status_idle"')


@asynccontextmanager
async def managed_agents(
    name: str,
    base_url: str,
    pid: int,
    database_url: str,
    headers: Mapping[str, str],
    *,
    model: Any = MODEL,
    config: Any = None,
) -> AsyncGenerator[ManagedAgents]:
    """A client with an agent and an environment of its own."""
    async with Client(base_url, headers) as client:
        environment = await client.post(
            "/v1/environments", {"name": f"for {name}", "config": config or {"type": "cloud"}}
        )
        agent = await client.post("/v1/agents", {"name": "benchmark", "model": model, "system": "Be brief."})
        yield ManagedAgents(name, client, pid, database_url, agent["id"], environment["id"])


async def sender(agents: ManagedAgents) -> Sender:
    """Sends a message to a session that is idle, and returns once it is idle again after it."""
    session = await agents.create()
    stream = await agents.follow(session)

    async def send(text: str) -> None:
        await agents.send(session, text)
        await stream.until(b'"user.message"', text.encode())
        await stream.until(b'"session.status_idle"')

    return send
