"""The loop over one claimed session: decide, act, append what happened, until it rests.

Every append is conditional on the log being as long as it was when the decision was made. If it has grown (a
tool result, an update through the API), the news is read, folded, and decided upon; nothing is written on the
strength of an old state. What has already happened outside, a model's answer, is appended after the news.
"""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Final, Protocol, assert_never

import psycopg
import structlog

from corral.brain import emit
from corral.brain.claims import Claim
from corral.brain.clock import DatabaseClock
from corral.brain.decide import (
    Action,
    AwaitRetry,
    CallModel,
    CloseRequest,
    Deny,
    GoIdle,
    Interrupt,
    Rest,
    Rules,
    RunTools,
    TakeVerdicts,
    decide,
    leaves_work,
)
from corral.brain.file_sources import FileReader, FileSources
from corral.brain.model_call import Answered, Failed, Interrupted, Outcome, call_model
from corral.brain.permission import enabled_sandbox_tools
from corral.brain.retry import RetryPolicy
from corral.brain.toolset import system_prompt, tool_definitions
from corral.brain.transcript import Transcript
from corral.bus.hub import Bus, Subscription, session_topic
from corral.inference.provider import InferenceProvider, ModelFailed, ModelRequest
from corral.session.commit import Commit, CommitRefused, Fence, LogUnavailable, Wake
from corral.session.events import NewEvent
from corral.session.log import PostgresSessionLog, located
from corral.session.state import Call, SessionState, fold, with_inputs
from corral.store.database import Database
from corral.wire.errors import Overloaded

_FLOOR_SECONDS: Final = 5.0
"""How long to wait for news before looking anyway: a notification may have been lost."""

_log = structlog.get_logger(__name__)


class Hands(Protocol):
    """What the brain asks of the hands: that there is work to claim for a session's tool calls."""

    async def ensure(self, session_id: str, environment_id: str) -> bool:
        """See that a work item of the session is queued or held; True if one had to be queued."""
        ...

    async def is_held(self, session_id: str) -> bool:
        """Whether a worker holds a live lease on the session's work item."""
        ...


class SessionLost(Exception):
    """Another brain has the session, or it is gone: stop at once and write nothing."""


