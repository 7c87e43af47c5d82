"""What is decided where a session has several threads, and what the session says as a whole."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import hypothesis.strategies as st
import msgspec
from hypothesis import given, settings

from corral.brain import emit
from corral.brain.decide import (
    CallModel,
    CloseRequest,
    GoIdle,
    Interrupt,
    Rest,
    Rules,
    RunTools,
    Settle,
    TakeVerdicts,
    decide,
    settle,
    settle_all,
)
from corral.brain.delegation import LIVE_THREADS, delegation_of
from corral.brain.transcript import Transcript
from corral.brain.voice import Voice
from corral.inference.provider import ModelResponse
from corral.session.budget import budget_object
from corral.session.calls import TOOL_RESULTS
from corral.session.events import Event, Input, NewEvent, new_event
from corral.session.state import SessionState, as_if, fold, fold_all, with_inputs
from corral.testing.validation.request import check_request
from tests.unit.brain.simulation import AGENT, MODEL, answer, use

LEAD: Final = "sthr_lead"
MEMBER: Final = {
    **AGENT,
    "type": "agent",
    "id": "agent_m",
    "version": 1,
    "name": "member",
    "description": None,
}
COORDINATOR: Final = {
    **AGENT,
    "type": "agent",
    "id": "agent_c",
    "name": "lead",
    "multiagent": {"type": "coordinator", "agents": [MEMBER, {"type": "advisor", "model": "x"}]},
}


class ManyThreads:
    """A session of several threads without a database, a model or a clock."""

    def __init__(self) -> None:
        self.rules = Rules(self_hosted=False, max_rounds=6, max_truncations=2)
        self.state = SessionState(LEAD)
        self.events: list[Event] = []
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.ids = 0

    def says(self, text: str = "go") -> None:
        self._sends("user.message", LEAD, content=[{"type": "text", "text": text}])

    def interrupts(self, thread_id: str | None = None) -> None:
        self._sends("user.interrupt", thread_id or LEAD, session_thread_id=thread_id)

    def _sends(self, kind: str, thread_id: str, **body: Any) -> None:
        new = new_event(kind, thread_id, **body)
        position = self.state.last_input + 1
        entry = Input(position, new.id, kind, thread_id, {"id": new.id, "type": kind, **body})
        self.state = with_inputs(self.state, (*self.state.inputs, entry), position)

    def append(self, events: Sequence[NewEvent], take: Sequence[Input] = ()) -> None:
        for new in events:
            self.now += timedelta(seconds=1)
            body = {"id": new.id, "type": new.type, **new.body}
            event = Event(len(self.events) + 1, new.id, new.type, new.thread_id, body, self.now, new.private)
            self.events.append(event)
            self.state = fold(self.state, event)
        left = [entry for entry in self.state.inputs if entry not in take]
        self.state = with_inputs(self.state, left, self.state.last_input)

    def voice(self, thread_id: str) -> Voice:
        thread = self.state.thread(thread_id)
        agent = thread.agent or COORDINATOR
        primary = LEAD if thread.parent else ""
        return Voice(thread_id, agent, False, delegation=delegation_of(thread, agent), primary=primary)

    @property
    def children(self) -> list[str]:
        return [thread.id for thread in self.state.threads.values() if thread.parent]

    def next(self, thread_id: str = LEAD) -> Any:
        return decide(self.state, self.rules, self.now, thread_id)

    def acts(self, thread_id: str = LEAD, outcome: ModelResponse | None = None) -> Any:
        """A thread's next action, performed; a model request brings `outcome`."""
        action, voice, state = self.next(thread_id), self.voice(thread_id), self.state
        match action:
            case CloseRequest():
                self.append([emit.request_end(voice, action.start_id, "orphaned", is_error=True)])
            case Interrupt():
                taken = [entry.taken() for entry in action.inputs]
                request = state.thread(thread_id).request
                written = emit.interruption(voice, taken, start_id=request, calls=action.calls)
                if action.ends_turn:
                    ended = GoIdle("end_turn")
                    settled = settle(as_if(state, taken, self.now), self.rules, self.now, ended, thread_id)
                    written += emit.idle(voice, state, ended, self.now, settled)
                self.append(written, action.inputs)
            case TakeVerdicts():
                self.append([entry.taken() for entry in action.inputs], action.inputs)
            case RunTools():
                if started := emit.running(voice, state):
                    self.append(started)
                results = [
                    voice.event("agent.tool_result", tool_use_id=call.id, content=[], is_error=False)
                    for call in action.calls
                ]
                self.append(results)
            case CallModel():
                start = voice.event("span.model_request_start")
                taken = [entry.taken() for entry in action.inputs]
                self.append([*taken, *emit.running(voice, state), start], action.inputs)
                self.check_transcript(thread_id)
                brought = outcome or answer()
                self.append(emit.response(voice, start.id, brought, emit.PreviewIds(), self.state))
            case GoIdle():
                settled = settle(state, self.rules, self.now, action, thread_id)
                taken = [entry.taken() for entry in action.flush]
                self.append([*taken, *emit.idle(voice, state, action, self.now, settled)], action.flush)
            case Settle():
                settled = settle_all(state, self.rules, self.now)
                self.append(emit.session_idle(voice, state, settled, self.now))
            case _:
                pass
        return action

    def rests(self) -> None:
        """Every thread acts until none has anything to do."""
        for _ in range(500):
            moved = [
                thread
                for thread in list(self.state.threads or (LEAD,))
                if not isinstance(self.acts(thread), Rest)
            ]
            if not moved:
                return
        raise AssertionError("no rest")

    def spawns(self, *tasks: str) -> ModelResponse:
        """The coordinator's answer that starts an agent for each task."""
        blocks: list[dict[str, Any]] = []
        for task in tasks:
            self.ids += 1
            blocks.append(use(f"toolu_{self.ids}", "ant__create_agent", agent="member", task=task))
        return answer(*blocks)

    def calls(self, name: str) -> ModelResponse:
        self.ids += 1
        return answer(use(f"toolu_{self.ids}", name))

    def check_transcript(self, thread_id: str) -> None:
        """What the model is shown is a request that it takes."""
        transcript = Transcript(MODEL)
        transcript.extend(event for event in self.events if event.thread_id == thread_id)
        messages = transcript.messages()
        check_request({"model": MODEL, "max_tokens": 100, "messages": messages})

    def types(self) -> list[str]:
        return [event.type for event in self.events]


