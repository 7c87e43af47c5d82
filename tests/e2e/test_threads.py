"""A coordinator has agents work for it, each in a thread of its own (contract section 11)."""

from typing import Any

import pytest
from anthropic import BadRequestError, NotFoundError

from tests.corral_server import Corral
from tests.e2e.coordinating import (
    CUSTOM,
    TOOLSET,
    asks,
    children,
    coordinated,
    defines,
    ended,
    played,
    starts,
    thread_events,
    threads,
)

# A step inside a call is no template: the coordinator's model has filled that in already.
FOUND: dict[str, Any] = {
    "if_result_contains": "seventeen",
    "then": {"text": "seventeen"},
    "else": {"text": "?"},
}
ASK: dict[str, Any] = {**TOOLSET, "default_config": {"permission_policy": {"type": "always_ask"}}}


async def test_two_agents_work_at_once_and_report_and_the_coordinator_sums_up(corral: Corral) -> None:
    session = await coordinated(corral, "one", "two")
    await session.says(
        "go",
        script=[
            {
                "text": "I share it out.",
                "tools": [
                    starts("one", {"text": "first done", "hold": "one"}),
                    starts("two", {"text": "second done", "hold": "two"}),
                ],
            },
            {"text": "I wait."},
            {"text": "All is done: {text}"},
        ],
    )
    # Both requests are under way at the same time: neither agent waits for the other.
    await corral.model.until_holding("one")
    await corral.model.until_holding("two")
    assert (await session.retrieve()).status == "running"
    corral.model.release("two")
    await session.until("agent.thread_message_received")
    corral.model.release("one")
    await session.until("session.status_idle", where=ended)
    events = await session.events()
    types = [event.type for event in events]
    assert types.count("session.status_idle") == types.count("session.status_running") == 1
    assert types[-2:] == ["session.usage", "session.status_idle"]
    assert "agent.tool_use" not in types
    assert "agent.mcp_tool_use" not in types
    created = [event for event in events if event.type == "session.thread_created"]
    assert [event.agent_name for event in created] == ["one", "two"]
    reports = {
        event.from_agent_name: event.content[0].text
        for event in events
        if event.type == "agent.thread_message_received"
    }
    assert reports == {"one": "first done", "two": "second done"}
    sent = [event for event in events if event.type == "agent.thread_message_sent"]
    assert [event.to_session_thread_id for event in sent] == [event.session_thread_id for event in created]


async def test_a_childs_own_list_tells_all_of_it_and_the_sessions_what_a_client_must_see(
    corral: Corral,
) -> None:
    session = await coordinated(corral, "one")
    await session.says("go", script=[{"tools": [starts("one", {"text": "done"})]}, {"text": "ok"}])
    await session.until("session.status_idle", where=ended)
    child = (await children(session))["one"]
    own = [event.type for event in await thread_events(session, child.id)]
    assert own == [
        "agent.thread_message_received",
        "session.thread_status_running",
        "span.model_request_start",
        "agent.message",
        "span.model_request_end",
        "agent.thread_message_sent",
        "session.thread_status_idle",
    ]
    [primary, _] = await threads(session)
    assert [event.id for event in await thread_events(session, primary.id)] == [
        event.id for event in await session.events()
    ]
    shown = [
        event for event in await session.events() if getattr(event, "session_thread_id", None) == child.id
    ]
    assert [event.type for event in shown] == [
        "session.thread_created",
        "session.thread_status_running",
        "session.thread_status_idle",
    ]
    assert child.status == "idle"
    assert child.parent_thread_id == primary.id
    assert child.usage.output_tokens > 0
    assert (await session.retrieve()).usage.output_tokens == (
        primary.usage.output_tokens + child.usage.output_tokens
    )


async def test_messages_go_back_and_forth_and_an_agent_remembers(corral: Corral) -> None:
    session = await coordinated(corral, "one")
    await session.says("go", script=[{"tools": [starts("one", {"text": "first"})]}, {"text": "wait"}])
    await session.until("session.status_idle", where=ended)
    child = (await children(session))["one"]
    report = {"name": "ant__send_to_coordinator", "input": {"message": "half done"}}
    again = {
        "name": "ant__send_to_agent",
        "input": {"thread_id": child.id, "message": played({"tools": [report]}, {"text": "second"})},
    }
    listing: dict[str, Any] = {"name": "ant__list_agents", "input": {}}
    message = await session.says("more", script=[{"tools": [again, listing]}, {"text": "{result}"}])
    await session.until("session.status_idle", where=ended, after=message.data[0].id)
    texts = [
        event.content[0].text
        for event in await session.events()
        if event.type == "agent.thread_message_received"
    ]
    assert texts == ["first", "half done", "second"]
    said = [event.content[0].text for event in await session.events() if event.type == "agent.message"]
    assert any("The message has reached one." in text and f"{child.id}: one" in text for text in said)
    last = [body for body in corral.model.requests() if "You work for a coordinator" in str(body["system"])][
        -1
    ]
    assert "first" in str(last["messages"])


