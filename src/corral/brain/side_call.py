"""A model request beside a thread's own conversation: another prompt, no previews, no span of its own.

Who makes one decides what becomes of a failure, records what it cost, and marks the events with which it
begins and ends (`corral.session.events.ASKS`), so that a server that stops lets it finish.
"""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from corral.inference.provider import ModelFailed, ModelResponse


class CutOff(msgspec.Struct, frozen=True):
    """The client interrupted before the answer was there."""


async def ask_aside(
    asking: Awaitable[ModelResponse],
    *,
    interrupted: Callable[[], Awaitable[None]],
    beat: Callable[[], Awaitable[None]],
    every: float,
) -> ModelResponse | ModelFailed | CutOff:
    """Wait for the answer of `asking`; `beat` is called each time that `every` seconds have gone by.

    `interrupted` returns once the client has interrupted; it may wait for ever. Whatever comes of it, and on
    cancellation, everything is ended when this returns. What `beat` raises, it raises.
    """
    answer = asyncio.ensure_future(asking)
    watching = asyncio.ensure_future(interrupted())
    beating = asyncio.create_task(_beating(beat, every))
    try:
        await asyncio.wait({answer, watching, beating}, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        # The watch itself may have failed, which is no interrupt, and so may the beat.
        for task in (watching, beating):
            if task.done():
                task.result()
        return CutOff()
    except ModelFailed as failure:
        return failure
    finally:
        for task in (answer, watching, beating):
            task.cancel()
        await asyncio.gather(answer, watching, beating, return_exceptions=True)


async def _beating(beat: Callable[[], Awaitable[None]], every: float) -> None:
    while True:
        await asyncio.sleep(every)
        await beat()
