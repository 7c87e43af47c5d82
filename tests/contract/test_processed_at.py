"""When an event gets its time, and in which form it is answered, listed and streamed (contract 10.1)."""

import json
from typing import Any

from anthropic import PermissionDeniedError

from tests.contract.conftest import Api
from tests.contract.refusals import refused
from tests.contract.test_events_send import INTERRUPT, SYSTEM, a_waiting_call, custom_result
from tests.contract.test_permissions import LS, READ, calling, output, verdict
from tests.contract.test_sessions_create import CUSTOM, message
from tests.contract.test_streams import at
from tests.corral_server import Corral
from tests.moments import is_taken

CALL: dict[str, Any] = {"tools": [{"name": "lookup", "input": {"key": "k"}}]}


def outcome() -> dict[str, Any]:
    rubric = {"type": "text", "content": "It has figures."}
    return {"type": "user.define_outcome", "description": "a report", "rubric": rubric}


async def test_messages_interrupts_and_verdicts_wait_and_results_and_outcomes_do_not(corral: Corral) -> None:
    agent = await corral.agent(CUSTOM, model="claude-opus-5-5")
    made = await corral.client.beta.sessions.create(agent=agent, environment_id=await corral.environment())
    response = await corral.client.beta.sessions.events.send(
        made.id,
        events=[
            {"type": "user.message", "content": [{"type": "text", "text": "hi"}]},
            {"type": "user.interrupt"},
            outcome(),  # pyright: ignore[reportArgumentType]
            {"type": "user.message", "content": [{"type": "text", "text": "ho"}]},
            SYSTEM,  # pyright: ignore[reportArgumentType]
        ],
    )
    stamped = [(event.type, event.processed_at is not None) for event in response.data or []]
    assert stamped == [
        ("user.message", False),
        ("user.interrupt", False),
        ("user.define_outcome", True),
        ("user.message", False),
        ("system.message", False),
    ]


async def test_a_verdict_waits_and_gets_its_time_when_it_is_taken_up(corral: Corral) -> None:
    session, _, ids = await calling(corral, LS, READ, bash="always_ask")
    sent = await session.sends(verdict(ids["bash"], "allow"))
    assert sent.data[0].processed_at is None
    taken = await session.until("user.tool_confirmation", where=is_taken)
    assert taken.id == sent.data[0].id
    assert {**taken.to_dict(), "processed_at": None} == sent.data[0].to_dict()


async def test_a_result_is_streamed_once_with_its_time(corral: Corral) -> None:
    session, call = await a_waiting_call(corral)
    async with at(corral, session) as reader:
        sent = await session.sends(custom_result(call, "found"))
        frames = await reader.until("session.status_idle")
    results = [frame for frame in frames if frame["type"] == "user.custom_tool_result"]
    assert results == [sent.data[0].to_dict(mode="json")]


async def test_an_outcome_is_streamed_once_with_its_time(corral: Corral) -> None:
    session = await corral.session()
    async with at(corral, session) as reader:
        sent = await session.sends(outcome())
        frames = await reader.until("session.status_idle")
    defined = [frame for frame in frames if frame["type"] == "user.define_outcome"]
    assert [frame["id"] for frame in defined] == [sent.data[0].id]
    assert defined[0]["processed_at"] is not None


async def test_an_interrupt_is_streamed_twice_under_one_id(corral: Corral) -> None:
    session = await corral.session()
    await session.says("go", script=[{"text": "never", "hold": "here"}])
    await corral.model.until_holding("here")
    async with at(corral, session) as reader:
        sent = await session.sends(INTERRUPT)
        frames = await reader.until("session.status_idle")
    corral.model.release("here")
    forms = [frame for frame in frames if frame["type"] == "user.interrupt"]
    assert [frame["id"] for frame in forms] == [sent.data[0].id] * 2
    assert [frame["processed_at"] is None for frame in forms] == [True, False]
    assert {**forms[1], "processed_at": None} == forms[0]


