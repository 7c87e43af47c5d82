"""Which calls a history leaves to be run, held or dropped, and what cuts a call in hand."""

from typing import Any

from corral.hands.worker.events import SeenEvent
from corral.hands.worker.ledger import Cut, Ledger, Verdict, decisions


def use(
    id: str, name: str = "bash", permission: str | None = "allow", thread: str | None = None
) -> SeenEvent:
    return SeenEvent(
        "agent.tool_use",
        id=id,
        name=name,
        input={},
        evaluated_permission=permission,
        session_thread_id=thread,
    )


def answer(call: str, type: str = "user.tool_result") -> SeenEvent:
    return SeenEvent(type, id=f"r{call}", tool_use_id=call)


def verdict(call: str, result: str) -> SeenEvent:
    return SeenEvent("user.tool_confirmation", id=f"v{call}", tool_use_id=call, result=result)


def idle(reason: str) -> SeenEvent:
    return SeenEvent("session.status_idle", id="i", stop_reason={"type": reason})


def noted(*events: SeenEvent) -> Ledger:
    ledger = Ledger()
    for event in events:
        ledger.note(event)
    return ledger


def due(ledger: Ledger) -> list[str]:
    return [call.id for call in ledger.take_due()]


def test_an_unanswered_call_is_run() -> None:
    assert decisions([use("a"), use("b"), answer("a")]) == {"b": Verdict.RUN}


def test_a_call_answered_by_anyone_and_anywhere_in_the_history_is_not_run() -> None:
    assert decisions([answer("a", "agent.tool_result"), use("a"), use("b"), answer("b")]) == {}


def test_tools_of_others_are_left_to_them() -> None:
    others = [
        use("a", "web_search"),
        use("b", "my_tool"),
        SeenEvent("agent.custom_tool_use", id="c", name="bash"),
    ]
    assert decisions(others) == {}


def test_a_call_that_needs_a_confirmation_is_held_until_it_is_allowed() -> None:
    ask = use("a", permission="ask")
    assert decisions([ask]) == {"a": Verdict.HOLD}
    assert decisions([ask, verdict("a", "allow")]) == {"a": Verdict.RUN}
    assert decisions([verdict("a", "allow"), ask]) == {"a": Verdict.RUN}
    assert decisions([ask, verdict("a", "deny")]) == {"a": Verdict.DROP}


def test_a_call_that_the_server_denied_is_never_run_whatever_a_confirmation_says() -> None:
    assert decisions([use("a", permission="deny"), verdict("a", "allow")]) == {"a": Verdict.DROP}


def test_a_permission_or_a_verdict_that_is_not_known_lets_nothing_run() -> None:
    assert decisions([use("a", permission="later")]) == {"a": Verdict.HOLD}
    assert decisions([use("a", permission="ask"), verdict("a", "maybe")]) == {"a": Verdict.DROP}


def test_calls_of_a_thread_that_has_ended_are_dropped() -> None:
    ended = SeenEvent("session.thread_status_terminated", id="t", session_thread_id="child")
    assert decisions([use("a", thread="child"), use("b"), ended]) == {"a": Verdict.DROP, "b": Verdict.RUN}


def test_a_call_is_handed_out_once_though_its_event_is_noted_again() -> None:
    ledger = noted(use("a"))
    assert due(ledger) == ["a"]
    ledger.note(use("a"))
    assert due(ledger) == []


def test_calls_are_handed_out_in_the_models_order_when_a_held_one_is_released() -> None:
    ledger = noted(use("a", permission="ask"), use("b"))
    assert due(ledger) == ["b"]
    ledger.note(verdict("a", "allow"))
    assert due(ledger) == ["a"]


def test_an_interrupt_cuts_the_calls_in_hand_once() -> None:
    ledger = noted(use("a"), use("b"))
    due(ledger)
    interrupt = SeenEvent("user.interrupt", id="x")
    assert ledger.note(interrupt) == [("a", Cut.INTERRUPTED), ("b", Cut.INTERRUPTED)]
    assert ledger.note(interrupt) == []


def test_an_interrupt_in_the_history_leaves_the_calls_to_be_run() -> None:
    # It may be what has queued the work anew (contract section 10.3).
    assert decisions([use("a"), SeenEvent("user.interrupt", id="x")]) == {"a": Verdict.RUN}


def test_an_interrupt_of_one_thread_leaves_the_calls_of_others_alone() -> None:
    running = SeenEvent("session.thread_status_running", id="t", session_thread_id="primary")
    ledger = noted(running, use("a"), use("b", thread="child"))
    due(ledger)
    child = SeenEvent("user.interrupt", id="x", session_thread_id="child")
    primary = SeenEvent("user.interrupt", id="y", session_thread_id="primary")
    assert ledger.note(child) == [("b", Cut.INTERRUPTED)]
    assert ledger.note(primary) == [("a", Cut.INTERRUPTED)]


def test_a_result_for_a_call_in_hand_cuts_it() -> None:
    ledger = noted(use("a"))
    due(ledger)
    assert ledger.note(answer("a", "agent.tool_result")) == [("a", Cut.ANSWERED)]


def test_our_own_result_cuts_nothing() -> None:
    ledger = noted(use("a"))
    due(ledger)
    ledger.settle("a")
    assert ledger.note(answer("a")) == []


def test_only_an_idle_that_waits_for_nothing_ends_the_turn() -> None:
    assert not noted(idle("requires_action")).turn_over
    assert noted(idle("requires_action")).paused
    assert noted(idle("end_turn")).turn_over
    assert noted(idle("a reason of the future")).turn_over


def test_activity_after_an_idle_takes_it_back_and_a_confirmation_is_none() -> None:
    assert not noted(idle("end_turn"), SeenEvent("user.message", id="m")).turn_over
    assert noted(idle("end_turn"), verdict("a", "allow")).turn_over


def test_a_session_is_over_when_it_is_terminated_or_deleted() -> None:
    for type in ("session.status_terminated", "session.deleted"):
        assert noted(SeenEvent(type, id="e")).over


def test_fields_of_unexpected_types_harm_nothing() -> None:
    odd: Any = ["not", "an", "object"]
    ledger = noted(
        SeenEvent("agent.tool_use", id="a", name="bash", input=odd, evaluated_permission="allow"),
        SeenEvent("session.status_idle", id="i", stop_reason=odd),
    )
    assert [dict(call.input) for call in ledger.take_due()] == [{}]
    assert ledger.turn_over
