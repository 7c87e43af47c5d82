"""Snapshots in the database: written by the holder alone, never believed when something is wrong."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from structlog.testing import capture_logs

from corral.brain import settled, snapshots
from corral.brain.claims import Claim
from corral.brain.judge_context import JudgeContext
from corral.brain.recollection import Recalled, ThreadRecollection
from corral.brain.skills_note import KeptShelf
from corral.brain.snapshots import Snapshots, code_digest
from corral.brain.transcript import Transcript
from corral.session.log import PostgresSessionLog
from corral.session.records import SessionRecords
from corral.session.state import SessionState
from corral.store.database import Database
from tests.unit.brain.simulation import MODEL, THREAD, SimulatedSession, answer
from tests.unit.session.conftest import LogUnderTest, SilentBus

SHELF = KeptShelf(0, [], False)
NOTHING_JUDGED = JudgeContext().kept()


@pytest.fixture(autouse=True)
def _little_is_enough() -> Iterator[None]:
    with patch.object(settled, "PIECE_BYTES", 200), patch.object(snapshots, "EVERY", 10):
        yield


class Told:
    """A session in the database whose story is made up; its events are counted, not stored."""

    def __init__(self, database: Database, claim: Claim) -> None:
        self.database = database
        self.claim = claim
        self.story = SimulatedSession()

    async def goes_on(self, turns: int = 8) -> None:
        for turn in range(turns):
            self.story.sends("user.message", content=[{"type": "text", "text": f"turn {turn} " * 9}])
            self.story.rests(answer({"type": "text", "text": f"done with {turn} " * 9}))
        length = self.story.state.seq
        await self.database.execute(
            "update sessions set last_seq = %s where id = %s", (length, self.claim.session_id)
        )
        self.claim = msgspec.structs.replace(self.claim, last_seq=length)

    async def is_claimed_again(self) -> None:
        epoch = self.claim.epoch + 1
        await self.database.execute(
            "update sessions set epoch = %s where id = %s", (epoch, self.claim.session_id)
        )
        self.claim = msgspec.structs.replace(self.claim, epoch=epoch)

    def is_kept(self, memory: Snapshots, *, rests: bool = True) -> None:
        threads = {THREAD: ThreadRecollection(self.story.transcript, SHELF)}
        memory.keep(self.claim, self.story.state, threads, NOTHING_JUDGED, rests=rests)

    def check(self, session: Recalled | None) -> None:
        """Whatever was recalled: with the rest of the story it comes to what all of it comes to."""
        state = SessionState(THREAD) if session is None else session.state
        transcript = Transcript(MODEL) if session is None else session.threads[THREAD].transcript
        transcript.extend(self.story.events[state.seq :])
        assert transcript.messages() == self.story.transcript.messages()

    async def rows(self) -> tuple[int, int]:
        """How many snapshots there are, and how many pieces."""
        row = await self.database.fetch_one(
            "select (select count(*) from session_snapshots where session_id = %(id)s) as heads,"
            " (select count(*) from session_snapshot_pieces where session_id = %(id)s) as pieces",
            {"id": self.claim.session_id},
        )
        assert row is not None
        return row["heads"], row["pieces"]


@asynccontextmanager
async def written(database: Database) -> AsyncGenerator[Snapshots]:
    """The memory of a process; what it has to write is written when this is left."""
    async with Snapshots(database) as memory:
        yield memory


async def recalled_anew(told: Told) -> Recalled | None:
    """What a process finds that is new to the session."""
    async with Snapshots(told.database) as memory:
        return await memory.recall(told.claim)


@pytest.fixture
async def told(database: Database) -> Told:
    under_test = LogUnderTest(database, None, PostgresSessionLog(database, None), SilentBus())  # pyright: ignore
    session_id = await under_test.session()
    row = await database.fetch_one(
        "update sessions set epoch = 1 where id = %s returning clock_timestamp() as at", (session_id,)
    )
    assert row is not None
    agent: dict[str, Any] = {"model": {"id": MODEL}}
    one = Told(database, Claim(session_id, 1, THREAD, "env_x", agent, False, row["at"], [], []))
    await one.goes_on()
    return one


async def test_another_process_goes_on_from_a_snapshot(told: Told) -> None:
    async with written(told.database) as memory:
        told.is_kept(memory)
    length = told.story.state.seq
    await told.goes_on()
    found = await recalled_anew(told)
    assert found is not None
    assert found.state.seq == length
    told.check(found)


async def test_a_short_session_has_none(told: Told) -> None:
    with patch.object(snapshots, "EVERY", 1000):
        async with written(told.database) as memory:
            told.is_kept(memory)
            assert await memory.recall(told.claim) is not None  # but is at hand
        assert await recalled_anew(told) is None
    assert await told.rows() == (0, 0)


async def test_pieces_are_written_once(told: Told) -> None:
    async with written(told.database) as memory:
        told.is_kept(memory)
    before = await told.database.fetch("select xmin::text, generation, position from session_snapshot_pieces")
    assert len(before) > 2
    for _ in range(3):
        await told.is_claimed_again()
        async with written(told.database) as memory:
            told.check(await memory.recall(told.claim))
            await told.goes_on()
            told.is_kept(memory)
    after = await told.database.fetch("select xmin::text, generation, position from session_snapshot_pieces")
    assert [row for row in before if row in after] == before
    assert len(after) > len(before) + 6
    told.check(await recalled_anew(told))


async def test_what_is_dropped_from_a_conversation_leaves_the_database(told: Told) -> None:
    async with written(told.database) as memory:
        told.is_kept(memory)
    await told.goes_on(3)
    said = [{"role": "user", "content": [{"type": "text", "text": f"a summary {n} " * 9}]} for n in range(9)]
    async with written(told.database) as memory:
        found = await memory.recall(told.claim)
        assert found is not None
        transcript = found.threads[THREAD].transcript
        transcript.settled.drop()
        for message in said:
            transcript.settled.add(message)
        threads = {THREAD: ThreadRecollection(transcript, SHELF)}
        memory.keep(told.claim, told.story.state, threads, NOTHING_JUDGED, rests=True)
    rows = await told.database.fetch("select position from session_snapshot_pieces order by position")
    first = transcript.settled.dropped
    assert first > 2
    assert [row["position"] for row in rows] == list(range(first, first + len(rows)))
    found = await recalled_anew(told)
    assert found is not None
    again = found.threads[THREAD].transcript.messages()
    assert again[: len(said)] == said
    assert again == transcript.messages()


async def test_a_brain_that_has_lost_the_session_writes_nothing(told: Told) -> None:
    late = told.claim
    async with written(told.database) as memory:
        await told.is_claimed_again()
        told.claim = late
        told.is_kept(memory)
    assert await told.rows() == (0, 0)


async def test_two_processes_in_turn_spoil_nothing_of_each_other(told: Told) -> None:
    async with Snapshots(told.database) as one, Snapshots(told.database) as other:
        for memory in (one, other, one, other, one):
            await told.is_claimed_again()
            told.check(await memory.recall(told.claim))
            await told.goes_on(3)
            told.is_kept(memory)
            while memory.waiting:
                await told.database.fetch("select 1")
            told.check(await recalled_anew(told))
    told.check(await recalled_anew(told))


@pytest.mark.parametrize(
    "harm",
    [
        "update session_snapshots set head = substring(head for 100)",
        "update session_snapshots set head = '\\x', checksum = 0",
        "update session_snapshot_pieces set body = set_byte(body, 5, 7) where position = 1",
        "update session_snapshot_pieces set body = '\\x' where position = 1",
        "delete from session_snapshot_pieces where position = 1",
    ],
)
async def test_a_damaged_snapshot_is_ignored_and_said_so(told: Told, harm: str) -> None:
    async with written(told.database) as memory:
        told.is_kept(memory)
    assert await told.database.execute(harm) == 1  # pyright: ignore[reportArgumentType]
    with capture_logs() as logs:
        found = await recalled_anew(told)
    assert found is None
    assert [line["event"] for line in logs] == ["a snapshot is not used; the log is replayed"]
    # The next one replaces it.
    async with written(told.database) as memory:
        told.is_kept(memory)
    assert await recalled_anew(told) is not None


@pytest.mark.parametrize(
    "harm",
    [
        "delete from session_snapshots",
        "update session_snapshots set format = 'of another version'",
        "update session_snapshots set seq = 1000000",
    ],
)
async def test_a_snapshot_that_is_not_there_or_of_something_else_is_no_loss(told: Told, harm: str) -> None:
    async with written(told.database) as memory:
        told.is_kept(memory)
    assert await told.database.execute(harm) == 1  # pyright: ignore[reportArgumentType]
    with capture_logs() as logs:
        assert await recalled_anew(told) is None
    assert logs == []
    async with written(told.database) as memory:
        told.is_kept(memory)
    assert await recalled_anew(told) is not None


async def test_an_older_snapshot_takes_no_newer_ones_place(told: Told) -> None:
    before = told.story.state
    threads = {THREAD: ThreadRecollection(Transcript(MODEL), SHELF)}
    await told.goes_on()
    async with written(told.database) as memory:
        told.is_kept(memory)
    async with written(told.database) as memory:
        memory.keep(told.claim, before, threads, NOTHING_JUDGED, rests=True)
    found = await recalled_anew(told)
    assert found is not None
    assert found.state.seq == told.story.state.seq
    told.check(found)


async def test_a_chain_whose_beginning_was_deleted_is_begun_anew(told: Told) -> None:
    async with Snapshots(told.database) as memory:
        for expected in (1, 0, 1):
            told.is_kept(memory)
            while memory.waiting:
                await told.database.fetch("select 1")
            assert (await told.rows())[0] == expected
            await told.goes_on()
            if expected == 1:
                await told.database.execute("delete from session_snapshots")
    told.check(await recalled_anew(told))


async def test_deleting_or_archiving_a_session_deletes_its_snapshot(told: Told) -> None:
    records = SessionRecords(told.database)
    async with written(told.database) as memory:
        told.is_kept(memory)
    assert (await told.rows())[0] == 1
    await told.database.execute("update sessions set status = 'idle'")
    await records.archive(told.claim.session_id)
    assert await told.rows() == (0, 0)
    # Nor is one written of a session that is archived, whoever still holds it.
    await told.database.execute("update sessions set epoch = %s", (told.claim.epoch,))
    async with written(told.database) as memory:
        told.is_kept(memory)
    assert await told.rows() == (0, 0)
    await told.database.execute("update sessions set archived_at = null")
    async with written(told.database) as memory:
        told.is_kept(memory)
    assert (await told.rows())[0] == 1
    await records.delete(told.claim.session_id)
    assert await told.rows() == (0, 0)


async def test_what_is_at_hand_is_bounded(told: Told) -> None:
    async with Snapshots(told.database) as memory:
        with patch.object(snapshots, "_AT_HAND", 3):
            claims = [msgspec.structs.replace(told.claim, session_id=f"sesn_{n}") for n in range(5)]
            for claim in claims:
                told.claim = claim
                told.is_kept(memory)
            found = [await memory.recall(claim) is not None for claim in claims]
            assert found == [False, False, True, True, True]
        with patch.object(snapshots, "_AT_HAND_BYTES", 0):
            told.is_kept(memory)
            assert await memory.recall(told.claim) is None


async def test_a_session_that_has_outgrown_all_requests_gets_no_new_snapshot(told: Told) -> None:
    with patch.object(snapshots, "LARGEST", 10):
        async with written(told.database) as memory:
            told.is_kept(memory)
    assert await told.rows() == (0, 0)


def test_the_format_is_that_of_the_code() -> None:
    assert code_digest() == code_digest()
    assert code_digest() != code_digest(("corral.session", "corral.brain"))
