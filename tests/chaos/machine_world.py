"""What the state machine acts on: a database, a scripted model, a server that can be killed, and clients.

Everything runs in one event loop of the machine's own, which runs while a rule runs. Whoever waits here waits
for the database to tell of a change, for a stream, or for the model; nothing is slept over.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from typing import Any, Final

import httpx
import msgspec

from corral.resources.environments import Environments
from corral.resources.keys import Keys
from corral.store.database import Connection, Database
from corral.testing import ScriptedModel
from tests.chaos.machine_server import Mortal

PATIENCE: Final = 20.0
"""Seconds in which a session must come to rest, whatever was done to it."""

_TELL: Final = """
create function machine_tells() returns trigger language plpgsql as
$$ begin perform pg_notify('machine', ''); return null; end $$;
create trigger machine_tells after insert or update or delete on wakes
    for each statement execute function machine_tells();
create trigger machine_tells after insert or update or delete on sessions
    for each statement execute function machine_tells();
"""

TOOLS: Final[list[dict[str, Any]]] = [
    {
        "type": "agent_toolset_20260401",
        "configs": [
            {"name": "read", "permission_policy": {"type": "always_ask"}},
            {"name": "grep", "enabled": False},
        ],
    },
    {
        "type": "custom",
        "name": "look_up",
        "description": "Looks something up.",
        "input_schema": {"type": "object"},
    },
]


class World:
    """Open with ``with``; `run` runs a coroutine in its loop."""

    def __init__(self, database_url: str, log: str) -> None:
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self._database_url = database_url
        self._log = log
        self._counter = 0
        self.changes = 0
        self._changed = asyncio.Condition()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine to its end; the loop stands still between two calls."""
        return self._runner.run(work)

    def __enter__(self) -> "World":
        try:
            self.run(self._open())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self._close())
        self._runner.close()

    async def _open(self) -> None:
        enter = self._stack.enter_async_context
        self.database = await enter(Database(self._database_url, max_size=4, name="machine"))
        await self.database.execute(_TELL)
        self.model = await enter(ScriptedModel())
        self.server = Mortal(self._database_url, self.model.base_url, self._log)
        self._stack.push_async_callback(self.server.close)
        keys = Keys(self.database)
        _, api_key = await keys.create("api", "machine")
        _, self.pool_key = await keys.create("pool", "machine")
        self.http = await enter(
            httpx.AsyncClient(
                base_url=self.server.base_url,
                headers={"authorization": f"Bearer {api_key}"},
                timeout=30,
                trust_env=False,
            )
        )
        listener = await self.database.dedicated()
        self._stack.push_async_callback(listener.close)
        await listener.execute("listen machine")
        listening = asyncio.create_task(self._listen(listener))
        self._stack.push_async_callback(_cancelled, listening)
        await self.server.start()
        cloud = await Environments(self.database).ensure_named("default")
        hosted = await self.post("/v1/environments", name="theirs", config={"type": "self_hosted"})
        self.environments: dict[str, str] = {"cloud": cloud.id, "self_hosted": hosted.json()["id"]}
        _, self.environment_key = await keys.create(
            "environment", "machine", environment_id=self.environments["self_hosted"]
        )
        self.agent = await self._make_agent()

    async def _make_agent(self) -> str:
        agent = await self.post("/v1/agents", name="machine", model="claude-sonnet-4-5", tools=TOOLS)
        return agent.json()["id"]

    async def _close(self) -> None:
        await self._stack.aclose()

    async def _listen(self, listener: Connection) -> None:
        async for _ in listener.notifies():
            await self.tell()

    async def tell(self) -> None:
        """Something changed: whoever waits looks again."""
        self.changes += 1
        async with self._changed:
            self._changed.notify_all()

    async def until_changes(self, count: int, seconds: float) -> None:
        """Wait for `count` more changes in the database, or for `seconds`, whichever comes first."""
        target = self.changes + count
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(lambda: self.changes >= target)

    async def until(self, holds: Callable[[], Coroutine[Any, Any, str | None]]) -> None:
        """Wait until `holds` gives None; else fail with what it said last."""
        missing: str | None = ""
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    seen = self.changes
                    if (missing := await holds()) is None:
                        return
                    async with self._changed:
                        await self._changed.wait_for(lambda seen=seen: self.changes > seen)
        except TimeoutError:
            raise AssertionError(f"after {PATIENCE} s: {missing}") from None

    def unique(self, prefix: str) -> str:
        """A name that was never used before in this world."""
        self._counter += 1
        return f"{prefix}{self._counter}"

    async def get(self, path: str, **query: Any) -> httpx.Response:
        """A GET with the application's key."""
        return _no_fault(await self.http.get(path, params=query))

    async def post(self, path: str, *, key: str | None = None, **body: Any) -> httpx.Response:
        """A POST with the application's key, or another."""
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        return _no_fault(await self.http.post(path, json=body, headers=headers))

    async def events(self, session_id: str) -> list[dict[str, Any]]:
        """All events as the API lists them, page by page."""
        found: list[dict[str, Any]] = []
        page: dict[str, str] = {}
        while True:
            answer = (await self.get(f"/v1/sessions/{session_id}/events", limit=1000, **page)).json()
            found += answer["data"]
            if not answer["next_page"]:
                return found
            page = {"page": answer["next_page"]}

    async def row(self, session_id: str) -> "Row | None":
        """A session's rows as one snapshot."""
        row = await self.database.fetch_one(
            "select s.status, s.last_seq, s.archived_at is not null as archived,"
            " array(select seq from events e where e.session_id = s.id order by seq) as seqs,"
            " array(select id from events e where e.session_id = s.id order by seq) as ids,"
            " array(select body::text from events e where e.session_id = s.id order by seq) as bodies,"
            " array(select id from inputs i where i.session_id = s.id order by position) as inputs,"
            " w.session_id is not null as wake, w.brain_id, coalesce(w.lease_until > now(), false) as leased"
            " from sessions s left join wakes w on w.session_id = s.id where s.id = %s",
            (session_id,),
        )
        return None if row is None else msgspec.convert(row, Row)


class Row(msgspec.Struct, frozen=True):
    """What the database holds of a session at one moment."""

    status: str
    last_seq: int
    archived: bool
    seqs: list[int]
    ids: list[str]
    bodies: list[str]
    inputs: list[str]
    wake: bool
    brain_id: str | None
    leased: bool

    def events(self) -> list[dict[str, Any]]:
        """The log's events without their times."""
        return [msgspec.json.decode(body) for body in self.bodies]


def _no_fault(response: httpx.Response) -> httpx.Response:
    assert response.status_code < 500, f"{response.request.method} {response.request.url}: {response.text}"
    return response


async def _cancelled(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
