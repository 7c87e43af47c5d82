"""History that stays valid for the model, after faults met elsewhere (docs/robustness.md, History)."""

import struct
from base64 import b64encode
from pathlib import Path
from typing import Any

import msgspec
import pytest

from corral.brain.retry import RetryPolicy
from corral.testing.conversation import Conversation
from corral.testing.steps import ErrorPlan, Step, ToolCall
from tests.corral_server import Corral, SessionUnderTest
from tests.e2e.worker_at_work import TOOLSET, at_work, bash, pool

LOOK_UP: dict[str, Any] = {
    "type": "custom",
    "name": "look_up",
    "description": "Looks something up.",
    "input_schema": {"type": "object", "properties": {"what": {"type": "string"}}},
}


def look_up(*what: str) -> dict[str, Any]:
    """A model's step that calls the custom tool, once for each."""
    return {"tools": [{"name": "look_up", "input": {"what": one}} for one in what]}


def image(side: int, source: Any = None) -> dict[str, Any]:
    """A PNG by its header, square."""
    header = b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + struct.pack(">II", side, side) + b"\x08\0\0\0\0" * 3
    inline = {"type": "base64", "media_type": "image/png", "data": b64encode(header).decode()}
    return {"type": "image", "source": source or inline}


def message(text: str, *blocks: Any) -> dict[str, Any]:
    return {"type": "user.message", "content": [{"type": "text", "text": text}, *blocks]}


def scripted(text: str, *steps: dict[str, Any]) -> str:
    return f"{text}\nscript: {msgspec.json.encode(steps).decode()}"


def custom_result(call: str, *content: Any) -> dict[str, Any]:
    return {"type": "user.custom_tool_result", "custom_tool_use_id": call, "content": list(content)}


async def said(session: SessionUnderTest) -> list[str]:
    """What the agent said, in order."""
    return [event.content[0].text for event in await session.events() if event.type == "agent.message"]


async def failures(session: SessionUnderTest) -> list[tuple[str, str]]:
    """The errors that the session showed: type, and what becomes of the request."""
    errors = [event.error for event in await session.events() if event.type == "session.error"]
    return [(error.type, error.retry_status.type) for error in errors]


async def test_a_repeated_answer_leaves_one_set_of_tool_calls(corral: Corral) -> None:
    session = await corral.session(LOOK_UP)
    torn = {**look_up("a", "b"), "error": {"at": "cut", "times": 2}}
    await session.says("go", script=[torn, {"text": "got {result}"}])
    idle = await session.idle()
    assert len(idle.stop_reason.event_ids) == 2
    assert (await session.types()).count("agent.custom_tool_use") == 2
    await session.sends(
        *(custom_result(call, {"type": "text", "text": "x"}) for call in idle.stop_reason.event_ids)
    )
    assert (await session.idle(after=idle.id)).stop_reason.type == "end_turn"


async def test_an_interrupt_among_parallel_calls_leaves_one_message_with_every_result(corral: Corral) -> None:
    session = await corral.session(LOOK_UP)
    await session.says("go", script=[look_up("a", "b", "c")])
    idle = await session.idle()
    await session.sends(custom_result(idle.stop_reason.event_ids[1], {"type": "text", "text": "found b"}))
    partial = await session.idle(after=idle.id)
    await session.sends({"type": "user.interrupt"})
    stopped = await session.idle(after=partial.id)
    await session.says("and now?", script=[{"text": "on we go"}])
    await session.idle(after=stopped.id)
    answer = corral.model.requests()[-1]["messages"][-1]["content"]
    results = [block["content"][0]["text"] for block in answer if block["type"] == "tool_result"]
    interrupted = "Tool execution was interrupted before completion. Please retry."
    assert results == [interrupted, "found b", interrupted]
    assert await said(session) == ["on we go"]


async def test_an_empty_answer_does_not_spoil_the_next_request(corral: Corral) -> None:
    session = await corral.session()
    await session.says("go", script=[{"text": ""}])
    first = await session.idle()
    await session.says("again", script=[{"text": "here"}])
    await session.idle(after=first.id)
    assert await said(session) == ["here"]


async def test_a_text_of_white_space_in_a_result_does_not_spoil_the_next_request(corral: Corral) -> None:
    session = await corral.session(LOOK_UP)
    await session.says("go", script=[look_up("a"), {"text": "nothing there"}])
    idle = await session.idle()
    [call] = idle.stop_reason.event_ids
    await session.sends(custom_result(call, {"type": "text", "text": " \n"}, {"type": "text", "text": ""}))
    assert (await session.idle(after=idle.id)).stop_reason.type == "end_turn"


async def test_many_large_images_do_not_brick_a_session(corral: Corral) -> None:
    session = await corral.session()
    await session.sends(message(scripted("look", {"text": "seen"}), *(image(2_500) for _ in range(12))))
    first = await session.idle()
    assert first.stop_reason.type == "end_turn"
    more = [*(image(2_500) for _ in range(9)), image(1_000)]
    await session.sends(message(scripted("and these", {"text": "seen too"}), *more))
    assert (await session.idle(after=first.id)).stop_reason.type == "end_turn"
    assert await said(session) == ["seen", "seen too"]


