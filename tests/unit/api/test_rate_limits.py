"""Rate limits: so many requests in any stretch of time, for each key by itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.api.rate_limits import RateLimits, admitted
from corral.wire.errors import RateLimited


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@given(st.lists(st.floats(0, 10), max_size=60), st.integers(1, 8))
def test_no_stretch_of_time_has_more_than_the_rate_and_the_burst(gaps: list[float], burst: int) -> None:
    due, now, passed = 0.0, 0.0, list[float]()
    for gap in gaps:
        now += gap
        due, early = admitted(due, now, 1.0, burst)
        if not early:
            passed.append(now)
    for first, begun in enumerate(passed):
        for last in range(first, len(passed)):
            assert last - first + 1 <= passed[last] - begun + burst + 1e-6


@given(st.lists(st.floats(0, 3), min_size=1, max_size=40), st.integers(1, 5))
def test_whoever_waits_as_long_as_told_passes(gaps: list[float], burst: int) -> None:
    due, now = 0.0, 0.0
    for gap in gaps:
        now += gap
        due, early = admitted(due, now, 1.0, burst)
        if early:
            now += early + 1e-6
            due, again = admitted(due, now, 1.0, burst)
            assert again == 0


def test_each_key_has_its_own_rate_and_reads_are_counted_apart_from_writes() -> None:
    clock = Clock()
    limits = RateLimits(reads=60, writes=20, clock=clock)
    for _ in range(2):
        limits.admit("one", write=True)
    with pytest.raises(RateLimited) as refused:
        limits.admit("one", write=True)
    assert refused.value.retry_after == pytest.approx(3.0)
    limits.admit("other", write=True)
    for _ in range(6):
        limits.admit("one", write=False)
    with pytest.raises(RateLimited):
        limits.admit("one", write=False)
    clock.now += 3.0
    limits.admit("one", write=True)


def test_without_a_limit_nothing_is_refused_or_remembered() -> None:
    limits = RateLimits(clock=Clock())
    for _ in range(10_000):
        limits.admit("one", write=True)
