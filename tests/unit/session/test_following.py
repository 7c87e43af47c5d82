"""A stream shows each event once and in order, and of a preview nothing but the beginning of its text."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from typing import Any

import msgspec
import pytest

from corral.bus.hub import Preview, session_topic
from corral.session.commit import Commit, NewInput
from corral.session.crossposting import EVERYBODY, OWN_THREAD, WORKERS
from corral.session.events import NewEvent, new_event
from corral.session.following import Following
from corral.session.listing import EventFilter, Listing
from corral.session.stream_pages import NEXT, View, frame, landed_in, news_in, next_parameters
from corral.session.writer import LogWriter
from corral.store.database import Database
from corral.wire.errors import NotFound
from tests.unit.session.conftest import LogUnderTest, SilentBus
from tests.unit.session.test_log import event


def start() -> NewEvent:
    return new_event("span.model_request_start", "sthr_x")


def read(data: bytes) -> dict[str, Any]:
    return msgspec.json.decode(data.split(b"data: ", 1)[1])


async def take(frames: AsyncGenerator[bytes], count: int) -> list[dict[str, Any]]:
    taken: list[dict[str, Any]] = []
    while len(taken) < count:
        piece = await asyncio.wait_for(anext(frames), 10)
        taken += [read(one) for one in piece.split(b"\n\n") if one]
    assert len(taken) == count, "more came together than was asked for"
    return taken


class Previewing:
    """Sends previews of one event as a brain does."""

    def __init__(self, under_test: LogUnderTest, session_id: str, event_id: str, after_seq: int) -> None:
        self._bus = under_test.bus
        self._topic = session_topic(session_id)
        self._event_id = event_id
        self._after_seq = after_seq

    def send(self, position: int) -> None:
        data = frame("event_delta", msgspec.json.encode({"type": "event_delta", "n": position}))
        piece = Preview(self._event_id, "sthr_x", self._after_seq, data, "agent.message", position)
        self._bus.preview(self._topic, piece)


async def test_what_is_committed_after_the_opening_comes_once_and_in_order(under_test: LogUnderTest) -> None:
    session_id = await under_test.session()
    await under_test.log.append(session_id, [event()], fence=None)
    news = [event(n) for n in range(450)]
    async with aclosing(Following(under_test.database, under_test.bus).follow(session_id)) as frames:
        assert await anext(frames) == b""
        for at in range(0, len(news), 50):
            await under_test.log.append(session_id, news[at : at + 50], fence=None)
        seen = await take(frames, len(news))
    assert [one["id"] for one in seen] == [new.id for new in news]


async def test_what_this_process_commits_is_streamed_without_a_read(under_test: LogUnderTest) -> None:
    session_id = await under_test.session()
    committed = [event(n) for n in range(3)]
    async with AsyncExitStack() as stack:
        readers: list[AsyncGenerator[bytes]] = []
        async with Database(under_test.database.url) as theirs:
            following = Following(theirs, under_test.bus)
            for _ in range(3):
                readers.append(await stack.enter_async_context(aclosing(following.follow(session_id))))
                assert await anext(readers[-1]) == b""
        # From here on these readers cannot read.
        waiting = NewInput("sevt_waits", "user.message", "sthr_x", {})
        await under_test.writer.commit(Commit(session_id, inputs=(waiting,)))
        taken = NewEvent("sevt_waits", "user.message", "sthr_x", {})
        await under_test.writer.commit(Commit(session_id, events=(taken, committed[0]), take=("sevt_waits",)))
        await under_test.log.append(session_id, committed[1:], fence=None)
        seen = [await take(reader, 5) for reader in readers]
    listed = await Listing(under_test.database).page(
        session_id, EventFilter("sthr_x"), after=None, descending=False, limit=10
    )
    announced = {"id": "sevt_waits", "type": "user.message", "processed_at": None}
    assert seen[0] == [announced, *(msgspec.json.decode(entry.wire) for entry in listed)]
    assert seen[0] == seen[1] == seen[2]


async def test_what_two_processes_commit_in_turn_comes_once_and_in_order(under_test: LogUnderTest) -> None:
    session_id = await under_test.session()
    elsewhere = SilentBus()
    news = [event(n) for n in range(61)]
    async with (
        LogWriter(under_test.database, elsewhere) as other,
        aclosing(Following(under_test.database, under_test.bus).follow(session_id)) as frames,
    ):
        await anext(frames)

        async def writing() -> None:
            for n, new in enumerate(news):
                if n % 3:
                    # Nobody here is told of it, as when a notification is late.
                    await other.commit(Commit(session_id, events=(new,)))
                else:
                    waits = NewInput(f"sevt_{n}", "user.message", "sthr_x", {})
                    await under_test.writer.commit(Commit(session_id, events=(new,), inputs=(waits,)))

        task = asyncio.create_task(writing())
        seen = await take(frames, 61 + 21)
        await task
    assert [one["id"] for one in seen if one["processed_at"] is not None] == [new.id for new in news]
    assert [one["id"] for one in seen if one["processed_at"] is None] == [
        f"sevt_{n}" for n in range(0, 61, 3)
    ]


@pytest.mark.parametrize("viewer", ["sthr_x", "sthr_y"])
@pytest.mark.parametrize("shown", [OWN_THREAD, EVERYBODY, WORKERS])
async def test_a_commit_that_is_handed_over_shows_what_the_log_shows(
    under_test: LogUnderTest, viewer: str, shown: int
) -> None:
    session_id = await under_test.session()
    events = tuple(
        NewEvent(f"sevt_{thread}_{mark}_{kind}", kind, thread, {"n": mark}, crossposted=mark)
        for kind in ("agent.tool_use", "agent.message", "session.thread_status_terminated")
        for thread in ("sthr_x", "sthr_y")
        for mark in (OWN_THREAD, EVERYBODY, WORKERS)
    )
    topic = session_topic(session_id)
    async with under_test.bus.subscribe(topic, commits=True) as here:
        await under_test.writer.commit(Commit(session_id, events=events))
        poked, _ = here.take()
        [landed] = here.take_commits()
    assert not poked
    view = View(viewer, shown)
    rows = await under_test.database.fetch(NEXT, next_parameters(session_id, view, 0))
    news = news_in(view)(rows)
    assert news is not None
    assert landed_in(view, landed) == (b"", news.page)
    assert news.page.frames


async def test_a_lost_piece_ends_its_preview_and_the_event_comes_all_the_same(
    under_test: LogUnderTest,
) -> None:
    session_id = await under_test.session()
    following = Following(under_test.database, under_test.bus)
    async with aclosing(following.follow(session_id, deltas=["agent.message"])) as frames:
        await anext(frames)
        await under_test.log.append(session_id, [start()], fence=None)
        previews = Previewing(under_test, session_id, "sevt_torn", 1)
        for position in (0, 1, 3, 4):
            previews.send(position)
        seen = await take(frames, 3)
        await under_test.log.append(session_id, [event(id="sevt_torn")], fence=None)
        seen += await take(frames, 1)
    assert [one.get("n", one["type"]) for one in seen] == ["span.model_request_start", 0, 1, "agent.message"]


async def test_previews_that_come_after_their_request_ended_or_before_the_stream_are_dropped(
    under_test: LogUnderTest,
) -> None:
    session_id = await under_test.session()
    await under_test.log.append(session_id, [start()], fence=None)
    following = Following(under_test.database, under_test.bus)
    async with aclosing(following.follow(session_id, deltas=["agent.message"])) as frames:
        await anext(frames)
        Previewing(under_test, session_id, "sevt_early", 1).send(0)
        await under_test.log.append(session_id, [event(), start(), event()], fence=None)
        await take(frames, 3)
        Previewing(under_test, session_id, "sevt_late", 3).send(0)
        await under_test.log.append(session_id, [event(id="sevt_last")], fence=None)
        [last] = await take(frames, 1)
    assert last["id"] == "sevt_last"


async def test_a_lost_notification_costs_no_more_than_a_ping(under_test: LogUnderTest) -> None:
    session_id = await under_test.session()
    following = Following(under_test.database, under_test.bus)
    async with aclosing(following.follow(session_id, ping_seconds=0.05)) as frames:
        await anext(frames)
        # Another process's writer, whose bus does not reach this one.
        await under_test.database.execute(
            "with s as (update sessions set last_seq = 1 returning id)"
            " insert into events (session_id, seq, id, thread_id, type, body, processed_at)"
            """ select id, 1, 'sevt_x', 'sthr_x', 'agent.message', '{"id":"sevt_x"}', now() from s"""
        )
        seen: list[dict[str, Any]] = []
        while not seen or "id" not in seen[-1]:
            seen += await take(frames, 1)
    assert seen[-1]["id"] == "sevt_x"
    assert all(ping == {"type": "ping"} for ping in seen[:-1])


async def test_a_session_that_is_not_there_is_told_before_the_stream_opens(under_test: LogUnderTest) -> None:
    with pytest.raises(NotFound):
        await anext(Following(under_test.database, under_test.bus).follow("sesn_nobody"))


@pytest.mark.parametrize("descending", [False, True])
async def test_an_input_that_is_taken_up_while_a_list_is_read_is_in_it_once(
    under_test: LogUnderTest, descending: bool
) -> None:
    session_id = await under_test.session()
    ids = [f"sevt_{n:03}" for n in range(60)]
    waiting = tuple(NewInput(one, "user.message", "sthr_x", {}) for one in ids)
    await under_test.writer.commit(Commit(session_id, inputs=waiting))

    async def taking() -> None:
        for one in ids:
            taken = NewEvent(one, "user.message", "sthr_x", {})
            await under_test.writer.commit(Commit(session_id, events=(taken,), take=(one,)))

    task = asyncio.create_task(taking())
    listing = Listing(under_test.database)
    narrow = EventFilter(thread_id="sthr_x")
    looks = 0
    while not task.done() or not looks:
        page = await listing.page(session_id, narrow, after=None, descending=descending, limit=100)
        assert [entry.id for entry in page] == (ids[::-1] if descending else ids)
        looks += 1
    await task


async def test_an_input_is_announced_once_however_many_come_while_it_is_read(
    under_test: LogUnderTest,
) -> None:
    session_id = await under_test.session()
    ids = [f"sevt_{n:03}" for n in range(100)]

    async def queueing() -> None:
        for one in ids:
            new = NewInput(one, "user.message", "sthr_x", {})
            await under_test.writer.commit(Commit(session_id, inputs=(new,)))

    async with aclosing(Following(under_test.database, under_test.bus).follow(session_id)) as frames:
        await anext(frames)
        task = asyncio.create_task(queueing())
        seen = await take(frames, len(ids))
        await task
    assert [one["id"] for one in seen] == ids
