"""The loop over one thread of a held session: decide, act, append what happened, until it rests.

Every append is conditional on the log being as long as it was when the decision was made. If it has grown (a
tool result, an update through the API, another thread), the news is folded and decided upon; nothing is
written on the strength of an old state. What has already happened outside, a model's answer, is appended
after the news.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from datetime import timedelta
from typing import Any, Final, Protocol, assert_never

import psycopg
import structlog

from corral.brain import compaction, emit, gateway_events, grading_events
from corral.brain import decide as choices
from corral.brain.decide import (
    Action,
    AwaitRetry,
    CallModel,
    CloseRequest,
    Compact,
    Deny,
    Evaluate,
    GoIdle,
    Interrupt,
    Rest,
    Rules,
    RunTools,
    Settle,
    TakeVerdicts,
    decide,
)
from corral.brain.grading import Grading
from corral.brain.held import HeldSession, SessionLost
from corral.brain.kit import ThreadKit
from corral.brain.model_call import Answered, Failed, Interrupted, Outcome, call_model
from corral.brain.retry import RetryPolicy
from corral.bus.hub import Bus
from corral.inference.provider import InferenceProvider, ModelFailed, ModelRequest
from corral.session.calls import GATEWAY_KINDS, Call
from corral.session.commit import CommitRefused, LogUnavailable, Wake
from corral.session.events import NewEvent
from corral.session.state import SessionState, as_if
from corral.session.thread_state import COMPACTION, ThreadState
from corral.wire.errors import Overloaded

FLOOR_SECONDS: Final = 5.0
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


class ThreadTurn:
    """One thread at work, from its first action until there is nothing that it could do now."""

    def __init__(
        self,
        thread_id: str,
        held: HeldSession,
        kit: ThreadKit,
        *,
        bus: Bus,
        provider: InferenceProvider,
        hands: Hands,
        rules: Rules,
        retry: RetryPolicy,
        grading: Grading,
    ) -> None:
        self._id = thread_id
        self._held = held
        self._kit = kit
        self._voice = kit.voice
        self._bus = bus
        self._provider = provider
        self._hands = hands
        self._rules = rules
        self._retry = retry
        self._grading = grading

    async def run(self) -> None:
        """Carry the thread on until it rests. Raises `SessionLost` when it is no longer this brain's."""
        await self._kit.prepare()
        try:
            await self._until_rest()
        except (SessionLost, LogUnavailable, psycopg.Error):
            raise
        except Exception:
            _log.exception("a turn failed inside; it is ended, the session can go on", thread_id=self._id)
            await self._held.append_fact(self._given_up)
            await self._until_rest()

    async def _until_rest(self) -> None:
        while not self._held.let_go:
            state = self._held.state
            action = self._decided(state)
            if isinstance(action, Rest | AwaitRetry):
                return
            try:
                await self._perform(state, action)
            except CommitRefused:
                await self._held.caught_up(state)

    def _decided(self, state: SessionState) -> Action:
        return decide(state, self._rules, self._held.clock.now(), self._id)

    def _thread(self, state: SessionState) -> ThreadState:
        return state.thread(self._id)

    def _given_up(self, state: SessionState) -> Sequence[NewEvent]:
        """The end of a turn that this server cannot carry on, so that it does not fail for ever."""
        events: list[NewEvent] = []
        if (request := self._thread(state).request) is not None:
            events.append(emit.request_end(self._voice, request, "failed", is_error=True))
        outcome = None if self._voice.primary else state.outcome
        if outcome is not None and outcome.evaluation is not None:
            events.append(grading_events.broken_off(self._voice, outcome))
        message = "The server failed inside while it worked on this turn; its log says why."
        events.append(emit.error(self._voice, "unknown_error", message, "exhausted"))
        return events

    async def _perform(self, state: SessionState, action: Action) -> None:
        match action:
            case CloseRequest():
                end = emit.request_end(self._voice, action.start_id, "orphaned", is_error=True)
                await self._held.append(state, [end])
            case Interrupt():
                await self._interrupt(state, action)
            case TakeVerdicts():
                taken = [waiting.taken() for waiting in action.inputs]
                await self._held.append(state, taken, take=[waiting.id for waiting in action.inputs])
            case Deny():
                denied = [emit.result(self._voice, call, emit.denial(call)) for call in action.calls]
                await self._held.append(state, denied)
            case RunTools():
                await self._run_tools(state, action)
            case CallModel():
                await self._call_model(state, action)
            case Compact():
                await self._compact(state)
            case Evaluate():
                await self._grading.step(state, action.outcome)
            case GoIdle():
                await self._go_idle(state, action)
            case Settle():
                now = self._held.clock.now()
                settled = choices.settle_all(state, self._rules, now)
                said = emit.session_idle(self._voice, state, settled, now)
                await self._held.append(state, said, wake=_done(settled.rests), quiet=settled.rests)
            case AwaitRetry() | Rest():
                pass
            case _:
                assert_never(action)

    async def _interrupt(self, state: SessionState, action: Interrupt) -> None:
        await self._kit.mcp.cancel([call.id for call in action.calls if call.kind in GATEWAY_KINDS])
        if await self._offers_work_anew(state, action.calls):
            taken = [waiting.taken() for waiting in action.inputs]
            await self._held.append(state, taken, take=[waiting.id for waiting in action.inputs])
            return
        await self._take_interrupts(state, action, idles=action.ends_turn)

    async def _offers_work_anew(self, state: SessionState, calls: Sequence[Call]) -> bool:
        """Whether an interrupt of a self_hosted session whose worker failed has queued its work again.

        Then it cancels nothing (contract section 10.3). With the work on offer already, it is meant for the
        calls.
        """
        thread = self._thread(state)
        if not self._rules.self_hosted or thread.interrupted or thread.status != "idle" or not calls:
            return False
        if not all(call.kind == "sandbox" and call.runnable for call in calls):
            return False
        claim = self._held.claim
        if await self._hands.is_held(claim.session_id):
            return False
        return await self._hands.ensure(claim.session_id, claim.environment_id)

    async def _take_interrupts(
        self, state: SessionState, action: Interrupt, *, idles: bool, start_id: str | None = None
    ) -> None:
        taken = [waiting.taken() for waiting in action.inputs]
        outcome = None if self._voice.primary else state.outcome
        events = emit.interruption(self._voice, taken, start_id=start_id, calls=action.calls, outcome=outcome)
        if idles:
            now = self._held.clock.now()
            ended = GoIdle("end_turn")
            settled = choices.settle(as_if(state, events, now), self._rules, now, ended, self._id)
            events += emit.idle(self._voice, state, ended, now, settled)
        await self._held.append(state, events, take=[waiting.id for waiting in action.inputs])

    async def _run_tools(self, state: SessionState, action: RunTools) -> None:
        if started := emit.running(self._voice, state):
            await self._held.append(state, started)
            state = self._held.state
        if any(call.kind == "sandbox" for call in action.calls):
            await self._hands.ensure(self._held.claim.session_id, self._held.claim.environment_id)
        calls = {call.id: call for call in action.calls if call.kind in GATEWAY_KINDS}
        self._kit.mcp.start(calls.values())
        await self._news_or_done(action, self._kit.mcp.under_way)
        for event_id, outcome in self._kit.mcp.take_done().items():
            brought = gateway_events.call_result(self._voice, calls[event_id], outcome)
            await self._held.append_fact(lambda _, brought=brought: brought)

    async def _news_or_done(self, action: Action, tasks: Sequence[asyncio.Task[Any]]) -> None:
        """Wait until something else is to be done, one of the tasks is done, or some seconds have gone by."""
        waiting = asyncio.create_task(self._held.until(lambda state: self._decided(state) != action))
        try:
            await asyncio.wait({waiting, *tasks}, timeout=FLOOR_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    async def _connect_mcp(self, state: SessionState, action: CallModel, servers: Sequence[str]) -> None:
        """List the tools of MCP servers before the first request; what fails is told and left alone."""
        taken = [waiting.taken() for waiting in action.inputs]
        if events := [*taken, *emit.running(self._voice, state)]:
            await self._held.append(state, events, take=[waiting.id for waiting in action.inputs])
        connecting = asyncio.create_task(self._kit.mcp.connect(servers))
        interrupted = asyncio.create_task(self._interrupted())
        try:
            await asyncio.wait({connecting, interrupted}, return_when=asyncio.FIRST_COMPLETED)
            failures = connecting.result() if connecting.done() else {}
        finally:
            connecting.cancel()
            interrupted.cancel()
            await asyncio.gather(connecting, interrupted, return_exceptions=True)
        if failures:
            told = [
                gateway_events.mcp_failure(self._voice, *failed, listing=True) for failed in failures.items()
            ]
            await self._held.append_fact(lambda _: told)

    async def _call_model(self, state: SessionState, action: CallModel) -> None:
        thread = self._thread(state)
        # A thread that begins to run tries again what failed when it last ran.
        failed = () if thread.status == "idle" else thread.mcp_failed
        if servers := self._kit.mcp.missing(failed):
            await self._connect_mcp(state, action, servers)
            return
        start = self._voice.event("span.model_request_start")
        taken = [waiting.taken() for waiting in action.inputs]
        events = [*taken, *emit.running(self._voice, state), start]
        await self._held.append(state, events, take=[waiting.id for waiting in action.inputs])
        # Not before the request: a session that needs no hands never waits for them.
        calling = asyncio.create_task(self._ask(self._kit.request(), after_seq=self._held.state.seq))
        try:
            if self._kit.needs_hands():
                await self._hands.ensure(self._held.claim.session_id, self._held.claim.environment_id)
            outcome = await calling
        finally:
            calling.cancel()
            await asyncio.gather(calling, return_exceptions=True)
        match outcome:
            case Answered(response=answer, ids=ids):
                cleared = await self._kit.clearance.clear(self._voice, answer, self._interrupted)
                found = await self._kit.history.look_up(answer.content, up_to=self._held.state.seq)
                await self._held.append_fact(
                    lambda now: emit.response(
                        self._voice, start.id, answer, ids, now, found, cleared, outcome.asked
                    )
                )
            case Failed():
                await self._failed(start.id, outcome.failure)
            case Interrupted():
                await self._cut_off(start.id)
            case _:
                assert_never(outcome)

    async def _compact(self, state: SessionState) -> None:
        """Have the conversation summed up. No call is open now, and none will be until it is done."""
        thread = self._thread(state)
        start = compaction.start(self._voice)
        await self._held.append(state, [*emit.running(self._voice, state), start])
        cut = compaction.cut_for(thread, self._kit.transcript.sizes(), self._kit.can)
        asking = self._kit.summary_request(digest=compaction.needs_digest(thread))
        outcome = await self._ask(asking, after_seq=self._held.state.seq, previewed=False)
        match outcome:
            case Answered(response=answer):
                await self._held.append_fact(
                    lambda _: compaction.finished(self._voice, start.id, answer, cut)
                )
            case Failed():
                await self._failed(start.id, outcome.failure, purpose=COMPACTION)
            case Interrupted():
                await self._cut_off(start.id)
            case _:
                assert_never(outcome)

    async def _ask(
        self, asking: Awaitable[ModelRequest], *, after_seq: int, previewed: bool = True
    ) -> Outcome:
        try:
            request = await asking
        except Overloaded as error:
            return Failed(ModelFailed("failed", error.message, retryable=True, retry_after=error.retry_after))
        return await call_model(
            self._provider,
            request,
            bus=self._bus,
            thread_id=self._id,
            after_seq=after_seq,
            interrupted=self._interrupted,
            previewed=previewed,
        )

    async def _interrupted(self) -> None:
        """Returns once an interrupt waits."""
        await self._held.until(lambda state: choices.is_interrupted(state, self._id))

    async def _cut_off(self, start_id: str) -> None:
        while True:
            state = self._held.state
            stopped = choices.interrupt(state, self._thread(state))
            try:
                await self._take_interrupts(state, stopped, idles=True, start_id=start_id)
            except CommitRefused:
                await self._held.caught_up(state)
            else:
                return

    async def _failed(self, start_id: str, failure: ModelFailed, *, purpose: str | None = None) -> None:
        failures = self._thread(self._held.state).failures
        _log.warning(
            "a model request failed",
            session_id=self._held.claim.session_id,
            kind=failure.kind,
            retryable=failure.retryable,
            failures=failures + 1,
            reason=failure.message,
        )
        if failure.overflow:
            # What is left to do about it is decided next.
            private = {"failure": failure.message, "purpose": purpose}
            end = emit.request_end(self._voice, start_id, "overflow", is_error=True, private=private)
            await self._held.append_fact(lambda _: [end])
            return
        # Refused with media that no request has carried yet: the next one goes without them, once.
        again = failure.retryable or (failure.refused and self._kit.transcript.has_new_media)
        retry_at = None
        if again and failures + 1 < self._retry.attempts:
            delay = self._retry.delay(failures, failure.retry_after)
            retry_at = self._held.clock.now() + timedelta(seconds=delay)

        def told(state: SessionState) -> Sequence[NewEvent]:
            now = self._held.clock.now()
            alone = choices.status_of_others(state, self._rules, now, self._id) != "running"
            return emit.failed(
                self._voice,
                start_id,
                failure,
                retry_at=retry_at,
                alone=alone and state.status == "running",
            )

        # Letting go until then is the next decision: an interrupt may wait by now.
        await self._held.append_fact(told)

    async def _go_idle(self, state: SessionState, action: GoIdle) -> None:
        claim = self._held.claim
        if self._rules.self_hosted and action.event_ids:
            await self._hands.ensure(claim.session_id, claim.environment_id)
        now = self._held.clock.now()
        settled = choices.settle(state, self._rules, now, action, self._id)
        taken = [waiting.taken() for waiting in action.flush]
        await self._held.append(
            state,
            [*taken, *emit.idle(self._voice, state, action, now, settled)],
            take=[waiting.id for waiting in action.flush],
            wake=_done(settled.rests),
            quiet=settled.rests,
        )


def _done(rests: bool) -> Wake | None:
    return Wake("done") if rests else None
