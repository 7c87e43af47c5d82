"""Event streams: what comes, in which order, when they end, nothing is lost (contract section 10.10)."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from anthropic import NotFoundError
from anthropic.lib.sessions import accumulate_managed_agents_event
from anthropic.types.beta.sessions import BetaManagedAgentsStreamSessionEvents
from pydantic import TypeAdapter

from corral.session.following import Following
from tests.contract.conftest import Api
from tests.contract.refusals import refused, undocumented
from tests.contract.test_sessions_create import message
from tests.corral_server import Corral, SessionUnderTest

FRAME: TypeAdapter[Any] = TypeAdapter(BetaManagedAgentsStreamSessionEvents)
LONG = "The quick brown fox jumps over the lazy dog, and then it does the same again. " * 3


class Reader:
    """A stream as raw frames."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.aiter_lines()

    async def next(self) -> tuple[str, Any] | None:
        """The name and the data of the next frame; None at the stream's end."""
        name, data = "", ""
        async for line in self._lines:
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                data = line.removeprefix("data: ")
            elif not line and data:
                return name, json.loads(data)
        return None

    async def until(self, *types: str) -> list[Any]:
        """The data of all frames up to the first of one of `types`, or to the end."""
        seen: list[Any] = []
        while (frame := await self.next()) is not None:
            seen.append(frame[1])
            if frame[0] in types:
                break
        return seen


@asynccontextmanager
async def reading(base_url: str, key: str, session_id: str, query: str = "") -> AsyncGenerator[Reader]:
    async with httpx.AsyncClient(
        base_url=base_url, headers={"x-api-key": key}, timeout=httpx.Timeout(30)
    ) as client:
        path = f"/v1/sessions/{session_id}/events/stream{query}"
        async with client.stream("GET", path, headers={"accept": "application/json"}) as response:
            yield Reader(response)


def on(api: Api, session: dict[str, Any], query: str = "") -> Any:
    return reading(api.base_url, api.api_key, session["id"], query)


def at(corral: Corral, session: SessionUnderTest, query: str = "") -> Any:
    return reading(corral.base_url, corral.api_key, session.id, query)


async def rename(api: Api, session: dict[str, Any], title: str) -> None:
    assert (await api.post(f"/v1/sessions/{session['id']}", {"title": title})).status_code == 200


async def test_a_stream_opens_before_anything_happens_and_shows_only_what_comes_after(api: Api) -> None:
    session = await api.session()
    await rename(api, session, "before")
    async with on(api, session) as reader:
        assert reader.response.status_code == 200
        assert reader.response.headers["content-type"].startswith("text/event-stream")
        assert reader.response.headers["cache-control"] == "no-cache"
        await rename(api, session, "after")
        name, data = await reader.next()
        assert (name, data["type"], data["title"]) == ("session.updated", "session.updated", "after")
    [_, listed] = (await api.get(f"/v1/sessions/{session['id']}/events")).json()["data"]
    assert data == listed


async def test_a_queued_event_comes_twice_with_one_id_first_without_then_with_its_time(
    corral: Corral,
) -> None:
    session = await corral.session()
    await session.says("go", script=[{"text": "one", "hold": "here"}, {"text": "two"}])
    await corral.model.until_holding("here")
    async with at(corral, session) as reader:
        sent = await session.says("and this")
        name, first = await reader.next()
        assert (name, first["id"], first["processed_at"]) == ("user.message", sent.data[0].id, None)
        corral.model.release("here")
        seen = await reader.until("session.status_idle")
    [second] = [event for event in seen if event["id"] == first["id"]]
    assert second["processed_at"] is not None
    assert {**second, "processed_at": None} == first
    listed = [event for event in await session.events() if event.id == first["id"]]
    assert len(listed) == 1


async def test_a_stream_brings_turn_after_turn_in_the_order_of_the_list(corral: Corral) -> None:
    session = await corral.session()
    async with at(corral, session) as reader:
        seen: list[Any] = []
        for text in ("one", "two", "three"):
            await session.says(text, script=[{"text": text}])
            seen += await reader.until("session.status_idle")
    settled = [event["id"] for event in seen if event["processed_at"] is not None]
    assert settled == [event.id for event in await session.events()]
    for event in seen:
        assert undocumented(FRAME.validate_python(event)) == []


async def test_a_stream_ends_with_the_deletion_of_its_session(api: Api) -> None:
    session = await api.session()
    async with on(api, session) as one, on(api, session) as two:
        await api.sdk.beta.sessions.delete(session["id"])
        for reader in (one, two):
            [event] = await reader.until()
            assert set(event) == {"id", "type", "processed_at"}
            assert event["type"] == "session.deleted"
            assert undocumented(FRAME.validate_python(event)) == []


async def test_a_stream_of_the_primary_thread_ends_with_its_session(api: Api) -> None:
    deleted, archived = await api.session(), await api.session()
    threads = api.sdk.beta.sessions.threads
    for session, last in ((deleted, "session.deleted"), (archived, "session.status_terminated")):
        [thread] = (await threads.list(session["id"])).data
        stream = await threads.events.stream(thread.id, session_id=session["id"])
        await rename(api, session, "last words")
        if session is deleted:
            await api.sdk.beta.sessions.delete(session["id"])
        else:
            await api.sdk.beta.sessions.archive(session["id"])
        types = [event.type async for event in stream]
        assert types[-1] == last
        assert types.count(last) == 1


