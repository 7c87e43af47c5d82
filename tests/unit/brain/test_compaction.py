"""Where a conversation is cut, what the model is asked for, and that what comes of it is always valid."""

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from corral.brain import emit
from corral.brain.compaction import Cut, cut_for, finished, prompt, summary_request
from corral.brain.context_rules import ContextRules, ContextSettings
from corral.brain.decide import CallModel, Compact, GoIdle, Rules, decide
from corral.brain.settled import decoded
from corral.brain.transcript import Transcript
from corral.inference.provider import ModelFailed, ModelRequest, is_overflow
from corral.session.events import Event
from corral.session.thread_state import ThreadState
from corral.testing.validation.request import check_request
from corral.wire.model_table import CapabilityTable, ModelCapabilities
from tests.unit.brain.simulation import MODEL, THREAD, SimulatedSession, answer, use

NEAR = 190_000
CAN = ModelCapabilities(context=1_000)
Block = dict[str, Any]


def busy(*, tokens: int = 0) -> SimulatedSession:
    """A session whose model has just been given what it had called for."""
    session = SimulatedSession()
    session.sends("user.message", content=[{"type": "text", "text": "go"}])
    session.acts(answer(use("toolu_1"), tokens=tokens))
    [call] = session.state.lead.calls
    session.answers(call, content=[{"type": "text", "text": "found"}])
    return session


def next_action(session: SimulatedSession) -> Any:
    return decide(session.state, session.rules, session.now)


def test_a_conversation_near_the_limit_is_compacted_before_the_next_request_and_not_before_a_result() -> None:
    session = SimulatedSession()
    session.sends("user.message", content=[{"type": "text", "text": "go"}])
    session.acts(answer(use("toolu_1"), use("toolu_2"), tokens=NEAR))
    first, second = session.state.lead.calls
    assert not isinstance(next_action(session), Compact)
    session.answers(first, content=[])
    assert not isinstance(next_action(session), Compact)
    session.answers(second, content=[])
    assert isinstance(next_action(session), Compact)
    session.acts(answer({"type": "text", "text": "notes"}))
    assert isinstance(next_action(session), CallModel)
    assert isinstance(next_action(busy(tokens=1_000)), CallModel)


def test_a_message_that_waits_is_taken_after_the_compaction_and_stands_behind_the_summary() -> None:
    session = busy(tokens=NEAR)
    session.sends("user.message", content=[{"type": "text", "text": "and hurry"}])
    session.acts(answer({"type": "text", "text": "my notes"}))
    session.acts(answer())
    [message] = session.requests[-1]
    texts = [block["text"] for block in message["content"]]
    assert "my notes" in texts[0]
    assert texts[-1] == "and hurry"


def test_the_latest_steps_stay_as_far_as_they_fit_and_never_all_of_them() -> None:
    thread = ThreadState("t")
    assert cut_for(thread, [200, 100, 100], CAN) == Cut(2)
    assert cut_for(thread, [200, 100, 301], CAN) == Cut(0)
    assert cut_for(thread, [10, 10], CAN) == Cut(1)
    assert cut_for(thread, [10], CAN) == Cut(0)
    assert cut_for(thread, [], CAN) == Cut(0)
    assert cut_for(ThreadState("t", overflowed=True), [10, 10], CAN) == Cut(0, 600)


def test_the_threshold_leaves_room_for_an_answer_and_is_never_below_half() -> None:
    table = CapabilityTable({"small": {"context": 1_000}, "large": {"context": 100_000}})
    thread = ThreadState("t")
    for model, expected in (("small", 500), ("large", 68_000), ("unknown", 96_000)):
        rules = ContextRules(model, ContextSettings(capabilities=table))
        assert rules.threshold(thread) == expected
    of_child = ThreadState("t", agent={"model": {"id": "small"}}, context=500)
    assert ContextRules("large", ContextSettings(capabilities=table)).is_due(of_child)


def test_compactions_that_do_not_help_end_the_turn_and_the_next_message_starts_anew() -> None:
    session = busy(tokens=NEAR)
    too_long = ModelFailed("failed", "prompt is too long: 9 tokens > 8 maximum", retryable=False)
    for _ in range(2):
        assert isinstance(next_action(session), Compact)
        session.acts(too_long)
    action = next_action(session)
    assert isinstance(action, GoIdle)
    assert (action.reason, action.error) == ("retries_exhausted", "compaction_limit_reached_error")
    session.acts(None)
    session.sends("user.message", content=[{"type": "text", "text": "again"}])
    assert isinstance(next_action(session), Compact)


def test_a_brain_that_dies_while_it_compacts_leaves_nothing_behind() -> None:
    session = busy(tokens=NEAR)
    session.acts(None)
    assert session.state.lead.request is not None
    session.acts(None)
    assert session.state.lead.request is None
    assert isinstance(next_action(session), Compact)
    session.acts(answer({"type": "text", "text": "notes"}))
    session.acts(answer())
    assert session.state.lead.ending == "end_turn"


