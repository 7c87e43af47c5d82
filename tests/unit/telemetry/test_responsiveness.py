"""What holds up the event loop is measured, and told apart from waiting for a processor."""

import asyncio
import time

from structlog.testing import capture_logs

from corral.telemetry.responsiveness import Delays, Responsiveness


def test_the_share_that_a_bound_holds_is_found_and_never_more_than_the_longest() -> None:
    delays = Delays()
    assert delays.within(0.99) == 0.0
    for _ in range(99):
        delays.add(0.02)
    delays.add(3.0)
    assert delays.within(0.5) == 0.025
    assert delays.within(0.99) == 0.025
    assert delays.within(1.0) == 3.0
    delays.add(60.0)
    assert delays.within(1.0) == delays.longest == 60.0


async def test_computing_without_a_pause_is_told_and_a_blocking_call_is_late_and_no_computing() -> None:
    with capture_logs() as log:
        async with Responsiveness(every_seconds=0.01) as measured:
            await asyncio.sleep(0)
            time.sleep(0.3)
            async with asyncio.timeout(20):
                while measured.lateness.late_worst < 0.25:
                    await asyncio.sleep(0)
            assert measured.lateness.computing_worst < measured.lateness.late_worst
            used = time.thread_time()
            await asyncio.sleep(0)
            while time.thread_time() - used < 1.5:
                pass
            async with asyncio.timeout(20):
                while measured.lateness.computing_worst < 1.0:
                    await asyncio.sleep(0)
    told = [line["event"] for line in log]
    assert told == ["the event loop was held up by computing", "responsiveness of the event loop"]
    assert log[-1]["samples"] == measured.lateness.samples >= 2
