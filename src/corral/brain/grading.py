"""One step of an evaluation: ask the grader once, and write what came of it (contract section 14)."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import msgspec
import structlog

from corral.brain import decide as choices
from corral.brain import emit, grading_events
from corral.brain.decide import Rules
from corral.brain.evidence import EvidenceReader
from corral.brain.grader import MOST_READS, Unusable, Verdict, Wishes, grading_request, read_answer
from corral.brain.held import HeldSession
from corral.brain.retry import RetryPolicy
from corral.brain.side_call import CutOff, ask_aside
from corral.brain.voice import Voice
from corral.inference.provider import InferenceProvider, ModelFailed, ModelResponse, answer_of
from corral.session.events import NewEvent
from corral.session.outcome_state import Evaluation, Outcome
from corral.session.state import SessionState
from corral.wire.errors import Overloaded

_log = structlog.get_logger(__name__)
_READ_ENOUGH: Final = "There has been enough reading. Give the verdict on what you have seen."


class GraderSettings(msgspec.Struct, frozen=True):
    """The grader's model, if it is another than the agent's own, and the seconds between two heartbeats."""

    model: str | None = None
    heartbeat_seconds: float = 20.0


class Grading:
    """The evaluations of one session, for its primary thread."""

    def __init__(
        self,
        held: HeldSession,
        voice: Voice,
        evidence: EvidenceReader,
        *,
        provider: InferenceProvider,
        rules: Rules,
        retry: RetryPolicy,
        settings: GraderSettings,
    ) -> None:
        self._held = held
        self._voice = voice
        self._priced = grading_events.grader_voice(voice, settings.model)
        self._evidence = evidence
        self._provider = provider
        self._rules = rules
        self._retry = retry
        self._settings = settings

    async def step(self, state: SessionState, outcome: Outcome) -> None:
        """Make one request to the grader for `outcome`, beginning the evaluation if none is open.

        An interrupt cuts it off without a word: to take it is the next decision.
        """
        begun = [*emit.running(self._voice, state), grading_events.begun(self._voice, outcome)]
        await self._held.append(state, begun)
        outcome, evaluation = self._open()
        brought = await ask_aside(
            self._ask(outcome, evaluation),
            interrupted=self._interrupted,
            beat=self._beat,
            every=self._settings.heartbeat_seconds,
        )
        match brought:
            case CutOff():
                return
            case ModelFailed():
                await self._failed(evaluation, brought)
            case ModelResponse():
                event = await self._answered(brought)
                await self._held.append_fact(lambda _: [event])

    def _open(self) -> tuple[Outcome, Evaluation]:
        outcome = self._held.state.outcome
        assert outcome is not None
        assert outcome.evaluation is not None
        return outcome, outcome.evaluation

    async def _ask(self, outcome: Outcome, evaluation: Evaluation) -> ModelResponse:
        model = self._priced.agent["model"]
        try:
            evidence = await self._evidence.gather(outcome, evaluation, media=not evaluation.plain)
        except Overloaded as error:
            raise ModelFailed(
                "failed", error.message, retryable=True, retry_after=error.retry_after
            ) from error
        request = grading_request(
            evidence,
            model=model["id"],
            effort=model["effort"]["type"],
            speed=model["speed"],
            session_id=self._held.claim.session_id,
            reads=evaluation.reads,
            plain=evaluation.plain,
        )
        return await answer_of(self._provider, request)

    async def _answered(self, answer: ModelResponse) -> NewEvent:
        outcome, evaluation = self._open()
        match read_answer(answer):
            case Verdict() as verdict:
                return grading_events.judged(self._priced, outcome, answer, verdict)
            case Wishes(wishes=wishes) if evaluation.reads < MOST_READS:
                try:
                    results = {wish.call_id: await self._evidence.answer(wish) for wish in wishes}
                except Overloaded as error:
                    results = {wish.call_id: {"text": error.message, "is_error": True} for wish in wishes}
                return grading_events.read(self._priced, outcome, answer, results)
            case Wishes():
                return grading_events.unusable(self._priced, outcome, answer, Unusable(_READ_ENOUGH))
            case Unusable() as why:
                _log.info("the grader gave no usable verdict", reason=why.reason)
                return grading_events.unusable(self._priced, outcome, answer, why)

    async def _beat(self) -> None:
        outcome, _ = self._open()
        await self._held.append_fact(lambda _: [grading_events.heartbeat(self._voice, outcome)])

    async def _interrupted(self) -> None:
        thread_id = self._voice.thread_id
        await self._held.until(lambda state: choices.is_interrupted(state, thread_id))

    async def _failed(self, evaluation: Evaluation, failure: ModelFailed) -> None:
        _log.warning(
            "a request to the grader failed",
            session_id=self._held.claim.session_id,
            kind=failure.kind,
            retryable=failure.retryable,
            failures=evaluation.failures + 1,
            reason=failure.message,
        )
        # Refused as it was: the next one goes without media and without a forced tool, once.
        again = failure.retryable or (failure.refused and not evaluation.plain)
        retry_at = None
        if again and evaluation.failures + 1 < self._retry.attempts:
            delay = self._retry.delay(evaluation.failures, failure.retry_after)
            retry_at = self._held.clock.now() + timedelta(seconds=delay)

        def told(state: SessionState) -> Sequence[NewEvent]:
            now = self._held.clock.now()
            others = choices.status_of_others(state, self._rules, now, self._voice.thread_id)
            alone = others != "running" and state.status == "running"
            outcome, _ = self._open()
            return grading_events.failed(self._voice, outcome, failure, retry_at=retry_at, alone=alone)

        await self._held.append_fact(told)
