"""Forks: a session that begins as another did, up to any event of it."""

from typing import Any

import anthropic
import msgspec
import pytest

from tests.corral_server import Corral, SessionUnderTest
from tests.e2e.coordinating import (
    CUSTOM,
    children,
    coordinated,
    ended,
    played,
    starts,
    thread_events,
    threads,
)
from tests.e2e.test_terminal_chat import WEATHER
from tests.e2e.worker_at_work import asking, bash


async def fork(session: SessionUnderTest, **body: Any) -> SessionUnderTest:
    made: Any = await session.corral.client.post(f"/v1/sessions/{session.id}/fork", cast_to=object, body=body)
    return SessionUnderTest(session.corral, made["id"])


def last_request(corral: Corral) -> str:
    """The messages of the last model request, as text."""
    return msgspec.json.encode(corral.model.requests()[-1]["messages"]).decode()


def told(events: list[Any]) -> list[tuple[str, Any]]:
    """What events say, without their ids and times."""
    return [(event.type, getattr(event, "content", None)) for event in events]


async def test_a_fork_begins_as_the_session_did_and_goes_its_own_way(corral: Corral) -> None:
    session = await corral.session(title="first", metadata={"team": "blue"})
    await session.says("hello", script=[{"text": "one"}])
    first = await session.idle()
    await session.says("more", script=[{"text": "two"}])
    await session.idle(after=first.id)
    before = await session.events()
    made = await fork(session, event_id=first.id)
    shown = await made.retrieve()
    assert (shown.status, shown.title, shown.metadata) == ("idle", "first", {"team": "blue"})
    assert shown.usage.input_tokens == shown.usage.output_tokens == 0
    events = await made.events()
    cut = [event.id for event in before].index(first.id) + 1
    assert told(events[:cut]) == told(before[:cut])
    assert [event.type for event in events[cut:]] == ["session.updated"]
    assert {event.id for event in events}.isdisjoint(event.id for event in before)
    await made.says("otherwise", script=[{"text": "three"}])
    await made.idle(after=events[-1].id)
    texts = last_request(corral)
    assert texts.count("otherwise") == 1
    assert "one" in texts
    assert "two" not in texts
    assert told(await session.events()) == told(before)
    assert (await made.retrieve()).usage.output_tokens > 0


async def test_what_was_open_is_closed_and_cannot_be_answered(corral: Corral) -> None:
    session = await corral.session(asking("bash"), WEATHER)
    calls = [*bash("make release")["tools"], {"name": "get_weather", "input": {"city": "Oslo"}}]
    await session.says("go", script=[{"tools": calls}])
    idle = await session.idle()
    made = await fork(session)
    shown = await made.retrieve()
    assert shown.status == "idle"
    events = await made.events()
    assert events[-1].stop_reason.type == "end_turn"
    opened = [event.id for event in events if event.type.endswith("tool_use")]
    assert len(opened) == 2
    with pytest.raises(anthropic.BadRequestError, match="already been resolved"):
        await made.sends({"type": "user.tool_confirmation", "tool_use_id": opened[0], "result": "allow"})
    await made.says("and now", script=[{"text": "I see"}])
    await made.idle(after=events[-1].id)
    assert "copy of another one" in last_request(corral)
    # The session itself still waits.
    assert (await session.events())[-1].id == idle.id


async def test_the_agent_is_that_of_the_moment(corral: Corral) -> None:
    session = await corral.session()
    await session.says("hello", script=[{"text": "one"}])
    idle = await session.idle()
    tools: Any = {"tools": [WEATHER]}
    await corral.client.beta.sessions.update(session.id, agent=tools)
    later = (await session.events())[-1]
    assert (await (await fork(session, event_id=idle.id)).retrieve()).agent.tools == []
    assert len((await (await fork(session, event_id=later.id)).retrieve()).agent.tools) == 1


async def test_where_a_fork_comes_from_can_be_asked(corral: Corral) -> None:
    session = await corral.session()
    await session.says("hello", script=[{"text": "one"}])
    idle = await session.idle()
    made = await fork(session, title="another", metadata={"a": "b"})
    shown = await made.retrieve()
    assert (shown.title, shown.metadata) == ("another", {"a": "b"})
    get: Any = corral.client.get
    found = await get(f"/v1/sessions/{made.id}/origin", cast_to=object)
    assert found["origin"]["kind"] == "fork"
    assert found["origin"]["session_id"] == session.id
    assert found["origin"]["event_id"] == idle.id
    assert (await get(f"/v1/sessions/{session.id}/origin", cast_to=object))["origin"] is None


