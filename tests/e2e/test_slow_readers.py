"""Clients that do not read: they lose previews, then their connection, and nobody else loses anything."""

import asyncio
from contextlib import ExitStack

import msgspec

from corral.settings import Load
from corral.testing import ScriptedModel
from tests.corral_server import running_corral
from tests.e2e.mcp_house import settings_with
from tests.e2e.test_replicas import stream
from tests.e2e.test_reports_streaming import until_at_rest
from tests.slow_reader import SlowReader, data_of, narrow_listener

LONG = "a word and " * 8_000


async def test_a_slow_reader_loses_previews_and_no_event(database_url: str, model: ScriptedModel) -> None:
    async with running_corral(database_url, model, listener=narrow_listener()) as corral:
        session = await corral.session()
        path = f"/v1/sessions/{session.id}/events/stream?event_deltas[]=agent.message"
        with SlowReader(corral, path) as slow:
            await slow.began()
            step = {"text": LONG, "chunk_chars": 8, "hold": "there", "hold_at": "mid"}
            await session.says(model.script("long", [step]))
            await model.until_holding("there")
            await slow.is_full()
            model.release("there")
            await session.idle()
            seen = data_of(await slow.read("session.status_idle"))
        listed = await session.events()
    shown = "".join(
        event["delta"]["content"]["text"]  # pyright: ignore
        for event in seen
        if event["type"] == "event_delta"
    )
    assert LONG.startswith(shown)
    assert 0 < len(shown) < len(LONG) / 2
    assert [event["id"] for event in seen if event.get("processed_at")] == [event.id for event in listed]


async def test_whoever_reads_nothing_of_a_stream_is_disconnected_and_starves_nobody(
    database_url: str, model: ScriptedModel
) -> None:
    settings = msgspec.structs.replace(settings_with(None, model), load=Load(stalled_seconds=1.0))
    async with running_corral(database_url, model, settings=settings, listener=narrow_listener()) as corral:
        session = await corral.session()
        path = f"/v1/sessions/{session.id}/events/stream?event_deltas[]=agent.message"
        with ExitStack() as stack:
            slow = [stack.enter_context(SlowReader(corral, path)) for _ in range(20)]
            await asyncio.gather(*(one.began() for one in slow))
            async with stream(corral, session.id) as reading:
                await session.says("go", script=[{"text": LONG, "chunk_chars": 8}])
                seen = await reading.until("session.status_idle")
                await until_at_rest(corral.database)
            await asyncio.gather(*(one.cut_off() for one in slow))
        assert [event["content"][0]["text"] for event in seen if event["type"] == "agent.message"] == [LONG]
        # A reader that is cut off opens another stream, and goes on from the list.
        assert (await session.events())[-1].type == "session.status_idle"


async def test_whoever_reads_nothing_of_a_long_list_is_disconnected_too(
    database_url: str, model: ScriptedModel
) -> None:
    settings = msgspec.structs.replace(settings_with(None, model), load=Load(stalled_seconds=0.5))
    async with running_corral(database_url, model, settings=settings, listener=narrow_listener()) as corral:
        session = await corral.session()
        await session.says("go", script=[{"text": LONG}])
        await session.idle()
        with SlowReader(corral, f"/v1/sessions/{session.id}/events") as slow:
            await slow.began()
            await slow.cut_off()


async def test_whoever_reads_slowly_is_left_alone(database_url: str, model: ScriptedModel) -> None:
    """A list that takes several times the bound to read comes to its end, since something is always taken."""
    settings = msgspec.structs.replace(settings_with(None, model), load=Load(stalled_seconds=0.3))
    async with running_corral(database_url, model, settings=settings, listener=narrow_listener()) as corral:
        session = await corral.session()
        await session.says("go", script=[{"text": LONG}])
        await session.idle()
        reader, writer = await asyncio.open_connection(
            *corral.base_url.removeprefix("http://").split(":"), limit=1024
        )
        path = f"/v1/sessions/{session.id}/events"
        head = f"GET {path} HTTP/1.1\r\nhost: x\r\nx-api-key: {corral.api_key}\r\nconnection: close\r\n\r\n"
        writer.write(head.encode())
        seen = b""
        while piece := await reader.read(8192):
            seen += piece
            await asyncio.sleep(0.05)
        writer.close()
        assert LONG in seen.decode()
