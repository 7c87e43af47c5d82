"""A server killed in the middle of a model request: another one, already there or started later, goes on."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
from anthropic import AsyncAnthropic

from corral.testing import ScriptedModel
from tests.corral_server import MODEL

KEY = "corral_ak_a-key-for-tests-of-killed-servers"
LOOK_UP: dict[str, Any] = {
    "type": "custom",
    "name": "look_up",
    "description": "Looks something up.",
    "input_schema": {"type": "object"},
}


@asynccontextmanager
async def server(database_url: str, model: ScriptedModel) -> AsyncGenerator["Server"]:
    """`corral serve` as a process of its own; killed at the end if it still lives."""
    given: Mapping[str, str] = {
        "CORRAL_STORE__URL": database_url,
        "CORRAL_SERVER__PORT": "0",
        "CORRAL_SERVER__API_KEY": KEY,
        "CORRAL_BRAIN__LEASE_SECONDS": "600",
        "CORRAL_INFERENCE__PROVIDER": "gateway",
        "CORRAL_INFERENCE__BASE_URL": model.base_url,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "corral.cli", "serve", "--json",
        env={**os.environ, **given},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        ready = await process.stdout.readline()
        base_url = msgspec.json.decode(ready)["base_url"]
        async with AsyncAnthropic(base_url=base_url, api_key=KEY, max_retries=0) as client:
            yield Server(process, client)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await process.stdout.read()


class Server:
    """A running server and a client of it."""

    def __init__(self, process: asyncio.subprocess.Process, client: AsyncAnthropic) -> None:
        self._process = process
        self.client = client

    async def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        await self._process.wait()

    async def session(self, *tools: Any) -> str:
        """A fresh session's id."""
        environment = await self.client.beta.environments.create(name="here", config={"type": "cloud"})
        agent = await self.client.beta.agents.create(name="tester", model=MODEL, tools=list(tools))
        made = await self.client.beta.sessions.create(agent=agent.id, environment_id=environment.id)
        return made.id

    async def says(self, session_id: str, script: list[dict[str, Any]]) -> None:
        """Send a message whose script the model plays."""
        text = f"go\nscript: {msgspec.json.encode(script).decode()}"
        message: Any = {"type": "user.message", "content": [{"type": "text", "text": text}]}
        await self.client.beta.sessions.events.send(session_id, events=[message])

    async def idle(self, session_id: str) -> list[Any]:
        """All events, once the session is idle."""
        async with await self.client.beta.sessions.events.stream(session_id) as stream:
            listed = [event async for event in self.client.beta.sessions.events.list(session_id)]
            if any(event.type == "session.status_idle" for event in listed):
                return listed
            async for event in stream:
                if event.type == "session.status_idle":
                    break
        return [event async for event in self.client.beta.sessions.events.list(session_id)]


async def test_sessions_of_a_killed_server_are_carried_on_within_seconds(
    database_url: str, model: ScriptedModel
) -> None:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(server(database_url, model))
        asking = await first.session(LOOK_UP)
        answering = [await first.session() for _ in range(5)]
        await first.says(asking, [{"tools": [{"name": "look_up", "input": {}}]}, {"text": "never"}])
        before = await first.idle(asking)
        for session_id in answering:
            await first.says(session_id, [{"text": f"hello {session_id}", "hold": "there", "hold_at": "mid"}])
        await model.until_holding("there", 5)
        second = await stack.enter_async_context(server(database_url, model))
        await first.kill()
        await model.until_outcome("disconnected", 5)
        # Its database connection tells of its death: nobody waits for the lease, which is ten minutes.
        await model.until_holding("there", 5)
        model.release("there")
        for session_id in answering:
            events = await second.idle(session_id)
            types = [event.type for event in events]
            assert types.count("user.message") == types.count("session.status_running") == 1
            [message] = [event for event in events if event.type == "agent.message"]
            assert message.content[0].text == f"hello {session_id}"
            ends = [event.is_error for event in events if event.type == "span.model_request_end"]
            assert ends == [True, False]
        # A session that waited for its client was left alone.
        assert await second.idle(asking) == before
        assert model.stats["requests"] == 1 + 5 + 5
