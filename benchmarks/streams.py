"""How soon is an event seen, and how many readers can follow a session?  ``python -m benchmarks.streams``

- send to seen: from just before a message is sent until the sender's own stream shows it. In Corral it is
  then in the log, on disk; the bare Starlette server hands it from one request to the other and keeps
  nothing.
- readers: many streams of one session, whose turns' events every one of them gets. The bare server is
  posted the very frames of such a turn, in the groups in which Corral sent them. The readers are one
  process.
"""

import asyncio
import statistics
import time
from collections.abc import Sequence

from benchmarks.client import Client, Stream
from benchmarks.managed_agents import ManagedAgents, fresh_mark
from benchmarks.rivals import OPEN_MANAGED_AGENTS
from benchmarks.table import Row, Sample, at_least, interleaved, milliseconds, not_run, under
from benchmarks.world import World, main

_SEEN = "send an event to seeing it on the stream"
_READERS = "events delivered, one session, {} readers"
_BARE = "a bare Starlette echo"
_END = b'"session.status_idle"'


async def streams(world: World) -> Sequence[Row]:
    """The rows of the questions about streams."""
    return [*await _seen(world), await _readers(world)]


async def _seen(world: World) -> list[Row]:
    rival = await world.rival()
    managed = [await world.corral(), *([] if isinstance(rival, str) else [rival])]
    contestants: dict[str, Sample] = {each.name: await _sends(each) for each in managed}
    contestants[_BARE] = await _posts(await world.bare())
    taken = await interleaved(contestants, world.size.rounds)
    middle = {name: statistics.median(samples) for name, samples in taken.items()}
    ours, bare = middle["corral"], middle[_BARE]
    rows = [Row(_SEEN, milliseconds(ours), f"{milliseconds(bare)}, {_BARE}", ours / bare, under(2.5))]
    if isinstance(rival, str):
        return [not_run(_SEEN, OPEN_MANAGED_AGENTS, rival, at_least(20)), *rows]
    theirs = middle[rival.name]
    peer = f"{milliseconds(theirs)}, {OPEN_MANAGED_AGENTS}"
    return [Row(_SEEN, milliseconds(ours), peer, theirs / ours, at_least(20)), *rows]


async def _sends(agents: ManagedAgents) -> Sample:
    session = await agents.create()
    stream = await agents.follow(session)

    async def sample() -> float:
        mark = fresh_mark()
        began = time.perf_counter()
        await agents.send(session, f"mark:{mark}")
        seen = await stream.until(b'"user.message"', mark.encode())
        await stream.until(_END)
        return seen - began

    return sample


async def _posts(bare: Client) -> Sample:
    stream = await bare.stream("/stream")

    async def sample() -> float:
        mark = fresh_mark()
        frame = f'event: message\ndata: {{"type":"user.message","text":"mark:{mark}"}}\n\n'
        began = time.perf_counter()
        await bare.post("/events", {"frames": [frame]})
        return await stream.until(mark.encode()) - began

    return sample


async def _readers(world: World) -> Row:
    corral, bare = await world.corral(), await world.bare()
    count, question = world.size.readers, _READERS.format(world.size.readers)
    session = await corral.create()
    groups = await _groups_of_a_turn(corral, session)
    events = sum(len(group) for group in groups)
    ours = _Crowd([await corral.follow(session) for _ in range(count)])
    theirs = _Crowd([await bare.stream("/stream") for _ in range(count)])

    async def turn() -> float:
        began = time.perf_counter()
        await corral.send(session, f"mark:{fresh_mark()}")
        await ours.turn_over()
        return events * count / (time.perf_counter() - began)

    async def posts() -> float:
        began = time.perf_counter()
        for group in groups:
            await bare.post("/events", {"frames": group})
        await theirs.turn_over()
        return events * count / (time.perf_counter() - began)

    taken = await interleaved({"corral": turn, "bare": posts}, max(3, world.size.rounds // 4))
    ours.close()
    theirs.close()
    mine, other = (statistics.median(rates) for rates in taken.values())
    return Row(question, f"{mine:,.0f}/s", f"{other:,.0f}/s, bare Starlette", mine / other, at_least(0.6))


async def _groups_of_a_turn(corral: ManagedAgents, session: str) -> list[list[str]]:
    """The frames of one turn, those that came together in one group."""
    stream = await corral.follow(session)
    await corral.send(session, f"mark:{fresh_mark()}")
    groups: dict[float, list[str]] = {}
    while not any(_END.decode() in frame for group in groups.values() for frame in group):
        await asyncio.sleep(0.01)
        while stream.frames:
            at, frame = stream.frames.pop(0)
            groups.setdefault(at, []).append(f"{frame.decode()}\n\n")
    stream.close()
    return list(groups.values())


class _Crowd:
    """Many readers of one stream, who only count how many turns they have seen the end of."""

    def __init__(self, readers: Sequence[Stream]) -> None:
        self._readers = readers
        self._turns = 0
        for reader in readers:
            reader.counted = {_END: 0}

    async def turn_over(self) -> None:
        """Returns once all have seen the next turn's end."""
        self._turns += 1
        for reader in self._readers:
            await reader.until_counted(_END, self._turns)

    def close(self) -> None:
        """All hang up."""
        for reader in self._readers:
            reader.close()


if __name__ == "__main__":
    main(streams, __doc__)
