"""What does a server hold in memory?  ``python -m benchmarks.memory``

Resident memory of one `corral serve`: when it has just started, what every open stream adds, and what
every session adds that has had its turn and is idle. Memory that Python keeps for reuse counts as held,
so sessions are compared with as many sessions before them: what grows with their number is theirs.
"""

import asyncio
from collections.abc import Sequence

from benchmarks.managed_agents import ManagedAgents
from benchmarks.processes import resident_bytes
from benchmarks.table import Row, under
from benchmarks.world import World, main

_MIB, _KIB = 1024 * 1024, 1024
_SETTLE_SECONDS = 1.0
_FEW = 16
_BEFORE = 3


async def memory(world: World) -> Sequence[Row]:
    """The rows of the questions about memory."""
    async with world.another_corral(await world.database()) as corral:
        await asyncio.sleep(_SETTLE_SECONDS)
        idle = resident_bytes(corral.pid)
        # Until everything has been used that a server keeps for all sessions together.
        await _sessions(corral, _BEFORE * world.size.idle)
        per_session = await _sessions(corral, world.size.idle)
        per_stream = await _streams(corral, world.size.readers)
    return [
        Row("resident memory of an idle server", f"{idle / _MIB:.0f} MB", "-", idle / _MIB, under(150, "MB")),
        Row(
            f"memory per open stream, {world.size.readers} of them",
            f"{per_stream / _KIB:.1f} KiB", "-", per_stream / _KIB, under(20, "KiB"),
        ),
        Row(
            f"memory per idle session, {world.size.idle} of them",
            f"{per_session:.0f} bytes", "-", per_session, under(_NOISE_BYTES, "bytes"),
        ),
    ]  # fmt: skip


_NOISE_BYTES = 256
"""The promise is 0; memory is counted in pages, and this is what they leave open at 500 sessions."""


async def _sessions(corral: ManagedAgents, count: int) -> float:
    """Bytes that each of so many new sessions has added, after a turn of each."""
    before = resident_bytes(corral.pid)
    waiting = list(range(count))

    async def client() -> None:
        while waiting:
            waiting.pop()
            session = await corral.create()
            stream = await corral.follow(session)
            await corral.turn(session, stream)
            stream.close()

    await asyncio.gather(*(client() for _ in range(_FEW)))
    await asyncio.sleep(_SETTLE_SECONDS)
    return (resident_bytes(corral.pid) - before) / count


async def _streams(corral: ManagedAgents, count: int) -> float:
    """Bytes that each of so many open streams adds."""
    session = await corral.create()
    warm = [await corral.follow(session) for _ in range(_FEW)]
    before = resident_bytes(corral.pid)
    opened = [await corral.follow(session) for _ in range(count)]
    await asyncio.sleep(_SETTLE_SECONDS)
    added = resident_bytes(corral.pid) - before
    for stream in (*warm, *opened):
        stream.close()
    return added / count


if __name__ == "__main__":
    main(memory, __doc__)
