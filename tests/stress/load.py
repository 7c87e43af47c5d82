"""Loads that a server is put under, of any size: `make stress` runs them long, `make test` short."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
from anthropic import AsyncAnthropic

from corral.testing import ScriptedModel
from tests.corral_server import MODEL, Corral
from tests.e2e.test_recovery_of_processes import LOOK_UP
from tests.server_process import KEY, PATIENCE, ServerProcess, idle, messages, model_requests
from tests.stress.budgets import (
    ConcurrentTurns,
    IdleSessions,
    LargeOutputs,
    OneQueue,
    OneSession,
    OpenStreams,
    ReconnectStorms,
    Responsive,
)
from tests.stress.crowd import Crowd, stream_of

_AT_ONCE = 32


@dataclass(frozen=True)
class Target:
    """A server under load."""

    base_url: str
    key: str
    client: AsyncAnthropic
    model: ScriptedModel
    memory: Callable[[], float] = lambda: 0.0
    """What its process holds, in MiB; 0 where it is the test's own."""

    def http(self) -> httpx.AsyncClient:
        """A plain client, which costs less than the SDK."""
        limits = httpx.Limits(max_connections=_AT_ONCE, max_keepalive_connections=_AT_ONCE)
        return httpx.AsyncClient(
            base_url=self.base_url,
            headers={"x-api-key": self.key},
            timeout=PATIENCE,
            trust_env=False,
            limits=limits,
        )

    async def sessions(
        self, http: httpx.AsyncClient, count: int, *tools: Any, kind: str = "cloud"
    ) -> list[str]:
        """Fresh sessions' ids, of one fresh agent on one fresh environment."""
        environment = await made(http, "/v1/environments", {"name": "load", "config": {"type": kind}})
        agent = await made(http, "/v1/agents", {"name": "load", "model": MODEL, "tools": list(tools)})
        body = {"agent": agent["id"], "environment_id": environment["id"]}
        each = gathered(lambda _: made(http, "/v1/sessions", body), range(count))
        return [session["id"] for session in await each]


def target_of(corral: Corral) -> Target:
    """A server in the test's own process."""
    return Target(corral.base_url, corral.api_key, corral.client, corral.model)


def target_at(server: ServerProcess, model: ScriptedModel) -> Target:
    """A server that is a process of its own."""

    def memory() -> float:
        return resident_mib(server.process.pid)

    return Target(server.base_url, KEY, server.client, model, memory)


def check_responsive(logged: str, budget: Responsive) -> None:
    """By what a server has measured all its life: nothing it computed held up its event loop for long."""
    lines = [msgspec.json.decode(line) for line in logged.splitlines() if "responsiveness of" in line]
    [measured] = lines
    assert measured["samples"] > 0
    assert measured["computing_p95"] <= budget.computing_p95_seconds, measured
    assert measured["computing_worst"] <= budget.computing_worst_seconds, measured
    assert measured["late_p95"] <= budget.late_p95_seconds, measured


def resident_mib(pid: int) -> float:
    """Memory that a process holds."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    [line] = [line for line in lines if "VmRSS" in line]
    return int(line.split()[1]) / 1024


async def made(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """What a POST has answered."""
    response = await http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def gathered(do: Callable[[Any], Any], over: Sequence[Any]) -> list[Any]:
    """Do something for each, some at a time."""
    places = asyncio.Semaphore(_AT_ONCE)

    async def one(each: Any) -> Any:
        async with places:
            return await do(each)

    return await asyncio.gather(*(one(each) for each in over))


async def say(http: httpx.AsyncClient, session_id: str, script: list[dict[str, Any]]) -> None:
    """Send a message whose script the model plays."""
    text = f"go\nscript: {msgspec.json.encode(script).decode()}"
    message = {"type": "user.message", "content": [{"type": "text", "text": text}]}
    await made(http, f"/v1/sessions/{session_id}/events", {"events": [message]})


async def open_streams(target: Target, budget: OpenStreams) -> None:
    """Each of many streams gets each of its session's turns, and costs so much at most."""
    async with target.http() as http, Crowd(target.base_url, target.key) as crowd:
        sessions = await target.sessions(http, budget.sessions)
        before = target.memory()
        paths = [stream_of(sessions[n % len(sessions)]) for n in range(budget.streams)]
        readers = await crowd.join(paths)
        grown = target.memory() - before
        assert grown * 1024 < budget.streams * budget.kib_per_stream, f"{grown:.1f} MiB"
        for turn in range(1, budget.turns + 1):
            await gathered(lambda one: say(http, one, [{"text": "to all of you"}]), sessions)
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*(reader.until_marks(turn) for reader in readers))
        assert {reader.marks for reader in readers} == {budget.turns}
        grown = target.memory() - before
        assert grown * 1024 < budget.streams * budget.kib_per_stream, f"{grown:.1f} MiB, used"


