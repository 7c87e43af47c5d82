"""`corral worker` against the real server: sessions whose tools run in sandboxes (contract section 12)."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.corral_server import Corral, SessionUnderTest
from tests.e2e.worker_at_work import (
    TOOLSET,
    WatchedProvider,
    asking,
    at_work,
    bash,
    for_environment,
    pool,
    worker_process,
)

RESULTS = ("agent.tool_result", "user.tool_result")


def text_of(result: Any) -> str:
    return str(result.content[0].text)


def ends_turn(idle: Any) -> bool:
    return idle.stop_reason.type == "end_turn"


def asks(idle: Any) -> bool:
    return idle.stop_reason.type == "requires_action"


def says_b(result: Any) -> bool:
    return "b" in text_of(result)


async def results(session: SessionUnderTest) -> list[Any]:
    return [event for event in await session.events() if event.type in RESULTS]


def pipe_in(folder: Path, session: SessionUnderTest) -> Path:
    """A named pipe in the session's workspace, to meet a command that runs there."""
    workspace = folder / "workspaces" / session.id
    workspace.mkdir(parents=True)
    os.mkfifo(workspace / "pipe")
    return workspace / "pipe"


async def line_from(pipe: Path) -> str:
    """What a command writes into the pipe; waits for it."""
    return (await asyncio.to_thread(pipe.read_text)).strip()


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("sandbox", ["bubblewrap", "process"])
async def test_a_cloud_session_is_served_by_the_pool(corral: Corral, open_folder: Path, sandbox: str) -> None:
    async with at_work(await pool(corral, open_folder, sandbox=sandbox)):
        session = await corral.session(TOOLSET)
        await session.says("go", script=[bash("echo hello > a; cat a"), {"text": "it said {result}"}])
        assert (await session.idle()).stop_reason.type == "end_turn"
    [result] = await results(session)
    assert result.type == "agent.tool_result"
    assert text_of(result) == "hello"
    assert (open_folder / "workspaces" / session.id / "a").read_text() == "hello\n"
    assert "session.status_idle" in await session.types()


async def test_a_self_hosted_session_is_served_with_its_environments_key(
    corral: Corral, open_folder: Path
) -> None:
    session = await corral.session(TOOLSET, kind="self_hosted")
    environment_id = (await session.retrieve()).environment_id
    async with at_work(await for_environment(corral, environment_id, open_folder)):
        await session.says("go", script=[bash("echo hello"), {"text": "done"}])
        await session.until("session.status_idle", where=ends_turn)
    [result] = await results(session)
    assert result.type == "user.tool_result"
    assert text_of(result) == "hello"


async def test_the_first_token_does_not_wait_for_a_sandbox_that_is_slow_to_start(
    corral: Corral, open_folder: Path
) -> None:
    slow = WatchedProvider(delayed=True)
    async with at_work(await pool(corral, open_folder), provider=slow):
        session = await corral.session(TOOLSET)
        await session.says("go", script=[{"text": "soon", **bash("echo ran")}, {"text": "done"}])
        await session.until("agent.message")
        await slow.asked.wait()
        assert await results(session) == []
        slow.let_go.set()
        await session.idle()
    assert text_of((await results(session))[0]) == "ran"


async def test_a_session_without_a_tool_call_starts_no_sandbox(corral: Corral, open_folder: Path) -> None:
    slow = WatchedProvider(delayed=True)
    async with at_work(await pool(corral, open_folder), provider=slow):
        session = await corral.session(TOOLSET)
        await session.says("go", script=[{"text": "hi"}])
        await session.idle()
    assert not slow.asked.is_set()


async def test_calls_that_write_keep_the_models_order(corral: Corral, open_folder: Path) -> None:
    calls = [
        {"name": "bash", "input": {"command": "sleep 0.2; echo one > f"}},
        {"name": "read", "input": {"file_path": "f"}},
        {"name": "bash", "input": {"command": "echo two > f"}},
        {"name": "read", "input": {"file_path": "f"}},
    ]
    async with at_work(await pool(corral, open_folder)):
        session = await corral.session(TOOLSET)
        await session.says("go", script=[{"tools": calls}, {"text": "done"}])
        await session.idle()
    by_call = {result.tool_use_id: text_of(result) for result in await results(session)}
    uses = [event.id for event in await session.events() if event.type == "agent.tool_use"]
    assert "one" in by_call[uses[1]]
    assert "two" in by_call[uses[3]]


async def test_a_call_that_needs_a_confirmation_runs_only_once_it_is_allowed(
    corral: Corral, open_folder: Path
) -> None:
    async with at_work(await pool(corral, open_folder)):
        session = await corral.session(asking("bash"))
        await session.says("go", script=[bash("echo $((6*7))"), bash("echo no > no"), {"text": "done"}])
        seen: str | None = None
        for verdict in ("allow", "deny"):
            idle = await session.until("session.status_idle", where=asks, after=seen)
            [call] = idle.stop_reason.event_ids
            seen = idle.id
            await session.sends({"type": "user.tool_confirmation", "tool_use_id": call, "result": verdict})
        await session.until("session.status_idle", where=ends_turn)
    allowed, denied = await results(session)
    assert text_of(allowed) == "42"
    assert denied.is_error
    assert not (open_folder / "workspaces" / session.id / "no").exists()


async def test_an_interrupt_kills_the_running_command_at_once(corral: Corral, open_folder: Path) -> None:
    async with at_work(await pool(corral, open_folder)):
        session = await corral.session(TOOLSET)
        pipe = pipe_in(open_folder, session)
        await session.says("go", script=[bash("echo $$ > pipe; sleep 600"), {"text": "never"}])
        pid = int(await line_from(pipe))
        await session.sends({"type": "user.interrupt"})
        first = await session.idle()
        # The next call runs after the end of the one that was cut, in the same sandbox.
        await session.says("again", script=[bash("echo still here"), {"text": "done"}])
        await session.idle(after=first.id)
        assert not is_running(pid)
    cut, again = await results(session)
    assert cut.is_error
    assert text_of(again) == "still here"


