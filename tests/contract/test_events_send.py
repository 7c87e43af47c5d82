"""Sending events: taken whole or not at all, echoed, answered, refused (contract sections 10.1 to 10.3)."""

import asyncio
import json
from typing import Any

import pytest
from anthropic import NotFoundError, PermissionDeniedError

from tests.contract.conftest import Api
from tests.contract.refusals import refused
from tests.contract.test_sessions_create import CUSTOM, message
from tests.corral_server import Corral, SessionUnderTest
from tests.moments import ends_turn, is_taken

UNKNOWN = "sevt_01AAAAAAAAAAAAAAAAAAAAAAAA"
SYSTEM: dict[str, Any] = {"type": "system.message", "content": [{"type": "text", "text": "It is noon."}]}
INTERRUPT: dict[str, Any] = {"type": "user.interrupt"}


async def send(api: Api, session: dict[str, Any], *events: Any) -> Any:
    return await api.sdk.beta.sessions.events.send(session["id"], events=list(events))


async def listed(api: Api, session: dict[str, Any]) -> list[dict[str, Any]]:
    return (await api.get(f"/v1/sessions/{session['id']}/events")).json()["data"]


def custom_result(call: str, text: str | None = None, **fields: Any) -> dict[str, Any]:
    content = {} if text is None else {"content": [{"type": "text", "text": text}]}
    return {"type": "user.custom_tool_result", "custom_tool_use_id": call, **content, **fields}


async def a_waiting_call(corral: Corral) -> tuple[SessionUnderTest, str]:
    """A session whose model waits for a custom tool, and the call's id."""
    session = await corral.session(CUSTOM)
    script = [{"tools": [{"name": "lookup", "input": {"key": "k"}}]}, {"text": "it said {result}"}]
    await session.says("look it up", script=script)
    idle = await session.idle()
    return session, idle.stop_reason.event_ids[0]


async def test_a_message_is_echoed_as_it_waits_and_is_the_same_in_the_list(api: Api) -> None:
    session = await api.session()
    content: list[dict[str, Any]] = [
        {"type": "text", "text": "see"},
        {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "words"}},
        {
            "type": "document",
            "source": {"type": "url", "url": "https://example.com/a.pdf"},
            "title": "A",
            "context": "c",
        },
    ]
    response = await api.post(
        f"/v1/sessions/{session['id']}/events", {"events": [{"type": "user.message", "content": content}]}
    )
    body = response.json()
    assert list(body) == ["data"]
    [echo] = body["data"]
    assert set(echo) == {"id", "type", "content", "processed_at"}
    assert echo["id"].startswith("sevt_")
    assert (echo["type"], echo["processed_at"]) == ("user.message", None)
    assert echo["content"] == [*content[:2], {**content[2], "title": None, "context": None}, content[3]]
    assert await listed(api, session) == [echo]


async def test_a_batch_is_echoed_in_its_own_order_with_ids_of_its_own(api: Api) -> None:
    session = await api.session()
    sent = await send(api, session, message("a"), INTERRUPT, message("b"), SYSTEM)
    assert [event.type for event in sent.data] == [
        "user.message",
        "user.interrupt",
        "user.message",
        "system.message",
    ]
    assert all(event.processed_at is None for event in sent.data)
    assert [event["id"] for event in await listed(api, session)] == [event.id for event in sent.data]
    assert (await listed(api, session))[1]["session_thread_id"] is None


