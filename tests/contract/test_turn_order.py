"""Which events a turn writes, and in which order (contract sections 10.3, 10.5, 10.11 and 10.12)."""

from typing import Any

import msgspec
import pytest

from tests.contract.refusals import refused
from tests.contract.test_events_send import INTERRUPT, a_waiting_call, custom_result
from tests.contract.test_permissions import LS, READ, calling, output, verdict
from tests.contract.test_sessions_create import CUSTOM, message
from tests.corral_server import Corral, SessionUnderTest
from tests.moments import ends_turn, is_taken

RUNNING = ["session.status_running", "session.thread_status_running"]
REQUEST = ["span.model_request_start", "agent.message", "span.model_request_end"]
IDLE = ["session.thread_status_idle", "session.usage", "session.status_idle"]
CUT = ["span.model_request_start", "user.interrupt", "span.model_request_end"]
CALL: dict[str, Any] = {"tools": [{"name": "lookup", "input": {"key": "k"}}]}
FAILS: dict[str, Any] = {"text": "late", "error": {"status": 529, "times": 1}}
RETRY = [
    "span.model_request_start",
    "span.model_request_end",
    "session.error",
    "session.status_rescheduled",
    "session.thread_status_rescheduled",
]


def scripted(text: str, *steps: dict[str, Any]) -> dict[str, Any]:
    """A message whose answers are scripted, to send in one request with others."""
    return message(f"{text}\nscript: {msgspec.json.encode(list(steps)).decode()}")


async def test_a_turn_with_a_custom_tool(corral: Corral) -> None:
    session, call = await a_waiting_call(corral)
    await session.sends(custom_result(call, "found"))
    await session.until("session.status_idle", where=ends_turn)
    asks = ["span.model_request_start", "agent.custom_tool_use", "span.model_request_end"]
    assert await session.types() == [
        *["user.message", *RUNNING, *asks, *IDLE],
        *["user.custom_tool_result", *RUNNING, *REQUEST, *IDLE],
    ]
    events = await session.events()
    use = next(event for event in events if event.type == "agent.custom_tool_use")
    # Clients name a call by the id of its event.
    assert use.id == call
    assert [e.stop_reason.type for e in events if e.type == "session.status_idle"] == [
        "requires_action",
        "end_turn",
    ]


async def test_a_turn_with_thinking_text_and_two_calls_of_a_self_hosted_session(corral: Corral) -> None:
    session = await corral.session({"type": "agent_toolset_20260401"}, kind="self_hosted")
    script = [{"thinking": "hm", "text": "I look", "tools": [LS, READ]}, {"text": "done"}]
    await session.says("go", script=script)
    idle = await session.idle()
    ids = idle.stop_reason.event_ids
    await session.sends(output(ids[1], "second"), output(ids[0], "first"))
    await session.until("session.status_idle", where=ends_turn)
    assert await session.types() == [
        *["user.message", *RUNNING, "span.model_request_start", "agent.thinking", "agent.message"],
        *["agent.tool_use", "agent.tool_use", "span.model_request_end", *IDLE],
        *["user.tool_result", "user.tool_result", *RUNNING, *REQUEST, *IDLE],
    ]
    [asked, answered] = corral.model.requests()
    assert len(asked["messages"]) == 1
    # The model gets the results in the order of its calls, whoever answered first.
    texts = [block["content"][0]["text"] for block in answered["messages"][-1]["content"][:2]]
    assert texts == ["first", "second"]


async def test_a_denied_call_is_answered_by_the_server_and_never_waits_for_a_worker(corral: Corral) -> None:
    session, idle, ids = await calling(corral, LS, bash="always_ask")
    await session.sends(verdict(ids["bash"], "deny"))
    await session.until("session.status_idle", where=ends_turn, after=idle.id)
    types = await session.types()
    assert types[types.index("user.tool_confirmation") :] == [
        *["user.tool_confirmation", "agent.tool_result", *RUNNING, *REQUEST, *IDLE]
    ]


