"""Several servers on one database: one brain a session, streams anywhere, and what an idle session costs."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import msgspec

from corral.settings import Brain, Inference, Settings
from corral.testing import ScriptedModel
from tests.corral_server import Corral, SessionUnderTest, running_corral


@asynccontextmanager
async def stream(corral: Corral, session_id: str, *deltas: str) -> AsyncGenerator["Frames"]:
    """An open stream of a session's events, previews of `deltas` among them."""
    async with httpx.AsyncClient(base_url=corral.base_url, timeout=30) as client:
        async with client.stream(
            "GET",
            f"/v1/sessions/{session_id}/events/stream",
            params=[("event_deltas[]", kind) for kind in deltas],
            headers={"x-api-key": corral.api_key},
        ) as response:
            assert response.status_code == 200, await response.aread()
            yield Frames(response)


class Frames:
    """The events of a stream."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines = response.aiter_lines()

    async def until(self, kind: str) -> list[dict[str, Any]]:
        """All events up to the first of type `kind`, which is the last of the list."""
        seen: list[dict[str, Any]] = []
        async for line in self._lines:
            if line.startswith("data: "):
                seen.append(msgspec.json.decode(line[6:]))
                if seen[-1]["type"] == kind:
                    return seen
        raise AssertionError(f"the stream ended without {kind}")


def turn_of(session: SessionUnderTest) -> asyncio.Task[Any] | None:
    """The task of the brain that has the session, on whichever server of this process."""
    return next((task for task in asyncio.all_tasks() if task.get_name() == f"turn {session.id}"), None)


async def gone(session: SessionUnderTest) -> None:
    """Waits until no brain has the session."""
    if task := turn_of(session):
        await asyncio.wait({task}, timeout=10)
    assert turn_of(session) is None


async def test_every_session_runs_on_one_server_only(database_url: str, model: ScriptedModel) -> None:
    async with running_corral(database_url, model) as first, running_corral(database_url, model) as second:
        sessions = [await server.session() for server in (first, second) for _ in range(8)]
        await asyncio.gather(*(one.says("go", script=[{"text": f"from {one.id}"}]) for one in sessions))
        await asyncio.gather(*(one.idle() for one in sessions))
        assert model.stats["requests"] == len(sessions)
        for session in sessions:
            messages = [event for event in await session.events() if event.type == "agent.message"]
            assert [message.content[0].text for message in messages] == [f"from {session.id}"]


async def test_a_stream_shows_the_events_and_previews_of_another_servers_brain(
    database_url: str, model: ScriptedModel
) -> None:
    text = "a long answer that comes in many pieces " * 5
    async with (
        running_corral(database_url, model, brains=False) as front,
        running_corral(database_url, model),
    ):
        session = await front.session()
        async with stream(front, session.id, "agent.message", "agent.thinking") as frames:
            await session.says("go", script=[{"thinking": "hm", "text": text, "hold": "there"}])
            await model.until_holding("there")
            model.release("there")
            seen = await frames.until("session.status_idle")
        listed = [event.id for event in await session.events()]
    assert [event["id"] for event in seen if event.get("processed_at")] == listed
    check_previews(seen)
    assert "".join(texts_of(seen)) == text


def texts_of(seen: list[dict[str, Any]]) -> list[str]:
    return [event["delta"]["content"]["text"] for event in seen if event["type"] == "event_delta"]


def check_previews(seen: list[dict[str, Any]]) -> None:
    """Each preview starts, goes on and ends with the event that it announced; the texts are its beginning."""
    shown: dict[str, str] = {}
    ended: set[str] = set()
    for event in seen:
        match event["type"]:
            case "event_start":
                assert event["event"]["id"] not in shown
                shown[event["event"]["id"]] = ""
            case "event_delta":
                assert event["event_id"] not in ended
                shown[event["event_id"]] += event["delta"]["content"]["text"]
            case "agent.message" | "agent.thinking":
                ended.add(event["id"])
                if event["type"] == "agent.message":
                    assert event["content"][0]["text"].startswith(shown.get(event["id"], ""))
            case _:
                pass
    assert shown.keys() == ended


async def test_previews_are_never_stored_and_none_come_for_a_request_begun_before_the_stream(
    corral: Corral,
) -> None:
    session = await corral.session()
    await session.says("go", script=[{"text": "early", "hold": "early"}, {"text": "late", "hold": "late"}])
    await corral.model.until_holding("early")
    async with stream(corral, session.id, "agent.message") as frames:
        await session.says("and on")
        corral.model.release("early")
        await corral.model.until_holding("late")
        corral.model.release("late")
        seen = await frames.until("session.status_idle")
    assert texts_of(seen) == ["late"]
    messages = [event for event in seen if event["type"] == "agent.message"]
    [start] = [event for event in seen if event["type"] == "event_start"]
    assert [message["content"][0]["text"] for message in messages] == ["early", "late"]
    assert start["event"]["id"] == messages[1]["id"]
    assert not {"event_start", "event_delta"} & set(await session.types())


async def test_a_waiting_message_is_announced_once_and_comes_again_when_it_is_taken_up(
    corral: Corral,
) -> None:
    session = await corral.session()
    await session.says("go", script=[{"text": "one", "hold": "first"}, {"text": "two"}])
    await corral.model.until_holding("first")
    async with stream(corral, session.id) as frames:
        sent = await asyncio.gather(*(session.says(f"more {n}") for n in range(10)))
        corral.model.release("first")
        seen = await frames.until("session.status_idle")
    for answer in sent:
        times = [event["processed_at"] for event in seen if event["id"] == answer.data[0].id]
        assert len(times) == 2
        assert times[0] is None
        assert times[1] is not None


async def test_a_brain_whose_session_was_taken_writes_nothing_more(corral: Corral) -> None:
    session = await corral.session()
    await session.says("go", script=[{"text": "the answer", "hold": "there"}])
    await corral.model.until_holding("there")
    task = turn_of(session)
    assert task is not None
    row = await corral.database.fetch_one(
        "update sessions set epoch = epoch + 1 where id = %s returning last_seq", (session.id,)
    )
    assert row is not None
    corral.model.release("there")
    await asyncio.wait({task}, timeout=10)
    assert task.done()
    now = await corral.database.fetch_one("select last_seq from sessions where id = %s", (session.id,))
    assert now == row
    # Its lease is left to run out; the next brain makes the request anew.
    assert (await session.idle()).stop_reason.type == "end_turn"
    assert corral.model.stats["requests"] == 2
    assert (await session.types()).count("agent.message") == 1


async def test_an_idle_session_has_no_task_no_lease_and_no_connection(corral: Corral) -> None:
    session = await corral.session()
    await session.says("go", script=[{"text": "done"}])
    await session.idle()
    await gone(session)
    assert await corral.database.fetch("select * from wakes") == []
    assert await corral.database.fetch("select * from inputs") == []


async def test_open_streams_hold_no_database_connection(database_url: str, model: ScriptedModel) -> None:
    async with running_corral(database_url, model, brains=False) as corral:
        session = await corral.session()
        async with AsyncExitStack() as stack:
            opened = [await stack.enter_async_context(stream(corral, session.id)) for _ in range(50)]
            async with asyncio.timeout(10):
                # Back at base; a connection that a stream held would never be.
                while corral.database.statistics["pool_available"] < corral.database.statistics["pool_size"]:
                    await corral.database.fetch("select 1")
            await session.says("hello")
            for frames in opened:
                assert (await frames.until("user.message"))[-1]["processed_at"] is None
        rows = await corral.database.fetch(
            "select 1 from pg_stat_activity where datname = current_database()"
        )
        assert len(rows) <= 10 + 3  # the pool, the log's writer's two, the bus


async def test_a_message_sent_while_the_model_refuses_starts_the_next_turn(corral: Corral) -> None:
    session = await corral.session()
    await session.says("go", script=[{"text": "no", "refusal": {"category": "cyber"}, "hold": "there"}])
    await corral.model.until_holding("there")
    await session.says("something else", script=[{"text": "gladly"}])
    corral.model.release("there")
    refused = await session.idle()
    assert refused.stop_reason.type == "refusal"
    assert (await session.idle(after=refused.id)).stop_reason.type == "end_turn"


async def test_an_interrupt_does_not_wait_for_a_retry(database_url: str, model: ScriptedModel) -> None:
    settings = Settings(
        inference=Inference(
            provider="gateway",
            base_url=model.base_url,
            retry_backoff_seconds=600,
            retry_backoff_max_seconds=600,
        ),
        brain=Brain(lease_seconds=2.0),
    )
    async with running_corral(database_url, model, settings=settings) as corral:
        session = await corral.session()
        await session.says("go", script=[{"text": "x", "error": {"status": 529, "times": 9}}])
        await session.until("session.status_rescheduled")
        await session.sends({"type": "user.interrupt"})
        assert (await session.idle()).stop_reason.type == "end_turn"
        assert model.stats["requests"] == 1
