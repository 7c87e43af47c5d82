"""Replays: real sessions come out as they were, and what would be done otherwise is found."""

import io
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from corral.brain import decide as choices
from corral.brain import emit, toolset
from corral.brain.decide import GoIdle
from corral.extensions.inspecting import inspect
from corral.extensions.recorded import RecordedSession
from corral.extensions.replaying import Replay, ReplayReport
from tests.corral_server import Corral, SessionUnderTest
from tests.e2e.coordinating import CUSTOM, asks, children, coordinated, ended, played, starts
from tests.e2e.test_exports import events_of, exported, packed, unpacked, with_events
from tests.e2e.test_forks import fork
from tests.e2e.test_terminal_chat import WEATHER
from tests.e2e.worker_at_work import asking, bash


async def replayed(content: bytes) -> ReplayReport:
    file = io.BytesIO(content)
    return await Replay(RecordedSession(file, inspect(file))).run()


def alike(report: ReplayReport) -> bool:
    assert report.difference is None, report.difference
    assert report.compared + report.taken == report.events
    return True


async def test_a_session_with_tools_and_confirmations_comes_out_as_it_was(corral: Corral) -> None:
    session = await corral.session(asking("bash"), WEATHER)
    calls = [*bash("make release")["tools"], {"name": "get_weather", "input": {"city": "Oslo"}}]
    await session.says("go", script=[{"tools": calls}, {"text": "so it is"}])
    idle = await session.idle()
    command, weather = idle.stop_reason.event_ids
    await session.sends({"type": "user.tool_confirmation", "tool_use_id": command, "result": "deny"})
    again = await session.idle(after=idle.id)
    content = [{"type": "text", "text": "rain"}]
    await session.sends(
        {"type": "user.custom_tool_result", "custom_tool_use_id": weather, "content": content}
    )
    last = await session.until("session.status_idle", where=ended, after=again.id)
    await session.says("more", script=[{"text": "that was it"}])
    await session.idle(after=last.id)
    report = await replayed(await exported(session))
    assert alike(report)
    assert (report.requests, report.unknown_requests) == (3, 0)
    assert report.taken <= 3


async def test_interrupts_failures_and_steering_come_out_as_they_were(corral: Corral) -> None:
    session = await corral.session(WEATHER)
    await session.says("one", script=[{"text": "after all", "error": {"status": 529, "times": 1}}])
    first = await session.until("session.status_idle", where=ended)
    await session.says("two", script=[{"text": "never said", "hold": "cut"}])
    await corral.model.until_holding("cut")
    await session.sends({"type": "user.interrupt"})
    second = await session.idle(after=first.id)
    corral.model.release("cut")
    await session.says("three", script=[{"text": "a", "hold": "late"}, {"text": "b"}])
    await corral.model.until_holding("late")
    await session.says("steered")
    corral.model.release("late")
    await session.until("session.status_idle", where=ended, after=second.id)
    assert alike(await replayed(await exported(session)))


async def test_a_session_of_many_agents_comes_out_as_it_was(corral: Corral) -> None:
    session = await coordinated(corral, "one", "two", tools=[asking("bash"), CUSTOM])
    calls = [
        starts("one", {"text": "found it"}),
        starts("two", bash("make release"), {"text": "released"}),
    ]
    await session.says("go", script=[{"tools": calls}, {"text": "wait"}, {"text": "so far"}])
    idle = await session.until("session.status_idle", where=asks)
    [command] = idle.stop_reason.event_ids
    await session.sends({"type": "user.tool_confirmation", "tool_use_id": command, "result": "deny"})
    last = await session.until("session.status_idle", where=ended, after=idle.id)
    child = (await children(session))["one"]
    given = {"thread_id": child.id, "message": played({"text": "more of it"})}
    script = [{"tools": [{"name": "ant__send_to_agent", "input": given}]}, {"text": "ok"}, {"text": "done"}]
    await session.says("more", script=script)
    await session.until("session.status_idle", where=ended, after=last.id)
    report = await replayed(await exported(session))
    assert alike(report)
    assert report.requests >= 8


