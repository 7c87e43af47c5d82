"""Rate limits by API key: so many reads and writes a minute, evenly, with a burst of a tenth of that.

Counted in this process, so that no request pays for it with a trip to the database: with several servers
behind a balancer, each gives the whole rate. Workers are not limited: a lease must not end for want of it.
"""

import time
from collections.abc import Callable
from typing import Final

from corral.wire.errors import RateLimited

_BURST: Final = 10
"""A minute's requests divided by this may come at once; at least one."""


def admitted(due: float, now: float, spacing: float, burst: int) -> tuple[float, float]:
    """One step of the generic cell rate algorithm, in seconds.

    ``due`` is when the next request would come if all came evenly, ``spacing`` the time between two of them.
    Returns the new ``due`` and how long this request is too early: 0 if it may pass; then, and only then,
    ``due`` has moved on.
    """
    early = due - now - spacing * (burst - 1)
    if early > 0:
        return due, early
    return max(due, now) + spacing, 0.0


class RateLimits:
    """The limits of one server. ``reads`` and ``writes`` are requests per minute and key; 0 is no limit."""

    def __init__(self, reads: int = 0, writes: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = {False: reads, True: writes}
        self._clock = clock
        # One entry for each key that was ever used here: as many as there are keys.
        self._due: dict[tuple[str, bool], float] = {}

    def admit(self, key_id: str, *, write: bool) -> None:
        """Count a request.

        Raises:
            RateLimited: it comes too early; says when it may come again.
        """
        rate = self._per_minute[write]
        if not rate:
            return
        place = key_id, write
        due, early = admitted(self._due.get(place, 0.0), self._clock(), 60 / rate, max(1, rate // _BURST))
        self._due[place] = due
        if early:
            kind = "writes" if write else "reads"
            raise RateLimited(f"This key may make {rate} {kind} a minute; wait.", retry_after=early)
