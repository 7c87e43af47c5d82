"""Who holds an item when things go wrong: the official Python worker loses its lease, is stopped, is killed.

See `test_python_worker.py`.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import msgspec
import pytest

from tests.conformance.premises import (
    TOOLSET,
    WEATHER,
    Premises,
    asks,
    bash,
    calls,
    ends_turn,
    results_of,
    text_of,
    until_done,
)
from tests.conformance.python_tools import BRIEFLY, Slow, failed_with, state_is
from tests.corral_server import SessionUnderTest


@pytest.fixture
def quick_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anthropic.lib.environments._worker._HEARTBEAT_DEFAULT", 1.0)


@asynccontextmanager
async def held_in_a_call(
    premises: Premises, folder: Path, slow: Slow, *, with_secret: bool
) -> AsyncGenerator[tuple[SessionUnderTest, Any]]:
    """A worker in the middle of a call, its first heartbeat sent; it ends by itself after the block."""
    session = await premises.session(TOOLSET, WEATHER)
    await session.says("go", script=[calls(("get_weather", {"city": "Oslo"})), {"text": "{result}"}])
    item = await premises.claimed()
    worker = premises.client.beta.environments.work.worker(
        workdir=folder, max_idle=BRIEFLY, tools=[slow.tool]
    )
    handling = worker.handle_item(
        work_id=item.id,
        environment_id=item.environment_id,
        session_id=item.data.id,
        **({"work_secret": item.secret} if with_secret else {"environment_key": premises.key}),
    )
    async with until_done(handling):
        try:
            await slow.called.wait()
            await premises.wire.until("/heartbeat", state_is("active"))
            yield session, item
        finally:
            # The worker shields a tool from its own end.
            slow.let_go.set()


@pytest.mark.parametrize("with_secret", [False, True], ids=["key", "secret"])
async def test_a_worker_whose_lease_another_took_is_told_so_and_leaves_the_item_alone(
    premises: Premises, open_folder: Path, quick_heartbeats: None, with_secret: bool
) -> None:
    slow = Slow()
    async with held_in_a_call(premises, open_folder, slow, with_secret=with_secret) as (_, item):
        await premises.expire(item.id)
        taken = await premises.claimed()
        assert taken.id == item.id
        beat = await premises.work.heartbeat(
            item.id, environment_id=item.environment_id, expected_last_heartbeat="NO_HEARTBEAT"
        )
        lost = await premises.wire.until("/heartbeat", failed_with(412))
        slow.let_go.set()
    details = msgspec.json.decode(lost.body)["error"]["details"]
    assert details["error_code"] == "heartbeat_precondition_failed"
    assert details["current_state"]["state"] == "active"
    assert premises.wire.to("/stop") == []
    again = await premises.work.heartbeat(
        item.id, environment_id=item.environment_id, expected_last_heartbeat=beat.last_heartbeat
    )
    assert again.lease_extended


async def test_a_worker_that_lost_its_lease_cannot_answer_for_the_one_that_has_it(
    premises: Premises, open_folder: Path, quick_heartbeats: None
) -> None:
    slow = Slow()
    async with held_in_a_call(premises, open_folder, slow, with_secret=True) as (session, item):
        await premises.expire(item.id)
        await premises.claimed()
        await premises.wire.until("/heartbeat", failed_with(412))
        slow.let_go.set()
    refused = [answer for answer in premises.wire.to("/events") if answer.method == "POST"]
    assert {answer.status for answer in refused} == {401}
    assert await results_of(session) == []


@pytest.mark.parametrize("with_secret", [False, True], ids=["key", "secret"])
async def test_a_stop_is_seen_at_the_next_heartbeat_and_confirmed(
    premises: Premises, open_folder: Path, quick_heartbeats: None, with_secret: bool
) -> None:
    slow = Slow()
    async with held_in_a_call(premises, open_folder, slow, with_secret=with_secret) as (session, item):
        stopping = await premises.owner.stop(item.id, environment_id=item.environment_id)
        assert stopping.state == "stopping"
        await premises.wire.until("/heartbeat", state_is("stopping"))
        slow.let_go.set()
    await session.until("session.status_idle", where=ends_turn)
    [result] = await results_of(session)
    assert text_of(result) == "Oslo: 17 C"
    stopped = await premises.wire.until("/stop")
    assert msgspec.json.decode(stopped.body)["state"] == "stopped"


@pytest.mark.parametrize("with_secret", [False, True], ids=["key", "secret"])
async def test_a_forced_stop_ends_the_item_at_once_and_its_worker_at_the_next_heartbeat(
    premises: Premises, open_folder: Path, quick_heartbeats: None, with_secret: bool
) -> None:
    slow = Slow()
    async with held_in_a_call(premises, open_folder, slow, with_secret=with_secret) as (session, item):
        stopped = await premises.owner.stop(item.id, environment_id=item.environment_id, force=True)
        assert stopped.state == "stopped"
        await premises.wire.until("/heartbeat", state_is("stopped"))
        slow.let_go.set()
    # The worker confirms what is so already: one request, which its client does not repeat.
    assert [answer.status for answer in premises.wire.to("/stop")] == [409]
    if with_secret:
        assert await results_of(session) == []


async def test_a_session_whose_item_was_stopped_by_force_in_a_call_is_offered_again(
    premises: Premises, open_folder: Path
) -> None:
    session = await premises.session(TOOLSET)
    await session.says("go", script=[bash("echo hello"), {"text": "done"}])
    await session.until("session.status_idle", where=asks)
    item = await premises.claimed()
    await premises.owner.stop(item.id, environment_id=item.environment_id, force=True)
    poller = premises.client.beta.environments.work.poller(
        environment_id=premises.environment_id,
        environment_key=premises.key,
        block_ms=None,
        reclaim_older_than_ms=1,
        drain=True,
        auto_stop=False,
    )
    [following] = [item async for item in poller]
    worker = premises.client.beta.environments.work.worker(workdir=open_folder, max_idle=BRIEFLY)
    await worker.handle_item(
        work_id=following.id,
        environment_id=following.environment_id,
        session_id=following.data.id,
        work_secret=following.secret,
    )
    assert following.id != item.id
    assert text_of((await results_of(session))[0]) == "hello"


async def test_an_item_that_a_dead_poller_never_acknowledged_is_reclaimed(premises: Premises) -> None:
    await premises.session(TOOLSET)
    dead = await premises.work.poll(premises.environment_id)
    work = premises.client.beta.environments.work

    async def drained(older_than_ms: int) -> list[Any]:
        poller = work.poller(
            environment_id=premises.environment_id,
            environment_key=premises.key,
            block_ms=None,
            reclaim_older_than_ms=older_than_ms,
            drain=True,
            auto_stop=False,
        )
        return [item async for item in poller]

    assert await drained(60_000) == []
    [item] = await drained(1)
    assert (item.id, item.secret != dead.secret) == (dead.id, True)
    assert await drained(1) == []


async def test_a_second_stop_is_refused_once_and_not_tried_again(premises: Premises) -> None:
    await premises.session(TOOLSET)
    item = await premises.claimed()
    patient = premises.client.with_options(api_key=premises.key).beta.environments.work
    await patient.stop(item.id, environment_id=item.environment_id, force=True)
    with pytest.raises(anthropic.ConflictError):
        await patient.stop(item.id, environment_id=item.environment_id, force=True)
    assert [answer.status for answer in premises.wire.to("/stop")] == [200, 409]


@asynccontextmanager
async def worker_process(premises: Premises, folder: Path) -> AsyncGenerator[asyncio.subprocess.Process]:
    """The official worker as a process of its own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", str(Path(__file__).with_name("python_worker.py")), str(folder),
        env={
            **os.environ,
            "ANTHROPIC_BASE_URL": premises.corral.base_url,
            "ANTHROPIC_ENVIRONMENT_ID": premises.environment_id,
            "ANTHROPIC_ENVIRONMENT_KEY": premises.key,
        },
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_a_worker_killed_in_the_middle_of_a_tool_is_followed_by_one_that_carries_on(
    premises: Premises, open_folder: Path
) -> None:
    session = await premises.session(TOOLSET)
    os.mkfifo(open_folder / "pipe")
    # Blocks in its first run only; the stock worker knows nothing of calls that had begun, and runs it again.
    command = "echo x >> runs; [ $(wc -l < runs) = 1 ] && echo $$ > pipe && exec sleep 600; wc -l < runs"
    await session.says("go", script=[bash(command), {"text": "done"}])
    async with asyncio.timeout(25), worker_process(premises, open_folder) as process:
        left_behind = int(await asyncio.to_thread((open_folder / "pipe").read_text))
        process.kill()
        await process.wait()
    os.kill(left_behind, signal.SIGKILL)
    [item] = await premises.items()
    assert item.state == "active"
    await premises.expire(item.id)
    async with premises.running(workdir=open_folder, max_idle=BRIEFLY):
        await session.until("session.status_idle", where=ends_turn)
        await premises.wire.until("/stop", state_is("stopped"))
    [result] = await results_of(session)
    assert text_of(result) == "2"
    assert [(known.id, known.state) for known in await premises.items()] == [(item.id, "stopped")]
