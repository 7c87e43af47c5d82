"""The log keeps its promises in the database: gapless, fenced, all or nothing, byte for byte."""

import asyncio
import random
from typing import Any

import msgspec
import psycopg
import pytest

from corral.bus.hub import WAKES_TOPIC, session_topic
from corral.session.commit import Commit, CommitRefused, Committed, Fence, LogUnavailable, NewInput, Wake
from corral.session.events import NewEvent, new_event
from corral.session.listing import EventFilter, Listing
from corral.session.writer import LogWriter
from tests.unit.session.conftest import LogUnderTest


def event(n: int = 0, **fields: Any) -> NewEvent:
    return new_event("agent.message", "sthr_x", content=[{"type": "text", "text": f"{n}"}], **fields)


def result_of(call: str) -> NewEvent:
    return msgspec.structs.replace(event(), resolves=call)


async def tables(under_test: LogUnderTest, session_id: str) -> dict[str, Any]:
    """Everything that a commit may touch."""
    row = await under_test.database.fetch_one(
        "select last_seq, last_input, status, epoch, usage::text as usage,"
        " (select count(*) from events where session_id = s.id) as events,"
        " (select count(*) from inputs where session_id = s.id) as inputs,"
        " (select count(*) from wakes where session_id = s.id) as wakes from sessions s where id = %s",
        (session_id,),
    )
    assert row is not None
    return row


async def test_many_writers_leave_no_gap_and_keep_each_ones_order(under_test: LogUnderTest) -> None:
    sessions = await under_test.sessions(20)
    made: dict[str, list[list[str]]] = {session_id: [] for session_id in sessions}

    async def append(writer: LogWriter, session_id: str) -> None:
        mine: list[str] = []
        made[session_id].append(mine)
        for _ in range(8):
            events = [event() for _ in range(random.randint(1, 4))]
            committed = await writer.commit(Commit(session_id, events=tuple(events)))
            assert committed.base >= len(mine)
            mine += [new.id for new in events]

    async with LogWriter(under_test.database, under_test.bus) as other:
        writers = (under_test.writer, other)
        await asyncio.gather(*(append(w, name) for w in writers for name in sessions for _ in range(2)))
    for session_id in sessions:
        ids = list(await under_test.ids(session_id))
        assert len(ids) == sum(map(len, made[session_id]))
        for mine in made[session_id]:
            wanted = set(mine)
            assert [one for one in ids if one in wanted] == mine


async def test_times_never_go_back_within_a_session(under_test: LogUnderTest) -> None:
    session_id = await under_test.session()
    ahead = "update sessions set last_event_at = now() + interval '1 hour' where id = %s"
    await under_test.database.execute(ahead, (session_id,))
    for _ in range(3):
        await under_test.log.append(session_id, [event()], fence=None)
    row = await under_test.database.fetch_one("select now() + interval '50 minutes' as soon")
    assert row is not None
    times = [entry.processed_at async for entry in under_test.log.replay(session_id)]
    assert times == sorted(times)
    assert times[0] > row["soon"]


@pytest.mark.parametrize(
    "fence", [Fence(epoch=0), Fence(epoch=2), Fence(epoch=1, seq=0), Fence(seq=2), Fence(last_input=1)]
)
async def test_a_commit_on_another_state_is_refused_by_the_database_and_leaves_no_trace(
    under_test: LogUnderTest, fence: Fence
) -> None:
    session_id = await under_test.session()
    await under_test.log.append(session_id, [event()], fence=None)
    await under_test.database.execute("update sessions set epoch = 1 where id = %s", (session_id,))
    before = await tables(under_test, session_id)
    commit = Commit(
        session_id,
        fence,
        events=(event(),),
        inputs=(NewInput("sevt_i", "user.message", "sthr_x", {}),),
        status="running",
        usage={"x": 1},
        wake=Wake("rouse"),
    )
    with pytest.raises(CommitRefused):
        await under_test.writer.commit(commit)
    assert await tables(under_test, session_id) == before
    good = msgspec.structs.replace(commit, fence=Fence(epoch=1, seq=1, last_input=0))
    assert (await under_test.writer.commit(good)).base == 1


async def test_a_commit_writes_everything_or_nothing(under_test: LogUnderTest) -> None:
    session_id = await under_test.session()
    first, second = (NewInput(f"sevt_i{n}", "user.message", "sthr_x", {"n": n}) for n in (1, 2))
    await under_test.writer.commit(Commit(session_id, inputs=(first, second), wake=Wake("rouse")))
    before = await tables(under_test, session_id)
    assert (before["inputs"], before["wakes"]) == (2, 1)
    whole = Commit(
        session_id,
        events=(result_of("call"),),
        take=("sevt_i1",),
        status="idle",
        usage={"x": 1},
        wake=Wake("done"),
    )
    torn = msgspec.structs.replace(whole, events=(result_of("call"), result_of("call")))
    with pytest.raises(psycopg.errors.UniqueViolation):
        await under_test.writer.commit(torn)
    assert await tables(under_test, session_id) == before
    await under_test.writer.commit(whole)
    after = await tables(under_test, session_id)
    assert (after["events"], after["inputs"], after["wakes"], after["usage"]) == (1, 1, 0, '{"x":1}')
    assert [waiting.id for waiting in await under_test.log.inputs(session_id)] == ["sevt_i2"]


