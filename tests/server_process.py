"""`corral serve` as processes of their own, and what tests say to them."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import httpx2
import msgspec
from anthropic import APIConnectionError, AsyncAnthropic

from corral.testing import ScriptedModel
from tests.corral_server import MODEL

KEY = "corral_ak_a-key-for-tests-of-server-processes"
PATIENCE = 180.0
"""A server imports the model client before it is ready, which takes a busy machine long."""


@asynccontextmanager
async def server_process(
    database_url: str,
    model_url: str,
    *arguments: str,
    launcher: Sequence[str] = (),
    **settings: str,
) -> AsyncGenerator["ServerProcess"]:
    """A running `corral serve`; killed at the end if it still lives.

    ``settings`` are environment variables without their prefix (``load__max_streams="4"``); ``launcher`` is a
    command that runs it.
    """
    given: Mapping[str, str] = {
        "CORRAL_STORE__URL": database_url,
        "CORRAL_SERVER__PORT": "0",
        "CORRAL_SERVER__API_KEY": KEY,
        "CORRAL_BRAIN__LEASE_SECONDS": "600",
        "CORRAL_INFERENCE__PROVIDER": "gateway",
        "CORRAL_INFERENCE__BASE_URL": model_url,
        "CORRAL_INFERENCE__RETRY_BACKOFF_SECONDS": "0.05",
        **{f"CORRAL_{name.upper()}": value for name, value in settings.items()},
    }
    process = await asyncio.create_subprocess_exec(
        *launcher, sys.executable, "-m", "corral.cli", "serve", "--json", *arguments,
        env={**os.environ, **given},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=1024 * 1024,  # of a line
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    log = Log()
    reading = asyncio.create_task(log.read(process.stderr))
    try:
        ready = await process.stdout.readline()
        if not ready:
            await reading
            raise AssertionError(log.text)
        base_url = msgspec.json.decode(ready)["base_url"]
        async with AsyncAnthropic(base_url=base_url, api_key=KEY, max_retries=0) as client:
            yield ServerProcess(process, base_url, client, log)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await asyncio.gather(reading, process.stdout.read())


class Log:
    """What a process writes to standard error."""

    def __init__(self) -> None:
        self.text = ""
        self._more = asyncio.Condition()
        self._ended = False

    async def read(self, stream: asyncio.StreamReader) -> None:
        """Read to the end."""
        while line := await stream.readline():
            async with self._more:
                self.text += line.decode()
                self._more.notify_all()
        async with self._more:
            self._ended = True
            self._more.notify_all()

    async def until(self, text: str) -> None:
        """Returns once `text` has been written."""
        async with asyncio.timeout(PATIENCE), self._more:
            await self._more.wait_for(lambda: text in self.text)

    async def ended(self) -> str:
        """All of it."""
        async with asyncio.timeout(PATIENCE), self._more:
            await self._more.wait_for(lambda: self._ended)
        return self.text


class ServerProcess:
    """A running server and a client of it."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        base_url: str,
        client: AsyncAnthropic,
        log: Log,
    ) -> None:
        self.process = process
        self.base_url = base_url
        self.client = client
        self.log = log

    async def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        await self.process.wait()

    def ask_to_stop(self) -> None:
        """SIGTERM."""
        self.process.send_signal(signal.SIGTERM)

    async def ended(self) -> str:
        """What it has logged, once it has ended by itself and without complaint."""
        async with asyncio.timeout(PATIENCE):
            assert await self.process.wait() == 0
        logged = await self.log.ended()
        assert "Traceback" not in logged, logged
        return logged

    async def ready(self) -> int:
        """The status of ``/readyz``; 0 if it is not answered."""
        async with httpx.AsyncClient(base_url=self.base_url, trust_env=False) as http:
            try:
                return (await http.get("/readyz")).status_code
            except httpx.TransportError:
                return 0

    async def until_ready(self, status: int = 200) -> None:
        """Returns once the server says that it is ready; with another `status`, that it is not."""
        async with asyncio.timeout(PATIENCE):
            while await self.ready() != status:
                await asyncio.sleep(0.05)

    async def session(self, *tools: Any) -> str:
        """A fresh session's id."""
        environment = await self.client.beta.environments.create(name="here", config={"type": "cloud"})
        agent = await self.client.beta.agents.create(name="tester", model=MODEL, tools=list(tools))
        made = await self.client.beta.sessions.create(agent=agent.id, environment_id=environment.id)
        return made.id

    async def says(self, session_id: str, script: list[dict[str, Any]]) -> None:
        """Send a message whose script the model plays."""
        await says(self.client, session_id, script)

    async def idle(self, session_id: str) -> list[Any]:
        """All events, once the session is idle."""
        return await idle(self.client, session_id)


async def says(client: AsyncAnthropic, session_id: str, script: list[dict[str, Any]]) -> str:
    """Send a message whose script the model plays; the event's id."""
    text = f"go\nscript: {msgspec.json.encode(script).decode()}"
    message: Any = {"type": "user.message", "content": [{"type": "text", "text": text}]}
    sent: Any = await client.beta.sessions.events.send(session_id, events=[message])
    return str(sent.data[0].id)


async def idle(client: AsyncAnthropic, session_id: str, turns: int = 1) -> list[Any]:
    """All events, once so many turns have ended: the documented recipe, again whenever the stream ends.

    Open a stream, list, go on with the stream: nothing is missed, and nothing is polled.
    """
    while True:
        try:
            async with await client.beta.sessions.events.stream(session_id) as stream:
                listed = [event async for event in client.beta.sessions.events.list(session_id)]
                ended = {event.id for event in listed if event.type == "session.status_idle"}
                if len(ended) >= turns:
                    return listed
                async for event in stream:
                    if event.type == "session.status_idle":
                        ended.add(event.id)
                        if len(ended) >= turns:
                            break
        except (httpx2.TransportError, APIConnectionError):
            continue  # a server was killed, and its streams were cut


def messages(events: Sequence[Any]) -> list[str]:
    """What the agent has said."""
    return [event.content[0].text for event in events if event.type == "agent.message"]


def model_requests(model: ScriptedModel) -> int:
    """How often the model was asked."""
    return int(model.stats["requests"])