async def test_a_message_in_mid_request_joins_the_turn_after_the_answer(corral: Corral) -> None:
    session = await corral.session()
    await session.says("go", script=[{"text": "one", "hold": "here"}, {"text": "two"}])
    await corral.model.until_holding("here")
    sent = await session.sends(message("and this"), message("and that"))
    corral.model.release("here")
    await session.idle()
    assert await session.types() == [
        *["user.message", *RUNNING, *REQUEST],
        *["user.message", "user.message", *REQUEST, *IDLE],
    ]
    events = await session.events()
    taken = [event.id for event in events if event.type == "user.message"][1:]
    assert taken == [event.id for event in sent.data]
    # Both are in one request, in the order in which they were sent.
    told = corral.model.requests()[-1]["messages"][-1]["content"]
    assert [block["text"] for block in told if block["type"] == "text"][-2:] == ["and this", "and that"]
    start = [event for event in events if event.type == "span.model_request_start"][1]
    assert all(event.processed_at <= start.processed_at for event in events if event.id in taken)


async def test_messages_that_wait_behind_a_call_are_taken_with_its_result(corral: Corral) -> None:
    session, call = await a_waiting_call(corral)
    for word in ("one", "two"):
        await session.says(word)
    await session.sends(custom_result(call, "found"))
    await session.until("session.status_idle", where=ends_turn)
    types = await session.types()
    rest = types[types.index("user.custom_tool_result") :]
    assert rest == ["user.custom_tool_result", "user.message", "user.message", *RUNNING, *REQUEST, *IDLE]


async def test_an_interrupt_goes_before_the_messages_that_wait_and_they_begin_the_next_turn(
    corral: Corral,
) -> None:
    session = await corral.session()
    await session.says("go", script=[{"text": "never", "hold": "here"}])
    await corral.model.until_holding("here")
    later = scripted("first this", {"text": "two"})
    sent = await session.sends(later, message("then this"), INTERRUPT)
    first = await session.idle()
    second = await session.idle(after=first.id)
    corral.model.release("here")
    assert (first.stop_reason.type, second.stop_reason.type) == ("end_turn", "end_turn")
    assert await session.types() == [
        *["user.message", *RUNNING, *CUT, *IDLE],
        *["user.message", "user.message", *RUNNING, *REQUEST, *IDLE],
    ]
    order = [event.id for event in await session.events() if event.type.startswith("user.")][1:]
    a, b, interrupt = (event.id for event in sent.data)
    assert order == [interrupt, a, b]


async def test_several_interrupts_stop_one_turn_and_are_all_told(corral: Corral) -> None:
    session = await corral.session()
    await session.says("go", script=[{"text": "never", "hold": "here"}])
    await corral.model.until_holding("here")
    await session.sends(INTERRUPT, INTERRUPT, INTERRUPT)
    await session.idle()
    corral.model.release("here")
    await session.until("user.interrupt", where=is_taken)
    types = await session.types()
    assert types.count("session.status_idle") == 1
    assert types.count("user.interrupt") == 3
    [end] = await session.events(types=["span.model_request_end"])
    assert (end.is_error, end.model_usage.output_tokens) == (False, 0)


async def test_an_interrupt_answers_each_open_call_with_the_documented_words(corral: Corral) -> None:
    session = await corral.session({"type": "agent_toolset_20260401"}, CUSTOM, kind="self_hosted")
    calls = [LS, {"name": "lookup", "input": {"key": "k"}}]
    await session.says("go", script=[{"tools": calls}, {"text": "never"}])
    idle = await session.idle()
    custom = next(e for e in await session.events() if e.type == "agent.custom_tool_use")
    assert custom.id in idle.stop_reason.event_ids
    await session.sends(INTERRUPT)
    await session.until("session.status_idle", where=ends_turn, after=idle.id)
    types = await session.types()
    assert types[types.index("user.interrupt") :] == [
        *["user.interrupt", "agent.tool_result", "user.custom_tool_result", *IDLE]
    ]
    for event in await session.events(types=["agent.tool_result", "user.custom_tool_result"]):
        assert event.is_error
        text = "Tool execution was interrupted before completion. Please retry."
        assert [block.text for block in event.content] == [text]


