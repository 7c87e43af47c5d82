"""The customer's side of a self-hosted environment: its key, the official client, and what that one asked.

Nothing here polls or sleeps: a test waits for what the client was answered, or for an event of the session.
"""

import asyncio
import json
from base64 import urlsafe_b64decode
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient

from tests.corral_server import Corral, SessionUnderTest

TOOLSET: dict[str, Any] = {"type": "agent_toolset_20260401"}
WEATHER: dict[str, Any] = {
    "type": "custom",
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
# No test takes longer than this, whatever goes wrong.
LONGEST = 12.0


def calls(*named: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """A model's step that calls tools."""
    return {"tools": [{"name": name, "input": input} for name, input in named]}


def bash(command: str) -> dict[str, Any]:
    """A model's step that calls bash."""
    return calls(("bash", {"command": command}))


def token_of(item: Any) -> str:
    """The token in a polled item's secret."""
    return str(json.loads(urlsafe_b64decode(item.secret + "=" * (-len(item.secret) % 4)))["sessions_token"])


def ends_turn(idle: Any) -> bool:
    return idle.stop_reason.type == "end_turn"


def asks(idle: Any) -> bool:
    return idle.stop_reason.type == "requires_action"


def text_of(result: Any) -> str:
    return str(result.content[0].text)


async def results_of(session: SessionUnderTest) -> list[Any]:
    """The results of the sandbox's and the application's tools, in order."""
    kinds = ("user.tool_result", "user.custom_tool_result", "agent.tool_result")
    return [event for event in await session.events() if event.type in kinds]


@dataclass(frozen=True)
class Answer:
    """What a client asked for and the status that it got."""

    method: str
    path: str
    status: int
    body: bytes
    authorization: str


class Wire:
    """Everything that a client has been answered, and a way to wait for an answer."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self._news = asyncio.Condition()

    async def note(self, response: Any) -> None:
        """Called for every response; a stream's body is left alone."""
        request = response.request
        streams = request.url.path.endswith("/stream")
        body = b"" if streams else await response.aread()
        async with self._news:
            self.answers.append(
                Answer(
                    request.method,
                    request.url.path,
                    response.status_code,
                    body,
                    request.headers.get("authorization", ""),
                )
            )
            self._news.notify_all()

    def to(self, end: str) -> list[Answer]:
        """The answers of the requests whose path ends like this."""
        return [answer for answer in self.answers if answer.path.endswith(end)]

    async def until(self, end: str, where: Callable[[Answer], bool] | None = None, count: int = 1) -> Answer:
        """The `count`-th answer to a request whose path ends like this, and for which `where` holds."""

        def found() -> list[Answer]:
            return [answer for answer in self.to(end) if where is None or where(answer)]

        async with asyncio.timeout(LONGEST), self._news:
            await self._news.wait_for(lambda: len(found()) >= count)
        return found()[count - 1]


@dataclass(frozen=True)
class Premises:
    """A self-hosted environment and what its customer has: the key, and the official client."""

    corral: Corral
    environment_id: str
    key: str
    client: AsyncAnthropic
    """Has no API key of the server's; retries as it is delivered."""
    wire: Wire
    keyed: AsyncAnthropic
    """The same with the environment key, for calls made by hand."""

    @property
    def work(self) -> Any:
        """The work API with the environment key."""
        return self.keyed.beta.environments.work

    @property
    def owner(self) -> Any:
        """The work API with the server's API key."""
        return self.corral.client.beta.environments.work

    async def session(self, *tools: Any) -> SessionUnderTest:
        """A fresh session in this environment."""
        made = await self.corral.client.beta.sessions.create(
            agent=await self.corral.agent(*tools), environment_id=self.environment_id
        )
        return SessionUnderTest(self.corral, made.id)

    async def items(self) -> list[Any]:
        """The environment's work items, oldest first."""
        listed = [item async for item in self.work.list(self.environment_id)]
        return listed[::-1]

    async def claimed(self, **query: Any) -> Any:
        """An item, polled and acknowledged by hand."""
        item = await self.work.poll(self.environment_id, **query)
        assert item is not None
        await self.work.ack(item.id, environment_id=self.environment_id)
        return item

    async def expire(self, item_id: str) -> None:
        """Let the lease of an item run out now."""
        await self.corral.database.execute(
            "update work set lease_until = now() - interval '1 second' where id = %s", (item_id,)
        )

    @asynccontextmanager
    async def running(self, **options: Any) -> AsyncGenerator[None]:
        """The official worker, polling, until the block ends."""
        worker = self.client.beta.environments.work.worker(
            environment_id=self.environment_id, environment_key=self.key, **options
        )
        async with until_done(worker.run(), cancelled=True):
            yield


@asynccontextmanager
async def until_done(coroutine: Any, *, cancelled: bool = False) -> AsyncGenerator[asyncio.Task[Any]]:
    """Run something beside the block; afterwards it must end by itself, or it is cancelled."""
    task: asyncio.Task[Any] = asyncio.create_task(coroutine)
    try:
        async with asyncio.timeout(LONGEST):
            yield task
            if not cancelled:
                await task
    finally:
        task.cancel()
        [ended] = await asyncio.gather(task, return_exceptions=True)
    if isinstance(ended, Exception):
        raise ended


@asynccontextmanager
async def premises_of(corral: Corral) -> AsyncGenerator[Premises]:
    """A fresh self-hosted environment."""
    environment_id = await corral.environment("self_hosted")
    _, key = await corral.services.keys.create("environment", "test", environment_id=environment_id)
    wire = Wire()
    http = DefaultAsyncHttpxClient(event_hooks={"response": [wire.note]})
    client = AsyncAnthropic(base_url=corral.base_url, api_key="not-a-key", http_client=http)
    keyed = AsyncAnthropic(base_url=corral.base_url, api_key=key, max_retries=0)
    async with client, keyed:
        yield Premises(corral, environment_id, key, client, wire, keyed)
