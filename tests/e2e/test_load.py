"""The loads of `make stress`, short: the same scenarios with small numbers, in the test's own process."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from corral.testing import ScriptedModel
from tests.corral_server import Corral, running_corral
from tests.stress import load
from tests.stress.budgets import (
    FEW_IDLE_SESSIONS,
    FEW_OUTPUTS,
    FEW_STREAMS,
    FEW_TURNS,
    SHORT_QUEUE,
    SHORT_SESSION,
    SHORT_STORMS,
)


@pytest.mark.parametrize(
    ("under", "budget"),
    [
        (load.open_streams, FEW_STREAMS),
        (load.reconnect_storms, SHORT_STORMS),
        (load.idle_sessions, FEW_IDLE_SESSIONS),
        (load.concurrent_turns, FEW_TURNS),
        (load.large_outputs, FEW_OUTPUTS),
    ],
    ids=["open_streams", "reconnect_storms", "idle_sessions", "concurrent_turns", "large_outputs"],
)
async def test_one_server_under_a_little_load(
    under: Callable[[load.Target, Any], Awaitable[None]], budget: object, corral: Corral
) -> None:
    await under(load.target_of(corral), budget)


async def test_two_brains_that_want_one_session_make_its_turns_one_after_the_other(
    corral: Corral, database_url: str, model: ScriptedModel
) -> None:
    async with running_corral(database_url, model) as other:
        await load.one_session([load.target_of(corral), load.target_of(other)], SHORT_SESSION)


async def test_workers_that_poll_one_queue_on_two_servers_get_each_item_once(
    corral: Corral, database_url: str, model: ScriptedModel
) -> None:
    async with running_corral(database_url, model, brains=False) as other:

        async def key(environment: str) -> str:
            return (await corral.services.keys.create("environment", "workers", environment))[1]

        await load.one_queue([load.target_of(corral), load.target_of(other)], key, SHORT_QUEUE)