async def test_a_stream_ends_after_the_session_is_archived(api: Api) -> None:
    session = await api.session()
    async with on(api, session) as reader:
        await rename(api, session, "last words")
        await api.sdk.beta.sessions.archive(session["id"])
        types = [event["type"] for event in await reader.until()]
    assert types == ["session.updated", "session.status_terminated"]


async def test_a_stream_of_a_session_that_has_ended_ends_at_once(api: Api) -> None:
    session = await api.session()
    await api.sdk.beta.sessions.archive(session["id"])
    async with on(api, session) as reader:
        assert await reader.until() == []


async def test_a_stream_that_is_silent_is_pinged(corral: Corral) -> None:
    session = await corral.session()
    following: Following = corral.services.sessions.following
    frames = following.follow(session.id, ping_seconds=0.05)
    assert await anext(frames) == b""
    assert await anext(frames) == b'event: ping\ndata: {"type":"ping"}\n\n'
    assert await anext(frames) == b'event: ping\ndata: {"type":"ping"}\n\n'
    await frames.aclose()


@pytest.mark.parametrize(
    "query",
    [
        "?event_deltas[]=agent.tool_use",
        "?event_deltas[]=agent.message&event_deltas[]=x",
        "?event_deltas=nothing",
        "?" + "&".join(["event_deltas[]=agent.message"] * 101),
    ],
    ids=["other", "one of two", "plain name", "too many"],
)
async def test_other_previews_than_the_documented_are_refused(api: Api, query: str) -> None:
    session = await api.session()
    response = await api.get(f"/v1/sessions/{session['id']}/events/stream{query}")
    assert response.status_code == 400
    assert "event_deltas" in response.json()["error"]["message"]


async def test_a_hundred_values_of_previews_are_taken(api: Api) -> None:
    session = await api.session()
    async with on(api, session, "?" + "&".join(["event_deltas[]=agent.message"] * 100)) as reader:
        assert reader.response.status_code == 200


async def test_previews_are_a_prefix_of_the_event_that_ends_them(corral: Corral) -> None:
    session = await corral.session()
    query = "?event_deltas[]=agent.message&event_deltas[]=agent.thinking"
    script = [{"content": [{"type": "thinking", "thinking": "hm"}, text("A" + LONG), text("B" + LONG)]}]
    async with at(corral, session, query) as reader:
        await session.says("go", script=script)
        frames = await reader.until("session.status_idle")
    types = [frame["type"] for frame in frames]
    begin, end = types.index("span.model_request_start"), types.index("span.model_request_end")
    inside = frames[begin + 1 : end]
    assert {frame["type"] for frame in inside} == {
        "event_start",
        "event_delta",
        "agent.thinking",
        "agent.message",
    }
    starts = {
        frame["event"]["type"]: frame["event"]["id"] for frame in inside if frame["type"] == "event_start"
    }
    finals = {frame["type"]: frame for frame in inside if "id" in frame}
    assert starts == {kind: final["id"] for kind, final in finals.items()}
    deltas = [frame for frame in inside if frame["type"] == "event_delta"]
    assert {frame["event_id"] for frame in deltas} == {starts["agent.message"]}
    texts = ["", ""]
    for frame in deltas:
        assert frame["delta"]["type"] == "content_delta"
        texts[frame["delta"]["index"]] += frame["delta"]["content"]["text"]
    for shown, block in zip(texts, finals["agent.message"]["content"], strict=True):
        assert block["text"].startswith(shown)
        assert shown
    assert inside[-1]["type"] == "agent.message"
    for frame in frames:
        assert undocumented(FRAME.validate_python(frame)) == []
    listed = [event["type"] for event in frames if event.get("processed_at")]
    assert listed == await session.types()


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


async def test_only_the_previews_that_were_asked_for_come(corral: Corral) -> None:
    session = await corral.session()
    script = [{"thinking": "hm", "text": LONG}]
    async with at(corral, session, "?event_deltas[]=agent.thinking") as some, at(corral, session) as none:
        await session.says("go", script=script)
        previews = [f for f in await some.until("session.status_idle") if f["type"].startswith("event_")]
        assert all(not f["type"].startswith("event_") for f in await none.until("session.status_idle"))
    assert [frame["event"]["type"] for frame in previews] == ["agent.thinking"]


async def test_a_stream_opened_in_mid_request_gets_no_previews_of_it(corral: Corral) -> None:
    session = await corral.session()
    await session.says("go", script=[{"text": LONG, "hold": "half", "hold_at": "mid"}])
    await corral.model.until_holding("half")
    async with at(corral, session, "?event_deltas[]=agent.message") as late:
        corral.model.release("half")
        frames = await late.until("session.status_idle")
    assert [f["type"] for f in frames if f["type"].startswith("event_")] == []
    assert "agent.message" in [f["type"] for f in frames]


