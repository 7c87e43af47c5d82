"""The worker's periods and bounds, and how long it waits before it tries something again."""

import random
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Pace:
    """Periods, in seconds where the name does not say otherwise. Tests shorten them.

    poll_block_ms, pool_block_ms: how long a poll waits at the server; the contract's bound (section 12.3) and
    that of Corral's pool. pause_least, pause_most: between empty polls of a server that is not Corral.
    backoff_first, backoff_most: between attempts. silence: a stream without a byte for so long is dead.
    stopping_grace: what running calls get when the server asks for the item back. farewell: for the last
    results and the stop of an item. outputs: how long a result waits until its call's outputs are at the
    server. sweep: between looks for workspaces whose session is gone. retention: age of a workspace that is
    removed where the server does not say what became of its session.
    """

    poll_block_ms: int = 999
    pool_block_ms: int = 30_000
    pause_least: float = 1.0
    pause_most: float = 3.0
    backoff_first: float = 0.5
    backoff_most: float = 10.0
    silence: float = 60.0
    stopping_grace: float = 5.0
    farewell: float = 0.8
    outputs: float = 20.0
    sweep: float = 600.0
    retention: float = 30 * 86_400.0

    def pause(self) -> float:
        """How long to wait between two empty polls."""
        return random.uniform(self.pause_least, self.pause_most)  # noqa: S311 (spreads load, hides nothing)


STANDARD: Final = Pace()


class Backoff:
    """Waits that double up to a bound, with jitter; `reset` after a success."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._next = pace.backoff_first

    def reset(self) -> None:
        """Begin with the first wait again."""
        self._next = self._pace.backoff_first

    def next(self, retry_after: float | None = None) -> float:
        """Seconds to wait now; at least what the server asked for."""
        wait = random.uniform(self._next / 2, self._next)  # noqa: S311 (spreads load, hides nothing)
        self._next = min(self._next * 2, self._pace.backoff_most)
        return max(wait, retry_after or 0.0)
