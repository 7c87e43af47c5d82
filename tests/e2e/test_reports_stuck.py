"""Sessions that never stay stuck: restarts, approvals, lost workers, clocks (docs/robustness.md, Stuck)."""

import ast
import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

import corral.session
from corral.settings import Brain, Inference, Settings
from corral.testing import ScriptedModel
from tests.corral_server import Corral, SessionUnderTest, running_corral
from tests.e2e.test_replicas import gone
from tests.e2e.test_reports_history import said
from tests.e2e.worker_at_work import TOOLSET, asking, at_work, bash, pool


def long_lease(model: ScriptedModel) -> Settings:
    """Settings under which no lease runs out within a test."""
    return Settings(
        inference=Inference(provider="gateway", base_url=model.base_url), brain=Brain(lease_seconds=600.0)
    )


def was_taken(event: Any) -> bool:
    return event.processed_at is not None


def ends_turn(idle: Any) -> bool:
    return idle.stop_reason.type == "end_turn"


async def test_a_server_that_is_stopped_hands_its_sessions_over_at_once(
    database_url: str, model: ScriptedModel
) -> None:
    settings = long_lease(model)
    async with running_corral(database_url, model, settings=settings) as first:
        session = await first.session()
        await session.says("go", script=[{"text": "carried on", "hold": "there"}])
        await model.until_holding("there")
    async with running_corral(database_url, model, settings=settings) as second:
        await model.until_requests(2)
        model.release("there")
        elsewhere = SessionUnderTest(second, session.id)
        assert (await elsewhere.idle()).stop_reason.type == "end_turn"
        assert await said(elsewhere) == ["carried on"]


@pytest.mark.parametrize("verdict", ["allow", "deny"])
async def test_an_approval_that_waits_survives_a_restart(
    database_url: str, model: ScriptedModel, verdict: str
) -> None:
    async with running_corral(database_url, model) as first:
        session = await first.session(asking("bash"), kind="self_hosted")
        await session.says("go", script=[bash("true"), {"text": "done"}])
        idle = await session.idle()
    async with running_corral(database_url, model) as second:
        session = SessionUnderTest(second, session.id)
        assert await second.database.fetch("select * from wakes") == []
        [call] = idle.stop_reason.event_ids
        await session.sends({"type": "user.tool_confirmation", "tool_use_id": call, "result": verdict})
        if verdict == "allow":
            await session.until("user.tool_confirmation", where=was_taken)
            content = [{"type": "text", "text": "ran"}]
            await session.sends({"type": "user.tool_result", "tool_use_id": call, "content": content})
        await session.until("session.status_idle", where=ends_turn, after=idle.id)
        assert await said(session) == ["done"]


async def test_an_interrupt_frees_a_session_that_waits_for_approval(corral: Corral) -> None:
    session = await corral.session(asking("bash"), kind="self_hosted")
    await session.says("go", script=[bash("true")])
    idle = await session.idle()
    await session.sends({"type": "user.interrupt"})
    assert (await session.idle(after=idle.id)).stop_reason.type == "end_turn"


async def test_an_interrupt_frees_a_session_whose_hands_never_came(corral: Corral) -> None:
    session = await corral.session(TOOLSET)
    await session.says("go", script=[bash("true")])
    await session.until("agent.tool_use")
    await session.sends({"type": "user.interrupt"})
    assert (await session.idle()).stop_reason.type == "end_turn"
    [result] = [event for event in await session.events() if event.type == "agent.tool_result"]
    assert result.is_error


async def test_an_interrupt_needs_no_answer_of_the_worker(corral: Corral, open_folder: Path) -> None:
    """The turn ends while the command still runs; the late result changes nothing."""
    async with at_work(await pool(corral, open_folder)):
        session = await corral.session(TOOLSET)
        await session.says("go", script=[bash("trap '' TERM INT; touch begun; sleep 600")])
        await session.until("agent.tool_use")
        begun = time.monotonic()
        await session.sends({"type": "user.interrupt"})
        assert (await session.idle()).stop_reason.type == "end_turn"
        assert time.monotonic() - begun < 10
    results = [event for event in await session.events() if event.type == "agent.tool_result"]
    assert len(results) == 1


async def test_no_session_is_running_without_a_live_lease(corral: Corral) -> None:
    sessions = [await corral.session() for _ in range(4)]
    await asyncio.gather(*(one.says("go", script=[{"text": "x", "hold": "there"}]) for one in sessions))
    await corral.model.until_holding("there", 4)
    query = (
        "select s.id from sessions s left join wakes w on w.session_id = s.id and w.lease_until > now()"
        " where s.status = 'running' and w.brain_id is null"
    )
    assert await corral.database.fetch(query) == []
    corral.model.release("there")
    await asyncio.gather(*(one.idle() for one in sessions))


SOURCES = Path(corral.session.__file__).parent.parent
WALL_CLOCKS = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today", "date.today"}


def wall_clocks(path: Path) -> list[str]:
    """Where a module asks this machine what time it is."""
    return [
        f"{path.relative_to(SOURCES)}:{node.lineno}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and f"{node.value.id}.{node.attr}" in WALL_CLOCKS
    ]


def test_no_decision_about_sessions_or_leases_reads_this_machines_clock() -> None:
    """A server whose clock is wrong by minutes behaves like any other: the database's clock decides."""
    folders = [SOURCES / name for name in ("brain", "session", "bus")]
    modules = [path for folder in folders for path in folder.rglob("*.py")]
    modules += sorted((SOURCES / "hands").glob("work*.py"))
    assert len(modules) > 20
    assert [line for path in modules for line in wall_clocks(path)] == []


async def test_a_retry_is_due_by_the_databases_clock(database_url: str, model: ScriptedModel) -> None:
    inference = Inference(
        provider="gateway", base_url=model.base_url, retry_backoff_seconds=600, retry_backoff_max_seconds=600
    )
    async with running_corral(database_url, model, settings=Settings(inference=inference)) as server:
        session = await server.session()
        await session.says("go", script=[{"text": "at last", "error": {"status": 529, "times": 1}}])
        await session.until("session.status_rescheduled")
        await gone(session)
        row = await server.database.fetch_one(
            "select due_at - now() > interval '4 minutes' as later, brain_id from wakes"
            " where session_id = %s",
            (session.id,),
        )
        assert row == {"later": True, "brain_id": None}
