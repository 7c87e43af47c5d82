"""A slow reader costs itself previews, never events, and what it shows stays the beginning of the text."""

import asyncio
from datetime import UTC, datetime

from corral.bus.hub import Hub, Preview
from corral.bus.landed import Landed, LandedEvent

TOPIC = "session:sesn_x"
MANY = 5_000


def preview(event_id: str, position: int) -> Preview:
    return Preview(event_id, "sthr_x", 1, b"", "agent.message", position)


async def test_a_slow_reader_sheds_the_ends_of_previews_and_no_poke() -> None:
    hub = Hub()
    async with hub.subscribe(TOPIC, previews=True) as slow, hub.subscribe(TOPIC) as plain:
        for position in range(MANY):
            hub.preview(TOPIC, preview("a", position))
        hub.poke(TOPIC)
        poked, held = slow.take()
        assert poked
        assert 0 < len(held) < MANY
        assert [piece.position for piece in held] == list(range(len(held)))
        # Nothing of the torn event comes later; the next one is whole again.
        hub.preview(TOPIC, preview("a", MANY))
        hub.preview(TOPIC, preview("b", 0))
        hub.preview(TOPIC, preview("b", 1))
        assert [piece.event_id for piece in slow.take()[1]] == ["b", "b"]
        assert plain.take() == (True, [])


async def test_pieces_that_come_together_wake_a_reader_once_and_are_seen_by_none_who_came_later() -> None:
    hub = Hub()
    async with hub.subscribe(TOPIC, previews=True) as reader:
        for position in range(3):
            hub.preview(TOPIC, preview("a", position))
        async with hub.subscribe(TOPIC, previews=True) as late:
            hub.preview(TOPIC, preview("a", 3))
            assert await reader.wait()
            assert [piece.position for piece in reader.take()[1]] == [0, 1, 2, 3]
            assert [piece.position for piece in late.take()[1]] == [3]
        assert not await reader.wait(0)


async def test_what_a_slow_reader_holds_is_bounded_in_bytes_too() -> None:
    hub = Hub()
    async with hub.subscribe(TOPIC, previews=True) as slow:
        for position in range(100):
            hub.preview(TOPIC, Preview("a", "sthr_x", 1, b"x" * 100_000, "agent.message", position))
        _, held = slow.take()
        assert [piece.position for piece in held] == [0, 1]
        # What was taken counts no more.
        hub.preview(TOPIC, Preview("b", "sthr_x", 1, b"x" * 100_000, "agent.message", 0))
        assert [piece.event_id for piece in slow.take()[1]] == ["b"]


def landed(base: int, size: int) -> Landed:
    event = LandedEvent(f"sevt_{base}", "agent.message", "sthr_x", "x" * size)
    return Landed(base, 0, datetime.now(UTC), (event,), ())


async def test_who_takes_commits_is_handed_them_and_who_is_too_slow_is_poked_instead() -> None:
    hub = Hub()
    async with hub.subscribe(TOPIC, commits=True) as reader, hub.subscribe(TOPIC) as plain:
        assert hub.takes_commits(TOPIC)
        for base in range(3):
            hub.poke(TOPIC, landed(base, 100))
        assert plain.take() == (True, [])
        assert reader.take() == (False, [])
        assert [one.base for one in reader.take_commits()] == [0, 1, 2]
        for size in (100, 100_000):
            for base in range(200):
                hub.poke(TOPIC, landed(base, size))
            assert await reader.wait()
            assert reader.take() == (True, [])
            assert reader.take_commits() == []
        hub.poke(TOPIC, landed(200, 10_000_000))
        assert reader.take() == (True, [])
        hub.poke(TOPIC, landed(201, 100))
        assert [one.base for one in reader.take_commits()] == [201]
    assert not hub.takes_commits(TOPIC)


async def test_a_wait_that_ended_early_does_not_end_the_next_one() -> None:
    hub = Hub()
    async with hub.subscribe(TOPIC) as reader:
        hub.poke(TOPIC)
        assert await reader.wait(0.01)
        reader.take()
        waiting = asyncio.create_task(reader.wait(3600))
        assert not await _waits(hub, 0.02)
        assert not waiting.done()
        hub.poke(TOPIC)
        assert await waiting
        reader.take()
        assert not await reader.wait(0.01)  # sooner than the hour that was waited for before


async def _waits(hub: Hub, seconds: float) -> bool:
    async with hub.subscribe("another") as other:
        return await other.wait(seconds)


async def test_pokes_are_one_bit_however_many_and_none_is_lost_between_take_and_wait() -> None:
    hub = Hub()
    async with hub.subscribe(TOPIC) as reader:
        assert not await reader.wait(0)
        for _ in range(MANY):
            hub.poke(TOPIC)
        assert await reader.wait()
        assert reader.take() == (True, [])
        assert not await reader.wait(0)
        hub.poke(TOPIC)
        assert await reader.wait()


async def test_a_reader_that_left_is_forgotten() -> None:
    hub = Hub()
    async with hub.subscribe(TOPIC, previews=True):
        assert hub.has_readers(TOPIC)
        assert hub.previewed() == [TOPIC]
    assert not hub.has_readers(TOPIC)
    assert hub.previewed() == []
    hub.poke(TOPIC)


async def test_a_task_whose_cancellation_was_lost_on_the_way_ends_where_it_waits() -> None:
    hub = Hub()
    begun = asyncio.Event()

    async def waits() -> None:
        async with hub.subscribe(TOPIC) as reader:
            begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass  # as `asyncio.wait_for` of Python 3.11 does when its wait ends at the same time
            while True:
                await reader.wait(0.01)

    task = asyncio.create_task(waits())
    await begun.wait()
    task.cancel()
    await asyncio.wait({task}, timeout=5)
    assert task.cancelled()
