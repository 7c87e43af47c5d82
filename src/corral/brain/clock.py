"""The time by which brains decide: the database's, so that a server's wrong clock changes nothing."""

import asyncio
from datetime import datetime, timedelta


class DatabaseClock:
    """The database's time, carried on by this machine's monotonic clock between two answers."""

    def __init__(self, at: datetime) -> None:
        self.set(at)

    def set(self, at: datetime) -> None:
        """The database has just said that it is `at`."""
        self._at = at
        self._read = asyncio.get_running_loop().time()

    def now(self) -> datetime:
        """The time now."""
        return self._at + timedelta(seconds=asyncio.get_running_loop().time() - self._read)
