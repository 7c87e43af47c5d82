"""Three servers, two gateways and four workers, killed at random: nothing is lost, doubled or left over."""

import shutil
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest

from corral.testing import ScriptedModel
from tests.chaos.faults import count_faults
from tests.network import why_not
from tests.stress.budgets import FLEET, FLEET_WITH_CUTS, Fleet
from tests.stress.fleet import mcp_results, running_fleet

CUT = pytest.param(
    FLEET_WITH_CUTS, marks=pytest.mark.skipif(why_not() is not None, reason=str(why_not())), id="with_cuts"
)


@pytest.mark.parametrize("plan", [pytest.param(FLEET, id="kills"), CUT])
async def test_a_fleet_under_fire_loses_nothing(plan: Fleet, database_url: str, open_folder: Path) -> None:
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(ScriptedModel())
        fleet = await running_fleet(plan, stack, database_url, model, open_folder)
        await fleet.storm()
        await fleet.stop()
        faults = await count_faults(fleet.database, fleet.clients, model, fleet.workspaces)
        results, asked = await mcp_results(fleet.database)
        stops = Counter(stop for client in fleet.clients for stop in client.stops)
    log = shutil.copy(open_folder / "fleet.log", "/tmp/corral-fleet.log")
    assert not any(msgspec.structs.astuple(faults)), f"{faults}; the processes' log is {log}"
    assert set(stops) == {"end_turn"}
    if plan is FLEET:
        assert set(fleet.killed) == {"server", "gateway", "worker"}, "another seed kills one of each"
    # `add` is marked as read-only, so a call whose outcome a gateway took along is made again. A turn that
    # began while no gateway was there has gone on without the server's tools, and its log says so.
    assert set(results) == {"3"}
    assert results.total() == asked > plan.turns / 2
