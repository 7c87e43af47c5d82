"""One server, or a few, under each kind of load: everything is answered, and nothing grows without bound.

Of each server it is asked at the end how long its event loop was held up, as it has sampled all its life.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from corral.resources.keys import Keys
from corral.store.database import Database
from corral.testing import ScriptedModel
from tests.server_process import server_process
from tests.stress import load
from tests.stress.budgets import (
    CONCURRENT_TURNS,
    IDLE_SESSIONS,
    LARGE_OUTPUTS,
    ONE_QUEUE,
    ONE_SESSION,
    OPEN_STREAMS,
    RECONNECT_STORMS,
    RESPONSIVE,
)

Under = Callable[[load.Target, Any], Awaitable[None]]


@asynccontextmanager
async def servers(
    database_url: str, model: ScriptedModel, count: int, **settings: str
) -> AsyncGenerator[list[load.Target]]:
    """So many servers, which have to end without complaint, and have to have been responsive."""
    async with AsyncExitStack() as stack:
        started = [
            await stack.enter_async_context(server_process(database_url, model.base_url, **settings))
            for _ in range(count)
        ]
        await asyncio.gather(*(one.until_ready() for one in started))
        yield [load.target_at(one, model) for one in started]
        for one in started:
            one.ask_to_stop()
        for one in started:
            load.check_responsive(await one.ended(), RESPONSIVE)


@pytest.mark.parametrize(
    ("under", "budget"),
    [
        (load.open_streams, OPEN_STREAMS),
        (load.reconnect_storms, RECONNECT_STORMS),
        (load.idle_sessions, IDLE_SESSIONS),
        (load.concurrent_turns, CONCURRENT_TURNS),
        (load.large_outputs, LARGE_OUTPUTS),
    ],
    ids=["open_streams", "reconnect_storms", "idle_sessions", "concurrent_turns", "large_outputs"],
)
async def test_one_server(under: Under, budget: object, database_url: str) -> None:
    async with (
        ScriptedModel() as model,
        servers(database_url, model, 1, brain__concurrency="1000") as [target],
    ):
        await under(target, budget)


async def test_many_brains_and_one_session(database_url: str) -> None:
    async with ScriptedModel() as model, servers(database_url, model, ONE_SESSION.servers) as targets:
        await load.one_session(targets, ONE_SESSION)


async def test_many_workers_and_one_queue(database_url: str) -> None:
    async with (
        ScriptedModel() as model,
        Database(database_url) as database,
        servers(database_url, model, ONE_QUEUE.servers) as targets,
    ):

        async def key(environment: str) -> str:
            return (await Keys(database).create("environment", "workers", environment))[1]

        await load.one_queue(targets, key, ONE_QUEUE)