async def reconnect_storms(target: Target, budget: ReconnectStorms) -> None:
    """All readers hang up and come back at once, in the middle of turns; nobody misses a turn's end."""
    slowly = [{"text": "word " * 40, "chunk_chars": 5, "chunk_ms": 5}]
    async with target.http() as http, Crowd(target.base_url, target.key, at_once=budget.streams) as crowd:
        sessions = await target.sessions(http, budget.sessions)
        streams = [f"{stream_of(session_id)}?event_deltas[]=agent.message" for session_id in sessions]
        paths = [streams[n % len(streams)] for n in range(budget.streams)]
        after_first = 0.0
        for storm in range(1, budget.storms + 1):
            await crowd.join(paths)
            await gathered(lambda one: say(http, one, slowly), sessions)
            crowd.hang_up()
            readers = await crowd.join(paths)
            # By the recipe: open, list, go on. Whoever came after the end finds it in the list.
            listed = await gathered(lambda one, turns=storm: idle(target.client, one, turns), sessions)
            assert [_idles(events) for events in listed] == [storm] * len(sessions)
            assert all(reader.open for reader in readers)
            crowd.hang_up()
            after_first = after_first or target.memory()
        readers = await crowd.join(paths)
        await gathered(lambda one: say(http, one, [{"text": "and on"}]), sessions)
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(reader.until_marks(1) for reader in readers))
        grown = target.memory() - after_first
        assert grown < budget.growth_mib, f"{grown:.1f} MiB more than after the first storm"


async def idle_sessions(target: Target, budget: IdleSessions) -> None:
    """Sessions that nobody speaks to cost a server nothing."""
    async with target.http() as http:
        await target.sessions(http, budget.before)
        before = target.memory()
        sessions = await target.sessions(http, budget.sessions)
        grown = (target.memory() - before) * 1024 * 1024
        assert grown / budget.sessions < budget.bytes_per_session, f"{grown / budget.sessions:.0f} bytes each"
        await say(http, sessions[0], [{"text": "still there"}])
    assert messages(await idle(target.client, sessions[0])) == ["still there"]


async def concurrent_turns(target: Target, budget: ConcurrentTurns) -> None:
    """Many sessions wait for the model at the same moment; each gets its answer, asked for once."""
    held = [{"text": "at last", "hold": "all"}]
    async with target.http() as http, Crowd(target.base_url, target.key) as crowd:
        sessions = await target.sessions(http, budget.turns)
        asked = model_requests(target.model)
        before = target.memory()
        readers = await crowd.join([stream_of(session_id) for session_id in sessions])
        await gathered(lambda one: say(http, one, held), sessions)
        async with asyncio.timeout(PATIENCE):
            await target.model.player.holds.until_waiting("all", budget.turns)
        grown = target.memory() - before
        assert grown * 1024 < budget.turns * budget.kib_per_turn, f"{grown:.1f} MiB"
        target.model.release("all")
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(reader.until_marks(1) for reader in readers))
    assert model_requests(target.model) - asked == budget.turns
    target.model.assert_no_refusals()