async def test_a_fork_is_refused_where_there_is_no_such_event_or_session(corral: Corral) -> None:
    session = await corral.session()
    with pytest.raises(anthropic.BadRequestError, match="event_id: sevt_none is not in the log"):
        await fork(session, event_id="sevt_none")
    with pytest.raises(anthropic.NotFoundError):
        await fork(SessionUnderTest(corral, "sesn_none"))
    assert (await (await fork(session)).retrieve()).status == "idle"


async def test_an_archived_session_can_be_forked_and_goes_on(corral: Corral) -> None:
    session = await corral.session()
    await session.says("hello", script=[{"text": "one"}])
    await session.idle()
    await corral.client.beta.sessions.archive(session.id)
    made = await fork(session)
    assert (await made.retrieve()).status == "idle"
    await made.says("again", script=[{"text": "two"}])
    await made.idle(after=(await made.events())[-1].id)


async def test_files_come_along_and_forks_tell_no_webhook_of_what_was(corral: Corral) -> None:
    file = await corral.client.beta.files.upload(file=("notes.txt", b"hello", "text/plain"))
    session = await corral.session(
        resources=[{"type": "file", "file_id": file.id, "mount_path": "notes.txt"}]
    )
    made = await fork(session)
    [mounted] = (await made.retrieve()).resources
    [original] = (await session.retrieve()).resources
    assert mounted.mount_path == original.mount_path
    assert mounted.id != original.id
    await corral.client.beta.sessions.delete(session.id)
    listed = await corral.client.beta.files.list(extra_query={"scope_id": made.id})
    assert [one.filename for one in listed.data] == ["notes.txt"]


async def test_a_session_of_many_agents_can_be_forked_at_each_of_its_events(corral: Corral) -> None:
    session = await coordinated(corral, "one", "two", tools=[asking("bash"), CUSTOM])
    look_up = {"tools": [{"name": "look_up", "input": {"what": "x"}}]}
    calls = [
        starts("one", {"text": "found it"}),
        starts("two", bash("make release"), {"text": "released"}),
        starts("self", look_up, {"text": "looked"}),
    ]
    await session.says("go", script=[{"tools": calls}, {"text": "wait"}, {"text": "so far"}])
    await session.idle()
    ids = await logged(session)
    assert len(ids) > 30
    for event_id in ids:
        made = await fork(session, event_id=event_id)
        shown = await made.retrieve()
        assert shown.status == "idle"
        assert shown.usage.output_tokens == 0
        statuses = {thread.status for thread in await threads(made)}
        assert statuses == {"idle"}
        before = corral.model.stats["requests"]
        last = (await made.events())[-1]
        await made.says("and now", script=[{"text": "on I go"}])
        idle = await made.idle(after=last.id)
        assert idle.stop_reason.type == "end_turn"
        # The model refuses what the real one refuses; this is the one request that it had.
        assert corral.model.stats["requests"] == before + 1


async def test_the_agents_of_a_fork_are_its_own_and_know_it(corral: Corral) -> None:
    session = await coordinated(corral, "one")
    await session.says("go", script=[{"tools": [starts("one", {"text": "first"})]}, {"text": "ok"}])
    await session.idle()
    made = await fork(session)
    [old], [new] = (await children(session)).values(), (await children(made)).values()
    assert old.id != new.id
    assert (new.agent.name, new.status, new.parent_thread_id is None) == ("one", "idle", False)
    last = (await made.events())[-1]
    message = played({"text": "second"})
    again = {"name": "ant__send_to_agent", "input": {"thread_id": new.id, "message": message}}
    await made.says("more", script=[{"tools": [again]}, {"text": "ok"}, {"text": "done"}])
    await made.until("session.status_idle", where=ended, after=last.id)
    texts = str(await thread_events(made, new.id))
    assert "first" in texts
    assert "second" in texts
    assert "second" not in str(await thread_events(session, old.id))
    seen = msgspec.json.encode([r["messages"] for r in corral.model.requests()[-3:]]).decode()
    assert new.id in seen
    assert old.id not in seen


async def logged(session: SessionUnderTest) -> list[str]:
    """The ids of all events of a session's log, those of every thread."""
    rows = await session.corral.database.fetch(
        "select id from events where session_id = %s order by seq", (session.id,)
    )
    return [row["id"] for row in rows]


async def test_what_a_session_was_told_may_hold_anything(corral: Corral) -> None:
    session = await corral.session(WEATHER)
    odd = "a \u0000 b \u2028 💥"
    calls = [{"name": "get_weather", "input": {"city": odd}}]
    await session.says("go", script=[{"text": odd, "tools": calls}])
    await session.idle()
    tools: Any = {"tools": [asking("bash")]}
    made = await fork(session)
    assert told(await made.events())[:5] == told(await session.events())[:5]
    await corral.client.beta.sessions.update(made.id, agent=tools)
    first = (await made.events())[0]
    assert [tool.type for tool in (await (await fork(made, event_id=first.id)).retrieve()).agent.tools] == [
        "custom"
    ]
