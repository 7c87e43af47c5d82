"""Dreams that come to no good end: each says why, and what it wrote until then stays (contract 21)."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from corral.settings import Brain, Dreams, Inference, Settings
from corral.testing import ScriptedModel
from tests.corral_server import Corral, running_corral

from .dreaming import Dreamer, call, reached, session_of, stopped, until

HELD = [{"tools": [call("memory_write", path="/first.md", content="1")]}, {"text": "Done.", "hold": "there"}]


def settings(model: ScriptedModel, **dreams: Any) -> Settings:
    inference = Inference(
        provider="gateway",
        base_url=model.base_url,
        max_retries=0,
        retry_backoff_seconds=0.01,
        retry_backoff_max_seconds=0.05,
    )
    return Settings(inference=inference, brain=Brain(lease_seconds=2.0), dreams=Dreams(**dreams))


async def failed(corral: Corral, dream_id: str, kind: str, *parts: str) -> Any:
    """The dream, which must fail with an error of this type, and have come to rest."""
    dream = await stopped(corral, dream_id)
    assert dream.status == "failed"
    assert dream.error.type == kind
    for part in parts:
        assert part in dream.error.message
    assert dream.ended_at is not None
    if dream.session_id is not None:
        assert (await session_of(corral, dream).retrieve()).archived_at is not None
    return dream


async def archive_store(dreamer: Dreamer) -> None:
    await dreamer.corral.client.beta.memory_stores.archive(dreamer.store_id)


async def delete_store(dreamer: Dreamer) -> None:
    await dreamer.corral.client.beta.memory_stores.delete(dreamer.store_id)


async def delete_session(dreamer: Dreamer) -> None:
    await dreamer.corral.client.beta.sessions.delete(dreamer.session_ids[0])


LOSSES = [
    (archive_store, "input_memory_store_unavailable"),
    (delete_store, "input_memory_store_unavailable"),
    (delete_session, "input_session_unavailable"),
]


@pytest.mark.parametrize(("lose", "kind"), LOSSES)
async def test_an_input_that_is_gone_before_the_dream_starts_makes_it_fail(
    database_url: str, model: ScriptedModel, lose: Callable[[Dreamer], Any], kind: str
) -> None:
    async with running_corral(database_url, model) as first:
        dreamer = await Dreamer.on(first)
    async with running_corral(database_url, model, brains=False) as quiet:
        dreamer = Dreamer(quiet, dreamer.store_id, dreamer.session_ids)
        made = await dreamer.dream([{"text": "Never said."}])
        await lose(dreamer)
    async with running_corral(database_url, model) as later:
        dream = await failed(later, made.id, kind)
        assert (dream.session_id, dream.outputs) == (None, [])
        assert [dream.id] == [one.id async for one in later.client.beta.dreams.list(statuses=["failed"])]


@pytest.mark.parametrize(("lose", "kind"), LOSSES)
async def test_an_input_that_goes_while_the_dream_runs_makes_it_fail(
    corral: Corral, model: ScriptedModel, lose: Callable[[Dreamer], Any], kind: str
) -> None:
    dreamer = await Dreamer.on(corral)
    made = await dreamer.dream(HELD)
    await model.until_holding("there")
    await lose(dreamer)
    dream = await failed(corral, made.id, kind, "keeps what the dream wrote", "session sesn_")
    assert "/first.md" in await dreamer.contents(dream.outputs[0].memory_store_id)


async def test_a_dream_that_takes_too_long_is_stopped(database_url: str, model: ScriptedModel) -> None:
    async with running_corral(database_url, model, settings=settings(model, timeout_seconds=0.5)) as corral:
        dreamer = await Dreamer.on(corral)
        made = await dreamer.dream(HELD)
        await failed(corral, made.id, "timeout", "0.5 seconds")


async def test_a_store_that_is_too_large_is_refused(database_url: str, model: ScriptedModel) -> None:
    async with running_corral(database_url, model, settings=settings(model, max_store_bytes=19)) as corral:
        dreamer = await Dreamer.on(corral)
        made = await dreamer.dream([{"text": "Never said."}])
        await failed(corral, made.id, "input_memory_store_too_large", "20 bytes", "at most 19")


async def test_where_no_store_can_be_made_a_dream_fails_but_one_that_needs_none_does_not(
    corral: Corral,
) -> None:
    dreamer = await Dreamer.on(corral)
    await corral.database.execute(
        "insert into memory_stores (id, name) select 'memstore_' || n, 'full' from generate_series(2, 1000) n"
    )
    made = await dreamer.dream([{"text": "Never said."}])
    await failed(corral, made.id, "memory_store_org_limit_exceeded", "1000 memory stores")
    updating = await dreamer.updating([{"text": "Done."}])
    assert (await until(corral, updating.id)).status == "completed"


async def test_a_model_that_fails_for_good_ends_the_dream(database_url: str, model: ScriptedModel) -> None:
    async with running_corral(database_url, model, settings=settings(model)) as corral:
        dreamer = await Dreamer.on(corral)
        made = await dreamer.dream([{"error": {"status": 529, "message": "too busy", "times": 99}}])
        await failed(corral, made.id, "internal_error", "session stopped")


async def test_a_model_that_refuses_ends_the_dream(corral: Corral) -> None:
    dreamer = await Dreamer.on(corral)
    made = await dreamer.dream([{"text": "No.", "refusal": {"category": "cyber", "explanation": "x"}}])
    await failed(corral, made.id, "internal_error", "refused")


async def test_interrupting_the_dreamers_session_makes_the_dream_fail(
    corral: Corral, model: ScriptedModel
) -> None:
    dreamer = await Dreamer.on(corral)
    made = await dreamer.dream(HELD)
    await model.until_holding("there")
    dream = await until(corral, made.id, "running")
    await session_of(corral, dream).sends({"type": "user.interrupt"})
    await failed(corral, made.id, "internal_error", "interrupted", "cancel the dream")


async def test_an_output_store_that_goes_makes_the_dream_fail(corral: Corral, model: ScriptedModel) -> None:
    dreamer = await Dreamer.on(corral)
    made = await dreamer.dream(HELD)
    await model.until_holding("there")
    dream = await until(corral, made.id, "running")
    await corral.client.beta.memory_stores.archive(dream.outputs[0].memory_store_id)
    await failed(corral, made.id, "internal_error", dream.outputs[0].memory_store_id)


async def test_dreams_beyond_the_limit_wait_for_their_turn(database_url: str, model: ScriptedModel) -> None:
    async with running_corral(database_url, model, settings=settings(model, concurrency=1)) as corral:
        dreamer = await Dreamer.on(corral)
        first = await dreamer.dream([{"text": "Done.", "hold": "there"}])
        await model.until_holding("there")
        second = await dreamer.dream([{"text": "Done."}])
        # The first has been looked at since the second was made, and the second has been passed over.
        await reached(corral, first.id, "worked_until is not null")
        assert (await corral.client.beta.dreams.retrieve(second.id)).status == "pending"
        model.release("there")
        assert (await until(corral, first.id)).status == "completed"
        assert (await until(corral, second.id)).status == "completed"


async def test_tool_calls_that_make_no_sense_are_told_to_the_agent(corral: Corral) -> None:
    dreamer = await Dreamer.on(corral)
    calls = [
        call("memory_write", path="/tabs.md", content="unread"),
        call("memory_write", path="no slash", content="x"),
        call("memory_write", path="/a.md"),
        call("memory_write", path="/tabs.md/below", content="x"),
        call("memory_read", path="/none.md"),
        call("memory_list", folder="nope"),
        call("session_read", session_id="sesn_other"),
        call("session_read", session_id=dreamer.session_ids[0], event=9999),
        call("bash", command="ls"),
    ]
    made = await dreamer.dream([{"tools": calls}, {"text": "{result}"}])
    dream = await until(corral, made.id)
    assert dream.status == "completed"
    events = await session_of(corral, dream).events()
    answers = [event for event in events if event.type in ("user.custom_tool_result", "agent.tool_result")]
    assert len(answers) == len(calls)
    assert all(answer.is_error for answer in answers)
    told = {answer.content[0].text for answer in answers}
    assert "path: must start with /" in told
    assert "content: Field required" in told
    assert any(text.startswith("There is a memory at /tabs.md which you have not read") for text in told)
    assert msgspec.json.encode(await dreamer.contents(dream.outputs[0].memory_store_id)) == (
        msgspec.json.encode(await dreamer.contents())
    )