def two_children() -> ManyThreads:
    """A coordinator with two agents that have yet to begin."""
    session = ManyThreads()
    session.says()
    session.acts(LEAD, session.spawns("a", "b"))
    return session


def test_a_call_that_starts_an_agent_is_answered_without_an_event_of_its_own() -> None:
    session = two_children()
    assert len(session.children) == 2
    assert session.state.lead.calls == ()
    assert session.state.lead.pending
    assert not {"agent.tool_use", "agent.mcp_tool_use"} & set(session.types())
    for child in session.children:
        assert isinstance(session.next(child), CallModel)


def test_the_session_is_idle_only_once_no_thread_works_and_none_is_about_to() -> None:
    session = two_children()
    session.acts()
    session.acts()
    assert session.state.lead.status == "idle"
    assert session.state.status == "running"
    first = session.children[0]
    session.acts(first)
    session.acts(first)
    # Its report has given the coordinator something to do.
    assert session.state.status == "running"
    assert isinstance(session.next(), CallModel)
    session.rests()
    assert session.state.status == "idle"
    assert (
        session.types().count("session.status_idle") == session.types().count("session.status_running") == 1
    )
    assert session.types()[-2:] == ["session.usage", "session.status_idle"]


def test_what_all_threads_wait_for_is_named_by_the_session() -> None:
    session = two_children()
    for child in session.children:
        session.acts(child, session.calls("look_up"))
    session.rests()
    waiting = [call.id for thread in session.state.threads.values() for call in thread.calls]
    assert len(waiting) == 2
    assert session.events[-1].body["stop_reason"] == {"type": "requires_action", "event_ids": waiting}
    first = session.children[0]
    session.append(
        [new_event("session.thread_status_terminated", first, session_thread_id=first, agent_name="m")]
    )
    assert isinstance(session.next(), Settle)
    session.rests()
    assert session.events[-1].body["stop_reason"]["event_ids"] == waiting[1:]


