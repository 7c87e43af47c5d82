"""Dreams through the death of whoever works on them: carried on by another, each call carried out once."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from corral.bus.postgres import PostgresBus
from corral.resources.dream_judging import judge
from corral.resources.dream_pipeline import DreamPipeline
from corral.resources.dream_start import DreamLimits
from corral.resources.dream_tools import carry_out
from corral.session.service import Sessions
from corral.session.writer import LogWriter
from corral.store.database import Database
from corral.testing import ScriptedModel
from tests.corral_server import Corral, running_corral
from tests.server_process import server_process

from .dreaming import PATIENCE, Dreamer, call, reached, results, session_of, until

LIMITS = DreamLimits(concurrency=4, timeout=600, store_bytes=10**7, reading=10**6)


def writing(count: int) -> list[dict[str, Any]]:
    """A script with a round of two calls for each of so many memories."""
    rounds = [
        {
            "tools": [
                call("memory_write", path=f"/made/{n}.md", content=str(n)),
                call("memory_read", path="/tabs.md"),
            ]
        }
        for n in range(count)
    ]
    return [*rounds, {"text": "Done."}]


async def check(corral: Corral, dream: Any, count: int) -> None:
    """Each memory was made once, and each call has one answer, which is the right one."""
    assert (dream.status, dream.error) == ("completed", None)
    events = await session_of(corral, dream).events()
    uses = [event.id for event in events if event.type == "agent.custom_tool_use"]
    answered = Counter(e.custom_tool_use_id for e in events if e.type == "user.custom_tool_result")
    assert answered == dict.fromkeys(uses, 1)
    assert await results(corral, dream) == [
        text for n in range(count) for text in (f"Created /made/{n}.md.", "Use tabs.")
    ]
    versions = corral.client.beta.memory_stores.memory_versions.list(
        dream.outputs[0].memory_store_id, session_id=dream.session_id
    )
    made = Counter([version.path async for version in versions])
    assert {path: n for path, n in made.items() if path is not None and path.startswith("/made")} == {
        f"/made/{n}.md": 1 for n in range(count)
    }
    left = await corral.database.fetch_one(
        "select (select count(*) from dream_calls where dream_id = %(id)s)"
        " + (select count(*) from dream_seen where dream_id = %(id)s) as left",
        {"id": dream.id},
    )
    assert left == {"left": 0}


@asynccontextmanager
async def pipeline(database_url: str) -> AsyncGenerator[DreamPipeline]:
    """A further one that carries on what there is, as those of the servers do."""
    async with Database(database_url) as database, PostgresBus(database) as bus:
        async with LogWriter(database, bus) as writer:
            yield DreamPipeline(database, Sessions(database, writer, bus), bus, LIMITS)


async def test_several_servers_dream_a_dream_once(database_url: str, model: ScriptedModel) -> None:
    async with running_corral(database_url, model) as one, running_corral(database_url, model) as other:
        dreamer = await Dreamer.on(one)
        made = [await dreamer.dream(writing(3)) for _ in range(3)]
        for dream in made:
            await check(one, await until(other, dream.id), 3)
        sessions = [session async for session in one.client.beta.sessions.list(include_archived=True)]
    assert len(sessions) == 1 + len(made)


async def test_a_dream_that_is_cut_off_anywhere_comes_to_the_same_end(
    database_url: str, model: ScriptedModel
) -> None:
    async with running_corral(database_url, model) as corral, pipeline(database_url) as working:
        dreamer = await Dreamer.on(corral)
        made = await dreamer.dream(writing(6))
        ended, length = asyncio.create_task(until(corral, made.id)), 0
        deadline = time.monotonic() + PATIENCE
        while not ended.done() and time.monotonic() < deadline:
            # Whoever else holds it is taken for dead: both are at it, and one is cut off ever later.
            await corral.database.execute("update dreams set worked_until = null")
            cut = asyncio.create_task(working.advance())
            for _ in range(length := length + 1):
                await asyncio.sleep(0)
            cut.cancel()
            await asyncio.gather(cut, return_exceptions=True)
        await check(corral, await ended, 6)


async def test_a_call_whose_server_dies_before_it_answers_is_answered_and_not_made_again(
    database_url: str, model: ScriptedModel
) -> None:
    script = writing(2)
    script[0]["hold"] = "there"
    async with running_corral(database_url, model) as corral:
        dreamer = await Dreamer.on(corral)
        made = await dreamer.dream(script)
        await model.until_holding("there")
        await hold_off(corral, made.id)
        model.release("there")
        session = session_of(corral, await until(corral, made.id, "running"))
        await session.idle()
        row = await corral.database.fetch_one("select * from dreams where id = %s", (made.id,))
        assert row is not None
        calls = await judge(corral.database, row, 600)
        assert isinstance(calls, list)
        for each in calls:
            assert await carry_out(corral.database, made.id, each, reading=10**6) is not None
        await corral.database.execute("update dreams set worked_until = null where id = %s", (made.id,))
        await check(corral, await until(corral, made.id), 2)


async def hold_off(corral: Corral, dream_id: str) -> None:
    """Keep the servers from a dream, as soon as none works on it."""
    query = (
        "update dreams set worked_until = now() + interval '1 hour' where id = %s and worked_until is null"
    )
    while not await corral.database.execute(query, (dream_id,)):
        await reached(corral, dream_id, "worked_until is null")


async def test_what_a_server_leaves_behind_when_it_stops_another_carries_on(
    database_url: str, model: ScriptedModel
) -> None:
    script = writing(4)
    script[2]["hold"] = "there"
    async with running_corral(database_url, model) as first:
        dreamer = await Dreamer.on(first)
        made = await dreamer.dream(script)
        await model.until_holding("there")
        await reached(first, made.id, "status = 'running'")
    model.release("there")
    async with running_corral(database_url, model) as second:
        await check(second, await until(second, made.id), 4)


async def test_a_dream_of_a_killed_server_is_carried_on(database_url: str, model: ScriptedModel) -> None:
    script = writing(4)
    script[2]["hold"] = "there"
    async with running_corral(database_url, model) as corral:
        dreamer = await Dreamer.on(corral)
    async with server_process(database_url, model.base_url) as killed:
        dreamer = Dreamer(_as_corral(corral, killed.client), dreamer.store_id, dreamer.session_ids)
        made = await dreamer.dream(script)
        await model.until_holding("there")
        await killed.kill()
        await model.until_outcome("disconnected")
        async with running_corral(database_url, model) as other:
            await model.until_holding("there")
            model.release("there")
            await check(other, await until(other, made.id), 4)


def _as_corral(corral: Corral, client: Any) -> Corral:
    return Corral(corral.base_url, corral.api_key, corral.model, corral.database, corral.services, client)