@pytest.mark.parametrize("result_first", [True, False])
async def test_an_interrupt_beside_the_last_result_ends_the_turn_that_waited_for_it(
    corral: Corral, result_first: bool
) -> None:
    session, call = await a_waiting_call(corral)
    result = custom_result(call, "found")
    await session.sends(*((result, INTERRUPT) if result_first else (INTERRUPT, result)))
    await session.until("session.status_idle", where=ends_turn)
    types = await session.types()
    assert types[types.index("user.custom_tool_result") :] == [
        *["user.custom_tool_result", "user.interrupt", *IDLE]
    ]
    assert len(corral.model.requests()) == 1
    # The session goes on as after any interrupt, and the model learns of the result.
    await session.says("next", script=[{"text": "it said {result}"}])
    await session.until("agent.message")
    assert "found" in str(corral.model.requests()[-1]["messages"])


async def test_an_answer_to_a_call_that_an_interrupt_has_answered_comes_too_late(corral: Corral) -> None:
    session, idle, ids = await calling(corral, LS, READ, bash="always_ask")
    await session.sends(INTERRUPT)
    await session.until("session.status_idle", where=ends_turn, after=idle.id)
    before = await session.types()
    for late in (verdict(ids["bash"], "allow"), output(ids["read"]), output(ids["bash"])):
        await refused(session.sends(late), "events[0].tool_use_id: ", "already been resolved")
    assert await session.types() == before


async def test_an_interrupt_after_the_end_of_a_turn_writes_no_idle(corral: Corral) -> None:
    session = await corral.session()
    await session.says("go", script=[{"text": "one"}])
    await session.idle()
    first = await session.until("session.status_idle")
    for _ in range(2):
        sent = await session.sends(INTERRUPT)
        first = await session.until("user.interrupt", where=is_taken, after=first.id)
        assert first.id == sent.data[0].id
    assert (await session.types())[-3:] == ["session.status_idle", "user.interrupt", "user.interrupt"]


async def test_a_passing_failure_is_told_waited_for_and_repeated(corral: Corral) -> None:
    session = await corral.session()
    await session.says("go", script=[FAILS])
    await session.idle()
    assert await session.types() == ["user.message", *RUNNING, *RETRY, *RUNNING, *REQUEST, *IDLE]
    events = await session.events()
    [error] = [event for event in events if event.type == "session.error"]
    assert (error.error.type, error.error.retry_status.type) == ("model_overloaded_error", "retrying")
    ends = [event for event in events if event.type == "span.model_request_end"]
    starts = [event for event in events if event.type == "span.model_request_start"]
    assert [end.is_error for end in ends] == [True, False]
    assert [end.model_request_start_id for end in ends] == [start.id for start in starts]
    assert ends[0].model_usage.to_dict() | {"speed": None} == {
        "input_tokens": 0,
        "output_tokens": 0,
        "cache_read_input_tokens": 0,
        "cache_creation_input_tokens": 0,
        "speed": None,
    }


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (529, "model_overloaded_error"),
        (429, "model_rate_limited_error"),
        (500, "model_request_failed_error"),
        (400, "model_request_failed_error"),
        (402, "billing_error"),
    ],
)
async def test_a_failure_of_the_model_has_the_documented_kind_and_ends_as_exhausted(
    corral: Corral, status: int, kind: str
) -> None:
    session = await corral.session()
    await session.says("go", script=[{"error": {"status": status, "times": 99}}])
    idle = await session.idle()
    assert idle.stop_reason.type == "retries_exhausted"
    errors = [event.error for event in await session.events(types=["session.error"])]
    assert {error.type for error in errors} == {kind}
    told = [error.retry_status.type for error in errors]
    assert told == ["retrying"] * (len(errors) - 1) + ["exhausted"]
    assert all(error.message for error in errors)
    types = await session.types()
    assert types[-5:] == ["span.model_request_end", "session.error", *IDLE]
    assert (await session.retrieve()).status == "idle"