def test_an_interrupt_of_the_session_reaches_every_busy_thread_and_nobody_reports() -> None:
    session = two_children()
    first, second = session.children
    session.acts(first, session.calls("look_up"))
    session.interrupts()
    session.says("anew")
    session.acts()
    assert isinstance(session.next(), Rest), "what comes after the interrupt waits until all have stopped"
    for child in (first, second):
        assert isinstance(session.next(child), Interrupt)
    session.rests()
    assert "agent.thread_message_sent" not in [
        event.type for event in session.events if event.thread_id in session.children
    ]
    assert session.state.status == "idle"


def test_an_agent_in_circles_ends_for_good_and_the_coordinator_is_told() -> None:
    session = ManyThreads()
    session.says()
    session.acts(LEAD, session.spawns("a"))
    [child] = session.children
    for _ in range(session.rules.max_rounds):
        session.acts(child, session.calls("bash"))
        session.acts(child)
    session.acts(child)
    assert session.state.thread(child).status == "terminated"
    assert session.state.lead.pending
    report = next(e for e in reversed(session.events) if e.type == "agent.thread_message_received")
    assert "ended for good" in report.body["content"][0]["text"]
    assert isinstance(session.next(child), Rest)


def test_at_the_budget_each_thread_pauses_and_all_go_on_once_it_is_raised() -> None:
    session = two_children()
    session.append([new_event("session.updated", LEAD, budget=budget_object(1))])
    costly = ModelResponse([{"type": "text", "text": "x"}], "end_turn", {"input_tokens": 10_000}, MODEL)
    first, second = session.children
    session.acts(first, costly)
    session.rests()
    assert session.state.stop_type == "budget_reached"
    assert {session.state.thread(one).stop_type for one in (LEAD, second)} == {"budget_reached"}
    assert session.state.thread(first).stop_type == "end_turn"
    assert session.types()[-2:] == ["session.usage", "session.status_idle"]
    session.append([new_event("session.updated", LEAD, budget=budget_object(100))])
    session.rests()
    assert session.state.stop_type == "end_turn"
    assert {one.stop_type for one in session.state.threads.values()} == {"end_turn"}


def test_the_26th_agent_is_refused_and_an_ended_one_makes_room() -> None:
    session = ManyThreads()
    session.says()
    session.acts(LEAD, session.spawns(*(str(n) for n in range(LIVE_THREADS + 1))))
    assert len(session.children) == LIVE_THREADS
    first = session.children[0]
    session.append(
        [new_event("session.thread_status_terminated", first, session_thread_id=first, agent_name="m")]
    )
    session.acts(LEAD, session.spawns("one more"))
    assert len(session.children) == LIVE_THREADS + 1


steps = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 7)), max_size=40)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(steps=steps)
def test_whatever_the_order_every_thread_comes_to_rest_and_every_call_has_one_result(
    steps: list[tuple[int, int]],
) -> None:
    session = ManyThreads()
    session.says()
    for pick, choice in steps:
        names = list(session.state.threads or (LEAD,))
        thread = names[pick % len(names)]
        match choice:
            case 0:
                session.says()
            case 1 if pick == 0:
                session.interrupts()
            case 1:
                session.interrupts(thread)
            case 2 | 3:
                brought = session.spawns("task") if thread == LEAD else session.calls("bash")
                session.acts(thread, brought)
            case 4:
                session.acts(thread, session.calls("look_up"))
            case _:
                session.acts(thread)
        replayed = fold_all(SessionState(LEAD), session.events)
        assert msgspec.structs.replace(session.state, inputs=(), last_input=0) == replayed
        working = [one for one in session.state.threads.values() if one.status == "running"]
        assert session.state.status == "running" or not working
    session.interrupts()
    session.rests()
    assert session.state.status == "idle"
    uses = [event.id for event in session.events if event.type in ("agent.tool_use", "agent.custom_tool_use")]
    results = [event.body[TOOL_RESULTS[event.type]] for event in session.events if event.type in TOOL_RESULTS]
    assert sorted(uses) == sorted(results)
    for thread in session.state.threads:
        session.check_transcript(thread)
