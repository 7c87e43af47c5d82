"""Dreams from end to end: a model that plays a script reorganises a store after what a session said."""

import anthropic
import pytest

from corral.testing import ScriptedModel
from tests.corral_server import Corral, SessionUnderTest

from .dreaming import Dreamer, call, results, session_of, stopped, until


async def test_a_dream_writes_a_reorganised_copy_and_leaves_its_input_alone(
    corral: Corral, model: ScriptedModel
) -> None:
    dreamer = await Dreamer.on(corral)
    before = await dreamer.contents()
    made = await dreamer.dream(
        [
            {"tools": [call("memory_list"), call("session_list")]},
            {"tools": [call("memory_read", path="/tabs.md"), call("memory_read", path="/indent.md")]},
            {"tools": [call("session_read", session_id=dreamer.session_ids[0])]},
            {"tools": [call("memory_write", path="/indent.md", content="Blanks, since Monday.")]},
            {"tools": [call("memory_move", path="/indent.md", new_path="/style/indent.md")]},
            {"tools": [call("memory_delete", path="/tabs.md")]},
            {"text": "Merged the two memories about indentation."},
        ]
    )
    assert (made.status, made.session_id, made.outputs, made.ended_at) == ("pending", None, [], None)
    dream = await until(corral, made.id)
    assert (dream.status, dream.error) == ("completed", None)
    [output] = dream.outputs
    assert output.memory_store_id != dreamer.store_id
    assert await dreamer.contents(output.memory_store_id) == {"/style/indent.md": "Blanks, since Monday."}
    assert await dreamer.contents() == before
    told = await results(corral, dream)
    assert "/tabs.md, 9 bytes" in told[0]
    assert dreamer.session_ids[0] in told[1]
    assert told[2:4] == ["Use tabs.", "Use blanks."]
    assert "user: We use blanks now, since Monday." in told[4]
    assert "agent: I will remember: blanks." in told[4]
    assert told[5:] == [
        "Replaced /indent.md.",
        "Moved /indent.md to /style/indent.md.",
        "Deleted /tabs.md.",
    ]
    session = await session_of(corral, dream).retrieve()
    assert session.status == "terminated"
    assert session.archived_at is not None
    assert dream.usage.input_tokens + dream.usage.cache_read_input_tokens > 0
    assert dream.usage.output_tokens == session.usage.output_tokens > 0
    copy = await corral.client.beta.memory_stores.retrieve(output.memory_store_id)
    assert (copy.name, copy.description) == ("Team notes", "What we agreed on.")


async def test_a_dream_can_update_its_input_and_leaves_a_history(corral: Corral) -> None:
    dreamer = await Dreamer.on(corral)
    made = await dreamer.updating(
        [
            {"tools": [call("memory_read", path="/tabs.md")]},
            {"tools": [call("memory_write", path="/tabs.md", content="Blanks, since Monday.")]},
            {"tools": [call("memory_write", path="/new.md", content="More.")]},
            {"text": "Done."},
        ]
    )
    dream = await until(corral, made.id)
    assert dream.status == "completed"
    assert [output.memory_store_id for output in dream.outputs] == [dreamer.store_id]
    assert await dreamer.contents() == {
        "/indent.md": "Use blanks.",
        "/new.md": "More.",
        "/tabs.md": "Blanks, since Monday.",
    }
    versions = corral.client.beta.memory_stores.memory_versions.list(
        dreamer.store_id, session_id=dream.session_id
    )
    assert [(version.operation, version.path) async for version in versions] == [
        ("created", "/new.md"),
        ("modified", "/tabs.md"),
    ]


async def test_what_others_change_meanwhile_is_not_lost(corral: Corral, model: ScriptedModel) -> None:
    dreamer = await Dreamer.on(corral)
    write = call("memory_write", path="/tabs.md", content="Blanks.")
    made = await dreamer.updating(
        [
            {"tools": [call("memory_read", path="/tabs.md"), call("memory_read", path="/indent.md")]},
            {"tools": [write, call("memory_delete", path="/indent.md")], "hold": "read"},
            {"tools": [call("memory_read", path="/tabs.md")]},
            {"tools": [write]},
            {"text": "Done."},
        ]
    )
    await model.until_holding("read")
    memories = corral.client.beta.memory_stores.memories
    for memory in [memory async for memory in memories.list(dreamer.store_id)]:
        assert memory.type == "memory"
        await memories.update(memory.id, memory_store_id=dreamer.store_id, content=f"New at {memory.path}")
    model.release("read")
    dream = await until(corral, made.id)
    told = await results(corral, dream)
    assert told[2].startswith("/tabs.md was changed by somebody else")
    assert told[3].startswith("/indent.md was changed by somebody else")
    assert told[4:] == ["New at /tabs.md", "Replaced /tabs.md."]
    assert await dreamer.contents() == {"/indent.md": "New at /indent.md", "/tabs.md": "Blanks."}


