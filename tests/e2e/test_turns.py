"""Whole turns through the official SDK: order of events, tools, interrupts, retries (contract section 10)."""

import asyncio
from typing import Any

from tests.corral_server import Corral

WEATHER: dict[str, Any] = {
    "type": "custom",
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}


async def test_a_simple_turn_writes_the_documented_events_in_order(corral: Corral) -> None:
    session = await corral.session()
    await session.says("hello", script=[{"text": "hi"}])
    idle = await session.idle()
    assert idle.stop_reason.type == "end_turn"
    assert await session.types() == [
        "user.message",
        "session.status_running",
        "session.thread_status_running",
        "span.model_request_start",
        "agent.message",
        "span.model_request_end",
        "session.thread_status_idle",
        "session.usage",
        "session.status_idle",
    ]


async def test_a_custom_tool_waits_for_its_client_and_its_result_reaches_the_model(corral: Corral) -> None:
    session = await corral.session(WEATHER)
    await session.says(
        "weather?", script=[{"tools": [{"name": "get_weather", "input": {}}]}, {"text": "it is {result}"}]
    )
    idle = await session.idle()
    assert idle.stop_reason.type == "requires_action"
    [call] = idle.stop_reason.event_ids
    content = [{"type": "text", "text": "17 C"}]
    await session.sends({"type": "user.custom_tool_result", "custom_tool_use_id": call, "content": content})
    await session.idle(after=idle.id)
    messages = [event for event in await session.events() if event.type == "agent.message"]
    assert messages[-1].content[0].text == "it is 17 C"


async def test_parallel_custom_tools_are_resolved_in_parts_and_in_any_order(corral: Corral) -> None:
    session = await corral.session(WEATHER)
    calls = [{"name": "get_weather", "input": {"city": city}} for city in ("Oslo", "Rome")]
    await session.says("both", script=[{"tools": calls}, {"text": "{result[0]} and {result[1]}"}])
    idle = await session.idle()
    oslo, rome = idle.stop_reason.event_ids
    for call, text in ((rome, "warm"), (oslo, "cold")):
        content = [{"type": "text", "text": text}]
        await session.sends(
            {"type": "user.custom_tool_result", "custom_tool_use_id": call, "content": content}
        )
        idle = await session.idle(after=idle.id)
        if call == rome:
            assert idle.stop_reason.event_ids == [oslo]
    assert idle.stop_reason.type == "end_turn"
    messages = [event for event in await session.events() if event.type == "agent.message"]
    assert messages[-1].content[0].text == "cold and warm"


async def test_a_message_sent_in_mid_turn_is_steered_into_the_running_turn(corral: Corral) -> None:
    session = await corral.session()
    await session.says("go", script=[{"text": "one", "hold": "first"}, {"text": "two"}])
    await corral.model.until_holding("first")
    sent = await session.says("and this")
    assert sent.data[0].processed_at is None
    assert (await session.events())[-1].processed_at is None
    corral.model.release("first")
    await session.idle()
    types = await session.types()
    assert types.count("session.status_running") == 1
    assert types.count("session.status_idle") == 1
    assert types.count("agent.message") == 2
    assert types.index("agent.message") < len(types) - 1 - types[::-1].index("user.message")


async def test_an_interrupt_cuts_a_model_request_at_once_and_ends_the_turn(corral: Corral) -> None:
    session = await corral.session()
    await session.says("go", script=[{"text": "never", "hold": "for ever"}])
    await corral.model.until_holding("for ever")
    await session.sends({"type": "user.interrupt"})
    idle = await session.idle()
    assert idle.stop_reason.type == "end_turn"
    assert (await session.types())[-5:] == [
        "user.interrupt",
        "span.model_request_end",
        "session.thread_status_idle",
        "session.usage",
        "session.status_idle",
    ]