BAD: list[tuple[Any, str]] = [
    ({}, "events[1].type: Field required"),
    ({"type": "user.shout"}, 'events[1].type: "user.shout" is not a valid value'),
    ({"type": "agent.message", "content": []}, 'events[1].type: "agent.message" is not a valid value'),
    ({"type": "tool_confirmation"}, 'events[1].type: "tool_confirmation" is not a valid value'),
    ({"type": 7}, "events[1].type"),
    ("user.message", "events[1]"),
    (None, "events[1]"),
    ({"type": "user.message"}, "events[1].content: Field required"),
    ({"type": "user.message", "content": []}, "events[1].content"),
    ({"type": "user.message", "content": "hello"}, "events[1].content"),
    ({"type": "user.message", "content": [{"type": "text"}]}, "events[1].content[0].text: Field required"),
    ({"type": "user.message", "content": [{"type": "text", "text": ""}]}, "events[1].content[0].text"),
    ({"type": "user.message", "content": [{"type": "text", "text": " \n"}]}, "events[1].content"),
    ({"type": "user.message", "content": [{"type": "redacted"}]}, "events[1].content[0].type"),
    ({"type": "user.message", "content": [{"type": "tool_result"}]}, "events[1].content[0].type"),
    (
        {
            "type": "user.message",
            "content": [
                {
                    "type": "search_result",
                    "source": "s",
                    "title": "t",
                    "content": [],
                    "citations": {"enabled": True},
                }
            ],
        },
        "events[1].content[0].type",
    ),
    (
        {
            "type": "user.message",
            "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}],
        },
        "events[1].content[0].cache_control: Extra inputs are not permitted",
    ),
    ({**message(), "id": "sevt_1"}, "events[1].id: Extra inputs are not permitted"),
    ({**message(), "processed_at": None}, "events[1].processed_at: Extra inputs are not permitted"),
    ({"type": "user.interrupt", "reason": "x"}, "events[1].reason: Extra inputs are not permitted"),
    ({"type": "user.interrupt", "session_thread_id": ""}, "events[1].session_thread_id"),
    ({"type": "user.tool_confirmation", "tool_use_id": "x", "result": "maybe"}, "events[1].result"),
    ({"type": "user.tool_confirmation", "result": "allow"}, "events[1].tool_use_id: Field required"),
    ({"type": "user.tool_confirmation", "tool_use_id": "", "result": "allow"}, "events[1].tool_use_id"),
    (
        {"type": "user.tool_confirmation", "tool_use_id": "x" * 129, "result": "allow"},
        "events[1].tool_use_id",
    ),
    (
        {"type": "user.tool_confirmation", "tool_use_id": "x", "result": "allow", "deny_message": "no"},
        "events[1].deny_message",
    ),
    (
        {"type": "user.tool_confirmation", "tool_use_id": "x", "result": "allow", "deny_message": ""},
        "events[1].deny_message",
    ),
    (
        {
            "type": "user.tool_confirmation",
            "tool_use_id": "x",
            "result": "deny",
            "deny_message": "x" * 10_001,
        },
        "events[1].deny_message",
    ),
    ({"type": "user.tool_confirmation", "tool_use_id": UNKNOWN, "result": "allow"}, "events[1].tool_use_id"),
    ({"type": "user.custom_tool_result", "custom_tool_use_id": UNKNOWN}, "events[1].custom_tool_use_id"),
    ({"type": "user.custom_tool_result", "tool_use_id": UNKNOWN}, "events[1]"),
    ({"type": "user.tool_result", "tool_use_id": UNKNOWN}, "events[1].type: user.tool_result"),
    ({"type": "user.define_outcome", "description": "x"}, "events[1].rubric: Field required"),
    ({"type": "system.message", "content": []}, "events[1].content"),
    ({"type": "system.message", "content": [{"type": "text", "text": "x"}] * 1001}, "events[1].content"),
    (
        {
            "type": "system.message",
            "content": [{"type": "image", "source": {"type": "url", "url": "https://e.com"}}],
        },
        "events[1].content[0].type",
    ),
]


@pytest.mark.parametrize(("event", "named"), BAD, ids=range(len(BAD)))
async def test_one_bad_event_refuses_the_whole_batch_and_is_named(api: Api, event: Any, named: str) -> None:
    session = await api.session()
    response = await api.post(
        f"/v1/sessions/{session['id']}/events", {"events": [message(), event, message()]}
    )
    assert response.status_code == 400, response.text
    assert response.headers["x-should-retry"] == "false"
    assert response.json()["error"]["message"].startswith(named), response.text
    assert await listed(api, session) == []


@pytest.mark.parametrize(
    "body", [{}, {"events": []}, {"events": None}, {"events": {}}, {"event": [message()]}, []]
)
async def test_a_body_without_events_is_refused(api: Api, body: Any) -> None:
    session = await api.session()
    response = await api.post(f"/v1/sessions/{session['id']}/events", body)
    assert response.status_code == 400


async def test_a_system_message_stands_last_alone_or_after_what_it_goes_with(api: Api) -> None:
    session = await api.session()
    await refused(send(api, session, SYSTEM, message()), "events[0]", "last")
    await refused(send(api, session, message(), SYSTEM, SYSTEM), "events[1]")
    await refused(send(api, session, INTERRUPT, SYSTEM), "events[1]")
    assert await listed(api, session) == []
    await send(api, session, SYSTEM)
    await send(api, session, message(), SYSTEM)
    assert len(await listed(api, session)) == 3


