"""One loop per session, whoever sends what and when (docs/robustness.md, Concurrency)."""

import asyncio
from typing import Any

from corral.testing import ScriptedModel
from tests.corral_server import Corral, SessionUnderTest, running_corral
from tests.e2e.test_reports_history import LOOK_UP, custom_result, look_up, said
from tests.e2e.worker_at_work import TOOLSET, asking


async def test_messages_that_come_at_once_on_two_servers_start_one_turn(
    database_url: str, model: ScriptedModel
) -> None:
    async with running_corral(database_url, model) as first, running_corral(database_url, model) as second:
        session = await first.session()
        elsewhere = SessionUnderTest(second, session.id)
        await session.says("go", script=[{"text": "one", "hold": "there"}, {"text": "two"}])
        await model.until_holding("there")
        await asyncio.gather(*(where.says(f"more {n}") for n in range(10) for where in (session, elsewhere)))
        assert model.stats["requests"] == 1
        model.release("there")
        await session.idle()
        assert model.stats["requests"] == 2
        assert await said(session) == ["one", "two"]
        events = await session.events()
        assert [event.type for event in events].count("session.status_running") == 1
        # Taken up together, after the answer that was being made, and each with its time.
        messages = [event for event in events if event.type == "user.message"]
        assert len(messages) == 21
        assert all(event.processed_at is not None for event in messages)
        shown = model.requests()[-1]["messages"][-1]["content"]
        assert [block["text"] for block in shown] == [event.content[0].text for event in messages[1:]]


async def test_a_second_message_waits_for_the_first_ones_calls_and_is_answered_with_them(
    corral: Corral,
) -> None:
    session = await corral.session(LOOK_UP)
    await session.says("go", script=[look_up("a"), {"text": "both in mind"}])
    idle = await session.idle()
    sent = await session.says("and this")
    [waiting] = [event for event in await session.events() if event.id == sent.data[0].id]
    assert waiting.processed_at is None
    [call] = idle.stop_reason.event_ids
    await session.sends(custom_result(call, {"type": "text", "text": "found"}))
    assert (await session.idle(after=idle.id)).stop_reason.type == "end_turn"
    answer = corral.model.requests()[-1]["messages"][-1]["content"]
    assert [block["type"] for block in answer] == ["tool_result", "text"]


async def test_a_call_that_awaits_approval_leaves_its_siblings_alone(corral: Corral) -> None:
    session = await corral.session(asking("read"), LOOK_UP, kind="self_hosted")
    tools: list[dict[str, Any]] = [
        {"name": "read", "input": {"file_path": "x"}},
        {"name": "look_up", "input": {}},
    ]
    await session.says("go", script=[{"tools": tools}, {"text": "got {result[0]} and {result[1]}"}])
    idle = await session.idle()
    read, look = idle.stop_reason.event_ids
    await session.sends(custom_result(look, {"type": "text", "text": "found"}))
    partial = await session.idle(after=idle.id)
    assert partial.stop_reason.event_ids == [read]
    await session.sends({"type": "user.tool_confirmation", "tool_use_id": read, "result": "deny"})
    await session.idle(after=partial.id)
    [answer] = await said(session)
    assert answer.endswith("and found")


async def test_an_archive_leaves_nothing_that_was_accepted_out_of_the_log(corral: Corral) -> None:
    session = await corral.session(LOOK_UP)
    await session.says("go", script=[look_up("a")])
    await session.idle()
    sent = await session.says("never answered")
    await corral.client.beta.sessions.archive(session.id)
    events = await session.events()
    assert [event.type for event in events[-2:]] == ["user.message", "session.status_terminated"]
    assert events[-2].id == sent.data[0].id
    assert events[-2].processed_at is not None


async def test_a_session_is_offered_to_one_worker_however_often_it_is_asked_for(corral: Corral) -> None:
    """Two workers never share a session: it has at most one item, however often it is asked for."""
    session = await corral.session(TOOLSET)
    environment_id = (await session.retrieve()).environment_id
    await asyncio.gather(*(corral.services.work.ensure(session.id, environment_id) for _ in range(8)))
    rows = await corral.database.fetch("select 1 from work where session_id = %s", (session.id,))
    assert len(rows) == 1
