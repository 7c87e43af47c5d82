"""Whatever a client, a model and dying brains do to a session, its rules hold."""

import base64
import itertools
from typing import Any, TypeAlias

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from corral.brain.decide import Rest, RunTools, decide
from corral.inference.provider import ModelFailed, ModelResponse
from corral.session.calls import TOOL_RESULTS, TOOL_USES, Call
from corral.session.state import SessionState, fold_all, with_inputs
from corral.testing import signing
from corral.testing.validation.blocks import NOVEL_BLOCK
from tests.unit.brain.simulation import MODEL, OWN, SimulatedSession, answer, use, verdict

Block: TypeAlias = dict[str, Any]

PIXEL = base64.b64encode(
    base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    )
).decode()

texts = st.one_of(
    st.sampled_from(["", " ", "\n\t", "\u0000", "ok", "ends in space \n", "\u2028", "💥"]),
    st.text(max_size=8),
)


def _text(text: str) -> Block:
    return {"type": "text", "text": text}


def _thinking(text: str) -> Block:
    return {"type": "thinking", "thinking": text, "signature": signing.sign("thinking", MODEL, text)}


def _unsigned(text: str) -> Block:
    return {"type": "thinking", "thinking": text, "signature": ""}


def _redacted(text: str) -> Block:
    return {"type": "redacted_thinking", "data": signing.redact(MODEL, text)}


IMAGE: Block = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": PIXEL},
    "title": None,
}
NOVELTY: Block = {"type": NOVEL_BLOCK, "payload": "p", "signature": "s"}

contents: st.SearchStrategy[list[Block]] = st.lists(
    st.one_of(st.builds(_text, texts), st.just(IMAGE)), max_size=3
)
model_blocks: st.SearchStrategy[list[Block]] = st.lists(
    st.one_of(
        st.builds(_text, texts),
        st.builds(_thinking, texts),
        st.builds(_unsigned, texts),
        st.builds(_redacted, texts),
        st.just(NOVELTY),
    ),
    max_size=4,
)
tool_names = st.lists(
    st.sampled_from(["look_up", "bash", "read", "web_fetch", "nobody_knows_it", OWN]), max_size=3
)
stops = st.sampled_from(
    [
        *("end_turn", "end_turn", "tool_use", "max_tokens", "pause_turn", "refusal", "stop_sequence"),
        "model_context_window_exceeded",
    ]
)
failures = st.sampled_from(
    [
        ModelFailed("overloaded", "busy", retryable=True),
        ModelFailed("failed", "no", retryable=False),
        ModelFailed("failed", "prompt is too long: 9 tokens > 8 maximum", retryable=False),
        None,
    ]
)
used = st.sampled_from([0, 0, 1_000, 190_000])
"""Input tokens; the last is near the limit of the model's context."""


verdicts = st.sampled_from(
    [verdict("satisfied"), verdict("needs_revision"), verdict("needs_revision"), verdict("failed"), answer()]
)