async def test_a_model_without_system_messages_refuses_them_with_its_code(api: Api) -> None:
    session = await api.session(agent=(await api.agent(model="claude-haiku-4-5"))["id"])
    error = await refused(send(api, session, message(), SYSTEM), "events[1]")
    assert error["details"]["error_code"] == "model_does_not_support_mid_conversation_system"


async def test_while_calls_wait_a_system_message_must_follow_a_result(corral: Corral) -> None:
    agent = await corral.agent(CUSTOM, model="claude-opus-5-5")
    made = await corral.client.beta.sessions.create(agent=agent, environment_id=await corral.environment())
    session = SessionUnderTest(corral, made.id)
    script = [{"tools": [{"name": "lookup", "input": {"key": "k"}}]}, {"text": "done"}]
    await session.says("go", script=script)
    idle = await session.idle()
    [call] = idle.stop_reason.event_ids
    await refused(session.sends(SYSTEM), "events[0]")
    await refused(session.sends(message(), SYSTEM), "events[1]")
    await session.sends(custom_result(call, "found"), SYSTEM)
    await session.idle(after=idle.id)
    last = corral.model.requests()[-1]
    assert last["messages"][-1]["role"] == "system"


async def test_an_interrupt_of_another_thread_than_the_sessions_is_not_found(api: Api) -> None:
    session = await api.session()
    foreign = {"type": "user.interrupt", "session_thread_id": "sthr_01AAAAAAAAAAAAAAAAAAAAAAAA"}
    await refused(send(api, session, foreign), "events[0].session_thread_id", kind=NotFoundError)
    threads = await api.sdk.beta.sessions.threads.list(session["id"])
    own = {"type": "user.interrupt", "session_thread_id": threads.data[0].id}
    sent = await send(api, session, own)
    assert sent.data[0].session_thread_id == threads.data[0].id


async def test_an_interrupt_of_an_idle_session_changes_nothing(corral: Corral) -> None:
    session = await corral.session()
    await session.says("go", script=[{"text": "one"}])
    idle = await session.idle()
    sent = await session.sends(INTERRUPT)
    taken = await session.until("user.interrupt", where=is_taken)
    assert taken.id == sent.data[0].id
    assert (await session.types())[-2:] == ["session.status_idle", "user.interrupt"]
    await session.says("again", script=[{"text": "two"}])
    assert (await session.idle(after=idle.id)).stop_reason.type == "end_turn"


async def test_a_result_enters_the_log_at_once_and_is_echoed_with_its_time(corral: Corral) -> None:
    session, call = await a_waiting_call(corral)
    sent = await session.sends(custom_result(call))
    [echo] = sent.data
    assert echo.processed_at is not None
    assert echo.to_dict()["content"] == []
    assert echo.is_error is False
    [logged] = [event for event in await session.events() if event.type == "user.custom_tool_result"]
    assert logged.to_dict() == echo.to_dict()


async def test_the_same_answer_again_is_the_same_event_and_another_is_refused(corral: Corral) -> None:
    session, call = await a_waiting_call(corral)
    first = await session.sends(custom_result(call, "found"))
    again = await session.sends(custom_result(call, "found", is_error=None))
    assert again.to_dict() == first.to_dict()
    await refused(session.sends(custom_result(call, "other")), "events[0].custom_tool_use_id", "already")
    await refused(session.sends(custom_result(call, "found", is_error=True)), "already")
    await session.until("agent.message")
    late = await session.sends(custom_result(call, "found"))
    assert late.to_dict() == first.to_dict()
    assert (await session.types()).count("user.custom_tool_result") == 1


async def test_two_clients_that_answer_at_once_leave_one_answer(corral: Corral) -> None:
    session, call = await a_waiting_call(corral)
    sent = await asyncio.gather(*(session.sends(custom_result(call, "found")) for _ in range(8)))
    assert len({answer.data[0].id for answer in sent}) == 1
    assert (await session.types()).count("user.custom_tool_result") == 1


async def test_a_call_is_not_answered_twice_in_one_request(corral: Corral) -> None:
    session, call = await a_waiting_call(corral)
    await refused(session.sends(custom_result(call, "a"), custom_result(call, "a")), "events[1]")
    assert "user.custom_tool_result" not in await session.types()


async def test_a_call_is_answered_by_the_result_type_of_its_kind_alone(corral: Corral) -> None:
    session, call = await a_waiting_call(corral)
    confirmation = {"type": "user.tool_confirmation", "tool_use_id": call, "result": "allow"}
    await refused(session.sends(confirmation), "events[0].tool_use_id")
    await refused(session.sends({"type": "user.tool_result", "tool_use_id": call}), "events[0]")
    other, _ = await a_waiting_call(corral)
    await refused(other.sends(custom_result(call, "x")), "events[0].custom_tool_use_id", call)


