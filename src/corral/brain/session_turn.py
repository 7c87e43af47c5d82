"""One brain's hold on one session, from its claim until no thread of it has anything to do.

Each thread that has something to do is a task of its own, so none waits for another's model. One more task
reads the log's news for all of them.
"""

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from datetime import datetime
from typing import Protocol

import msgspec

from corral.brain.claims import Claim
from corral.brain.clearance import NO_POLICY, PolicyOffer
from corral.brain.context_rules import ContextRules, ContextSettings
from corral.brain.decide import AwaitRetry, Rest, Rules, decide
from corral.brain.evidence import EvidenceReader, OutputReader
from corral.brain.file_sources import FileReader
from corral.brain.grading import GraderSettings, Grading
from corral.brain.held import HeldSession
from corral.brain.judge_context import JudgeContext
from corral.brain.kit import ThreadKit
from corral.brain.mcp_shelf import McpGateway
from corral.brain.retry import RetryPolicy
from corral.brain.snapshots import EVERY, Snapshots
from corral.brain.turn import FLOOR_SECONDS, Hands, ThreadTurn
from corral.brain.web_tools import NO_WEB, WebOffer
from corral.bus.hub import Bus, Subscription, session_topic
from corral.inference.prices import PriceTable
from corral.inference.provider import InferenceProvider
from corral.session.budget import at_budget
from corral.session.commit import CommitRefused, Wake
from corral.session.events import Event
from corral.session.log import PostgresSessionLog
from corral.session.state import SessionState
from corral.store.database import Database


class SessionFiles(FileReader, OutputReader, Protocol):
    """Reads the files that a session's models are shown."""


class Parts(msgspec.Struct, frozen=True):
    """What all sessions of a process share."""

    database: Database
    bus: Bus
    provider: InferenceProvider
    hands: Hands
    files: SessionFiles
    gateway: McpGateway | None
    retry: RetryPolicy
    prices: PriceTable
    snapshots: Snapshots
    web: WebOffer = NO_WEB
    grader: GraderSettings = GraderSettings()
    context: ContextSettings = ContextSettings()
    policy: PolicyOffer = NO_POLICY