async def test_an_interrupt_closes_a_preview_without_its_event(corral: Corral) -> None:
    session = await corral.session()
    async with at(corral, session, "?event_deltas[]=agent.message") as reader:
        await session.says("go", script=[{"text": LONG, "hold": "half", "hold_at": "mid"}])
        await reader.until("event_delta")
        await session.sends({"type": "user.interrupt"})
        frames = await reader.until("session.status_idle")
    types = [frame["type"] for frame in frames]
    assert "agent.message" not in types
    end = types.index("span.model_request_end")
    assert all(not kind.startswith("event_") for kind in types[end:])


async def test_the_sdks_accumulator_follows_ours(corral: Corral) -> None:
    session = await corral.session()
    events = corral.client.beta.sessions.events
    stream = await events.stream(session.id, event_deltas=["agent.message"])
    await session.says("go", script=[{"content": [text(LONG), text("and " + LONG)]}])
    snapshots: dict[str, Any] = {}
    partial: list[str] = []
    async for event in stream:
        if event.type == "session.status_idle":
            break
        event_id = (
            event.event_id
            if event.type == "event_delta"
            else event.event.id
            if event.type == "event_start"
            else event.id
        )
        accumulated = accumulate_managed_agents_event(snapshots.get(event_id), event)
        if accumulated is not None:
            snapshots[event_id] = accumulated
            partial.append("".join(getattr(block, "text", "") for block in accumulated.content))
    await stream.close()
    [message] = await session.events(types=["agent.message"])
    assert [block.text for block in snapshots[message.id].content] == [LONG, "and " + LONG]
    assert len(partial) > 3
    assert all(message.content[0].text.startswith(shown[: len(LONG)]) for shown in partial)


async def test_no_stream_of_a_thread_exists_below_its_events(api: Api) -> None:
    session = await api.session()
    [thread] = (await api.sdk.beta.sessions.threads.list(session["id"])).data
    path = f"/v1/sessions/{session['id']}/threads/{thread.id}"
    assert (await api.get(f"{path}/events/stream")).status_code == 404


async def test_a_worker_streams_the_sessions_of_its_environment_alone(api: Api) -> None:
    environment = await api.environment(config={"type": "self_hosted"})
    own, foreign = await api.session(environment_id=environment["id"]), await api.session()
    key = await api.environment_key(environment["id"])
    async with api.client(key) as worker:
        await refused(worker.beta.sessions.events.stream(foreign["id"]), kind=NotFoundError)
    async with reading(api.base_url, key, own["id"]) as reader:
        assert reader.response.status_code == 200


async def test_a_client_that_reconnects_again_and_again_misses_nothing(api: Api) -> None:
    session = await api.session()
    count = 120

    async def write() -> None:
        for n in range(count):
            await rename(api, session, f"t{n}")

    seen: dict[str, Any] = {}

    async def read() -> None:
        while len(seen) < count:
            async with on(api, session) as reader:
                listed = (await api.get(f"/v1/sessions/{session['id']}/events")).json()["data"]
                for event in listed:
                    seen.setdefault(event["id"], event)
                for _ in range(3):
                    if len(seen) >= count:
                        break
                    _, event = await reader.next()
                    seen.setdefault(event["id"], event)

    async with asyncio.timeout(60):
        await asyncio.gather(write(), read())
    assert [event["title"] for event in seen.values()] == [f"t{n}" for n in range(count)]


async def test_many_readers_each_get_every_event_once_in_order(corral: Corral) -> None:
    session = await corral.session()
    readers = 20

    async def read(opened: asyncio.Semaphore) -> list[str]:
        async with at(corral, session) as reader:
            opened.release()
            seen: list[Any] = []
            for _ in range(3):
                seen += await reader.until("session.status_idle")
            return [event["id"] for event in seen if event["processed_at"] is not None]

    opened = asyncio.Semaphore(0)
    reading_all = [asyncio.create_task(read(opened)) for _ in range(readers)]
    for _ in range(readers):
        await opened.acquire()
    after = None
    for word in ("one", "two", "three"):
        await session.says(word, script=[{"text": word}])
        after = (await session.idle(after=after)).id
    whole = [event.id for event in await session.events()]
    assert await asyncio.gather(*reading_all) == [whole] * readers


async def test_an_event_is_listable_no_later_than_it_is_streamed(corral: Corral) -> None:
    session = await corral.session()
    async with at(corral, session) as reader:
        await session.says("go", script=[{"text": "one"}])
        while (frame := await reader.next()) is not None:
            assert frame[1]["id"] in {event.id for event in await session.events()}
            if frame[0] == "session.status_idle":
                break
    assert (await session.retrieve()).status == "idle"


async def test_messages_queued_before_a_stream_opens_come_once_when_taken(api: Api) -> None:
    session = await api.session()
    await api.post(f"/v1/sessions/{session['id']}/events", {"events": [message("early")]})
    async with on(api, session) as reader:
        await api.post(f"/v1/sessions/{session['id']}/events", {"events": [message("late")]})
        _, event = await reader.next()
    assert event["content"][0]["text"] == "late"