async def test_what_a_child_asks_for_is_answered_at_the_session(corral: Corral) -> None:
    session = await coordinated(corral, "one", tools=[ASK, CUSTOM])
    work = {
        "tools": [{"name": "bash", "input": {"command": "ls"}}, {"name": "look_up", "input": {"what": "x"}}]
    }
    await session.says("go", script=[{"tools": [starts("one", work, FOUND)]}, {"text": "ok"}])
    idle = await session.until("session.status_idle", where=asks)
    child = (await children(session))["one"]
    events = {event.id: event for event in await session.events()}
    bash, custom = (events[event_id] for event_id in idle.stop_reason.event_ids)
    assert (bash.type, custom.type) == ("agent.tool_use", "agent.custom_tool_use")
    assert bash.session_thread_id == custom.session_thread_id == child.id
    own = {event.id: event for event in await thread_events(session, child.id)}
    assert own[bash.id].session_thread_id is None
    denial = {
        "type": "user.tool_confirmation",
        "tool_use_id": bash.id,
        "result": "deny",
        "deny_message": "no",
    }
    sent = await session.sends(denial)
    assert sent.data[0].session_thread_id == child.id
    idle = await session.until("session.status_idle", where=asks, after=idle.id)
    assert idle.stop_reason.event_ids == [custom.id]
    content = [{"type": "text", "text": "seventeen"}]
    await session.sends(
        {"type": "user.custom_tool_result", "custom_tool_use_id": custom.id, "content": content}
    )
    await session.until("session.status_idle", where=ended)
    [report] = [event for event in await session.events() if event.type == "agent.thread_message_received"]
    assert "seventeen" in report.content[0].text
    answered = [event.type for event in await thread_events(session, child.id)]
    assert "user.tool_confirmation" in answered
    assert "user.custom_tool_result" in answered
    [shown] = [event for event in await session.events() if event.type == "user.custom_tool_result"]
    assert shown.session_thread_id == child.id


async def test_an_interrupt_of_one_thread_stops_that_alone_and_it_does_not_report(corral: Corral) -> None:
    session = await coordinated(corral, "one", "two")
    calls = [starts("one", {"text": "never", "hold": "one"}), starts("two", {"text": "done", "hold": "two"})]
    await session.says("go", script=[{"tools": calls}, {"text": "wait"}])
    await corral.model.until_holding("one")
    await corral.model.until_holding("two")
    one = (await children(session))["one"]
    await session.sends({"type": "user.interrupt", "session_thread_id": one.id})

    def of_one(event: Any) -> bool:
        return bool(event.session_thread_id == one.id)

    await session.until("session.thread_status_idle", where=of_one)
    assert (await session.retrieve()).status == "running"
    corral.model.release("two")
    await session.until("session.status_idle", where=ended)
    reports = [
        event.from_agent_name
        for event in await session.events()
        if event.type == "agent.thread_message_received"
    ]
    assert reports == ["two"]


async def test_an_interrupt_of_the_session_stops_every_thread(corral: Corral) -> None:
    session = await coordinated(corral, "one", "two", tools=[CUSTOM])
    calls = [
        starts("one", {"text": "never", "hold": "one"}),
        starts("two", {"tools": [{"name": "look_up", "input": {}}]}),
    ]
    await session.says("go", script=[{"tools": calls}, {"text": "never", "hold": "lead"}])
    await corral.model.until_holding("one")
    await corral.model.until_holding("lead")
    await session.until("agent.custom_tool_use")
    sent = await session.sends(
        {"type": "user.interrupt"},
        {"type": "user.message", "content": [{"type": "text", "text": played({"text": "anew"})}]},
    )
    idle = await session.until("session.status_idle", after=sent.data[0].id)
    assert idle.stop_reason.type == "end_turn"
    after = await session.until("session.status_idle", where=ended, after=idle.id)
    events = await session.events()
    between = [event.type for event in events[[event.id for event in events].index(idle.id) :]]
    assert between[1:4] == ["user.message", "session.status_running", "session.thread_status_running"]
    assert events[-1].id == after.id
    assert not [event for event in events if event.type == "agent.thread_message_received"]
    statuses = {thread.status for thread in await threads(session)}
    assert statuses == {"idle"}