class AnySession(RuleBasedStateMachine):
    """Clients, models and brains take turns at random."""

    session: SimulatedSession

    @initialize(self_hosted=st.booleans())
    def begins(self, self_hosted: bool) -> None:
        self.session = SimulatedSession(self_hosted=self_hosted)
        self.ids = itertools.count()
        self.seen: list[list[Block]] = []

    @precondition(lambda self: len(self.session.state.inputs) < 3)
    @rule(content=contents)
    def user_says(self, content: list[Block]) -> None:
        self.session.sends("user.message", content=content)

    @precondition(lambda self: self.session.state.outcome is None)
    @rule(luck=st.integers(0, 3))
    def user_defines_an_outcome(self, luck: int) -> None:
        if not luck:
            self.session.defines()

    @rule(luck=st.integers(0, 4))
    def user_interrupts(self, luck: int) -> None:
        if luck:
            return
        self.session.sends("user.interrupt")
        if self.session.state.lead.request is not None:
            self.session.cuts_off()

    @precondition(lambda self: self.session.state.lead.calls)
    @rule(pick=st.integers(0, 9), content=contents, is_error=st.sampled_from([None, False, True]))
    def a_call_is_answered(self, pick: int, content: list[Block], is_error: bool | None) -> None:
        call = self._call(pick)
        if call.kind == "custom" or call.runnable:
            self.session.answers(call, content=content, is_error=is_error)

    @precondition(lambda self: self.session.state.lead.calls)
    @rule(pick=st.integers(0, 9), verdict=st.sampled_from(["allow", "deny"]))
    def a_call_is_judged(self, pick: int, verdict: str) -> None:
        call = self._call(pick)
        waiting = [entry.body.get("tool_use_id") for entry in self.session.state.inputs]
        if call.permission == "ask" and call.verdict is None and call.id not in waiting:
            self.session.sends("user.tool_confirmation", tool_use_id=call.id, result=verdict)

    @precondition(lambda self: self._busy())
    @rule(blocks=model_blocks, names=tool_names, stop=stops, found=verdicts, tokens=used)
    def brain_acts_and_the_model_answers(
        self, blocks: list[Block], names: list[str], stop: str, found: ModelResponse, tokens: int
    ) -> None:
        self.session.verdicts = [found]
        calls = [use(f"toolu_{next(self.ids)}", name) for name in names]
        stop = "tool_use" if calls and stop != "max_tokens" else stop
        self.session.acts(ModelResponse([*blocks, *calls], stop, {"input_tokens": tokens}, MODEL))

    @precondition(lambda self: self._busy())
    @rule(failure=failures)
    def brain_acts_and_the_request_fails(self, failure: ModelFailed | None) -> None:
        self.session.acts(failure)

    @invariant()
    def evaluations_are_begun_and_ended_one_at_a_time(self) -> None:
        session = getattr(self, "session", None)
        opened: list[str] = []
        for event in session.events if session is not None else ():
            if event.type == "span.outcome_evaluation_start":
                assert not opened
                opened.append(event.id)
            elif event.type == "span.outcome_evaluation_end":
                assert event.body["outcome_evaluation_start_id"] == (opened.pop() if opened else "")
        outcome = session.state.outcome if session is not None else None
        assert bool(opened) == (outcome is not None and outcome.evaluation is not None)
        if outcome is not None:
            assert outcome.iteration < outcome.max_iterations

    @invariant()
    def another_brain_reads_the_same_state_and_conversation(self) -> None:
        session = getattr(self, "session", None)
        if session is None:
            return
        replayed = fold_all(SessionState(session.state.primary), session.events)
        assert replayed == with_inputs(session.state, (), 0)
        fresh = type(session.transcript)(MODEL)
        fresh.extend(session.events)
        assert fresh.messages() == session.transcript.messages()

    @invariant()
    def what_the_model_was_shown_stays(self) -> None:
        session = getattr(self, "session", None)
        if session is None:
            return
        now = unmarked(session.transcript.messages())
        for before in map(unmarked, session.requests[-2:]):
            # All up to the last message of that request; to that one, more may have been added behind.
            assert now[: len(before) - 1] == before[:-1]
            if before[-1]["role"] == "user":
                assert now[len(before) - 1]["content"][: len(before[-1]["content"])] == before[-1]["content"]

    @invariant()
    def compactions_never_go_on_for_ever(self) -> None:
        session = getattr(self, "session", None)
        if session is not None:
            assert session.state.lead.compactions <= session.rules.context.most_in_a_row

    def teardown(self) -> None:
        """However it stands: with the client gone silent, the session comes to rest, all calls answered."""
        session = getattr(self, "session", None)
        if session is None:
            return
        session.sends("user.interrupt")
        session.rests()
        assert session.state.status == "idle"
        uses = [event.id for event in session.events if event.type in TOOL_USES]
        results = [
            event.body[TOOL_RESULTS[event.type]] for event in session.events if event.type in TOOL_RESULTS
        ]
        assert sorted(uses) == sorted(results)
        session.sends("user.message", content=[{"type": "text", "text": "still there?"}])
        session.rests()
        assert session.state.stop_type == "end_turn"

    def _busy(self) -> bool:
        action = decide(self.session.state, self.session.rules, self.session.now)
        waits_for_tools = isinstance(action, RunTools) and self.session.state.status == "running"
        return not (isinstance(action, Rest) or waits_for_tools)

    def _call(self, pick: int) -> Call:
        calls = self.session.state.lead.calls
        return calls[pick % len(calls)]


def unmarked(messages: list[Block]) -> list[Block]:
    """The messages without their prompt-cache marks."""
    return [
        {
            "role": message["role"],
            "content": [
                {name: value for name, value in block.items() if name != "cache_control"}
                for block in message["content"]
            ],
        }
        for message in messages
    ]


TestAnySession = AnySession.TestCase
TestAnySession.settings = settings(
    max_examples=200,
    stateful_step_count=60,
    deadline=None,
    derandomize=True,
)
