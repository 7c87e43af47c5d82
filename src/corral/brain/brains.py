"""The brains of one server process: claims sessions as they need one, and runs a task for each claimed.

An idle session has no task here. One statement renews all leases; one looks for brains that died. Who stops
lets its sessions go first (`Brains.hand_over`), so that others go on with them at once.
"""

import asyncio
from types import TracebackType
from typing import Final, Self

import msgspec
import psycopg
import structlog

from corral.brain.claims import Claim, Claims, EnvironmentBounds
from corral.brain.clearance import NO_POLICY, PolicyOffer
from corral.brain.context_rules import ContextSettings
from corral.brain.grading import GraderSettings
from corral.brain.handover import HandedOver, Handover
from corral.brain.held import SessionLost
from corral.brain.mcp_shelf import McpGateway
from corral.brain.retry import RetryPolicy
from corral.brain.session_turn import Parts, SessionFiles, SessionTurn
from corral.brain.snapshots import Snapshots
from corral.brain.turn import Hands
from corral.brain.web_tools import NO_WEB, WebOffer
from corral.bus.hub import WAKES_TOPIC, Bus, Subscription, heed_cancellation
from corral.inference.prices import PriceTable, packaged_prices
from corral.inference.provider import InferenceProvider
from corral.session.commit import LogUnavailable
from corral.session.log import PostgresSessionLog
from corral.store.database import Database

_LOOK_SECONDS: Final = 1.0
"""How often to look for due sessions and dead brains without being told: retries come due by the clock."""

_log = structlog.get_logger(__name__)


class BrainSettings(msgspec.Struct, frozen=True):
    """How many sessions a process works on at once, and all processes together for one environment; how long
    a lease lasts (seconds), how requests retry, and what they cost.
    """

    concurrency: int = 500
    bounds: EnvironmentBounds = EnvironmentBounds()
    lease_seconds: float = 10.0
    retry: RetryPolicy = RetryPolicy()
    prices: PriceTable = msgspec.field(default_factory=packaged_prices)
    web: WebOffer = NO_WEB
    """The web tools that agents may have."""
    grader: GraderSettings = GraderSettings()
    context: ContextSettings = ContextSettings()
    policy: PolicyOffer = NO_POLICY
    """The operator's policy for calls, and the judge."""


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
        files: SessionFiles,
        gateway: McpGateway | None = None,
        settings: BrainSettings,
    ) -> None:
        self._settings = settings
        self._bus = bus
        self._claims = Claims(database, lease_seconds=settings.lease_seconds, bounds=settings.bounds)
        self._turns: dict[str, asyncio.Task[None]] = {}
        self._handovers: dict[str, Handover] = {}
        self._claiming: asyncio.Task[None] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._wakes: Subscription | None = None
        self._kept_at = 0.0

        self._log = log
        self._database = database
        self._snapshots = Snapshots(database)
        self._parts = Parts(
            database=database,
            bus=bus,
            provider=provider,
            hands=hands,
            files=files,
            gateway=gateway,
            retry=settings.retry,
            prices=settings.prices,
            snapshots=self._snapshots,
            web=settings.web,
            grader=settings.grader,
            context=settings.context,
            policy=settings.policy,
        )

    async def __aenter__(self) -> Self:
        await self._claims.__aenter__()
        await self._claims.free_the_dead()
        await self._snapshots.__aenter__()
        self._claiming = asyncio.create_task(self._claim_loop())
        self._keeping = asyncio.create_task(self._keep_loop())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.hand_over(0.0)
        await _ended(self._keeping)
        await self._snapshots.__aexit__(kind, error, trace)
        await self._claims.__aexit__(kind, error, trace)

    async def hand_over(self, seconds: float) -> None:
        """Claim nothing more, and let every session go, so that other servers take them at once.

        Turns whose model request is under way get `seconds` to have it answered and recorded; all others are
        cut, by which nothing is lost. Calling it again does no harm.
        """
        self._stopping.set()
        await _ended(self._claiming)
        turns = dict(self._turns)
        for session_id, turn in turns.items():
            if not self._handovers[session_id].asking:
                turn.cancel()
        late = await self._let_go(set(turns.values()), seconds)
        if turns:
            _log.info("let sessions go to other servers", sessions=len(turns), requests_cut_off=late)

    async def _let_go(self, turns: set[asyncio.Task[None]], seconds: float) -> int:
        """Give sessions back as their turns end; how many had to be cut off after `seconds`."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        late = 0
        while turns:
            done, turns = await asyncio.wait(
                turns, timeout=max(0.0, until - loop.time()), return_when=asyncio.FIRST_COMPLETED
            )
            if not done and not late:
                late = len(turns)
                for turn in turns:
                    turn.cancel()
                await asyncio.wait(turns)
            await self._give_back()
        await self._give_back()
        return late

    async def _give_back(self) -> None:
        try:
            if await self._claims.release(kept=list(self._turns)):
                await self._bus.publish(WAKES_TOPIC)
        except psycopg.Error as error:
            _log.warning("could not give sessions back; others notice by themselves", error=str(error))

    async def _claim_loop(self) -> None:
        async with self._bus.subscribe(WAKES_TOPIC) as wakes:
            self._wakes = wakes
            while True:
                try:
                    await self._claim_due()
                except psycopg.Error as error:
                    _log.warning("could not claim sessions; trying again", error=str(error))
                await self._next_wake(wakes)

    async def _claim_due(self) -> None:
        while (room := self._settings.concurrency - len(self._turns)) > 0:
            asked = min(room, 50)
            claims = await self._claims.claim(asked)
            for claim in claims:
                self._start(claim)
            if len(claims) < asked:
                return

    async def _next_wake(self, wakes: Subscription) -> None:
        await wakes.wait(_LOOK_SECONDS)
        wakes.take()

    def _start(self, claim: Claim) -> None:
        before = self._turns.get(claim.session_id)
        # Among the turns at once, whatever the one before may still do: its lease has to be renewed.
        handover = Handover(self._log, self._stopping)
        task = asyncio.create_task(self._run(claim, handover, before), name=f"turn {claim.session_id}")
        self._turns[claim.session_id] = task
        self._handovers[claim.session_id] = handover

    async def _run(self, claim: Claim, handover: Handover, before: asyncio.Task[None] | None) -> None:
        structlog.contextvars.bind_contextvars(session_id=claim.session_id)
        try:
            if before is not None:
                # This very process lost its lease to itself; the epoch has moved on under the old task.
                before.cancel()
                await asyncio.gather(before, return_exceptions=True)
            await SessionTurn(claim, self._parts, PostgresSessionLog(self._database, handover)).run()
        except HandedOver:
            _log.debug("the session is let go, since this server stops", epoch=claim.epoch)
        except SessionLost:
            _log.info("the session is another brain's now", epoch=claim.epoch)
        except (psycopg.Error, LogUnavailable) as error:
            _log.warning("lost the database in a turn; the lease will bring a brain back", error=str(error))
        except Exception:
            _log.exception("a turn failed; the lease will bring a brain back")
        finally:
            if self._turns.get(claim.session_id) is asyncio.current_task():
                del self._turns[claim.session_id], self._handovers[claim.session_id]
                await self._made_room()

    async def _made_room(self) -> None:
        """Somebody may have waited for the place that has become free, and nothing else tells of it."""
        if self._settings.bounds:
            await self._bus.publish(WAKES_TOPIC)
        elif self._wakes is not None and len(self._turns) == self._settings.concurrency - 1:
            self._wakes.poke()

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


async def _ended(task: asyncio.Task[None] | None) -> None:
    """Cancel a task and wait for its end."""
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