async def test_each_of_a_batch_is_announced_in_its_order_before_any_is_taken_up(corral: Corral) -> None:
    session = await corral.session()
    async with at(corral, session) as reader:
        sent = await session.sends(message("a"), message("b"), message("c"))
        frames = await reader.until("session.status_idle")
    ids = [event.id for event in sent.data]
    forms = [(frame["id"], frame["processed_at"] is None) for frame in frames if frame.get("id") in ids]
    assert [one for one, waiting in forms if not waiting] == ids
    # A reader that comes to it late sees the second form alone, never the first one after it.
    for one in ids:
        assert [waiting for other, waiting in forms if other == one] in ([True, False], [False])


async def test_the_time_of_a_message_is_that_of_its_being_taken_up_not_of_its_coming(corral: Corral) -> None:
    session, call = await a_waiting_call(corral)
    sent = await session.says("and this")
    [result] = (await session.sends(custom_result(call, "found"))).data
    await session.until("user.message", where=is_taken, after=result.id)
    [taken] = [event for event in await session.events() if event.id == sent.data[0].id]
    assert taken.processed_at >= result.processed_at
    types = [event.type for event in await session.events()]
    assert types[-1] != "user.message"


async def test_every_event_of_the_server_has_a_time_and_no_field_of_a_row(corral: Corral) -> None:
    session, call = await a_waiting_call(corral)
    await session.sends(custom_result(call, "found"), message("more"))
    await session.until("agent.message")
    response = await corral.client.get(f"/v1/sessions/{session.id}/events", cast_to=object)
    events: Any = response
    for event in events["data"]:
        if not event["type"].startswith(("user.", "system.")):
            assert event["processed_at"] is not None
        assert event["id"].startswith("sevt_")
        assert {"created_at", "session_id", "thread_id"}.isdisjoint(event)


async def test_ids_are_the_same_in_answer_list_and_stream(corral: Corral) -> None:
    session, idle, ids = await calling(corral, LS)
    async with at(corral, session) as reader:
        sent = await session.sends(output(ids["bash"]), message("and more"))
        frames = await reader.until("session.status_idle")
    listed = [event.id for event in await session.events()]
    streamed = list(dict.fromkeys(frame["id"] for frame in frames))
    assert listed[listed.index(idle.id) + 1 :] == [one for one in listed if one in streamed]
    assert {event.id for event in sent.data} <= set(streamed) & set(listed)


async def test_a_frame_is_its_events_name_its_data_on_one_line_and_a_blank_line(corral: Corral) -> None:
    session = await corral.session()
    async with at(corral, session, "?event_deltas[]=agent.message") as reader:
        text = "one\ntwo\r\nthree \u2028 four"
        await session.says("go", script=[{"text": text}])
        whole = ""
        async for chunk in reader.response.aiter_text():
            whole += chunk
            if "event: session.status_idle\n" in whole and whole.endswith("\n\n"):
                break
    assert whole.endswith("\n\n")
    for frame in whole.removesuffix("\n\n").split("\n\n"):
        name, data = frame.split("\n")
        parsed = json.loads(data.removeprefix("data: "))
        assert name == f"event: {parsed['type']}"
    [message] = await session.events(types=["agent.message"])
    assert message.content[0].text == text


async def test_a_worker_and_an_application_see_the_same_list(api: Api) -> None:
    environment = await api.environment(config={"type": "self_hosted"})
    session = await api.session(environment_id=environment["id"])
    await api.post(f"/v1/sessions/{session['id']}/events", {"events": [message(), INTERRUPT]})
    path = f"/v1/sessions/{session['id']}/events"
    key = await api.environment_key(environment["id"])
    seen = await api.get(path, headers={"x-api-key": key})
    assert seen.json() == (await api.get(path)).json()
    async with api.client(key) as worker:
        await refused(worker.beta.sessions.archive(session["id"]), kind=PermissionDeniedError)
