"""The short form of `make chaos`: every fault is counted, and there must be none."""

import msgspec

from tests.chaos.run import Plan, storm


async def test_nothing_is_lost_doubled_or_stuck_while_everything_is_killed() -> None:
    outcome = await storm(Plan(turns=12, sessions=3, kills=4, postgres_kills=1, seed=7))
    assert outcome.clean, outcome.table()
    assert {death.victim for death in outcome.deaths} == {"server", "worker", "postgres"}
    assert not any(msgspec.structs.astuple(outcome.faults))
