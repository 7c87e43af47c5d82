"""Each event that Corral writes has exactly the documented shape (contract sections 10.3 to 10.6)."""

import re
from typing import Any, get_args

from anthropic import AsyncAnthropic
from anthropic.types.beta.sessions import BetaManagedAgentsSessionEvent
from pydantic import TypeAdapter

from tests.contract.refusals import undocumented
from tests.contract.test_events_send import custom_result
from tests.contract.test_sessions_create import CUSTOM, TOOLSET
from tests.corral_server import Corral, SessionUnderTest
from tests.moments import ends_turn, is_taken
from tests.policy_world import JUDGE

EVENT: TypeAdapter[Any] = TypeAdapter(BetaManagedAgentsSessionEvent)
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
# What a field may hold besides what every event has; the order is the documentation's.
FIELDS: dict[str, set[str]] = {
    "user.message": {"content"},
    "user.interrupt": {"session_thread_id"},
    "user.tool_confirmation": {"tool_use_id", "result", "deny_message"},
    "user.custom_tool_result": {"custom_tool_use_id", "content", "is_error"},
    "user.tool_result": {"tool_use_id", "content", "is_error"},
    "system.message": {"content"},
    "agent.message": {"content"},
    "agent.thinking": set(),
    "agent.tool_use": {"name", "input", "evaluated_permission", "evaluation"},
    "agent.tool_result": {"tool_use_id", "content", "is_error"},
    "agent.custom_tool_use": {"name", "input"},
    "session.status_running": set(),
    "session.status_idle": {"stop_reason", "stop_details"},
    "session.status_rescheduled": set(),
    "session.status_terminated": set(),
    "session.updated": {"title", "metadata", "agent"},
    "session.error": {"error"},
    "session.usage": {"usage", "budget"},
    "session.thread_status_running": {"session_thread_id", "agent_name"},
    "session.thread_status_idle": {"session_thread_id", "agent_name", "stop_reason", "stop_details"},
    "session.thread_status_rescheduled": {"session_thread_id", "agent_name"},
    "span.model_request_start": set(),
    "span.model_request_end": {"is_error", "model_request_start_id", "model_usage"},
}


async def raw(corral: Corral, session: SessionUnderTest) -> list[dict[str, Any]]:
    """The events as they come over the wire."""
    response = await corral.client.get(f"/v1/sessions/{session.id}/events", cast_to=object)
    body: Any = response
    return body["data"]


async def a_session_of_many_kinds(corral: Corral) -> SessionUnderTest:
    """A session on self_hosted that goes through nearly everything that can happen."""
    asks: Any = {
        **TOOLSET,
        "configs": [
            {"name": "bash", "permission_policy": {"type": "always_ask"}},
            {"name": "grep", "permission_policy": {"type": "auto"}},
            {"name": "glob", "enabled": False},
        ],
    }
    agent = await corral.agent(asks, CUSTOM, model="claude-opus-5-5")
    corral.model.rule(if_system_contains=JUDGE, error={"status": 500, "times": 100})
    environment_id = await corral.environment("self_hosted")
    made = await corral.client.beta.sessions.create(agent=agent, environment_id=environment_id)
    session = SessionUnderTest(corral, made.id)
    calls = [
        {"name": "bash", "input": {"command": "ls"}},
        {"name": "read", "input": {"file_path": "a"}},
        {"name": "grep", "input": {"pattern": "a"}},
        {"name": "glob", "input": {"pattern": "a"}},
        {"name": "lookup", "input": {"key": "k"}},
    ]
    script = [
        {"thinking": "hm", "text": "I will look", "tools": calls},
        {"text": "done", "error": {"status": 529, "times": 1}},
    ]
    text = {"type": "text", "text": "x"}
    await session.says("go", script=script)
    idle = await session.idle()
    uses = {event.name: event.id for event in await session.events() if hasattr(event, "name")}
    confirm = "user.tool_confirmation"
    await session.sends(
        {"type": confirm, "tool_use_id": uses["bash"], "result": "deny", "deny_message": "not now"},
        {"type": confirm, "tool_use_id": uses["grep"], "result": "allow"},
        custom_result(uses["lookup"], "found", is_error=True),
        {"type": "user.tool_result", "tool_use_id": uses["read"], "content": [text]},
    )
    await session.until("user.tool_confirmation")
    await session.sends({"type": "user.tool_result", "tool_use_id": uses["grep"], "content": [text]})
    idle = await session.until("session.status_idle", where=ends_turn, after=idle.id)
    await session.sends(
        {"type": "user.message", "content": [{"type": "text", "text": 'no\nscript: {"refusal": {}}'}]},
        {"type": "system.message", "content": [text]},
    )
    idle = await session.idle(after=idle.id)
    await session.says("broken", script=[{"error": {"status": 400, "times": 9}}])
    idle = await session.idle(after=idle.id)
    await session.sends({"type": "user.interrupt"})
    await session.until("user.interrupt", where=is_taken)
    await corral.client.beta.sessions.update(session.id, title="t", metadata={"a": "b"}, agent={"tools": []})
    await corral.client.beta.sessions.archive(session.id)
    return session


