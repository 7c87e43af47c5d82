"""Who may write a session: one brain at a time, and another as soon as that one is gone."""

import asyncio

import pytest

from corral.brain.claims import Claims
from corral.session.commit import Commit, CommitRefused, Fence, Wake
from corral.session.writer import LogWriter
from corral.store.database import Database
from tests.unit.session.conftest import LogUnderTest, SilentBus
from tests.unit.session.test_log import event

CUT = """
select pg_terminate_backend(l.pid) from pg_locks l join brains b
    on (l.classid::bigint << 32 | l.objid::bigint) = b.lock_key
where l.locktype = 'advisory' and b.id = %s
"""


async def woken(database: Database, count: int) -> list[str]:
    """Sessions that need a brain."""
    bus = SilentBus()
    async with LogWriter(database, bus) as writer:
        sessions = await LogUnderTest(database, writer, None, bus).sessions(count)  # pyright: ignore
        await asyncio.gather(*(writer.commit(Commit(one, wake=Wake("rouse"))) for one in sessions))
    return sessions


async def test_brains_that_claim_at_the_same_time_get_different_sessions(database: Database) -> None:
    sessions = await woken(database, 30)
    async with Claims(database, lease_seconds=60) as one, Claims(database, lease_seconds=60) as other:
        batches = await asyncio.gather(*(claims.claim(4) for claims in (one, other) * 8))
        claimed = [claim.session_id for batch in batches for claim in batch]
        assert sorted(claimed) == sorted(sessions)
        assert await one.claim(50) == []


async def test_what_an_earlier_brain_writes_after_a_new_claim_is_refused(database: Database) -> None:
    [session_id] = await woken(database, 1)
    async with LogWriter(database, SilentBus()) as writer, Claims(database, lease_seconds=60) as claims:
        [first] = await claims.claim(9)
        await writer.commit(Commit(session_id, Fence(epoch=first.epoch), (event(),)))
        await writer.commit(Commit(session_id, Fence(epoch=first.epoch), wake=Wake("release")))
        [second] = await claims.claim(9)
        assert second.epoch == first.epoch + 1
        with pytest.raises(CommitRefused):
            await writer.commit(Commit(session_id, Fence(epoch=first.epoch), (event(),)))
        await writer.commit(Commit(session_id, Fence(epoch=second.epoch), (event(),)))


async def test_the_sessions_of_a_process_that_died_are_free_at_once(database: Database) -> None:
    sessions = await woken(database, 3)
    async with Claims(database, lease_seconds=3600) as dying, Claims(database, lease_seconds=60) as other:
        name = dying.brain_id
        assert len(await dying.claim(9)) == 3
        assert await other.free_the_dead() == 0
        assert await database.execute(CUT, (name,)) == 1
        while await other.free_the_dead() == 0:  # until the server has seen it
            pass
        assert sorted(claim.session_id for claim in await other.claim(9)) == sorted(sessions)
        # It was only cut off: it finds out, and its old claims are void.
        assert not await dying.alive()
        assert dying.brain_id != name
        await dying.renew(sessions)
        assert await dying.claim(9) == []


async def test_a_lease_that_ran_out_is_no_claim_and_one_that_is_renewed_is(database: Database) -> None:
    await woken(database, 2)
    async with Claims(database, lease_seconds=60) as one, Claims(database, lease_seconds=60) as other:
        kept, lost = await one.claim(9)
        await database.execute("update wakes set lease_until = now() - interval '1 second'")
        await one.renew([kept.session_id])
        assert [claim.session_id for claim in await other.claim(9)] == [lost.session_id]


async def test_a_row_that_is_being_written_about_a_session_holds_up_no_claim(database: Database) -> None:
    [session_id] = await woken(database, 1)
    async with Claims(database, lease_seconds=60) as claims, database.transaction() as connection:
        await connection.execute("select from sessions where id = %s for key share", (session_id,))
        assert [claim.session_id for claim in await claims.claim(9)] == [session_id]