async def test_a_result_may_come_before_the_idle_that_asks_for_it(corral: Corral) -> None:
    session = await corral.session(CUSTOM)
    script = [{"tools": [{"name": "lookup", "input": {"key": "k"}}]}, {"text": "it said {result}"}]
    stream = await corral.client.beta.sessions.events.stream(session.id)
    await session.says("look it up", script=script)
    async for event in stream:
        if event.type == "agent.custom_tool_use":
            await session.sends(custom_result(event.id, "found"))
        if event.type == "session.status_idle" and event.stop_reason.type == "end_turn":
            break
    await stream.close()
    assert (await session.types()).count("agent.message") == 1


async def test_a_message_while_calls_wait_is_kept_until_they_are_answered(corral: Corral) -> None:
    session, call = await a_waiting_call(corral)
    sent = await session.says("and also this")
    waiting = (await session.events())[-1]
    assert (waiting.id, waiting.processed_at) == (sent.data[0].id, None)
    await session.sends(custom_result(call, "found"))
    await session.until("session.status_idle", where=ends_turn)
    assert all(event.processed_at is not None for event in await session.events())
    types = await session.types()
    assert types.index("user.custom_tool_result") < len(types) - 1 - types[::-1].index("user.message")


async def test_a_worker_sends_results_and_nothing_else(api: Api) -> None:
    environment = await api.environment(config={"type": "self_hosted"})
    session = await api.session(environment_id=environment["id"])
    foreign = await api.session()
    async with api.client(await api.environment_key(environment["id"])) as worker:
        for event in (message(), INTERRUPT, SYSTEM):
            events: Any = [event]
            request = worker.beta.sessions.events.send(session["id"], events=events)
            await refused(request, "events[0].type", kind=PermissionDeniedError)
        result: Any = [custom_result(UNKNOWN)]
        await refused(worker.beta.sessions.events.send(session["id"], events=result), UNKNOWN)
        await refused(worker.beta.sessions.events.send(foreign["id"], events=result), kind=NotFoundError)
        await refused(worker.beta.sessions.retrieve(foreign["id"]), kind=NotFoundError)


async def test_nul_and_lone_surrogates_in_text_become_the_replacement_character(api: Api) -> None:
    session = await api.session()
    raw = json.dumps({"events": [message("a\u0000b")]}).replace("hello", "x")
    raw = raw.replace("a\\u0000b", "a\\u0000b\\ud800c")
    response = await api.http.post(f"/v1/sessions/{session['id']}/events", content=raw.encode())
    assert response.status_code == 200
    assert response.json()["data"][0]["content"][0]["text"] == "a\ufffdb\ufffdc"
    assert (await listed(api, session))[0]["content"][0]["text"] == "a\ufffdb\ufffdc"


async def test_text_outside_the_basic_plane_comes_back_unchanged(api: Api) -> None:
    session = await api.session()
    text = '\U0001f40e "quoted" \\ back \u2028 \u00e9 \x1b[0m\ttab'
    sent = await send(api, session, message(text))
    assert sent.data[0].content[0].text == text
    assert (await listed(api, session))[0]["content"][0]["text"] == text


async def test_a_body_over_32_megabytes_is_413_and_one_just_below_is_taken(api: Api) -> None:
    session = await api.session()
    path = f"/v1/sessions/{session['id']}/events"
    frame = len(json.dumps({"events": [message("")]}))
    most = 32 * 1024 * 1024
    large = json.dumps({"events": [message("x" * (most - frame + 1))]}).encode()
    response = await api.http.post(path, content=large)
    assert response.status_code == 413
    assert response.json()["error"]["type"] == "request_too_large"
    assert await listed(api, session) == []
    response = await api.http.post(path, content=large.replace(b"xx", b"x", 1))
    assert response.status_code == 200
    assert response.json()["data"][0]["processed_at"] is None


async def test_a_thousand_events_fit_a_request_and_one_more_does_not(api: Api) -> None:
    session = await api.session()
    await refused(send(api, session, *[message()] * 1001), "events")
    sent = await send(api, session, *[message(str(n)) for n in range(1000)])
    assert len({event.id for event in sent.data}) == 1000
    texts = [event["content"][0]["text"] for event in await listed(api, session)]
    assert texts == [str(n) for n in range(1000)]