async def test_every_event_has_the_documented_fields_and_no_others(corral: Corral) -> None:
    session = await a_session_of_many_kinds(corral)
    events = await raw(corral, session)
    seen: set[str] = set()
    for event in events:
        kind = event["type"]
        seen.add(kind)
        assert list(event)[:2] == ["id", "type"]
        assert event["id"].startswith("sevt_")
        assert TIME.fullmatch(event["processed_at"]), event
        assert set(event) - {"id", "type", "processed_at"} <= FIELDS[kind], event
        if kind not in ("agent.tool_use", "session.updated"):
            assert set(event) == FIELDS[kind] | {"id", "type", "processed_at"}, event
        parsed = EVENT.validate_python(event)
        assert parsed.type == kind
        assert undocumented(parsed) == [], event
    assert seen == set(FIELDS)


async def test_the_strict_client_reads_the_list_the_stream_and_the_session(corral: Corral) -> None:
    strict = AsyncAnthropic(
        base_url=corral.base_url, api_key=corral.api_key, max_retries=0, _strict_response_validation=True
    )
    session = await a_session_of_many_kinds(corral)
    async with strict:
        listed = [event async for event in strict.beta.sessions.events.list(session.id)]
        retrieved = await strict.beta.sessions.retrieve(session.id)
        threads = [thread async for thread in strict.beta.sessions.threads.list(session.id)]
        sessions = [one async for one in strict.beta.sessions.list(include_archived=True)]
    assert len(listed) == len(await session.events())
    for value in [retrieved, *threads, *sessions]:
        assert undocumented(value) == []
    known = {member.__name__ for member in get_args(get_args(BetaManagedAgentsSessionEvent)[0])}
    assert {type(event).__name__ for event in listed} <= known


async def test_a_permission_is_explained_by_the_policy_that_gave_it(corral: Corral) -> None:
    session = await a_session_of_many_kinds(corral)
    uses = {
        event["name"]: (event["evaluated_permission"], event.get("evaluation"))
        for event in await raw(corral, session)
        if event["type"] == "agent.tool_use"
    }
    unsure = {"type": "auto", "evaluated_permission": {"type": "ask", "reason_code": "indeterminate"}}
    assert uses == {
        "bash": ("ask", {"type": "always_ask"}),
        "read": ("allow", {"type": "always_allow"}),
        "grep": ("ask", unsure),
        # No policy applied to a tool that is not enabled.
        "glob": ("deny", None),
    }


async def test_usage_comes_right_before_each_idle_and_adds_up_the_spans(corral: Corral) -> None:
    session = await a_session_of_many_kinds(corral)
    events = await raw(corral, session)
    spans = {"input_tokens": 0, "output_tokens": 0, "cache_read_input_tokens": 0}
    for before, event in zip([events[0], *events], events, strict=False):
        if event["type"] == "span.model_request_end":
            assert event["model_request_start_id"] in {e["id"] for e in events}
            for name in spans:
                spans[name] += event["model_usage"][name]
        if event["type"] == "session.status_idle":
            assert before["type"] == "session.usage"
            assert {name: before["usage"][name] for name in spans} == spans
    last = [event for event in events if event["type"] == "session.usage"][-1]
    assert last["usage"] == (await session.retrieve()).to_dict(mode="json")["usage"]
    assert spans["input_tokens"] + spans["cache_read_input_tokens"] > 0


async def test_a_refusal_says_why_and_leaves_no_message(corral: Corral) -> None:
    session = await corral.session()
    refusal = {"category": "cyber", "explanation": "No."}
    await session.says("do harm", script=[{"text": "half", "refusal": refusal}])
    idle = await session.idle()
    assert idle.to_dict()["stop_reason"] == {"type": "refusal"}
    assert idle.to_dict()["stop_details"] == {"type": "refusal", **refusal}
    assert undocumented(idle) == []
    assert "agent.message" not in await session.types()
    await session.says("be good", script=[{"text": "gladly"}])
    assert (await session.idle(after=idle.id)).stop_reason.type == "end_turn"


async def test_the_first_thread_status_names_the_primary_thread(corral: Corral) -> None:
    session = await corral.session()
    await session.says("hi", script=[{"text": "hi"}])
    await session.idle()
    first = next(e for e in await session.events() if e.type.startswith("session.thread_status_"))
    threads = await corral.client.beta.sessions.threads.list(session.id)
    assert first.session_thread_id == threads.data[0].id
    assert first.agent_name == "tester"
