"""What is told of a session, in plain words, from its object and its events alone."""

from datetime import UTC, datetime
from typing import Any

import pytest

from corral.cli.chat_standing import Standing
from corral.cli.printable import printable
from corral.cli.session_facts import facts_of, money, open_calls

AT = "2026-10-10T09:00:00Z"
NOW = datetime(2026, 10, 10, 9, 0, 12, tzinfo=UTC)


def event(kind: str, id: str = "sevt_1", at: str | None = AT, **fields: Any) -> dict[str, Any]:
    return {"id": id, "type": kind, "processed_at": at, **fields}


def call(id: str, permission: str = "allow") -> dict[str, Any]:
    return event("agent.tool_use", id, name="bash", input={"command": "ls"}, evaluated_permission=permission)


def idle(reason: str, **fields: Any) -> dict[str, Any]:
    return event("session.status_idle", stop_reason={"type": reason, **fields}, stop_details=None)


STEP = event("span.model_request_start")
END = event("span.model_request_end", is_error=False)
ERROR = event("session.error", error={"type": "billing_error", "message": "No credit."})


@pytest.mark.parametrize(
    ("status", "events", "story"),
    [
        ("idle", [], "It has not been given anything to do yet."),
        ("idle", [event("user.message", at=None)], "A message has come and no server has begun on it."),
        ("idle", [STEP, END, idle("end_turn")], "The agent has finished its turn."),
        (
            "idle",
            [event("session.status_running"), STEP, event("user.interrupt"), END, idle("end_turn")],
            "It was interrupted.",
        ),
        (
            "idle",
            [STEP, call("a", "ask"), call("b", "ask"), END, idle("requires_action", event_ids=["a", "b"])],
            "2 tool calls wait for your yes or no.",
        ),
        (
            "idle",
            [STEP, call("a"), END, idle("requires_action", event_ids=["a"])],
            "1 tool call waits for a worker of its environment.",
        ),
        ("idle", [STEP, ERROR, idle("retries_exhausted")], "The turn died: No credit (billing_error)."),
        ("idle", [STEP, idle("budget_reached")], "The session has reached its budget."),
        ("running", [STEP], "The model has been answering for 12 s."),
        ("running", [STEP, call("a"), call("b"), END], "bash has been with the worker for 12 s, and 1 more."),
        ("running", [STEP, END], "It is between two steps."),
        (
            "rescheduling",
            [STEP, ERROR],
            "The model request failed: No credit (billing_error); the server tries again by itself.",
        ),
        ("terminated", [ERROR], "It ended for good: No credit (billing_error)."),
    ],
)
def test_the_story_of_a_session(status: str, events: list[dict[str, Any]], story: str) -> None:
    assert facts_of({"id": "sesn_1", "status": status, "archived_at": None}, events, NOW).story == story


def test_messages_and_interrupts_that_nobody_has_taken_up_are_counted() -> None:
    waiting = [
        event("user.message", at=None),
        event("user.message", at=None),
        event("user.interrupt", at=None),
    ]
    facts = facts_of({"id": "sesn_1", "status": "running"}, [STEP, *waiting], NOW)
    assert (facts.queued, facts.interrupt_waits) == (2, True)


def test_a_call_is_open_until_its_result_and_a_yes_hands_it_to_the_worker() -> None:
    yes = event("user.tool_confirmation", tool_use_id="a", result="allow", at=None)
    assert [found.need for found in open_calls([call("a", "ask")])] == ["approval"]
    assert [found.need for found in open_calls([call("a", "ask"), yes])] == ["worker"]
    assert not open_calls([call("a", "ask"), yes, event("agent.tool_result", tool_use_id="a")])


def test_only_what_the_session_waits_for_is_asked_and_only_once() -> None:
    standing = Standing("running")
    for seen in (STEP, call("a", "ask"), call("b", "ask"), END):
        standing.see(seen)
    assert not standing.questions
    standing.see(idle("requires_action", event_ids=["a", "b"]))
    first, second = standing.questions
    standing.settle(first)
    assert standing.questions == (second,)
    standing.see(event("session.status_running"))
    assert not standing.questions


def test_a_message_that_is_resumed_by_a_server_keeps_the_session_at_work() -> None:
    standing = Standing("idle")
    standing.see(event("session.status_rescheduled"))
    assert standing.working
    standing.see(event("session.status_terminated"))
    assert (standing.working, standing.ended) == (False, True)


def test_money_is_told_in_whole_units() -> None:
    assert money({"amount": "1287", "currency": "USD"}) == "12.87 USD"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttext\nof two lines", "plain\ttext\nof two lines"),
        ("from windows\r\n", "from windows\n"),
        ("\x1b[2J", r"\x1b[2J"),
        ("over\rwritten", r"over\x0dwritten"),
        ("a\u202eb\u2066", r"a\u202eb\u2066"),
        ("\x9b31m", r"\x9b31m"),
        ("한국어 👩‍👩‍👧", "한국어 👩‍👩‍👧"),
    ],
)
def test_text_cannot_steer_the_terminal(text: str, shown: str) -> None:
    assert printable(text) == shown
