"""How soon does another server carry on when one is killed?  ``python -m benchmarks.takeover``

A `corral serve` is killed with SIGKILL while the provider has its request of a turn; the time runs from
the kill to the request of another server on the same database, which has been ready before. That one is
the next to be killed.
"""

import asyncio
import os
import signal
import statistics
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

from benchmarks.client import SECONDS, Refused
from benchmarks.managed_agents import ManagedAgents, fresh_mark
from benchmarks.table import Row, milliseconds, p95, under
from benchmarks.world import World, main


async def takeover(world: World) -> Sequence[Row]:
    """The row of the question."""
    url, provider = await world.database(), await world.provider_client()
    taken: list[float] = []
    async with AsyncExitStack() as stack:
        victim = await stack.enter_async_context(world.another_corral(url))
        for _ in range(world.size.kills):
            session, mark = await victim.create(), fresh_mark()
            # While it is the only one, the turn is its own.
            await victim.send(session, f"mark:{mark} hold:once")
            await provider.get(f"/arrival/{mark}")
            survivor = await stack.enter_async_context(world.another_corral(url))
            await _ready(survivor)
            stream = await survivor.follow(session)
            began = time.perf_counter()
            os.kill(victim.pid, signal.SIGKILL)
            _, arrived = await provider.get(f"/arrival/{mark}?count=2")
            taken.append(arrived - began)
            await stream.until(b'"session.status_idle"')
            stream.close()
            victim = survivor
    late = p95(taken)
    shown = f"{milliseconds(late)} (p50 {milliseconds(statistics.median(taken))})"
    return [Row(f"kill -9 to the next model request, p95 of {len(taken)}", shown, "-", late, under(1, "s"))]


async def _ready(corral: ManagedAgents) -> None:
    """Returns once the server says that it could ask a model at once."""
    async with asyncio.timeout(SECONDS):
        while True:
            try:
                await corral.client.get("/readyz")
            except Refused:
                await asyncio.sleep(0.05)
            else:
                return


if __name__ == "__main__":
    main(takeover, __doc__)
