"""The lease of a work item, kept by heartbeats that wait for nothing else (contract section 12.3)."""

import asyncio
import time
from enum import Enum, auto
from typing import Any, Final

import structlog

from corral.hands.worker.answers import Beat, WorkItem
from corral.hands.worker.client import WorkApi
from corral.hands.worker.failures import ApiFailure
from corral.hands.worker.pace import Backoff, Pace
from corral.wire.secret import Secret
from corral.wire.work import NO_HEARTBEAT

# What is assumed until the server says how long a lease lasts, and the longest pause between two beats.
_TTL_ASSUMED: Final = 90.0
_INTERVAL_MOST: Final = 30.0
# On a Corral server, so that the work of a dead worker is offered again soon.
_TTL_ON_CORRAL: Final = 15

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class LeaseEnd(Enum):
    """Why a lease is not extended any more."""

    STOPPING = auto()
    """The server wants the item back; it is ours until we stop it or the lease runs out."""
    STOPPED = auto()
    """The item was ended."""
    LOST = auto()
    """The item is, or must be taken to be, somebody else's."""


class Lease:
    """One item's lease. `keep` holds it; `ended` is set, and `end` says why, once that is over."""

    def __init__(self, api: WorkApi, item: WorkItem, key: Secret, pace: Pace) -> None:
        self._api = api
        self._item = item
        self._key = key
        self._pace = pace
        self._last = NO_HEARTBEAT
        self._unsure = False
        self.ended = asyncio.Event()
        self.end: LeaseEnd | None = None

    @property
    def is_ours(self) -> bool:
        """Whether results may be posted for the item."""
        return self.end in (None, LeaseEnd.STOPPING)

    def lose(self) -> None:
        """Something else than a heartbeat has shown that the item is not ours."""
        self._finish(LeaseEnd.LOST)

    async def keep(self) -> None:
        """Beat until the lease has ended. Returns then."""
        ttl = _TTL_ASSUMED
        until = time.monotonic() + ttl
        backoff = Backoff(self._pace)
        while self.end is None:
            try:
                async with asyncio.timeout(max(1.0, min(ttl / 3, _INTERVAL_MOST))):
                    beat = await self._beat()
            except (ApiFailure, TimeoutError) as failure:
                self._failed(failure, time.monotonic() >= until)
                wait = backoff.next()
            else:
                backoff.reset()
                if beat.ttl_seconds > 0:
                    ttl = beat.ttl_seconds
                until = time.monotonic() + ttl
                wait = self._interval(ttl)
                self._accept(beat)
            if self.end is None:
                await _first(self.ended, wait)

    async def _beat(self) -> Beat:
        wish = _TTL_ON_CORRAL if self._api.is_corral else None
        return await self._api.heartbeat(self._item, self._key, expected=self._last, ttl_seconds=wish)

    def _interval(self, ttl: float) -> float:
        share = ttl / 3 if self._api.is_corral else ttl / 2
        return max(1.0, min(share, _INTERVAL_MOST))

    def _accept(self, beat: Beat) -> None:
        self._last = beat.last_heartbeat
        self._unsure = False
        if beat.state == "stopped":
            self._finish(LeaseEnd.STOPPED)
        elif beat.state == "stopping" or not beat.lease_extended:
            self._finish(LeaseEnd.STOPPING)

    def _failed(self, failure: ApiFailure | TimeoutError, is_late: bool) -> None:
        status = failure.status if isinstance(failure, ApiFailure) else None
        if isinstance(failure, ApiFailure) and status == 412 and self._adopt(failure.details):
            return
        if isinstance(failure, ApiFailure) and not failure.may_pass:
            _log.warning("lease lost", work_id=self._item.id, status=status, reason=str(failure))
            self._finish(LeaseEnd.LOST)
        elif is_late:
            _log.warning("lease taken to be lost: no heartbeat came through", work_id=self._item.id)
            self._finish(LeaseEnd.LOST)
        else:
            self._unsure = True
            _log.info("heartbeat failed", work_id=self._item.id, status=status, reason=str(failure))

    def _adopt(self, details: Any) -> bool:
        """After a beat of which nobody knows whether it counted, take the server's value for our own.

        Only on Corral and with the item's own token: there a rival's claim makes the token void, so that a
        412 cannot come from one.
        """
        if not (self._unsure and self._api.is_corral and self._item.token is not None):
            return False
        last = details.get("current_state", {}).get("last_heartbeat")
        self._unsure = False
        if not isinstance(last, str):
            return False
        self._last = last
        return True

    def _finish(self, end: LeaseEnd) -> None:
        if self.end is None:
            self.end = end
        self.ended.set()


async def _first(event: asyncio.Event, seconds: float) -> None:
    """Wait for the event, at most so long."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
