"""Conversations that outgrow their model: compaction, the agent's own log, long results (section 13)."""

from itertools import pairwise
from typing import Any

from corral.testing import ScriptedModel
from corral.testing.prefix_cache import count_tokens, tokens_of
from tests.corral_server import Corral, SessionUnderTest
from tests.e2e.coordinating import children, coordinated, starts, thread_events

LOOK_UP: dict[str, Any] = {
    "type": "custom",
    "name": "look_up",
    "description": "Looks something up.",
    "input_schema": {"type": "object", "properties": {"what": {"type": "string"}}},
}
NEAR: dict[str, Any] = {"input_tokens": 170_000}
"""What the provider counts of a request near the limit of 200,000."""
FACT = "The safe opens with 4711-XY."
ASKED = "Write the notes from which you"
"""Words of the request for a summary."""


def calls(name: str = "look_up", **given: Any) -> dict[str, Any]:
    return {"tools": [{"name": name, "input": given}]}


def notes(model: ScriptedModel, *then: dict[str, Any]) -> str:
    """A summary, and what the scripted model plays after it."""
    return f"I was asked to open the safe.\n{model.script('after', list(then))}"


async def answers(session: SessionUnderTest, text: str) -> None:
    """Answer the call that the session waits for."""
    idle = (await session.events())[-1]
    [call] = idle.stop_reason.event_ids
    content = [{"type": "text", "text": text}]
    await session.sends({"type": "user.custom_tool_result", "custom_tool_use_id": call, "content": content})


async def said(session: SessionUnderTest) -> list[str]:
    return [event.content[0].text for event in await session.events() if event.type == "agent.message"]


def names(request: dict[str, Any]) -> list[str]:
    tools: list[dict[str, Any]] = request.get("tools") or []
    return [tool["name"] for tool in tools]


async def test_a_fact_from_before_the_compaction_is_found_in_the_agents_own_log(
    corral: Corral, model: ScriptedModel
) -> None:
    session = await corral.session(LOOK_UP)
    find = calls("ant__history", contains="SAFE OPENS", types=["user"])
    model.rule(if_text_contains=ASKED, text=notes(model, find, {"text": "It is: {result}"}))
    await session.says(FACT, script=[{**calls(what="it"), "usage": NEAR}, {"text": "never played"}])
    waiting = await session.idle()
    await answers(session, "found")
    assert (await session.idle(after=waiting.id)).stop_reason.type == "end_turn"

    assert FACT in (await said(session))[-1]
    first, summary, after, last = model.requests()
    assert ASKED in str(summary["messages"][-1])
    assert "4711" not in str(after)
    assert "4711" in str(last)
    assert ("ant__history" in names(first), "ant__history" in names(after)) == (False, True)
    # The summary's request reads what the one before it wrote.
    assert (summary.get("system"), summary["tools"]) == (first.get("system"), first["tools"])


async def test_the_log_shows_a_compaction_in_order_and_keeps_the_summary_to_itself(
    corral: Corral, model: ScriptedModel
) -> None:
    session = await corral.session(LOOK_UP)
    model.rule(if_text_contains=ASKED, text=notes(model, {"text": "done"}))
    await session.says("open it", script=[{**calls(), "usage": NEAR}])
    waiting = await session.idle()
    await answers(session, "found")
    await session.idle(after=waiting.id)
    types = await session.types()
    at = types.index("agent.thread_context_compacted")
    assert types[at - 2 : at + 3] == [
        "span.model_request_start",
        "span.model_request_end",
        "agent.thread_context_compacted",
        "span.model_request_start",
        "agent.message",
    ]
    shown = (await session.events())[at].to_dict()
    assert set(shown) == {"id", "type", "processed_at"}
    assert "asked to open the safe" not in str([event.to_dict() for event in await session.events()])
    # What the summary used is used by the session.
    spans = [event.model_usage for event in await session.events() if event.type == "span.model_request_end"]
    usage = (await session.retrieve()).usage
    assert usage.output_tokens == sum(span.output_tokens for span in spans)
    assert len(spans) == 3


