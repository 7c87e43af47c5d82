"""How late the event loop is: whatever holds it up holds up every request, stream and lease of the process.

A timer asks again and again how late it is called. Being late has two causes, which are told apart by the
processor time that the loop's thread has used meanwhile: what the process computed itself without a pause
(a fault of its own), and having to wait for a processor, or for a call that blocks.
"""

import asyncio
import bisect
import time
from types import TracebackType
from typing import Final, Self

import msgspec
import structlog

_EVERY_SECONDS: Final = 0.2
_TOLD_SECONDS: Final = 0.5
"""Computing that is longer than this is told in the log."""
_QUIET_SECONDS: Final = 10.0
"""After it has been told, nothing more is for so long."""
_BOUNDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)

_log = structlog.get_logger(__name__)


class Delays:
    """How often something took how long, by upper bounds in seconds; bounded in memory."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_BOUNDS) + 1)
        self.count = 0
        self.longest = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self._counts[bisect.bisect_left(_BOUNDS, seconds)] += 1
        self.count += 1
        self.longest = max(self.longest, seconds)

    def within(self, share: float) -> float:
        """The bound that so large a share of them did not exceed; the longest where that is less."""
        wanted, seen = share * self.count, 0
        for bound, count in zip(_BOUNDS, self._counts, strict=False):
            seen += count
            if seen >= wanted:
                return min(bound, self.longest)
        return self.longest


class Lateness(msgspec.Struct, frozen=True):
    """The event loop's delays since the start, in seconds."""

    samples: int
    late_p95: float
    late_p99: float
    late_worst: float
    computing_p95: float
    computing_p99: float
    computing_worst: float


class Responsiveness:
    """Measures the running event loop while it is open; logs what was long, and a summary at the end."""

    def __init__(self, every_seconds: float = _EVERY_SECONDS) -> None:
        self._every = every_seconds
        self._late, self._computing = Delays(), Delays()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._sample(), name="responsiveness")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        _log.info("responsiveness of the event loop", **msgspec.structs.asdict(self.lateness))

    @property
    def lateness(self) -> Lateness:
        """What has been measured so far."""
        return Lateness(
            self._late.count,
            round(self._late.within(0.95), 4),
            round(self._late.within(0.99), 4),
            round(self._late.longest, 4),
            round(self._computing.within(0.95), 4),
            round(self._computing.within(0.99), 4),
            round(self._computing.longest, 4),
        )

    async def _sample(self) -> None:
        loop = asyncio.get_running_loop()
        quiet_until = loop.time()
        while True:
            due, used = loop.time() + self._every, time.thread_time()
            await asyncio.sleep(self._every)
            late = max(0.0, loop.time() - due)
            computing = min(late, time.thread_time() - used)
            self._late.add(late)
            self._computing.add(computing)
            if computing > _TOLD_SECONDS and loop.time() >= quiet_until:
                quiet_until = loop.time() + _QUIET_SECONDS
                _log.warning("the event loop was held up by computing", seconds=round(computing, 3))