async def test_a_change_of_the_agent_and_a_fork_come_out_as_they_were(corral: Corral) -> None:
    session = await corral.session()
    await session.says("hello", script=[{"text": "one"}])
    first = await session.idle()
    tools: Any = {"tools": [WEATHER]}
    await corral.client.beta.sessions.update(session.id, agent=tools)
    await session.says("go", script=[{"tools": [{"name": "get_weather", "input": {"city": "Oslo"}}]}])
    await session.idle(after=first.id)
    report = await replayed(await exported(session))
    assert alike(report)
    assert report.requests == 2
    made = await fork(session)
    last = (await made.events())[-1]
    await made.says("go on", script=[{"text": "two"}])
    await made.idle(after=last.id)
    report = await replayed(await exported(made))
    assert alike(report)
    assert (report.requests, report.unknown_requests) == (1, 2)


async def simple(corral: Corral) -> SessionUnderTest:
    session = await corral.session(WEATHER)
    await session.says("hello", script=[{"text": "one"}])
    first = await session.idle()
    await session.says("more", script=[{"tools": [{"name": "get_weather", "input": {"city": "Oslo"}}]}])
    await session.idle(after=first.id)
    return session


def _other_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    def prompt(*_: Any, **__: Any) -> list[dict[str, Any]]:
        return [{"type": "text", "text": "You are somebody else."}]

    monkeypatch.setattr("corral.brain.kit.system_prompt", prompt)


def _other_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    before = toolset.tool_definitions

    def definitions(agent: dict[str, Any]) -> list[dict[str, Any]]:
        return before(agent)[:-1]

    monkeypatch.setattr("corral.brain.kit.tool_definitions", definitions)


def _other_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    before = choices.decide

    def decide(*arguments: Any) -> Any:
        action = before(*arguments)
        return GoIdle("retries_exhausted") if isinstance(action, GoIdle) else action

    monkeypatch.setattr("corral.extensions.replaying.decide", decide)


def _other_event(monkeypatch: pytest.MonkeyPatch) -> None:
    before = emit.running

    def running(*arguments: Any) -> Any:
        return before(*arguments)[::-1]

    monkeypatch.setattr(emit, "running", running)


VERSIONS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str, str]] = {
    "another prompt": (_other_prompt, "request", "span.model_request_start"),
    "other tools": (_other_tools, "request", "span.model_request_start"),
    "another decision": (_other_decision, "event", "session.thread_status_idle"),
    "another order": (_other_event, "event", "session.status_running"),
}


@pytest.mark.parametrize("name", VERSIONS)
async def test_a_version_that_acts_otherwise_is_found_at_its_first_difference(
    corral: Corral, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await simple(corral)
    content = await exported(session)
    assert alike(await replayed(content))
    apply, kind, event_type = VERSIONS[name]
    apply(monkeypatch)
    found = (await replayed(content)).difference
    assert found is not None
    assert found.kind == kind
    [first] = [e for e in await session.events() if e.id == found.event_id]
    assert first.type == event_type
    same = [e for e in await session.events() if e.type == event_type]
    assert first.id == same[0].id
    assert found.now is not None


async def test_what_no_version_would_have_written_is_found_in_a_log(corral: Corral) -> None:
    session = await simple(corral)
    members = unpacked(await exported(session))
    events = events_of(members)
    [at, _] = [n for n, event in enumerate(events) if event["type"] == "span.model_request_end"]
    said = next(event for event in events if event["type"] == "agent.message")
    said["body"]["content"][0]["text"] = "what the model never said"
    found = (await replayed(packed(with_events(members, events)))).difference
    assert found is not None
    assert (found.event_id, found.kind) == (said["id"], "event")
    assert "never said" in msgspec.json.encode(found.recorded).decode()
    assert "one" in msgspec.json.encode(found.now).decode()
    del events[at]
    found = (await replayed(packed(with_events(members, events)))).difference
    assert found is not None
    assert found.seq <= at + 1


async def test_a_replay_reaches_nothing_outside(corral: Corral) -> None:
    session = await simple(corral)
    content = await exported(session)
    before = corral.model.stats["requests"]
    assert alike(await replayed(content))
    assert corral.model.stats["requests"] == before