async def test_a_request_that_is_too_long_is_made_again_once_the_conversation_is_compacted(
    corral: Corral, model: ScriptedModel
) -> None:
    session = await corral.session(LOOK_UP)
    model.rule(if_text_contains=ASKED, text=notes(model, {"text": "it went well"}))
    await session.says("open it", script=[calls()])
    waiting = await session.idle()
    model.limit_context(3_000)
    await answers(session, "many words " * 2_000)
    assert (await session.idle(after=waiting.id)).stop_reason.type == "end_turn"
    assert (await said(session))[-1] == "it went well"
    assert "session.error" not in await session.types()
    assert model.stats["too_long"] == 1
    # The next message goes on from the summary.
    idle = (await session.events())[-1]
    await session.says("thank you", script=[{"text": "welcome"}])
    await session.idle(after=idle.id)
    assert (await said(session))[-1] == "welcome"
    assert "asked to open the safe" in str(model.requests()[-1]["messages"][0])


async def test_what_never_fits_ends_the_turn_and_the_next_message_starts_anew(
    corral: Corral, model: ScriptedModel
) -> None:
    session = await corral.session()
    model.rule(if_text_contains=ASKED, text="notes")
    model.limit_context(1)
    await session.says("open it")
    idle = await session.idle()
    assert idle.stop_reason.type == "retries_exhausted"
    [error] = [event.error for event in await session.events() if event.type == "session.error"]
    assert (error.type, error.retry_status.type) == ("compaction_limit_reached_error", "exhausted")
    assert model.stats["requests"] == 3
    model.limit_context(None)
    await session.says("again", script=[{"text": "here I am"}])
    assert (await session.idle(after=idle.id)).stop_reason.type == "end_turn"
    assert (await said(session))[-1] == "here I am"


async def test_a_message_longer_than_the_context_is_shown_in_part(
    corral: Corral, model: ScriptedModel
) -> None:
    session = await corral.session()
    find = calls("ant__history", contains="needle", types=["user"])
    model.rule(if_text_contains=ASKED, text=notes(model, find, {"text": "Found: {result}"}))
    model.limit_context(60_000)
    await session.says("hay " * 100_000 + "the needle is blue", script=[])
    assert (await session.idle()).stop_reason.type == "end_turn"
    assert "the needle is blue" in (await said(session))[-1]


async def test_an_interrupt_stops_a_compaction_and_nothing_is_lost(
    corral: Corral, model: ScriptedModel
) -> None:
    session = await corral.session(LOOK_UP)
    model.rule(if_text_contains=ASKED, text=notes(model, {"text": "done"}), hold="summary")
    await session.says("open it", script=[{**calls(), "usage": NEAR}, {"text": "went on"}])
    waiting = await session.idle()
    await answers(session, "found")
    await model.until_holding("summary")
    await session.sends({"type": "user.interrupt"})
    idle = await session.idle(after=waiting.id)
    assert idle.stop_reason.type == "end_turn"
    assert "agent.thread_context_compacted" not in await session.types()
    model.release("summary")
    await session.says("go on")
    await session.idle(after=idle.id)
    assert "agent.thread_context_compacted" in await session.types()
    # The message came after the summary was made, word for word.
    assert "go on" in str(model.requests()[-1]["messages"])


async def test_a_summary_that_fails_is_asked_for_again(corral: Corral, model: ScriptedModel) -> None:
    session = await corral.session(LOOK_UP)
    error = {"status": 529, "times": 2}
    model.rule(if_text_contains=ASKED, text=notes(model, {"text": "done"}), error=error)
    await session.says("open it", script=[{**calls(), "usage": NEAR}])
    waiting = await session.idle()
    await answers(session, "found")
    assert (await session.idle(after=waiting.id)).stop_reason.type == "end_turn"
    errors = [
        event.error.retry_status.type for event in await session.events() if event.type == "session.error"
    ]
    assert errors == ["retrying", "retrying"]
    assert (await said(session))[-1] == "done"


async def test_an_answer_without_a_summary_is_no_compaction(corral: Corral, model: ScriptedModel) -> None:
    session = await corral.session(LOOK_UP)
    model.rule(if_text_contains=ASKED, **calls())
    await session.says("open it", script=[{**calls(), "usage": NEAR}])
    waiting = await session.idle()
    await answers(session, "found")
    assert (await session.idle(after=waiting.id)).stop_reason.type == "retries_exhausted"
    [error] = [event.error.type for event in await session.events() if event.type == "session.error"]
    assert error == "compaction_limit_reached_error"
    assert "agent.thread_context_compacted" not in await session.types()


