"""What is kept of a session, and the log from there on, come to what the whole log comes to."""

import itertools
import random
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import settings
from hypothesis.stateful import initialize

from corral.brain import settled
from corral.brain.judge_context import JudgeContext, KeptJudgeContext
from corral.brain.recollection import (
    Recalled,
    Recollection,
    ThreadRecollection,
    Unusable,
    gathered,
    recalled,
    recollection,
)
from corral.brain.settled import Settled
from corral.brain.skills_note import KeptShelf
from corral.brain.transcript import Transcript
from corral.session.events import Event
from corral.session.state import SessionState, fold, fold_all
from tests.unit.brain.simulation import MODEL, THREAD, SimulatedSession, answer, use
from tests.unit.brain.test_any_session import IMAGE, AnySession

SHELF = KeptShelf(0, [], False)


NOTHING_JUDGED = JudgeContext().kept()


def kept(
    state: SessionState, transcript: Transcript, judge: KeptJudgeContext = NOTHING_JUDGED
) -> Recollection:
    return recollection(state, {THREAD: ThreadRecollection(transcript, SHELF)}, judge)


def stored(one: Recollection) -> Recollection:
    """The same, having been in a database."""
    bodies = [
        (thread_id, position, piece.body)
        for thread_id, pieces in one.pieces.items()
        for position, piece in enumerate(pieces, one.first[thread_id])
    ]
    random.Random(one.seq).shuffle(bodies)
    return gathered(one.seq, one.head, bodies)


class Unsettled(Transcript):
    """A transcript that encodes nothing before it is asked for."""

    def _settle(self) -> None:
        pass


class Reader:
    """A brain's view of the log so far."""

    def __init__(self, session: Recalled | None = None) -> None:
        self.state = SessionState(THREAD)
        self.transcript = Transcript(MODEL)
        self.judge = JudgeContext()
        if session is not None:
            self.state = session.state
            self.transcript = session.threads[THREAD].transcript
            self.judge.recall(session.judge)

    def reads(self, event: Event) -> None:
        self.state = fold(self.state, event)
        self.transcript.add(event)
        self.judge.add(event)

    def keeps(self) -> Recollection:
        return kept(self.state, self.transcript, self.judge.kept())

    def sees(self) -> tuple[Any, ...]:
        transcript = self.transcript
        request = msgspec.json.encode(transcript.encoded())
        looks = transcript.unanswered(), transcript.looks_back, transcript.sizes()
        return self.state, request, looks, self.judge.kept()


class KeptSession(AnySession):
    """Any session, whose log is in the end read by brains that remember it from every point of it."""

    piece = 64 * 1024

    @initialize(piece=st.sampled_from([1, 40, 400, 64 * 1024]))
    def pieces_are_small(self, piece: int) -> None:
        self.piece = piece

    def teardown(self) -> None:
        super().teardown()
        if (session := getattr(self, "session", None)) is not None:
            with patch.object(settled, "PIECE_BYTES", self.piece):
                check_every_point(session.events)


def check_every_point(events: list[Event]) -> None:
    straight = Reader()
    hopping = Reader()
    readers: list[Reader] = []
    plain = Unsettled(MODEL)
    for event in events:
        # One forgets all but what it keeps after every event; the others begin at one point and read on.
        hopping = Reader(recalled(stored(hopping.keeps())))
        readers.append(Reader(recalled(straight.keeps())))
        for reader in (straight, hopping, *readers):
            reader.reads(event)
        assert hopping.sees() == straight.sees()
        plain.add(event)
        assert straight.transcript.messages() == plain.messages()
        assert straight.transcript.sizes() == plain.sizes()
    for reader in readers:
        assert reader.sees() == straight.sees()


KeptSession.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestKeptSession = KeptSession.TestCase


def long_session(turns: int = 6) -> SimulatedSession:
    session = SimulatedSession()
    numbers = itertools.count()
    for turn in range(turns):
        content = [{"type": "text", "text": f"turn {turn} " * 5}, *([IMAGE] if turn % 3 == 0 else [])]
        session.sends("user.message", content=content)
        call = use(f"toolu_{next(numbers)}", "bash")
        session.rests(answer({"type": "text", "text": "one moment"}, call))
        session.answers(session.state.lead.calls[0], content=content, is_error=False)
        session.rests(answer({"type": "text", "text": f"done with {turn} " * 5}))
    return session


@pytest.fixture(autouse=True)
def _small_pieces() -> Iterator[None]:
    with patch.object(settled, "PIECE_BYTES", 200):
        yield


def test_what_is_settled_is_never_changed_by_what_follows() -> None:
    events = long_session(12).events
    transcript = Transcript(MODEL)
    seen: list[tuple[Any, ...]] = []
    for event in events:
        transcript.add(event)
        seen.append(transcript.settled.closed())
    assert len(seen[-1]) > 5
    assert any(piece.message is not None for piece in seen[-1])
    for before, after in itertools.pairwise(seen):
        assert after[: len(before)] == before


