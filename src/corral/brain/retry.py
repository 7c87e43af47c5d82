"""How failed model requests are made again."""

import random

import msgspec


class RetryPolicy(msgspec.Struct, frozen=True):
    """How failed model requests are made again: seconds, doubling from `base` to `cap`, with jitter."""

    attempts: int = 10
    base: float = 1.0
    cap: float = 60.0
    longest_wish: float = 900.0
    """The longest ``retry-after`` of a provider that is honoured."""

    def delay(self, failures: int, wish: float | None) -> float:
        """Seconds to wait after `failures` failures in a row, given the provider's own wish."""
        backoff = min(self.cap, self.base * 2.0 ** min(failures, 30))
        jittered = backoff * random.uniform(0.5, 1.0)  # noqa: S311  # spreads load, guards nothing
        return max(jittered, min(wish or 0.0, self.longest_wish))