class Turn:
    """One brain's hold on one session."""

    def __init__(
        self,
        claim: Claim,
        *,
        database: Database,
        log: PostgresSessionLog,
        bus: Bus,
        provider: InferenceProvider,
        hands: Hands,
        files: FileReader,
        rules: Rules,
        retry: RetryPolicy,
    ) -> None:
        self._claim = claim
        self._database = database
        self._log = log
        self._bus = bus
        self._provider = provider
        self._hands = hands
        self._rules = rules
        self._retry = retry
        self._voice = emit.Voice(claim.thread_id, claim.agent, claim.self_hosted)
        self._sources = FileSources(files)
        self._transcript = Transcript(claim.agent["model"]["id"])
        self._state = SessionState()
        self._clock = DatabaseClock(claim.at)

    async def run(self) -> None:
        """Carry the session on until it rests. Raises `SessionLost` when it is no longer this brain's."""
        async with self._bus.subscribe(session_topic(self._claim.session_id)) as news:
            await self._refresh()
            try:
                await self._until_rest(news)
            except (SessionLost, LogUnavailable, psycopg.Error):
                raise
            except Exception:
                _log.exception("a turn failed inside; it is ended, the session can go on")
                await self._give_up()
                await self._until_rest(news)

    async def _until_rest(self, news: Subscription) -> None:
        while True:
            action = decide(self._state, self._rules, self._clock.now())
            try:
                if await self._perform(action, news):
                    return
            except CommitRefused:
                await self._refresh()

    async def _give_up(self) -> None:
        """End a turn that this server cannot carry on, so that it does not fail for ever."""
        await self._refresh()
        events: list[NewEvent] = []
        if self._state.request is not None:
            events.append(emit.request_end(self._voice, self._state.request, "failed", is_error=True))
        message = "The server failed inside while it worked on this turn; its log says why."
        events.append(emit.error(self._voice, "unknown_error", message, "exhausted"))
        await self._append_fact(events)

    async def _perform(self, action: Action, news: Subscription) -> bool:
        """Perform one action; True once the session has been let go."""
        match action:
            case CloseRequest():
                end = emit.request_end(self._voice, action.start_id, "orphaned", is_error=True)
                await self._append([end])
            case Interrupt():
                await self._interrupt(action)
            case TakeVerdicts():
                taken = [waiting.taken() for waiting in action.inputs]
                await self._append(taken, take=[waiting.id for waiting in action.inputs])
            case Deny():
                await self._append([emit.result(self._voice, c, emit.denial(c)) for c in action.calls])
            case RunTools():
                await self._run_tools(news)
            case CallModel():
                await self._call_model(action, news)
            case AwaitRetry():
                delay = (action.until - self._clock.now()).total_seconds()
                # Quiet: an interrupt that came in meanwhile must not wait for the retry.
                await self._append([], wake=Wake("release", max(0.0, delay)), quiet=True)
                return True
            case GoIdle():
                return await self._go_idle(action)
            case Rest():
                await self._append([], wake=Wake("done"), quiet=True)
                return True
            case _:
                assert_never(action)
        return False

    async def _interrupt(self, action: Interrupt) -> None:
        calls = action.calls
        if await self._offers_work_anew(calls):
            await self._take_interrupts(action, [], idles=False)
            return
        await self._take_interrupts(action, calls, idles=action.ends_turn)

    async def _offers_work_anew(self, calls: Sequence[Call]) -> bool:
        """Whether an interrupt of a self_hosted session whose worker failed has queued its work again.

        Then it cancels nothing (contract section 10.3). With the work on offer already, it is meant for the
        calls.
        """
        stuck = self._claim.self_hosted and self._state.status == "idle" and bool(calls)
        if not stuck or not all(call.kind == "sandbox" and call.runnable for call in calls):
            return False
        if await self._hands.is_held(self._claim.session_id):
            return False
        return await self._hands.ensure(self._claim.session_id, self._claim.environment_id)

    async def _take_interrupts(
        self, action: Interrupt, calls: Sequence[Call], *, idles: bool, start_id: str | None = None
    ) -> None:
        taken = [waiting.taken() for waiting in action.inputs]
        events = emit.interruption(self._voice, taken, start_id=start_id, calls=calls)
        if idles:
            events += emit.idle(self._voice, self._state, GoIdle("end_turn"), self._clock.now())
        await self._append(
            events, take=[waiting.id for waiting in action.inputs], status="idle" if idles else None
        )

    async def _run_tools(self, news: Subscription) -> None:
        await self._resume()
        await self._hands.ensure(self._claim.session_id, self._claim.environment_id)
        await news.wait(_FLOOR_SECONDS)
        news.take()
        await self._refresh()

    async def _resume(self) -> None:
        if started := emit.running(self._voice, self._state):
            await self._append(started, status="running")

    async def _call_model(self, action: CallModel, news: Subscription) -> None:
        start = self._voice.event("span.model_request_start")
        taken = [waiting.taken() for waiting in action.inputs]
        events = [*taken, *emit.running(self._voice, self._state), start]
        await self._append(events, take=[waiting.id for waiting in action.inputs], status="running")
        # Not before the request: a session that needs no hands never waits for them.
        calling = asyncio.create_task(self._ask(news, after_seq=self._state.seq))
        try:
            if self._needs_hands():
                await self._hands.ensure(self._claim.session_id, self._claim.environment_id)
            outcome = await calling
        finally:
            calling.cancel()
            await asyncio.gather(calling, return_exceptions=True)
        match outcome:
            case Answered():
                answer = emit.response(self._voice, start.id, outcome.response, outcome.ids)
                await self._append_fact(answer)
            case Failed():
                await self._failed(start.id, outcome.failure)
            case Interrupted():
                await self._cut_off(start.id)
            case _:
                assert_never(outcome)

    async def _ask(self, news: Subscription, *, after_seq: int) -> Outcome:
        try:
            request = await self._request()
        except Overloaded as error:
            return Failed(ModelFailed("failed", error.message, retryable=True, retry_after=error.retry_after))
        return await call_model(
            self._provider,
            request,
            bus=self._bus,
            thread_id=self._claim.thread_id,
            after_seq=after_seq,
            interrupted=lambda: self._interrupted(news),
        )

    def _needs_hands(self) -> bool:
        """Whether a worker may be needed in this turn; on self_hosted it may answer custom tools too."""
        agent = self._claim.agent
        return bool(tool_definitions(agent) if self._claim.self_hosted else enabled_sandbox_tools(agent))

    async def _request(self) -> ModelRequest:
        model = self._claim.agent["model"]
        system = system_prompt(
            self._claim.agent,
            self_hosted=self._claim.self_hosted,
            uploads=self._claim.uploads,
            memory=self._claim.memory,
        )
        if system:
            system[-1]["cache_control"] = {"type": "ephemeral"}
        if unanswered := self._transcript.unanswered():
            _log.error("the history was repaired for the model; no promise allows that", calls=unanswered)
        return ModelRequest(
            model=model["id"],
            messages=await self._sources.resolved(self._transcript.messages()),
            system=system,
            tools=tool_definitions(self._claim.agent),
            effort=model["effort"]["type"],
            speed=model["speed"],
            session_id=self._claim.session_id,
        )

    async def _interrupted(self, news: Subscription) -> None:
        """Returns once an interrupt waits."""
        while True:
            waiting = await self._log.inputs(self._claim.session_id)
            if any(entry.type == "user.interrupt" for entry in waiting):
                return
            await news.wait(_FLOOR_SECONDS)
            news.take()

    async def _cut_off(self, start_id: str) -> None:
        await self._refresh()
        while True:
            interrupts = tuple(i for i in self._state.inputs if i.type == "user.interrupt")
            action = Interrupt(interrupts, (), ends_turn=True)
            try:
                await self._take_interrupts(action, (), idles=True, start_id=start_id)
            except CommitRefused:
                await self._refresh()
            else:
                return

    async def _failed(self, start_id: str, failure: ModelFailed) -> None:
        failures = self._state.failures
        _log.warning(
            "a model request failed",
            session_id=self._claim.session_id,
            kind=failure.kind,
            retryable=failure.retryable,
            failures=failures + 1,
            reason=failure.message,
        )
        # Refused with media that no request has carried yet: the next one goes without them, once.
        again = failure.retryable or (failure.refused and self._transcript.has_new_media)
        if not again or failures + 1 >= self._retry.attempts:
            await self._append_fact(emit.failed(self._voice, start_id, failure, retry_at=None))
            return
        delay = self._retry.delay(failures, failure.retry_after)
        retry_at = self._clock.now() + timedelta(seconds=delay)
        events = emit.failed(self._voice, start_id, failure, retry_at=retry_at)
        # Letting go until then is the next decision: an interrupt may wait by now.
        await self._append_fact(events, status="rescheduling")

    async def _go_idle(self, action: GoIdle) -> bool:
        """True if the session has been let go; False if messages that came too late start a turn."""
        if self._claim.self_hosted and action.event_ids:
            await self._hands.ensure(self._claim.session_id, self._claim.environment_id)
        now = self._clock.now()
        taken = [waiting.taken() for waiting in action.flush]
        rests = not leaves_work(self._state, action)
        await self._append(
            [*taken, *emit.idle(self._voice, self._state, action, now)],
            take=[waiting.id for waiting in action.flush],
            status="idle",
            wake=Wake("done") if rests else None,
            quiet=rests,
        )
        return rests

    async def _append(
        self,
        events: Sequence[NewEvent],
        *,
        take: Iterable[str] = (),
        status: str | None = None,
        wake: Wake | None = None,
        quiet: bool = False,
    ) -> None:
        """Append what was decided; raises `CommitRefused` if the log has grown since.

        `quiet` also requires that no input has come in since, so that none is left without a brain.
        """
        fence = Fence(
            epoch=self._claim.epoch,
            seq=self._state.seq,
            last_input=self._state.last_input if quiet else None,
        )
        taken = tuple(take)
        committed = await self._log.commit(
            Commit(
                self._claim.session_id,
                fence,
                events=tuple(events),
                take=taken,
                status=status,
                # The session shows what its last usage event says.
                usage=next((event.body["usage"] for event in events if event.type == "session.usage"), None),
                wake=wake,
            )
        )
        self._clock.set(committed.at)
        for event in located(events, committed):
            self._state = fold(self._state, event)
            self._transcript.add(event)
        if taken:
            left = [waiting for waiting in self._state.inputs if waiting.id not in taken]
            self._state = with_inputs(self._state, left, self._state.last_input)

    async def _append_fact(self, events: Sequence[NewEvent], *, status: str | None = None) -> None:
        """Append what has happened outside, after whatever has come into the log meanwhile."""
        while True:
            try:
                await self._append(events, status=status)
            except CommitRefused:
                await self._refresh()
            else:
                return

    async def _refresh(self) -> None:
        """Read the log's and the queue's news; raises `SessionLost` if the epoch has moved on."""
        row = await self._database.fetch_one(
            "select epoch, last_input, clock_timestamp() as at from sessions where id = %s",
            (self._claim.session_id,),
        )
        if row is None or row["epoch"] != self._claim.epoch:
            raise SessionLost(self._claim.session_id)
        self._clock.set(row["at"])
        async for event in self._log.replay(self._claim.session_id, after=self._state.seq):
            self._state = fold(self._state, event)
            self._transcript.add(event)
        inputs = await self._log.inputs(self._claim.session_id)
        self._state = with_inputs(self._state, inputs, row["last_input"])