async def test_a_dead_turn_takes_the_messages_that_waited_with_it(corral: Corral) -> None:
    session = await corral.session()
    await session.says("go", script=[{"error": {"status": 400}, "hold": "here"}])
    await corral.model.until_holding("here")
    sent = await session.says("and this")
    corral.model.release("here")
    idle = await session.idle()
    assert idle.stop_reason.type == "retries_exhausted"
    types = await session.types()
    assert types.count("span.model_request_start") == 1
    assert types[-5:] == ["session.error", "user.message", *IDLE]
    flushed = (await session.events())[-4]
    assert flushed.id == sent.data[0].id
    assert flushed.processed_at is not None
    # A new message begins anew.
    await session.says("again", script=[{"text": "fine"}])
    assert (await session.idle(after=idle.id)).stop_reason.type == "end_turn"


async def test_a_turn_starts_once_however_many_requests_it_has(corral: Corral) -> None:
    session = await corral.session()
    script = [{"text": "half", "max_tokens_cut": True}, {"text": "whole"}]
    await session.says("go", script=script)
    await session.idle()
    types = await session.types()
    assert types.count("session.status_running") == types.count("session.status_idle") == 1
    assert types.count("span.model_request_start") == types.count("span.model_request_end") == 2


async def test_a_message_of_several_texts_is_one_event_and_an_answer_without_text_none(
    corral: Corral,
) -> None:
    session = await corral.session()
    blocks = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    await session.says("go", script=[{"content": blocks}])
    idle = await session.idle()
    [said] = await session.events(types=["agent.message"])
    assert [block.text for block in said.content] == ["one", "two"]
    await session.says("silence", script=[{"text": ""}])
    await session.idle(after=idle.id)
    assert len(await session.events(types=["agent.message"])) == 1


async def test_thinking_is_told_without_a_word_of_it(corral: Corral) -> None:
    session = await corral.session()
    await session.says("go", script=[{"thinking": "a secret plan", "text": "done"}])
    await session.idle()
    response = await corral.client.get(f"/v1/sessions/{session.id}/events", cast_to=object)
    listed: Any = response
    [thought] = [event for event in listed["data"] if event["type"] == "agent.thinking"]
    assert set(thought) == {"id", "type", "processed_at"}
    assert "a secret plan" not in str(listed["data"][1:])


async def thread_events(session: SessionUnderTest) -> list[Any]:
    return [e for e in await session.events() if e.type.startswith("session.thread_status_")]


async def test_the_threads_status_events_name_it_and_carry_the_sessions_stop_reason(corral: Corral) -> None:
    session, call = await a_waiting_call(corral)
    [thread] = (await corral.client.beta.sessions.threads.list(session.id)).data
    events = await thread_events(session)
    assert {(event.session_thread_id, event.agent_name) for event in events} == {(thread.id, "tester")}
    idle = events[-1].to_dict()
    assert idle["stop_reason"] == {"type": "requires_action", "event_ids": [call]}
    assert idle["stop_details"] is None
    session_idle = (await session.events(types=["session.status_idle"]))[-1].to_dict()
    assert session_idle["stop_reason"] == idle["stop_reason"]


async def test_nothing_comes_after_the_idle_that_ends_a_turn(corral: Corral) -> None:
    session = await corral.session()
    await session.says("go", script=[{"thinking": "hm", "text": "one"}])
    idle = await session.idle()
    await corral.client.beta.sessions.update(session.id, title="later")
    events = await session.events()
    assert [event.type for event in events[events.index(idle) + 1 :]] == ["session.updated"]