async def test_one_commit_at_fault_does_not_fail_its_group(under_test: LogUnderTest) -> None:
    sessions = await under_test.sessions(10)
    for session_id in sessions:
        await under_test.log.append(session_id, [result_of("call")], fence=None)
    # Without a wait in between they all are of one group.
    commits = [
        Commit(name, Fence(seq=9) if n == 4 else Fence(), (result_of("call") if n == 3 else event(),))
        for n, name in enumerate(sessions)
    ]
    commits.append(Commit("sesn_gone", events=(event(),)))
    outcomes = await asyncio.gather(*map(under_test.writer.commit, commits), return_exceptions=True)
    kinds = [type(outcome) for outcome in outcomes]
    expected: list[type] = [Committed] * 10 + [CommitRefused]
    expected[3], expected[4] = psycopg.errors.UniqueViolation, CommitRefused
    assert kinds == expected
    lengths = [len(await under_test.ids(name)) for name in sessions]
    assert lengths == [2, 2, 2, 1, 1, 2, 2, 2, 2, 2]


async def test_a_call_never_gets_two_results_whoever_races(under_test: LogUnderTest) -> None:
    session_id = await under_test.session()
    async with LogWriter(under_test.database, under_test.bus) as other:
        racing = (
            writer.commit(Commit(session_id, events=(event(), result_of("call"))))
            for writer in (under_test.writer, other) * 10
        )
        outcomes = await asyncio.gather(*racing, return_exceptions=True)
    assert sum(isinstance(outcome, Committed) for outcome in outcomes) == 1
    assert len(await under_test.ids(session_id)) == 2


@pytest.mark.parametrize(
    "text",
    [
        "\u0000\u0001\u001f \u0000",
        "".join(map(chr, (*range(0x80, 0x800), *range(0x2000, 0x2070), 0xFFFD, 0xFFFF, 0x1F600, 0x10FFFF))),
        '"\\\\"/}],"processed_at":"x"}',
        "x" * 10_000_000,
        "\N{SNOWMAN}" * 1_000_000,
    ],
    ids=["nul", "unicode", "quotes", "10 MB", "3 MB of snowmen"],
)
async def test_a_body_comes_back_byte_for_byte(under_test: LogUnderTest, text: str) -> None:
    session_id = await under_test.session()
    private = {"content": [{"type": "thinking", "thinking": text[:10_000], "signature": "s"}]}
    new = new_event("agent.message", "sthr_x", content=[{"type": "text", "text": text}], private=private)
    [written] = await under_test.log.append(session_id, [new], fence=None)
    [read] = await under_test.log.get_events(session_id, start=1)
    assert read == written
    assert read.body["content"][0]["text"] == text
    assert read.private == private
    narrow = EventFilter(thread_id="sthr_x")
    [listed] = await Listing(under_test.database).page(
        session_id, narrow, after=None, descending=False, limit=9
    )
    assert listed.wire == read.wire()


async def test_a_commit_whose_caller_is_cancelled_is_written_once(under_test: LogUnderTest) -> None:
    session_id = await under_test.session()
    news = [event(n) for n in range(30)]
    tasks = [asyncio.create_task(under_test.writer.commit(Commit(session_id, events=(new,)))) for new in news]
    await asyncio.wait({tasks[0]})
    for task in tasks[::2]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await under_test.log.append(session_id, [event(99)], fence=None)
    assert list(await under_test.ids(session_id))[:-1] == [new.id for new in news]


async def test_a_closing_writer_writes_what_it_took_and_takes_no_more(under_test: LogUnderTest) -> None:
    session_id = await under_test.session()
    async with LogWriter(under_test.database, under_test.bus) as writer:
        late = asyncio.create_task(writer.commit(Commit(session_id, events=(event(),))))
        async with under_test.bus.subscribe(session_topic(session_id)) as news:
            await news.wait(10)
    assert (await late).base == 0
    with pytest.raises(LogUnavailable):
        await writer.commit(Commit(session_id, events=(event(),)))


async def test_a_release_leaves_the_session_for_later_and_a_rouse_brings_it_forward(
    under_test: LogUnderTest,
) -> None:
    session_id = await under_test.session()

    async def wake() -> dict[str, Any]:
        row = await under_test.database.fetch_one(
            "select due_at <= now() as due, due_at > now() + interval '50 seconds' as later,"
            " brain_id from wakes where session_id = %s",
            (session_id,),
        )
        assert row is not None
        return row

    async with under_test.bus.subscribe(WAKES_TOPIC) as wakes:
        await under_test.writer.commit(Commit(session_id, wake=Wake("rouse")))
        assert wakes.take()[0]
    await under_test.database.execute("update wakes set brain_id = 'brain_x', lease_until = now()")
    await under_test.writer.commit(Commit(session_id, wake=Wake("rouse", 60)))
    assert await wake() == {"due": True, "later": False, "brain_id": "brain_x"}
    await under_test.writer.commit(Commit(session_id, wake=Wake("release", 60)))
    assert await wake() == {"due": False, "later": True, "brain_id": None}
    await under_test.writer.commit(Commit(session_id, wake=Wake("rouse")))
    assert (await wake())["due"]
