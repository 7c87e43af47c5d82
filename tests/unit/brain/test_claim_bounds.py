"""So many sessions of one environment at once, over all brains; other environments do not wait for it."""

import asyncio

from corral.brain.claims import Claims, EnvironmentBounds
from corral.session.commit import Commit, Fence, Wake
from corral.session.writer import LogWriter
from corral.store.database import Database
from tests.unit.brain.test_claims import woken
from tests.unit.session.conftest import SilentBus


async def spread(database: Database, sessions: list[str]) -> None:
    """Every second session goes to another environment, named ``busy``."""
    await database.execute(
        "insert into environments (id, name, config) values ('env_busy', 'busy', '{\"type\": \"cloud\"}')"
    )
    await database.execute(
        "update sessions set environment_id = 'env_busy' where id = any(%s)", (sessions[::2],)
    )


async def held_by_environment(database: Database) -> dict[str, int]:
    rows = await database.fetch(
        "select e.name, count(*) as held from wakes w join sessions s on s.id = w.session_id"
        " join environments e on e.id = s.environment_id where w.brain_id is not null group by e.name"
    )
    return {row["name"]: row["held"] for row in rows}


async def test_brains_that_claim_at_once_stay_within_each_environments_bound(
    database: Database,
) -> None:
    sessions = await woken(database, 30)
    await spread(database, sessions)
    bounds = EnvironmentBounds(every=3, single={"busy": 5})
    async with (
        Claims(database, lease_seconds=60, bounds=bounds) as one,
        Claims(database, lease_seconds=60, bounds=bounds) as other,
    ):
        batches = await asyncio.gather(*(claims.claim(4) for claims in (one, other) * 6))
        assert sum(map(len, batches)) == 3 + 5
        held = await held_by_environment(database)
        assert held.pop("busy") == 5
        assert list(held.values()) == [3]


async def test_a_place_is_free_when_a_session_is_let_go_or_its_lease_ran_out(database: Database) -> None:
    await woken(database, 5)
    bounds = EnvironmentBounds(every=2)
    async with (
        LogWriter(database, SilentBus()) as writer,
        Claims(database, lease_seconds=60, bounds=bounds) as claims,
        Claims(database, lease_seconds=60, bounds=bounds) as other,
    ):
        first, second = await claims.claim(9)
        assert await other.claim(9) == []
        await writer.commit(Commit(first.session_id, Fence(epoch=first.epoch), wake=Wake("done")))
        [third] = await other.claim(9)
        assert await other.claim(9) == []
        await database.execute(
            "update wakes set lease_until = now() - interval '1 second' where session_id = %s",
            (second.session_id,),
        )
        [fourth] = await other.claim(9)
        assert len({first.session_id, second.session_id, third.session_id, fourth.session_id}) >= 3


async def test_what_is_given_back_is_anybodys_and_what_is_kept_is_not(database: Database) -> None:
    await woken(database, 3)
    async with Claims(database, lease_seconds=600) as leaving, Claims(database, lease_seconds=60) as other:
        kept, *given = await leaving.claim(9)
        assert await other.claim(9) == []
        assert await leaving.release(kept=[kept.session_id]) == 2
        taken = await other.claim(9)
        assert {claim.session_id for claim in taken} == {claim.session_id for claim in given}
        assert all(claim.epoch == 2 for claim in taken)