async def test_a_lost_sandbox_is_told_to_the_model_and_replaced_on_the_same_workspace(
    corral: Corral, open_folder: Path
) -> None:
    async with at_work(await pool(corral, open_folder)):
        session = await corral.session(TOOLSET)
        steps = [
            bash("echo kept > file"),
            bash("kill -9 $PPID; sleep 600"),
            bash("cat file"),
            {"text": "done"},
        ]
        await session.says("go", script=steps)
        await session.idle()
    _, lost, after = await results(session)
    assert lost.is_error
    assert "sandbox was lost" in text_of(lost)
    assert text_of(after) == "kept"


async def test_a_worker_that_stops_cuts_its_calls_and_says_so(corral: Corral, open_folder: Path) -> None:
    async with at_work(await pool(corral, open_folder)) as stop:
        session = await corral.session(TOOLSET)
        pipe = pipe_in(open_folder, session)
        await session.says("go", script=[bash("echo $$ > pipe; sleep 600"), {"text": "sorry"}])
        pid = int(await line_from(pipe))
        begun = time.monotonic()
        stop.set()
        await session.idle()
    assert time.monotonic() - begun < 4
    assert not is_running(pid)
    [cut] = await results(session)
    assert cut.is_error
    assert "shutting down" in text_of(cut)


async def test_a_call_that_a_killed_worker_had_begun_is_not_run_twice(
    corral: Corral, open_folder: Path
) -> None:
    settings = await pool(corral, open_folder)
    session = await corral.session(TOOLSET)
    pipe = pipe_in(open_folder, session)
    async with worker_process(settings) as process:
        await session.says("go", script=[bash("echo x >> runs; echo $$ > pipe; sleep 600"), {"text": "oh"}])
        pid = int(await line_from(pipe))
        process.kill()
    # Its lease runs out; here at once.
    await corral.database.execute("update work set lease_until = now() - interval '1 second'", {})
    async with at_work(settings):
        await session.idle()
    [result] = await results(session)
    assert result.is_error
    assert "outcome" in text_of(result)
    assert (open_folder / "workspaces" / session.id / "runs").read_text() == "x\n"
    assert not is_running(pid)


async def test_a_session_that_is_deleted_takes_its_workspace_along(corral: Corral, open_folder: Path) -> None:
    provider = WatchedProvider()
    async with at_work(await pool(corral, open_folder), provider=provider):
        session = await corral.session(TOOLSET)
        await session.says("go", script=[bash("echo a > a"), {"text": "done"}])
        await session.idle()
        workspace = open_folder / "workspaces" / session.id
        assert workspace.exists()
        await corral.client.beta.sessions.delete(session.id)
        await provider.stopped.wait()
    assert not workspace.exists()


async def test_an_idle_sandbox_is_stopped_and_the_next_call_gets_another_on_the_same_workspace(
    corral: Corral, open_folder: Path
) -> None:
    provider = WatchedProvider()
    settings = await pool(corral, open_folder, sandbox_idle_seconds=0.05)
    async with at_work(settings, provider=provider):
        session = await corral.session(TOOLSET)
        await session.says("go", script=[bash("echo kept > file"), {"text": "done"}])
        first = await session.idle()
        await provider.stopped.wait()
        await session.says("more", script=[bash("cat file"), {"text": "done"}])
        await session.idle(after=first.id)
    assert provider.made == 2
    assert text_of((await results(session))[1]) == "kept"


async def test_at_its_start_a_worker_removes_the_workspaces_of_sessions_that_are_gone(
    corral: Corral, open_folder: Path
) -> None:
    settings = await pool(corral, open_folder)
    gone, kept = [await corral.session(TOOLSET) for _ in range(2)]
    async with at_work(settings):
        for session in (gone, kept):
            await session.says("go", script=[bash("echo a > a"), {"text": "done"}])
            await session.idle()
    await corral.client.beta.sessions.delete(gone.id)
    async with at_work(settings):
        # Served only while the worker runs; by then the sweep, which comes first, has had its turn.
        await kept.says("more", script=[bash("ls ..; echo b"), {"text": "done"}])
        await kept.until("agent.tool_result", where=says_b)
    assert (open_folder / "workspaces" / kept.id / "a").exists()
    assert not (open_folder / "workspaces" / gone.id).exists()


async def test_more_sessions_than_a_worker_holds_at_once_are_all_served(
    corral: Corral, open_folder: Path
) -> None:
    async with at_work(await pool(corral, open_folder, max_sessions=2)):
        sessions = [await corral.session(TOOLSET) for _ in range(5)]
        for number, session in enumerate(sessions):
            await session.says("go", script=[bash(f"echo {number}"), {"text": "done"}])
        for session in sessions:
            await session.idle()
    answers = [text_of((await results(session))[0]) for session in sessions]
    assert answers == ["0", "1", "2", "3", "4"]


async def test_no_credential_of_the_worker_is_seen_from_a_command(corral: Corral, open_folder: Path) -> None:
    settings = await pool(corral, open_folder, sandbox="bubblewrap")
    async with at_work(settings):
        session = await corral.session(TOOLSET)
        await session.says("go", script=[bash("env; cat /proc/*/environ /proc/*/cmdline"), {"text": "done"}])
        await session.idle()
    assert settings.pool_key is not None
    [result] = await results(session)
    assert settings.pool_key.reveal() not in text_of(result)
    assert "corral_wt_" not in text_of(result)
    assert "CORRAL_" not in text_of(result)
