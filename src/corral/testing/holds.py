"""Named holds: a response waits at one until a test releases it, so that no test has to sleep."""

from __future__ import annotations

import asyncio
from collections import Counter


class Holds:
    """Which holds have been released and which have somebody waiting.

    A release stays: a response that comes to a released hold passes. `clear` makes every hold hold again, and
    lets those that wait now pass.
    """

    def __init__(self) -> None:
        self._released: dict[str, asyncio.Event] = {}
        self._waiting: Counter[str] = Counter()
        self._changed = asyncio.Condition()

    def _event(self, name: str) -> asyncio.Event:
        return self._released.setdefault(name, asyncio.Event())

    async def wait(self, name: str) -> None:
        """Waits until `name` is released."""
        async with self._changed:
            self._waiting[name] += 1
            self._changed.notify_all()
        try:
            await self._event(name).wait()
        finally:
            self._waiting[name] -= 1

    def release(self, name: str) -> None:
        """Lets everything pass that waits at `name`, now and later."""
        self._event(name).set()

    async def until_waiting(self, name: str, count: int = 1) -> None:
        """Returns once `count` responses wait at `name`."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._waiting[name] >= count)

    def waiting(self) -> dict[str, int]:
        """How many responses wait, by hold."""
        return {name: count for name, count in sorted(self._waiting.items()) if count}

    def clear(self) -> None:
        """Lets everything pass that waits, and holds again from now on."""
        for event in self._released.values():
            event.set()
        self._released.clear()
