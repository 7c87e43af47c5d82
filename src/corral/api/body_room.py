"""How many bytes of request bodies one server holds at the same moment, in all.

A single body is bounded by its size; this bounds their sum. Room is taken for the whole of a body before any
of it is read, so that those that are half here never wait for one another, and given back when the answer is
out. Whoever finds none is told when to come back. A worker is not refused for what others hold: it waits,
unread, until there is room.
"""

import asyncio
from types import TracebackType
from typing import Final, Self

from corral.wire.errors import Overloaded

_COME_BACK_SECONDS: Final = 1.0


class BodyRoom:
    """Room for `most` bytes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: dict[asyncio.Future[None], None] = {}
        self.held = 0
        """Bytes that are taken."""

    def hold(self, *, wait_seconds: float = 0.0) -> "HeldRoom":
        """The room of one request, none at first; it waits so long where others have it all."""
        return HeldRoom(self, wait_seconds)

    async def take(self, size: int, wait_seconds: float) -> None:
        """Take room for `size` bytes.

        Raises:
            Overloaded: there is none, or has been none for `wait_seconds`.
        """
        # A body always finds room when it is alone, whatever the bound.
        if self._fits(size):
            self.held += size
            return
        try:
            async with asyncio.timeout(wait_seconds):
                while not self._fits(size):
                    turn = asyncio.get_running_loop().create_future()
                    self._waiting[turn] = None
                    try:
                        await turn
                    finally:
                        self._waiting.pop(turn, None)
        except TimeoutError:
            message = f"The server holds {self.held} bytes of other requests' bodies; try again."
            raise Overloaded(message, retry_after=_COME_BACK_SECONDS) from None
        self.held += size

    def give_back(self, size: int) -> None:
        """Let others have it."""
        self.held -= size
        for turn in list(self._waiting):
            if not turn.done():
                turn.set_result(None)

    def _fits(self, size: int) -> bool:
        return self.held + size <= self._most or not self.held


class HeldRoom:
    """What one request has taken. Use as a context manager."""

    def __init__(self, room: BodyRoom, wait_seconds: float) -> None:
        self._room = room
        self._wait_seconds = wait_seconds
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._size:
            self._room.give_back(self._size)

    async def reach(self, size: int) -> None:
        """See that there is room for `size` bytes in all; see `BodyRoom.take`."""
        if size > self._size:
            await self._room.take(size - self._size, self._wait_seconds)
            self._size = size