async def test_interrupt_and_message_in_one_request_redirect_the_agent(corral: Corral) -> None:
    session = await corral.session()
    await session.says("go", script=[{"text": "never", "hold": "for ever"}])
    await corral.model.until_holding("for ever")
    text = 'do this instead\nscript: [{"text": "redirected"}]'
    await session.sends(
        {"type": "user.interrupt"}, {"type": "user.message", "content": [{"type": "text", "text": text}]}
    )
    first = await session.idle()
    await session.idle(after=first.id)
    messages = [event for event in await session.events() if event.type == "agent.message"]
    assert [message.content[0].text for message in messages] == ["redirected"]


async def test_an_interrupt_while_calls_wait_answers_them_with_errors(corral: Corral) -> None:
    session = await corral.session(WEATHER)
    await session.says("go", script=[{"tools": [{"name": "get_weather", "input": {}}]}, {"text": "never"}])
    idle = await session.idle()
    await session.sends({"type": "user.interrupt"})
    idle = await session.idle(after=idle.id)
    assert idle.stop_reason.type == "end_turn"
    [result] = [event for event in await session.events() if event.type == "user.custom_tool_result"]
    assert result.is_error
    await session.says("next", script=[{"text": "fine"}])
    assert (await session.idle(after=idle.id)).stop_reason.type == "end_turn"


async def test_a_passing_failure_of_the_model_is_rescheduled_and_repeated(corral: Corral) -> None:
    session = await corral.session()
    await session.says("go", script=[{"text": "at last", "error": {"status": 529, "times": 2}}])
    assert (await session.idle()).stop_reason.type == "end_turn"
    types = await session.types()
    assert types.count("session.status_rescheduled") == 2
    assert types.count("session.error") == 2
    assert types.count("session.status_running") == 3
    ends = [event for event in await session.events() if event.type == "span.model_request_end"]
    assert [end.is_error for end in ends] == [True, True, False]


async def test_a_cut_stream_is_repeated_and_leaves_no_half_message(corral: Corral) -> None:
    session = await corral.session()
    await session.says("go", script=[{"text": "a long answer", "error": {"at": "cut", "status": 500}}])
    await session.idle()
    messages = [event for event in await session.events() if event.type == "agent.message"]
    assert [message.content[0].text for message in messages] == ["a long answer"]


async def test_a_refused_request_ends_the_turn_and_the_session_can_go_on(corral: Corral) -> None:
    session = await corral.session()
    await session.says("go", script=[{"error": {"status": 400, "times": 99}}])
    idle = await session.idle()
    assert idle.stop_reason.type == "retries_exhausted"
    [error] = [event for event in await session.events() if event.type == "session.error"]
    assert error.error.type == "model_request_failed_error"
    assert error.error.retry_status.type == "exhausted"
    await session.says("again", script=[{"text": "fine"}])
    assert (await session.idle(after=idle.id)).stop_reason.type == "end_turn"


async def test_a_refusal_idles_with_its_details(corral: Corral) -> None:
    session = await corral.session()
    await session.says("go", script=[{"text": "no", "refusal": {"category": "cyber", "explanation": "x"}}])
    idle = await session.idle()
    assert idle.stop_reason.type == "refusal"
    assert idle.stop_details.category == "cyber"
    await session.says("something else", script=[{"text": "sure"}])
    assert (await session.idle(after=idle.id)).stop_reason.type == "end_turn"


async def test_thinking_goes_back_byte_for_byte(corral: Corral) -> None:
    session = await corral.session(WEATHER)
    script: list[dict[str, Any]] = [
        {"thinking": "let me see\u0000…", "tools": [{"name": "get_weather", "input": {}}]},
        {"text": "done"},
    ]
    await session.says("go", script=script)
    idle = await session.idle()
    [call] = idle.stop_reason.event_ids
    await session.sends({"type": "user.custom_tool_result", "custom_tool_use_id": call})
    await session.idle(after=idle.id)
    last = corral.model.requests()[-1]
    assert last["messages"][1]["content"][0]["type"] == "thinking"


async def test_two_sessions_run_side_by_side(corral: Corral) -> None:
    sessions = [await corral.session() for _ in range(5)]
    await asyncio.gather(*(one.says("go", script=[{"text": "ok"}]) for one in sessions))
    idles = await asyncio.gather(*(one.idle() for one in sessions))
    assert {idle.stop_reason.type for idle in idles} == {"end_turn"}