async def test_a_clients_long_result_is_shown_in_part_and_read_in_the_log(corral: Corral) -> None:
    session = await corral.session(LOOK_UP)
    await session.says("look", script=[calls(), {"text": "much"}])
    waiting = await session.idle()
    await answers(session, "x" * 150_000 + " the end is near")
    idle = await session.idle(after=waiting.id)
    result = corral.model.requests()[-1]["messages"][-1]["content"][0]["content"]
    assert "150,016 characters" in result[0]["text"]
    assert len(result[1]["text"]) == 10_000
    [event] = [event for event in await session.events() if event.type == "user.custom_tool_result"]
    find = calls("ant__history", entry=event.id, contains="the end is near")
    await session.says("and the end?", script=[find, {"text": "{result}"}])
    await session.idle(after=idle.id)
    assert "the end is near" in (await said(session))[-1]


async def test_two_hundred_turns_read_nearly_all_of_their_input_from_the_cache(
    corral: Corral, model: ScriptedModel
) -> None:
    session = await corral.session(LOOK_UP)
    async with await corral.client.beta.sessions.events.stream(session.id) as stream:
        idles: Any = aiter(event async for event in stream if event.type == "session.status_idle")
        for turn in range(100):
            words = f"Turn {turn}: what about {turn * 7919}?"
            script = [{"text": "Let me see.", **calls(what=f"item {turn}")}, {"text": f"It is {turn}."}]
            await session.says(words, script=script)
            [call] = (await anext(idles)).stop_reason.event_ids
            content = [{"type": "text", "text": f"Item {turn} is on shelf {turn % 13}."}]
            await session.sends(
                {"type": "user.custom_tool_result", "custom_tool_use_id": call, "content": content}
            )
            assert (await anext(idles)).stop_reason.type == "end_turn"
    requests = model.requests()
    assert len(requests) == 200
    shared = sum(_shared(before, after) for before, after in pairwise(requests))
    total = sum(map(count_tokens, requests))
    assert shared / total >= 0.95
    # What the marks make of it.
    usage = (await session.retrieve()).usage
    created = usage.cache_creation.ephemeral_5m_input_tokens
    read = usage.cache_read_input_tokens
    assert read / (usage.input_tokens + created + read) >= 0.95


def _shared(before: dict[str, Any], after: dict[str, Any]) -> int:
    """Tokens of the prefix that two requests share."""
    shared = 0
    for one, other in zip(_parts(before), _parts(after), strict=False):
        if one != other:
            break
        shared += tokens_of(one[1])
    return shared


def _parts(request: dict[str, Any]) -> list[tuple[str, Any]]:
    """The parts of a prompt in the order of the cache, without marks."""
    tools: list[dict[str, Any]] = request.get("tools") or []
    system: list[dict[str, Any]] = request.get("system") or []
    parts = [*(("tool", tool) for tool in tools), *(("system", block) for block in system)]
    parts += [(message["role"], block) for message in request["messages"] for block in message["content"]]
    return [
        (kind, {name: value for name, value in block.items() if name != "cache_control"})
        for kind, block in parts
    ]


async def test_each_thread_is_compacted_by_itself(corral: Corral, model: ScriptedModel) -> None:
    session = await coordinated(corral, "one", tools=[LOOK_UP])
    model.rule(if_text_contains=ASKED, text=notes(model, {"text": "child done"}))
    child_steps = [{**calls(), "usage": NEAR}, {"text": "never played"}]
    await session.says(
        "go", script=[{"tools": [starts("one", *child_steps)]}, {"text": "I wait."}, {"text": "ok"}]
    )
    asked = await session.until("agent.custom_tool_use")
    content = [{"type": "text", "text": "found"}]
    await session.sends(
        {"type": "user.custom_tool_result", "custom_tool_use_id": asked.id, "content": content}
    )
    report = await session.until("agent.thread_message_received")
    assert report.content[0].text == "child done"
    child = (await children(session))["one"]
    compacted = [event.type for event in await thread_events(session, child.id)]
    assert "agent.thread_context_compacted" in compacted
    assert "agent.thread_context_compacted" not in await session.types()
