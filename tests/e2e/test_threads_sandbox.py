"""Threads share one sandbox: the worker runs the calls of all of them (contract section 11.3)."""

from pathlib import Path

from tests.corral_server import Corral
from tests.e2e.coordinating import children, coordinated, ended, starts, thread_events
from tests.e2e.worker_at_work import TOOLSET, WatchedProvider, at_work, bash, pool


async def test_two_children_at_once_work_in_one_workspace(corral: Corral, tmp_path: Path) -> None:
    session = await coordinated(corral, "one", "two", tools=[TOOLSET])
    found = {"if_result_contains": "from one", "then": {"text": "found it"}, "else": {"text": "nothing"}}
    calls = [
        starts("one", bash("echo from one > shared"), {"text": "written"}),
        starts("two", {**bash("cat shared"), "hold": "two"}, found),
    ]
    await session.says("go", script=[{"tools": calls}, {"text": "wait"}, {"text": "ok"}])
    async with at_work(await pool(corral, tmp_path), provider=WatchedProvider()):
        await corral.model.until_holding("two")
        await session.until("agent.thread_message_received")
        corral.model.release("two")
        await session.until("session.status_idle", where=ended)
    reports = {
        event.from_agent_name: event.content[0].text
        for event in await session.events()
        if event.type == "agent.thread_message_received"
    }
    assert reports == {"one": "written", "two": "found it"}
    # What runs by itself is the child's alone to show.
    assert "agent.tool_use" not in await session.types()
    for child in (await children(session)).values():
        own = [event.type for event in await thread_events(session, child.id)]
        assert own.count("agent.tool_use") == own.count("agent.tool_result") == 1
