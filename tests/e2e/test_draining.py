"""Servers that are told to stop: nothing is lost, nothing asked twice, and clients hardly notice."""

import asyncio
from collections import deque
from contextlib import AsyncExitStack
from typing import Any

from anthropic import AsyncAnthropic

from corral.lifetime import drain
from corral.settings import Brain, Inference, Load, Settings
from corral.testing import ScriptedModel
from tests.balancer import balancing
from tests.corral_server import SessionUnderTest, running_corral
from tests.e2e.test_recovery_of_processes import LOOK_UP
from tests.server_process import KEY, ServerProcess, idle, messages, model_requests, says, server_process

HELD: list[dict[str, Any]] = [{"text": "worth waiting for", "hold": "there", "hold_at": "mid"}]


async def test_a_server_that_is_told_to_stop_waits_for_the_answer_and_is_ready_for_nothing_else(
    database_url: str, model: ScriptedModel
) -> None:
    async with server_process(database_url, model.base_url) as first:
        await first.until_ready()
        session_id = await first.session()
        await first.says(session_id, [*HELD, {"text": "never asked for"}])
        await model.until_holding("there")
        first.ask_to_stop()
        await first.until_ready(529)
        # It still answers, and takes what it is sent; who works on it is another matter.
        listed = await first.client.beta.sessions.events.with_raw_response.list(session_id)
        assert listed.headers["connection"] == "close"
        other_id = await first.session()
        await first.says(other_id, [{"text": "from the other"}])
        model.release("there")
        assert '"requests_cut_off": 0' in await first.ended()
    assert model_requests(model) == 1
    async with running_corral(database_url, model) as second:
        events = await idle(second.client, session_id)
        assert messages(events) == ["worth waiting for"]
        assert [event.is_error for event in events if event.type == "span.model_request_end"] == [False]
        assert messages(await idle(second.client, other_id)) == ["from the other"]
    assert model_requests(model) == 2


def long_leases(model: ScriptedModel) -> Settings:
    """Settings under which only a session that is given back can go on elsewhere."""
    return Settings(
        inference=Inference(provider="gateway", base_url=model.base_url), brain=Brain(lease_seconds=600.0)
    )


async def test_a_turn_goes_on_elsewhere_as_soon_as_its_answer_is_there(
    database_url: str, model: ScriptedModel
) -> None:
    """While the server that let it go still waits for another one's answer."""
    async with running_corral(database_url, model, settings=long_leases(model)) as first:
        quick, slow = await first.session(LOOK_UP), await first.session()
        await quick.says("go", script=[{"tools": [{"name": "look_up", "input": {}}], "hold": "quick"}])
        await slow.says("go", script=[{"text": "slow", "hold": "slow"}])
        await model.until_holding("quick")
        await model.until_holding("slow")
        draining = asyncio.create_task(drain(first.services, Load(), asyncio.Event()))
        await first.services.draining.wait()
        async with running_corral(database_url, model, settings=long_leases(model)) as second:
            model.release("quick")
            elsewhere = SessionUnderTest(second, quick.id)
            assert (await elsewhere.idle()).stop_reason.type == "requires_action"
            assert not draining.done()
            model.release("slow")
            await draining
            await SessionUnderTest(second, slow.id).idle()
    assert model_requests(model) == 2


async def test_a_turn_that_waits_for_its_hands_is_let_go_at_once(
    database_url: str, model: ScriptedModel
) -> None:
    async with running_corral(database_url, model, settings=long_leases(model)) as first:
        session = await first.session({"type": "agent_toolset_20260401"})
        await session.says("go", script=[{"tools": [{"name": "bash", "input": {"command": "true"}}]}])
        await session.until("agent.tool_use")
        await drain(first.services, Load(drain_seconds=600.0), asyncio.Event())
        async with running_corral(database_url, model, settings=long_leases(model)) as second:
            elsewhere = SessionUnderTest(second, session.id)
            await elsewhere.sends({"type": "user.interrupt"})
            assert (await elsewhere.idle()).stop_reason.type == "end_turn"
    assert model_requests(model) == 1


async def test_a_second_signal_ends_the_wait(database_url: str, model: ScriptedModel) -> None:
    async with server_process(database_url, model.base_url, load__drain_seconds="600") as first:
        await first.until_ready()
        session_id = await first.session()
        await first.says(session_id, HELD)
        await model.until_holding("there")
        first.ask_to_stop()
        await first.until_ready(529)
        first.ask_to_stop()
        await first.ended()
        await model.until_outcome("disconnected")
        model.release("there")
    async with running_corral(database_url, model) as second:
        assert messages(await idle(second.client, session_id)) == ["worth waiting for"]


async def rolling_restart(database_url: str, model: ScriptedModel, *, restarts: int, sessions: int) -> int:
    """Restart one of two servers after the other while applications work; how many turns there were.

    The clients are the SDK as it comes, with its own retries, behind a balancer that asks ``/readyz``.
    """
    turns = 0
    over = asyncio.Event()

    async def application(client: AsyncAnthropic, session_id: str) -> None:
        nonlocal turns
        ended = 0
        while not over.is_set():
            await says(client, session_id, [{"text": f"turn {ended}", "delay_ms": 100, "chunk_ms": 2}])
            ended += 1
            turns += 1
            events = await idle(client, session_id, ended)
            assert messages(events) == [f"turn {turn}" for turn in range(ended)]
            assert [event.type for event in events].count("user.message") == ended

    async with AsyncExitStack() as stack:

        async def started() -> ServerProcess:
            return await stack.enter_async_context(
                server_process(database_url, model.base_url, load__drain_delay_seconds="0.5")
            )

        servers = deque(await asyncio.gather(started(), started()))
        made = [await servers[0].session() for _ in range(sessions)]
        balancer = await stack.enter_async_context(balancing(*(one.base_url for one in servers)))
        client = AsyncAnthropic(base_url=balancer.base_url, api_key=KEY)
        await stack.enter_async_context(client)
        async with asyncio.TaskGroup() as applications:
            for session_id in made:
                applications.create_task(application(client, session_id))
            for _ in range(restarts):
                servers.append(await started())
                balancer.servers.add(servers[-1].base_url)
                before = turns
                await balancer.until(*balancer.servers)
                leaving = servers.popleft()
                leaving.ask_to_stop()
                await leaving.ended()
                balancer.servers.remove(leaving.base_url)
                assert turns > before  # the load went on all the while
            over.set()
    return turns


async def test_a_rolling_restart_under_load_fails_no_request_and_repeats_none(
    database_url: str, model: ScriptedModel
) -> None:
    turns = await rolling_restart(database_url, model, restarts=1, sessions=3)
    # Neither was a message sent twice nor a model asked twice.
    assert model_requests(model) == turns