def test_only_the_end_of_a_conversation_is_encoded_for_a_request() -> None:
    transcript = Transcript(MODEL)
    transcript.extend(long_session(12).events)
    parts = transcript.encoded()
    fresh = [part for part in parts if not isinstance(part, msgspec.Raw)]
    # The marked messages and what stands between and after them; and those with media.
    assert len([part for part in fresh if "image" not in str(part)]) <= 5
    assert len(transcript.messages()) > 40


def test_each_part_of_a_transcript_is_kept() -> None:
    transcript = Transcript(MODEL)
    transcript.settled.drop()
    transcript.settled.add({"role": "user", "content": [{"type": "text", "text": "an old story"}]})
    transcript.settled.drop()
    session = long_session()
    transcript.extend(session.events)
    said = {"content": [{"type": "text", "text": "go on"}]}
    ended: dict[str, Any] = {
        "outcome": "completed",
        "content": [IMAGE],
        "stop_reason": "end_turn",
        "calls": {},
    }
    lost = {**ended, "content": [use("toolu_lost", "bash")], "calls": {"sevt_lost": "toolu_lost"}}
    received = {**said, "from_session_thread_id": "sthr_y", "from_agent_name": "another"}
    log: list[tuple[str, dict[str, Any], dict[str, Any] | None]] = [
        ("agent.thread_context_compacted", {}, {"summary": "so far", "kept": 1}),
        ("span.model_request_end", {}, ended),
        ("system.message", said, None),
        ("span.model_request_end", {}, lost),
        *[("user.message", said, None), ("span.model_request_end", {}, ended)] * 3,
        ("user.message", said, None),
        ("span.model_request_start", {}, None),
        ("agent.thread_message_received", received, None),
        ("user.interrupt", {}, None),
    ]
    for kind, body, private in log:
        transcript.add(Event(0, "sevt", kind, THREAD, body, datetime.now(UTC), private))
    again = recalled(stored(kept(SessionState(THREAD), transcript))).threads[THREAD].transcript

    def parts(one: Transcript) -> dict[str, Any]:
        return {name: vars(part) if isinstance(part, Settled) else part for name, part in vars(one).items()}

    assert parts(again) == parts(transcript)
    fresh = parts(Transcript(MODEL))
    same = {name for name, part in parts(transcript).items() if part == fresh[name]}
    # A part that this test leaves as it was at the start could be forgotten without it noticing.
    assert same == {"_model"}


@pytest.mark.parametrize("harm", ["missing", "damaged", "another"])
def test_pieces_that_are_not_those_of_the_head_are_not_used(harm: str) -> None:
    session = long_session(12)
    one = kept(session.state, session.transcript)
    bodies = [(THREAD, position, piece.body) for position, piece in enumerate(one.pieces[THREAD])]
    assert len(bodies) > 3
    match harm:
        case "missing":
            del bodies[1]
        case "damaged":
            bodies[1] = (THREAD, 1, bodies[1][2][:-1] + b" ")
        case _:
            bodies[1] = (THREAD, 1, bodies[2][2])
    with pytest.raises(Unusable, match=f"piece 1 of {THREAD}"):
        gathered(one.seq, one.head, bodies)


def test_a_head_that_cannot_be_read_is_not_used() -> None:
    session = long_session()
    one = kept(session.state, session.transcript)
    for head in (
        one.head[:-2],
        b"{}",
        b"",
        one.head.replace(b'"seq"', b'"sequel"', 1).replace(b"[", b"{", 1),
    ):
        with pytest.raises(Unusable):
            recalled(msgspec.structs.replace(one, head=head))


def test_what_waits_in_the_queue_is_not_kept() -> None:
    session = long_session()
    session.sends("user.message", content=[{"type": "text", "text": "later"}])
    state = recalled(kept(session.state, session.transcript)).state
    assert (state.inputs, state.last_input) == ((), 0)
    assert state == fold_all(SessionState(THREAD), session.events)


@pytest.mark.parametrize("cut_at", [0.3, 0.7, 1.0])
def test_a_compaction_takes_back_what_was_settled(cut_at: float) -> None:
    events = list(long_session(8).events)
    ends = [at for at, event in enumerate(events) if (event.private or {}).get("outcome") == "completed"]
    for at in reversed(ends):
        if not (events[at].private or {})["calls"]:
            said = {"content": [{"type": "text", "text": f"a word of the system's at {at}"}]}
            heard = Event(0, "sevt", "system.message", THREAD, said, datetime.now(UTC))
            # Nobody says anything that it could stand behind, before the next answer.
            events[at + 1 : at + 1] = [heard, events[at]]
    cut = int(len(events) * cut_at)
    answers = sum((event.private or {}).get("outcome") == "completed" for event in events[:cut])
    assert answers > 3
    for kept_answers in range(answers + 1):
        private = {"summary": "so far", "kept": kept_answers}
        compacted = Event(0, "sevt", "agent.thread_context_compacted", THREAD, {}, datetime.now(UTC), private)
        straight, plain = Transcript(MODEL), Unsettled(MODEL)
        for event in (*events[:cut], compacted, *events[cut:]):
            straight.add(event)
            plain.add(event)
        assert straight.messages() == plain.messages()
        assert straight.sizes() == plain.sizes()
        assert straight.settled.dropped
        again = recalled(stored(kept(SessionState(THREAD), straight))).threads[THREAD].transcript
        assert again.messages() == plain.messages()