async def test_a_canceled_dream_changes_nothing_any_more_and_comes_to_rest(
    corral: Corral, model: ScriptedModel
) -> None:
    dreamer = await Dreamer.on(corral)
    dreams = corral.client.beta.dreams
    made = await dreamer.updating(
        [
            {"tools": [call("memory_write", path="/first.md", content="1")]},
            {"tools": [call("memory_write", path="/second.md", content="2")], "hold": "before"},
        ]
    )
    await model.until_holding("before")
    canceled = await dreams.cancel(made.id)
    assert canceled.status == "canceled"
    assert canceled.ended_at is not None
    over = await stopped(corral, made.id)
    assert (over.status, over.ended_at, over.error) == ("canceled", canceled.ended_at, None)
    # What it wrote until then stays, and its session can be read.
    assert sorted(await dreamer.contents()) == ["/first.md", "/indent.md", "/tabs.md"]
    session = session_of(corral, over)
    assert (await session.retrieve()).archived_at is not None
    assert "user.interrupt" in await session.types()
    assert over.usage.output_tokens > 0
    again = await dreamer.updating([{"text": "Nothing to do."}])
    assert (await until(corral, again.id)).status == "completed"


async def test_a_store_that_a_dream_updates_is_taken_until_that_has_stopped(
    corral: Corral, model: ScriptedModel
) -> None:
    dreamer = await Dreamer.on(corral)
    made = await dreamer.updating([{"text": "Done.", "hold": "there"}])
    await model.until_holding("there")
    with pytest.raises(anthropic.ConflictError):
        await dreamer.updating([{"text": "Too early."}])
    model.release("there")
    assert (await until(corral, made.id)).status == "completed"
    assert (await dreamer.updating([{"text": "Now."}])).status == "pending"


async def test_the_dreamers_session_is_one_like_any_but_its_agent_and_environment_are_not_listed(
    corral: Corral, model: ScriptedModel
) -> None:
    dreamer = await Dreamer.on(corral)
    agents = [agent.id async for agent in corral.client.beta.agents.list()]
    environments = [one.id async for one in corral.client.beta.environments.list()]
    made = await dreamer.dream([{"text": "Done.", "hold": "there"}])
    await model.until_holding("there")
    dream = await until(corral, made.id, "running")
    assert dream.status == "running"
    assert len(dream.outputs) == 1
    listed = {session.id: session async for session in corral.client.beta.sessions.list()}
    session = listed[dream.session_id]
    assert session.title == "Dream about Team notes"
    assert session.metadata == {"dream_id": made.id}
    assert (session.agent.name, session.agent.version) == ("Dreamer", 1)
    assert [agent.id async for agent in corral.client.beta.agents.list()] == agents
    assert [one.id async for one in corral.client.beta.environments.list()] == environments
    with pytest.raises(anthropic.BadRequestError):
        await corral.client.beta.sessions.create(
            agent=await corral.agent(), environment_id=session.environment_id
        )
    model.release("there")
    await until(corral, made.id)


async def test_the_dreamer_can_be_steered_while_it_is_at_work(corral: Corral, model: ScriptedModel) -> None:
    dreamer = await Dreamer.on(corral)
    made = await dreamer.dream([{"text": "Working.", "hold": "there"}])
    await model.until_holding("there")
    dream = await until(corral, made.id, "running")
    await SessionUnderTest(corral, dream.session_id).says("Mind the dates.", script=[{"text": "I will."}])
    model.release("there")
    dream = await until(corral, made.id)
    assert dream.status == "completed"
    events = await session_of(corral, dream).events()
    said = [event.content[0].text for event in events if event.type == "agent.message"]
    assert said == ["Working.", "I will."]


async def test_without_a_script_the_scripted_model_dreams_by_itself(corral: Corral) -> None:
    dreamer = await Dreamer.on(corral, a="Use blanks.", b="Use tabs.", c="Use blanks.")
    session = await corral.session()
    await session.says("Please always run the linter.", script=[{"text": "I will."}])
    await session.idle()
    dreamer.session_ids.append(session.id)
    made = await dreamer.dream([], instructions=None)
    dream = await until(corral, made.id)
    assert dream.status == "completed"
    assert await dreamer.contents(dream.outputs[0].memory_store_id) == {
        "/a.md": "Use blanks.",
        "/b.md": "Use tabs.",
        "/learned.md": "- Please always run the linter.\n",
    }
    again = await dreamer.dream([], instructions=None)
    assert (await until(corral, again.id)).status == "completed"
