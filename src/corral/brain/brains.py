"""The brains of one server process: claims sessions as they need one, and runs a task for each claimed.

An idle session has no task here. One statement renews all leases; one looks for brains that died.
"""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

import msgspec
import psycopg
import structlog

from corral.brain.claims import Claim, Claims
from corral.brain.decide import Rules
from corral.brain.file_sources import FileReader
from corral.brain.retry import RetryPolicy
from corral.brain.turn import Hands, SessionLost, Turn
from corral.bus.hub import WAKES_TOPIC, Bus, Subscription, heed_cancellation
from corral.inference.provider import InferenceProvider
from corral.session.commit import LogUnavailable
from corral.session.log import PostgresSessionLog
from corral.store.database import Database

_LOOK_SECONDS: Final = 1.0
"""How often to look for due sessions and dead brains without being told: retries come due by the clock."""

_log = structlog.get_logger(__name__)


class BrainSettings(msgspec.Struct, frozen=True):
    """How many sessions a process works on at once, how long a lease lasts (seconds), how requests retry."""

    concurrency: int = 500
    lease_seconds: float = 10.0
    retry: RetryPolicy = RetryPolicy()


class Brains:
    """Open with ``async with``: claiming begins, and ends with every task awaited."""

    def __init__(
        self,
        *,
        database: Database,
        log: PostgresSessionLog,
        bus: Bus,
        provider: InferenceProvider,
        hands: Hands,
        files: FileReader,
        settings: BrainSettings,
    ) -> None:
        self._settings = settings
        self._bus = bus
        self._claims = Claims(database, lease_seconds=settings.lease_seconds)
        self._turns: dict[str, asyncio.Task[None]] = {}
        self._loops: list[asyncio.Task[None]] = []
        self._kept_at = 0.0

        def turn(claim: Claim) -> Turn:
            return Turn(
                claim,
                database=database,
                log=log,
                bus=bus,
                provider=provider,
                hands=hands,
                files=files,
                rules=Rules(self_hosted=claim.self_hosted),
                retry=settings.retry,
            )

        self._turn: Callable[[Claim], Turn] = turn

    async def __aenter__(self) -> Self:
        await self._claims.__aenter__()
        await self._claims.free_the_dead()
        self._loops = [asyncio.create_task(self._claim_loop()), asyncio.create_task(self._keep_loop())]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for loop in self._loops:
            loop.cancel()
        turns = list(self._turns.values())
        for turn in turns:
            turn.cancel()
        await asyncio.gather(*self._loops, *turns, return_exceptions=True)
        await self._claims.__aexit__(kind, error, trace)

    async def _claim_loop(self) -> None:
        async with self._bus.subscribe(WAKES_TOPIC) as wakes:
            while True:
                try:
                    await self._claim_due()
                except psycopg.Error as error:
                    _log.warning("could not claim sessions; trying again", error=str(error))
                await self._next_wake(wakes)

    async def _claim_due(self) -> None:
        while (room := self._settings.concurrency - len(self._turns)) > 0:
            claims = await self._claims.claim(min(room, 50))
            for claim in claims:
                await self._start(claim)
            if not claims:
                return

    async def _next_wake(self, wakes: Subscription) -> None:
        await wakes.wait(_LOOK_SECONDS)
        wakes.take()

    async def _start(self, claim: Claim) -> None:
        before = self._turns.pop(claim.session_id, None)
        if before is not None:
            # This very process lost its lease to itself; the epoch has moved on under the old task.
            before.cancel()
            await asyncio.gather(before, return_exceptions=True)
        task = asyncio.create_task(self._run(claim), name=f"turn {claim.session_id}")
        self._turns[claim.session_id] = task

    async def _run(self, claim: Claim) -> None:
        structlog.contextvars.bind_contextvars(session_id=claim.session_id)
        try:
            await self._turn(claim).run()
        except SessionLost:
            _log.info("the session is another brain's now", epoch=claim.epoch)
        except (psycopg.Error, LogUnavailable) as error:
            _log.warning("lost the database in a turn; the lease will bring a brain back", error=str(error))
        except Exception:
            _log.exception("a turn failed; the lease will bring a brain back")
        finally:
            if self._turns.get(claim.session_id) is asyncio.current_task():
                del self._turns[claim.session_id]

    async def _keep_loop(self) -> None:
        """Renew leases, notice dead brains, and notice when this process is itself taken for dead."""
        loop = asyncio.get_running_loop()
        while True:
            heed_cancellation()
            await asyncio.sleep(min(_LOOK_SECONDS, self._settings.lease_seconds / 3))
            try:
                if not await self._claims.alive():
                    self._abandon()
                if loop.time() - self._kept_at >= self._settings.lease_seconds / 3:
                    await self._claims.renew(list(self._turns))
                    self._kept_at = loop.time()
                if await self._claims.free_the_dead():
                    await self._bus.publish(WAKES_TOPIC)
            except psycopg.Error as error:
                _log.warning("could not renew leases; trying again", error=str(error))

    def _abandon(self) -> None:
        for turn in self._turns.values():
            turn.cancel()