class SessionTurn:
    """The work on one claimed session."""

    def __init__(self, claim: Claim, parts: Parts, log: PostgresSessionLog) -> None:
        self._claim = claim
        self._parts = parts
        self._rules = Rules(
            self_hosted=claim.self_hosted,
            context=ContextRules(claim.agent["model"]["id"], parts.context),
            session_hour=parts.prices.session_hour,
        )
        self._held = HeldSession(claim, database=parts.database, log=log, on_event=self._take_in)
        self._judge_context = JudgeContext()
        self._kits: dict[str, ThreadKit] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Carry the session on until it rests. Raises `SessionLost` when it is no longer this brain's."""
        # Every one of these is carried out, even if this task is cancelled while it carries one out.
        async with AsyncExitStack() as ending:
            news = await ending.enter_async_context(
                self._parts.bus.subscribe(session_topic(self._claim.session_id))
            )
            await self._recall()
            await self._held.refresh()
            ending.push_async_callback(self._close_kits)
            reading = asyncio.create_task(self._read(news))
            keeping = asyncio.create_task(self._keep_going())
            ending.push_async_callback(_ended, [reading, keeping])
            ending.push_async_callback(_ended, self._tasks.values())
            await self._work(reading)
            await self._held.rests()
            self._keep(rests=True)

    async def _recall(self) -> None:
        """Begin where a brain was that had the session before; with nothing, where nobody can tell."""
        found = await self._parts.snapshots.recall(self._claim)
        if found is None:
            return
        kits = {thread_id: self._made_kit(found.state, thread_id) for thread_id in found.threads}
        if all(kit.can_recall(found.threads[thread_id]) for thread_id, kit in kits.items()):
            for thread_id, kit in kits.items():
                kit.recall(found.threads[thread_id])
            self._kits = kits
            self._held.recall(found.state)
            self._judge_context.recall(found.judge)

    async def _keep_going(self) -> None:
        """Have the session remembered now and then in a turn that takes long."""
        while True:
            enough = self._held.state.seq + EVERY
            await self._held.until(lambda state, enough=enough: state.seq >= enough, outside=False)
            self._keep(rests=False)

    def _keep(self, *, rests: bool) -> None:
        state = self._held.state
        live = {name: kit.kept() for name, kit in self._kits.items() if state.thread(name).live}
        self._parts.snapshots.keep(self._claim, state, live, self._judge_context.kept(), rests=rests)

    async def _close_kits(self) -> None:
        await asyncio.gather(*(kit.close() for kit in self._kits.values()))

    async def _work(self, reading: asyncio.Task[None]) -> None:
        while not self._held.let_go:
            state = self._held.state
            retry_at = self._start(state)
            if not self._tasks:
                await self._let_go(state, retry_at)
                continue
            await self._moved(state, reading, retry_at)

    def _start(self, state: SessionState) -> datetime | None:
        """Set every thread to work that has something to do; returns when the next one will have."""
        retry_at: datetime | None = None
        for thread_id in state.threads or (state.primary,):
            if thread_id in self._tasks:
                continue
            match decide(state, self._rules, self._held.clock.now(), thread_id):
                case Rest():
                    pass
                case AwaitRetry(until=until):
                    retry_at = until if retry_at is None else min(retry_at, until)
                case _:
                    turn = self._turn(thread_id, self._kit(state, thread_id))
                    self._tasks[thread_id] = asyncio.create_task(turn.run(), name=f"turn {thread_id}")
        return retry_at

    async def _let_go(self, state: SessionState, retry_at: datetime | None) -> None:
        wake = Wake("done")
        if retry_at is not None:
            wake = Wake("release", max(0.0, (retry_at - self._held.clock.now()).total_seconds()))
        try:
            # Quiet: an interrupt that came in meanwhile must not wait for the retry.
            await self._held.append(state, [], wake=wake, quiet=True)
        except CommitRefused:
            await self._held.refresh()

    async def _moved(
        self, state: SessionState, reading: asyncio.Task[None], retry_at: datetime | None
    ) -> None:
        """Wait until the state has changed, a thread has stopped, or one may try again."""
        timeout = None
        if retry_at is not None:
            timeout = max(0.0, (retry_at - self._held.clock.now()).total_seconds())
        # A thread that is at work looks for itself; one that rests may be wanted by a client.
        resting = any(one.live and one.id not in self._tasks for one in state.threads.values())
        changing = asyncio.create_task(self._held.until(lambda now: now is not state, outside=resting))
        try:
            await asyncio.wait(
                {*self._tasks.values(), reading, changing},
                timeout=timeout,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            changing.cancel()
            await asyncio.gather(changing, return_exceptions=True)
        for thread_id, task in list(self._tasks.items()):
            if task.done():
                del self._tasks[thread_id]
                task.result()
        if reading.done():
            reading.result()

    async def _read(self, news: Subscription) -> None:
        while True:
            await news.wait(FLOOR_SECONDS)
            await self._held.wanted()
            news.take()
            await self._held.refresh()

    def _take_in(self, event: Event, state: SessionState) -> None:
        self._kit(state, event.thread_id).add(event)
        self._judge_context.add(event)
        if event.type == "user.interrupt" and event.body.get("session_thread_id") is None:
            for thread in state.threads.values():
                if thread.interrupted:
                    self._kit(state, thread.id).add(event)

    def _kit(self, state: SessionState, thread_id: str) -> ThreadKit:
        kit = self._kits.get(thread_id)
        if kit is None:
            kit = self._kits[thread_id] = self._made_kit(state, thread_id)
        return kit

    def _made_kit(self, state: SessionState, thread_id: str) -> ThreadKit:
        parts = self._parts
        return ThreadKit(
            self._claim,
            state.thread(thread_id),
            database=parts.database,
            files=parts.files,
            gateway=parts.gateway,
            prices=parts.prices,
            provider=parts.provider,
            web=parts.web,
            policy=parts.policy,
            judge_context=self._judge_context,
            spent=self._is_spent,
            context=parts.context,
            affordable=self._is_affordable,
        )

    def _is_spent(self) -> bool:
        return at_budget(self._held.state, self._rules.session_hour, self._held.clock.now())

    def _is_affordable(self, model: str, spent: Mapping[str, int]) -> bool:
        """Whether a request to a model may be made, when `spent` has been used and is not in the log yet."""
        state = self._held.state
        # A session that has a budget takes up nothing that no list price is known for: it could not go on.
        if state.budget is None or self._parts.prices.find(model) is None:
            return state.budget is None
        after = msgspec.structs.replace(state, usage=state.usage.plus(spent))
        return not at_budget(after, self._rules.session_hour, self._held.clock.now())

    def _turn(self, thread_id: str, kit: ThreadKit) -> ThreadTurn:
        parts = self._parts
        return ThreadTurn(
            thread_id,
            self._held,
            kit,
            bus=parts.bus,
            provider=parts.provider,
            hands=parts.hands,
            rules=self._rules,
            retry=parts.retry,
            grading=self._grading(kit),
        )

    def _grading(self, kit: ThreadKit) -> Grading:
        parts = self._parts
        claim = self._claim
        evidence = EvidenceReader(parts.database, parts.files, claim.session_id, claim.thread_id)
        return Grading(
            self._held,
            kit.voice,
            evidence,
            provider=parts.provider,
            rules=self._rules,
            retry=parts.retry,
            settings=parts.grader,
        )


async def _ended(tasks: Iterable[asyncio.Task[None]]) -> None:
    running = list(tasks)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
