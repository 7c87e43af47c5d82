"""Does a turn cost more when many came before it?  ``python -m benchmarks.long_session``

One session has 2,000 turns. The model has to be sent all that was said before, so a turn costs what that
costs: a direct call of the provider with the same request, which is made right after the turn and taken
away. What is left of the last turns is compared with what is left of the tenth.

What is counted is processor time of the server and PostgreSQL, and the time until the turn is over.
"""

import asyncio
import json
import statistics
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.client import Client
from benchmarks.managed_agents import MODEL, fresh_mark
from benchmarks.processes import cpu_seconds
from benchmarks.table import Row, milliseconds, under
from benchmarks.world import World, main

_WINDOW = 8
"""Turns that are looked at together, each alone being too short for the clock."""


async def long_session(world: World) -> Sequence[Row]:
    """The rows of the question."""
    corral, provider = await world.corral(), await world.provider_client()
    postgres = world.postgres.pid
    assert postgres is not None
    session = await corral.create()
    stream = await corral.follow(session)
    looked_at = {10, *(world.size.turns * part // 4 for part in (1, 2, 3, 4))}
    seen: dict[int, tuple[float, float]] = {}
    number = 0
    for target in sorted(looked_at):
        while number < target - _WINDOW:
            await corral.turn(session, stream)
            number += 1
        lasted: list[float] = []
        before = cpu_seconds(corral.pid) + cpu_seconds(postgres)
        for _ in range(_WINDOW):
            began = time.perf_counter()
            await corral.turn(session, stream)
            lasted.append(time.perf_counter() - began)
            number += 1
        spent = (cpu_seconds(corral.pid) + cpu_seconds(postgres) - before) / _WINDOW
        alone = await _direct(provider, number)
        seen[target] = (max(statistics.median(lasted) - alone, 0.0001), spent)
    stream.close()
    first, last = seen[10], seen[max(seen)]
    return [
        _row("time of the n-th turn beyond the model's own", seen, 0, last[0] / first[0]),
        _row("processor time of the n-th turn", seen, 1, last[1] / first[1]),
    ]


def _row(what: str, seen: dict[int, tuple[float, float]], at: int, ratio: float) -> Row:
    shown = ", ".join(f"{number}: {milliseconds(figures[at])}" for number, figures in seen.items())
    return Row(
        f"{what}, n = 10 to {max(seen)}", shown, f"n = 10: {milliseconds(seen[10][at])}", ratio, under(1.5)
    )


async def _direct(provider: Client, turns: int) -> float:
    """How long the provider itself takes for a request with so many turns in it."""
    messages: list[dict[str, Any]] = []
    for _ in range(turns):
        messages.append({"role": "user", "content": [{"type": "text", "text": f"mark:{fresh_mark()} "}]})
        messages.append({"role": "assistant", "content": [{"type": "text", "text": "ok "}]})
    body = {"model": MODEL, "max_tokens": 100, "stream": True, "messages": messages[:-1]}
    encoded = json.dumps(body).encode()
    lasted: list[float] = []
    for _ in range(_WINDOW):
        began = time.perf_counter()
        answer = await provider.stream("/v1/messages", method="POST", body=encoded)
        await answer.until(b"message_stop")
        lasted.append(time.perf_counter() - began)
        answer.close()
        await asyncio.sleep(0)
    return statistics.median(lasted)


if __name__ == "__main__":
    main(long_session, __doc__)
