"""What does a turn cost, and how soon does it begin?  ``python -m benchmarks.turns``

The model answers at once and calls no tools, so all that is left is the server's own work: taking the
message, asking the model, writing the log and telling whoever follows it.

- send to the model request: from just before the message is sent until the provider has the whole
  request.
- turns per second: 32 sessions, each with an open stream, send their next message when the stream says
  that the turn is over.
- processor time per turn: of the server and PostgreSQL together, in the same runs.
- first token: from sending the message until the client sees the first piece of the answer, with a
  provider that takes 200 ms to its first token, as quick hosted models do. The peer is a call of the
  provider itself.
"""

import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence

from benchmarks.client import Client, Stream
from benchmarks.managed_agents import MODEL, ManagedAgents, Sender, fresh_mark, sender
from benchmarks.processes import cpu_seconds
from benchmarks.rivals import OPEN_MANAGED_AGENTS
from benchmarks.table import Row, at_least, interleaved, milliseconds, not_run, p95, under
from benchmarks.world import World, main

_FIRST_TOKEN_MS = 200
_FIRST = f"first token from a provider that takes {_FIRST_TOKEN_MS} ms, p50"
_REQUEST = "send to the model request, {}"
_TURNS = "turns per second, {} sessions"
_CPU = "processor time per turn, server and PostgreSQL"
_FASTER = at_least(1)


async def turns(world: World) -> Sequence[Row]:
    """The rows of the questions about turns."""
    return [*await _beginnings(world), *await _throughput(world), await _first_token(world)]


async def _beginnings(world: World) -> list[Row]:
    corral, provider = await world.corral(), await world.provider_client()
    peers: dict[str, Sender] = {}
    absent: dict[str, str] = {}
    for name, peer in (await world.senders()).items():
        if isinstance(peer, str):
            absent[name] = peer
        else:
            peers[name] = peer
    contestants = {"corral": await sender(corral), **peers}
    taken = await interleaved(
        {name: _until_asked(send, provider) for name, send in contestants.items()}, world.size.rounds
    )
    rows: list[Row] = []
    ours = taken.pop("corral")
    for name, theirs in taken.items():
        for which, pick in (("p50", statistics.median), ("p95", p95)):
            mine, other = pick(ours), pick(theirs)
            peer = f"{milliseconds(other)}, {name}"
            rows.append(Row(_REQUEST.format(which), milliseconds(mine), peer, other / mine, _FASTER))
    return [
        *rows,
        *(not_run(_REQUEST.format("p50, p95"), name, why, _FASTER) for name, why in absent.items()),
    ]


def _until_asked(send: Sender, provider: Client) -> Callable[[], Awaitable[float]]:
    async def sample() -> float:
        mark = fresh_mark()
        began = time.perf_counter()
        await send(f"mark:{mark}")
        [arrived, *_] = await provider.get(f"/arrival/{mark}")
        return arrived - began

    return sample


class _Load:
    """A server under the load of many sessions, each of which says its next word when it has its answer."""

    def __init__(self, agents: ManagedAgents, postgres: int, seconds: float) -> None:
        self._agents = agents
        self._postgres = postgres
        self._seconds = seconds
        self._open: list[tuple[str, Stream]] = []
        self.cpu: list[float] = []

    async def open(self, sessions: int) -> None:
        """Make the sessions and follow each."""
        for _ in range(sessions):
            session = await self._agents.create()
            self._open.append((session, await self._agents.follow(session)))

    async def rate(self) -> float:
        """Turns per second."""
        done, before, began = 0, self._cpu(), time.perf_counter()

        async def client(session: str, stream: Stream) -> None:
            nonlocal done
            while time.perf_counter() < began + self._seconds:
                await self._agents.turn(session, stream)
                done += 1

        await asyncio.gather(*(client(*each) for each in self._open))
        rate = done / (time.perf_counter() - began)
        self.cpu.append((self._cpu() - before) / done)
        return rate

    def close(self) -> None:
        """Stop following."""
        for _, stream in self._open:
            stream.close()

    def _cpu(self) -> float:
        return cpu_seconds(self._agents.pid) + cpu_seconds(self._postgres)


async def _throughput(world: World) -> list[Row]:
    corral, rival = await world.corral(), await world.rival()
    question, bar = _TURNS.format(world.size.sessions), at_least(5)
    both = [corral] if isinstance(rival, str) else [corral, rival]
    postgres = world.postgres.pid
    assert postgres is not None
    loads = {each.name: _Load(each, postgres, world.size.seconds) for each in both}
    for load in loads.values():
        await load.open(world.size.sessions)
    taken = await interleaved({name: load.rate for name, load in loads.items()}, world.size.repeats)
    for load in loads.values():
        load.close()
    if isinstance(rival, str):
        return [not_run(name, OPEN_MANAGED_AGENTS, rival, bar) for name in (question, _CPU)]
    mine, other = (statistics.median(rates) for rates in taken.values())
    my_cpu, other_cpu = (statistics.median(load.cpu[1:]) for load in loads.values())
    peer = f"{milliseconds(other_cpu)}, {OPEN_MANAGED_AGENTS}"
    return [
        Row(question, f"{mine:.0f}/s", f"{other:.1f}/s, {OPEN_MANAGED_AGENTS}", mine / other, bar),
        Row(_CPU, milliseconds(my_cpu), peer, other_cpu / my_cpu, bar),
    ]


async def _first_token(world: World) -> Row:
    corral, provider = await world.corral(), await world.provider_client()
    session = await corral.create()
    stream = await corral.follow(session, previews=True)

    async def through() -> float:
        mark = fresh_mark()
        began = time.perf_counter()
        await corral.send(session, f"mark:{mark} first:{_FIRST_TOKEN_MS}")
        seen = await stream.until(b'"event_delta"')
        await stream.until(b'"session.status_idle"')
        return seen - began

    async def direct() -> float:
        said = {"role": "user", "content": f"mark:{fresh_mark()} first:{_FIRST_TOKEN_MS}"}
        body = {"model": MODEL, "max_tokens": 100, "stream": True, "messages": [said]}
        began = time.perf_counter()
        answer = await provider.stream("/v1/messages", method="POST", body=json.dumps(body).encode())
        seen = await answer.until(b'"text_delta"')
        answer.close()
        return seen - began

    taken = await interleaved({"corral": through, "direct": direct}, world.size.rounds)
    mine, other = (statistics.median(samples) for samples in taken.values())
    stream.close()
    return Row(_FIRST, milliseconds(mine), f"{milliseconds(other)}, direct call", mine / other, under(1.15))


if __name__ == "__main__":
    main(turns, __doc__)
