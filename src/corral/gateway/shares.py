"""What one session may have of the gateway at the same time, so that none takes the others' part."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class _Slots:
    free: asyncio.Semaphore
    users: int = 0


class Shares:
    """So many at a time for each session; whoever wants more waits, and holds up its own session alone."""

    def __init__(self, each: int) -> None:
        self._each = each
        self._of: dict[str, _Slots] = {}

    @asynccontextmanager
    async def one(self, session_id: str) -> AsyncGenerator[None]:
        """Have one of the session's for a while."""
        slots = self._of.setdefault(session_id, _Slots(asyncio.Semaphore(self._each)))
        slots.users += 1
        try:
            async with slots.free:
                yield
        finally:
            slots.users -= 1
            if slots.users == 0:
                del self._of[session_id]