async def test_an_image_that_the_model_refuses_is_left_out_once_and_the_session_goes_on(
    corral: Corral,
) -> None:
    session = await corral.session()
    gone = image(0, {"type": "url", "url": "https://example.com/gone.png"})
    plan = ErrorPlan(status=400, message="cannot fetch the image", times=99)
    answers = iter([Step(text="never", error=plan), Step(text="I cannot see it")])

    def refused_once(_: Conversation, __: int) -> Step:
        return next(answers)

    await session.sends(message(f"look\n{corral.model.script('refused-once', refused_once)}", gone))
    assert (await session.idle()).stop_reason.type == "end_turn"
    assert await failures(session) == [("model_request_failed_error", "retrying")]
    with_image, without = (request["messages"][0]["content"] for request in corral.model.requests())
    assert with_image[1]["type"] == "image"
    assert without[1]["type"] == "text"
    assert "refused" in without[1]["text"]
    # The log still has what the user sent.
    [sent] = [event for event in await session.events() if event.type == "user.message"]
    assert sent.content[1].type == "image"


async def test_an_image_of_a_tool_that_the_model_refuses_is_left_out_too(corral: Corral) -> None:
    session = await corral.session(LOOK_UP)
    plan = ErrorPlan(status=413, times=99)
    answers = iter([Step(text="never", error=plan), Step(text="no picture")])

    def calls_and_is_refused(conversation: Conversation, _: int) -> Step:
        return next(answers) if conversation.results() else Step(tools=[ToolCall("look_up")])

    await session.says(f"go\n{corral.model.script('refused', calls_and_is_refused)}")
    idle = await session.idle()
    [call] = idle.stop_reason.event_ids
    await session.sends(custom_result(call, image(8)))
    assert (await session.idle(after=idle.id)).stop_reason.type == "end_turn"
    result = corral.model.requests()[-1]["messages"][-1]["content"][0]
    assert [block["type"] for block in result["content"]] == ["text"]


async def test_a_request_that_is_refused_again_is_not_repeated_for_ever(corral: Corral) -> None:
    session = await corral.session()
    refused = {"status": 400, "times": 99}
    await session.sends(message(scripted("look", {"text": "never", "error": refused}), image(8)))
    idle = await session.idle()
    assert idle.stop_reason.type == "retries_exhausted"
    assert corral.model.stats["requests"] == 2
    await session.says("something else", script=[{"text": "gladly"}])
    assert (await session.idle(after=idle.id)).stop_reason.type == "end_turn"


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
async def test_an_error_that_may_pass_is_repeated(corral: Corral, status: int) -> None:
    session = await corral.session()
    await session.says("go", script=[{"text": "after all", "error": {"status": status, "times": 1}}])
    assert (await session.idle()).stop_reason.type == "end_turn"
    assert [retry for _, retry in await failures(session)] == ["retrying"]
    types = await session.types()
    assert types.count("session.status_rescheduled") == 1
    assert types.count("session.status_running") == 2
    assert await said(session) == ["after all"]


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 413])
async def test_an_error_that_will_not_pass_ends_the_turn_at_once(corral: Corral, status: int) -> None:
    session = await corral.session()
    await session.says("go", script=[{"text": "never", "error": {"status": status, "times": 9}}])
    idle = await session.idle()
    assert idle.stop_reason.type == "retries_exhausted"
    assert [retry for _, retry in await failures(session)] == ["exhausted"]
    assert corral.model.stats["requests"] == 1


@pytest.mark.parametrize("at", ["mid", "cut"])
async def test_an_answer_that_breaks_off_is_repeated_whole(corral: Corral, at: str) -> None:
    session = await corral.session()
    text = "an answer of some length that breaks off in the middle"
    await session.says("go", script=[{"text": text, "error": {"at": at, "times": 2, "status": 529}}])
    assert (await session.idle()).stop_reason.type == "end_turn"
    assert await said(session) == [text]
    ends = [event.is_error for event in await session.events() if event.type == "span.model_request_end"]
    assert ends == [True, True, False]


async def test_the_providers_wish_to_wait_is_heard_up_to_a_limit() -> None:
    policy = RetryPolicy(base=1.0, cap=60.0, longest_wish=900.0)
    assert policy.delay(0, 30.0) == 30.0
    assert policy.delay(0, 1e9) == 900.0
    assert 0.5 <= policy.delay(0, None) <= 1.0
    assert 30.0 <= policy.delay(50, None) <= 60.0


async def test_consecutive_requests_read_the_prefix_from_the_cache(corral: Corral) -> None:
    session = await corral.session(LOOK_UP, TOOLSET)
    await session.says("go " * 200, script=[{"text": "one"}])
    first = await session.idle()
    await session.says("again", script=[{"text": "two"}])
    await session.idle(after=first.id)
    one, two = corral.model.requests()
    assert one["tools"] == two["tools"]
    assert one["system"] == two["system"]
    ends = [event for event in await session.events() if event.type == "span.model_request_end"]
    assert ends[0].model_usage.cache_creation_input_tokens > 0
    assert ends[1].model_usage.cache_read_input_tokens >= ends[0].model_usage.cache_creation_input_tokens


async def test_nul_and_broken_text_of_a_command_reach_the_model_as_text(
    corral: Corral, open_folder: Path
) -> None:
    async with at_work(await pool(corral, open_folder)):
        session = await corral.session(TOOLSET)
        await session.says("go", script=[bash(r"printf 'a\000b\xed\xa0\x80c'"), {"text": "it said {result}"}])
        assert (await session.idle()).stop_reason.type == "end_turn"
    [answer] = await said(session)
    assert answer.startswith("it said a")
    assert "\x00" not in answer
    answer.encode()


async def test_an_output_of_megabytes_is_cut_and_the_session_goes_on(
    corral: Corral, open_folder: Path
) -> None:
    async with at_work(await pool(corral, open_folder)):
        session = await corral.session(TOOLSET)
        await session.says("go", script=[bash("yes corral | head -c 5000000"), {"text": "long"}])
        assert (await session.idle()).stop_reason.type == "end_turn"
    [result] = [event for event in await session.events() if event.type == "agent.tool_result"]
    assert len(result.content[0].text) < 200_000
