"""Requests beside the conversation: answered, failed, cut off, and what happens meanwhile."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from corral.brain.side_call import CutOff, ask_aside
from corral.inference.provider import (
    ModelEvent,
    ModelFailed,
    ModelRequest,
    ModelResponse,
    TextDelta,
    answer_of,
)
from tests.unit.brain.simulation import MODEL, answer

REQUEST = ModelRequest(MODEL, [])


class Provider:
    """Streams events; an exception among them is raised."""

    def __init__(self, *events: ModelEvent | ModelFailed) -> None:
        self._events = events
        self.closed = False

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        try:
            for event in self._events:
                if isinstance(event, ModelFailed):
                    raise event
                yield event
        finally:
            self.closed = True


async def never() -> None:
    await asyncio.Event().wait()


async def nothing() -> None:
    pass


async def no_answer() -> ModelResponse:
    await never()
    raise AssertionError("nobody sets it")


async def test_the_answer_is_what_the_stream_ends_with() -> None:
    provider = Provider(TextDelta(0, "fi"), answer())
    assert await answer_of(provider, REQUEST) == answer()
    assert provider.closed


async def test_a_stream_without_an_answer_is_a_failure_that_may_pass() -> None:
    with pytest.raises(ModelFailed) as failed:
        await answer_of(Provider(TextDelta(0, "fi")), REQUEST)
    assert failed.value.retryable


async def test_a_failure_is_handed_on() -> None:
    failure = ModelFailed("overloaded", "busy", retryable=True)
    asking = answer_of(Provider(failure), REQUEST)
    assert await ask_aside(asking, interrupted=never, beat=nothing, every=9) is failure


async def test_an_interrupt_cuts_it_off() -> None:
    assert await ask_aside(no_answer(), interrupted=nothing, beat=nothing, every=9) == CutOff()


async def test_it_beats_until_the_answer_is_there() -> None:
    beats = 0
    enough = asyncio.Event()

    async def beat() -> None:
        nonlocal beats
        beats += 1
        if beats == 3:
            enough.set()

    async def late() -> ModelResponse:
        await enough.wait()
        return answer()

    assert await ask_aside(late(), interrupted=never, beat=beat, every=0.001) == answer()
    assert beats >= 3


async def test_a_beat_that_fails_is_no_interrupt() -> None:
    async def lost() -> None:
        raise ConnectionError("lost")

    with pytest.raises(ConnectionError):
        await ask_aside(no_answer(), interrupted=never, beat=lost, every=0.001)
    with pytest.raises(ConnectionError):
        await ask_aside(no_answer(), interrupted=lost, beat=nothing, every=9)