async def test_an_agent_that_the_coordinator_defines_has_its_model_and_tools(corral: Corral) -> None:
    agent = await corral.agent(
        CUSTOM,
        name="lead",
        multiagent={"type": "multiagent_20261001"},
    )
    session = await corral.session()
    made = await corral.client.beta.sessions.create(agent=agent, environment_id=await corral.environment())
    session = type(session)(corral, made.id)
    await session.says("go", script=[{"tools": [defines("helper", {"text": "helped"})]}, {"text": "ok"}])
    await session.until("session.status_idle", where=ended)
    helper: Any = (await children(session))["helper"].agent
    assert (helper.type, helper.system) == ("inline", "You are helper.")
    assert helper.tools[0].name == "look_up"


async def test_a_child_is_archived_once_idle_and_takes_nothing_then(corral: Corral) -> None:
    session = await coordinated(corral, "one", tools=[CUSTOM])
    work: dict[str, Any] = {"tools": [{"name": "look_up", "input": {}}]}
    await session.says("go", script=[{"tools": [starts("one", work)]}, {"text": "ok"}])
    idle = await session.until("session.status_idle", where=asks)
    child = (await children(session))["one"]
    api = corral.client.beta.sessions.threads
    archived = await api.archive(child.id, session_id=session.id)
    assert archived.status == "terminated"
    assert archived.archived_at is not None
    assert (await api.archive(child.id, session_id=session.id)).archived_at == archived.archived_at
    # The session no longer waits for the call that was dropped.
    idle = await session.until("session.status_idle", after=idle.id)
    assert idle.stop_reason.type == "end_turn"
    call = next(event for event in await session.events() if event.type == "agent.custom_tool_use")
    late: list[dict[str, Any]] = [
        {"type": "user.custom_tool_result", "custom_tool_use_id": call.id, "content": []},
        {"type": "user.interrupt", "session_thread_id": child.id},
    ]
    for event in late:
        with pytest.raises(BadRequestError, match="ended"):
            await session.sends(event)
    with pytest.raises(NotFoundError):
        await session.sends({"type": "user.interrupt", "session_thread_id": "sthr_unknown"})
    again = {"name": "ant__send_to_agent", "input": {"thread_id": child.id, "message": "hello"}}
    await session.says("more", script=[{"tools": [again]}, {"text": "{result}"}])
    await session.until("session.status_idle", where=ended, after=idle.id)
    last = [event for event in await session.events() if event.type == "agent.message"][-1]
    assert "ended for good" in last.content[0].text


async def test_a_running_thread_is_not_archived(corral: Corral) -> None:
    session = await coordinated(corral, "one")
    await session.says(
        "go", script=[{"tools": [starts("one", {"text": "x", "hold": "one"})]}, {"text": "ok"}]
    )
    await corral.model.until_holding("one")
    child = (await children(session))["one"]
    with pytest.raises(BadRequestError, match="running"):
        await corral.client.beta.sessions.threads.archive(child.id, session_id=session.id)
    corral.model.release("one")
    await session.until("session.status_idle", where=ended)


async def test_a_childs_stream_brings_its_events_and_previews_and_ends_with_it(corral: Corral) -> None:
    session = await coordinated(corral, "one")
    await session.says("go", script=[{"tools": [starts("one", {"text": "first"})]}, {"text": "wait"}])
    await session.until("session.status_idle", where=ended)
    child = (await children(session))["one"]
    api = corral.client.beta.sessions.threads
    stream = await api.events.stream(child.id, session_id=session.id, event_deltas=["agent.message"])
    again = {
        "name": "ant__send_to_agent",
        "input": {"thread_id": child.id, "message": played({"text": "second"})},
    }
    message = await session.says("more", script=[{"tools": [again]}, {"text": "ok"}])
    await session.until("session.status_idle", where=ended, after=message.data[0].id)
    await api.archive(child.id, session_id=session.id)
    seen = [event async for event in stream]
    types = [event.type for event in seen]
    assert types[0] == "agent.thread_message_received"
    assert "event_delta" in types
    assert types[-1] == "session.thread_status_terminated"
    assert {"session.usage", "session.status_idle", "session.status_running"}.isdisjoint(types)


async def test_no_more_than_25_children_live_at_a_time(corral: Corral) -> None:
    session = await coordinated(corral, "one")
    many = [starts("one", {"text": "done"}) for _ in range(26)]
    await session.says("go", script=[{"tools": many}, {"text": "{result[25]}"}])
    await session.until("session.status_idle", where=ended)
    whole = await threads(session)
    assert len(whole) == 26
    assert [thread.parent_thread_id for thread in whole] == [None, *[whole[0].id] * 25]
    ids = [thread.id for thread in whole]
    assert [thread.id for thread in await threads(session, limit=10)] == ids
    assert [thread.id for thread in await threads(session, statuses=["idle"])] == ids
    assert await threads(session, statuses=["running", "terminated"]) == []
    said = [event.content[0].text for event in await session.events() if event.type == "agent.message"]
    assert any("25 agents already" in text for text in said)