async def one_session(targets: Sequence[Target], budget: OneSession) -> None:
    """Many brains want one session: its turns are made one after the other, whoever makes them."""
    first = targets[0]
    async with first.http() as http:
        [session_id] = await first.sessions(http, 1)
    texts = [f"message {n}" for n in range(budget.messages)]

    async def send(n: int) -> None:
        content = [{"type": "text", "text": f'{texts[n]}\nscript: {{"text": "answer"}}'}]
        message: Any = {"type": "user.message", "content": content}
        await targets[n % len(targets)].client.beta.sessions.events.send(session_id, events=[message])

    await asyncio.gather(*(send(n) for n in range(budget.messages)))
    async with asyncio.timeout(PATIENCE):
        events = await idle(first.client, session_id)
        while not _all_done(events, len(texts)):
            events = await idle(first.client, session_id, _idles(events) + 1)
    said = [event.content[0].text.split("\n")[0] for event in events if event.type == "user.message"]
    assert sorted(said) == sorted(texts)
    starts = [event for event in events if event.type == "span.model_request_start"]
    ends = [event for event in events if event.type == "span.model_request_end"]
    assert [event.is_error for event in ends] == [False] * len(starts)
    assert model_requests(first.model) == len(starts)
    kinds = [event.type for event in events if event.type.startswith("span.model_request")]
    assert kinds == ["span.model_request_start", "span.model_request_end"] * len(starts)
    first.model.assert_no_refusals()


def _all_done(events: Sequence[Any], count: int) -> bool:
    taken = sum(event.type == "user.message" and event.processed_at is not None for event in events)
    return taken == count and events[-1].type == "session.status_idle"


def _idles(events: Sequence[Any]) -> int:
    return sum(event.type == "session.status_idle" for event in events)


async def one_queue(targets: Sequence[Target], key: Callable[[str], Any], budget: OneQueue) -> None:
    """Many workers poll one queue on several servers: each item is one worker's. `key` makes their key."""
    async with targets[0].http() as http:
        sessions = await targets[0].sessions(http, budget.items, kind="self_hosted")
        environment = (await http.get(f"/v1/sessions/{sessions[0]}")).json()["environment_id"]
    worker_key = await key(environment)
    claimed: list[str] = []

    async def work(n: int) -> None:
        headers = {"x-api-key": worker_key}
        at = targets[n % len(targets)].base_url
        async with httpx.AsyncClient(base_url=at, headers=headers, timeout=PATIENCE, trust_env=False) as http:
            while len(claimed) < budget.items:
                response = await http.get(f"/v1/environments/{environment}/work/poll")
                assert response.status_code == 200, response.text
                item = response.json()
                if item is None:
                    continue
                claimed.append(item["id"])
                acked = await http.post(f"/v1/environments/{environment}/work/{item['id']}/ack", json={})
                assert acked.status_code == 200, acked.text

    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(work(n) for n in range(budget.workers)))
    assert len(claimed) == len(set(claimed)) == budget.items


async def large_outputs(target: Target, budget: LargeOutputs) -> None:
    """Results of many megabytes go to the log, to the model and to every reader, whole."""
    script: list[dict[str, Any]] = [{"tools": [{"name": "look_up", "input": {}}]}, {"text": "read it all"}]
    async with target.http() as http, Crowd(target.base_url, target.key) as crowd:
        sessions = await target.sessions(http, budget.sessions, LOOK_UP)
        before = target.memory()
        readers = await crowd.join([stream_of(one) for one in sessions for _ in range(budget.readers)])
        await gathered(lambda one: say(http, one, script), sessions)
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(reader.until_marks(1) for reader in readers))
        for session_id in sessions:
            listed = (await http.get(f"/v1/sessions/{session_id}/events")).json()["data"]
            [call] = [event["id"] for event in listed if event["type"] == "agent.custom_tool_use"]
            content = [{"type": "text", "text": "x" * budget.bytes}]
            result = {"type": "user.custom_tool_result", "custom_tool_use_id": call, "content": content}
            await made(http, f"/v1/sessions/{session_id}/events", {"events": [result]})
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(reader.until_marks(2) for reader in readers))
        assert min(reader.bytes for reader in readers) > budget.bytes
        grown = target.memory() - before
        assert grown < budget.growth_mib, f"{grown:.1f} MiB"
    target.model.assert_no_refusals()