@pytest.mark.parametrize("kept", range(8))
def test_what_is_settled_is_cut_where_it_would_be_cut_otherwise(
    kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = SimulatedSession()
    session.sends("user.message", content=[{"type": "text", "text": "go"}])
    for number in range(6):
        session.acts(answer({"type": "text", "text": "so"}, use(f"toolu_{number}")))
        [call] = session.state.lead.calls
        session.answers(call, content=[{"type": "text", "text": f"found {number}"}])
    private = {"summary": "notes", "kept": kept}
    summed_up = Event(0, "sevt_x", "agent.thread_context_compacted", THREAD, {}, session.now, private)

    def conversation() -> tuple[list[int], list[Any]]:
        transcript = Transcript(MODEL)
        transcript.extend(session.events)
        sizes = transcript.sizes()
        transcript.add(summed_up)
        return sizes, transcript.messages()

    settled = conversation()
    assert session.transcript.settled.messages(), "or this test would show nothing"

    def never(_: Transcript) -> None:
        pass

    monkeypatch.setattr(Transcript, "_settle", never)
    assert settled == conversation()


def test_the_request_for_a_summary_goes_on_from_the_last_one() -> None:
    session = busy()
    request = ModelRequest(MODEL, session.transcript.messages(), tools=[{"name": "x"}])
    asked = summary_request(request, CAN, digest=False)
    assert asked.tools == request.tools
    *former, asking = decoded(asked.messages)
    assert [*former, {**asking, "content": asking["content"][:-1]}] == decoded(request.messages)
    last = asking["content"][-1]
    assert last["text"] == prompt()


def test_a_digest_fits_whatever_was_said() -> None:
    long = "x" * 10_000
    said: list[Block] = [{"type": "text", "text": long} for _ in range(20)]
    request = ModelRequest(MODEL, [{"role": "user", "content": [*said, {"type": "text", "text": "THE END"}]}])
    asked = summary_request(request, CAN, digest=True)
    assert asked.tools == []
    text = decoded(asked.messages)[0]["content"][0]["text"]
    assert len(text) < 1_200
    assert text.endswith("THE END")


def test_an_answer_without_words_is_no_compaction() -> None:
    session = SimulatedSession()
    for blocks in ([use("toolu_1")], [{"type": "text", "text": " \n"}], []):
        written = finished(session.voice, "sevt_1", answer(*blocks, tokens=3) if blocks else answer(), Cut(0))
        kinds = [event.type for event in written]
        assert kinds[0] == "span.model_request_end"
        assert ("agent.thread_context_compacted" in kinds) is (not blocks)


def test_what_servers_say_of_requests_that_are_too_long() -> None:
    for message in (
        "prompt is too long: 208310 tokens > 200000 maximum",
        "input length and `max_tokens` exceed context limit: 190000 + 32000 > 200000",
        "This model's maximum context length is 8192 tokens",
        "exceed_context_size_error: the request exceeds the available context size",
        "litellm.ContextWindowExceededError",
    ):
        assert is_overflow(message), message
    assert not is_overflow("messages.3: text content blocks must be non-empty")


texts = st.sampled_from(["a", "word " * 30, "x" * 700])
steps = st.lists(
    st.tuples(
        st.integers(0, 3),  # calls
        st.integers(0, 3),  # of which answered
        texts,
        st.booleans(),  # the user says something after it
        st.sampled_from(["none", "compact", "overflow"]),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(steps)
def test_any_log_with_any_compactions_makes_a_request_that_the_model_takes(
    plan: list[tuple[int, int, str, bool, str]],
) -> None:
    session = SimulatedSession()
    session.append([session.voice.event("user.message", content=[{"type": "text", "text": "go"}])])
    for number, (calls, answered, text, speaks, then) in enumerate(plan):
        uses = [use(f"toolu_{number}_{n}") for n in range(calls)]
        start = session.voice.event("span.model_request_start")
        session.append([start])
        reply = answer({"type": "text", "text": text}, *uses)
        session.append(emit.response(session.voice, start.id, reply, emit.PreviewIds(), session.state))
        for call in session.state.lead.calls[: min(answered, calls)]:
            session.answers(call, content=[{"type": "text", "text": text}])
        if speaks:
            session.append([session.voice.event("user.message", content=[{"type": "text", "text": text}])])
        if then != "none":
            thread = ThreadState("t", overflowed=then == "overflow")
            cut = cut_for(thread, session.transcript.sizes(), CAN)
            session.append(finished(session.voice, "sevt_s", answer({"type": "text", "text": "notes"}), cut))
        # Somebody speaks last in every request.
        fresh = Transcript(MODEL)
        fresh.extend(session.events)
        assert fresh.messages() == session.transcript.messages()
        if fresh.messages()[-1]["role"] == "user":
            check_request({"model": MODEL, "max_tokens": 9, "messages": fresh.messages()})
        for digest in (False, True):
            asked = summary_request(ModelRequest(MODEL, fresh.messages()), CAN, digest=digest)
            check_request({"model": MODEL, "max_tokens": 9, "messages": asked.messages})


def test_rules_without_a_context_are_those_of_an_unknown_model() -> None:
    assert Rules(self_hosted=False).context.threshold(ThreadState("t")) == 96_000
