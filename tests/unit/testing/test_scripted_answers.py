"""The scripted model over real HTTP, through the official client."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anthropic
import httpx
import pytest
from anthropic import AsyncAnthropic
from anthropic.types import Message, MessageParam, ToolParam, ToolUseBlock

from corral.testing import ScriptedModel

MODEL = "claude-opus-5-5"
TOOLS: list[ToolParam] = [{"name": "bash", "input_schema": {"type": "object"}}]


def says(*steps: dict[str, Any]) -> MessageParam:
    return {"role": "user", "content": f"Go.\nscript: {json.dumps({'steps': list(steps)})}"}


async def ask(client: AsyncAnthropic, *messages: MessageParam, **fields: Any) -> Message:
    messages_api: Any = client.messages
    answer: Message = await messages_api.create(
        model=MODEL, max_tokens=fields.pop("max_tokens", 1000), messages=messages, tools=TOOLS, **fields
    )
    return answer


async def streamed(client: AsyncAnthropic, *messages: MessageParam, **fields: Any) -> Message:
    async with client.messages.stream(
        model=MODEL, max_tokens=1000, messages=messages, tools=TOOLS, **fields
    ) as stream:
        return await stream.get_final_message()


def given_back(message: Message) -> MessageParam:
    return {"role": "assistant", "content": [block.to_dict() for block in message.content]}  # type: ignore[misc]


def answered(message: Message, *texts: str) -> MessageParam:
    calls = [block for block in message.content if isinstance(block, ToolUseBlock)]
    return {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": call.id, "content": text}
            for call, text in zip(calls, texts, strict=True)
        ],
    }


async def raw(model: ScriptedModel, message: MessageParam, **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "max_tokens": 1000, "messages": [message], **fields}
    async with httpx.AsyncClient(base_url=model.base_url, headers={"x-api-key": "k"}) as http:
        return await http.post("/v1/messages", json=body)


ROUND: dict[str, Any] = {
    "thinking": "I have to look.",
    "text": "Looking.",
    "tools": [{"name": "bash", "input": {"command": "ls -la /workspace"}}, {"name": "bash", "input": {}}],
}


async def test_a_stream_and_a_whole_answer_hold_the_same_content(client: AsyncAnthropic) -> None:
    whole = await ask(client, says(ROUND), thinking={"type": "adaptive"})
    stream = await streamed(client, says(ROUND), thinking={"type": "adaptive"})

    for message in (whole, stream):
        assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
        assert message.content[2].to_dict()["input"] == {"command": "ls -la /workspace"}
        assert message.stop_reason == "tool_use"
    assert [block.to_dict() for block in whole.content[:2]] == [
        block.to_dict() for block in stream.content[:2]
    ]
    assert whole.usage.output_tokens == stream.usage.output_tokens


async def test_the_step_is_the_number_of_assistant_turns_since_the_directive(
    model: ScriptedModel, client: AsyncAnthropic
) -> None:
    first = says(ROUND, {"text": "It said {result[0]}, {result[1]} and {result}."})
    turn = await ask(client, first, thinking={"type": "adaptive"})
    last = await streamed(
        client, first, given_back(turn), answered(turn, "a", "b"), thinking={"type": "adaptive"}
    )

    assert last.content[0].to_dict()["text"] == "It said a, b and a\nb."
    assert last.stop_reason == "end_turn"
    model.assert_no_refusals()


async def test_a_later_directive_governs_from_where_it_stands(client: AsyncAnthropic) -> None:
    reply: MessageParam = {"role": "assistant", "content": "fine"}
    message = await ask(client, says({"text": "one"}), reply, says({"text": "two"}))

    assert message.content[0].to_dict()["text"] == "two"


async def test_a_registered_script_is_named_in_the_conversation(
    model: ScriptedModel, client: AsyncAnthropic
) -> None:
    line = model.script("greet", [{"text": "step {step} of {text}"}])
    message = await ask(client, {"role": "user", "content": [{"type": "text", "text": line}]})

    assert message.content[0].to_dict()["text"] == "step 0 of script: greet"


async def test_a_script_is_registered_over_http(model: ScriptedModel, client: AsyncAnthropic) -> None:
    async with httpx.AsyncClient(base_url=model.base_url) as http:
        good = await http.post("/_scripted/scripts/hi", json=[{"text": "hi"}])
        bad = await http.post("/_scripted/scripts/bad", json=[{"texts": "hi"}])

    assert good.status_code == 200
    assert bad.status_code == 400
    assert "texts" in bad.json()["error"]["message"]
    assert (await ask(client, {"role": "user", "content": "script: hi"})).content[0].to_dict()["text"] == "hi"


async def test_an_unknown_script_and_a_broken_one_are_refused(client: AsyncAnthropic) -> None:
    with pytest.raises(
        anthropic.BadRequestError, match="no script is named 'nope'; known are converse, dream, repair"
    ):
        await ask(client, {"role": "user", "content": "script: nope"})
    with pytest.raises(anthropic.BadRequestError, match=r"messages\.0\.content: the script is not JSON"):
        await ask(client, {"role": "user", "content": "script: {oops"})
    with pytest.raises(anthropic.BadRequestError, match="last turn has 0 results"):
        await ask(client, says({"text": "{result[0]}"}))


async def test_a_step_is_chosen_by_what_the_results_contain(client: AsyncAnthropic) -> None:
    first = says(
        {"tools": [{"name": "bash", "input": {}}]},
        {"if_result_contains": "OK", "then": {"text": "good"}, "else": {"text": "bad"}},
    )
    turn = await ask(client, first)

    good = await ask(client, first, given_back(turn), answered(turn, "all OK"))
    bad = await ask(client, first, given_back(turn), answered(turn, "broken"))
    assert (good.content[0].to_dict()["text"], bad.content[0].to_dict()["text"]) == ("good", "bad")


async def test_a_rule_goes_before_any_script(model: ScriptedModel, client: AsyncAnthropic) -> None:
    model.rule(if_system_contains="Summarise", text="a summary")

    message = await ask(client, says({"text": "one"}), system="Summarise this conversation.")
    assert message.content[0].to_dict()["text"] == "a summary"
    assert (await ask(client, says({"text": "one"}))).content[0].to_dict()["text"] == "one"


@pytest.mark.parametrize(
    ("status", "kind", "error"),
    [
        (429, "rate_limit_error", anthropic.RateLimitError),
        (529, "overloaded_error", anthropic.InternalServerError),
        (500, "api_error", anthropic.InternalServerError),
        (400, "invalid_request_error", anthropic.BadRequestError),
    ],
)
async def test_an_error_comes_as_often_as_the_step_says(
    client: AsyncAnthropic, status: int, kind: str, error: type[anthropic.APIStatusError]
) -> None:
    message = says({"text": "ok", "error": {"status": status, "times": 2, "retry_after": 3}})
    for _ in range(2):
        with pytest.raises(error) as raised:
            await ask(client, message)
        assert raised.value.status_code == status
        assert raised.value.response.headers["retry-after"] == "3"
        assert raised.value.body["error"]["type"] == kind  # type: ignore[index]
        assert raised.value.body["request_id"] == raised.value.request_id  # type: ignore[index]

    assert (await ask(client, message)).content[0].to_dict()["text"] == "ok"


async def test_an_error_inside_the_stream_comes_after_some_content(
    model: ScriptedModel, client: AsyncAnthropic
) -> None:
    message = says({"text": "a rather long answer to be cut", "error": {"status": 529, "at": "mid"}})
    response = await raw(model, message, stream=True)
    kinds = [line[7:] for line in response.text.splitlines() if line.startswith("event: ")]

    assert response.status_code == 200
    assert "content_block_delta" in kinds
    assert kinds[-1] == "error"
    assert "overloaded_error" in response.text
    assert (await streamed(client, message)).stop_reason == "end_turn"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_cut_connection_ends_before_the_message_does(model: ScriptedModel, stream: bool) -> None:
    message = says({"text": "a rather long answer to be cut", "error": {"at": "cut"}})

    with pytest.raises(httpx.RemoteProtocolError):
        await raw(model, message, stream=stream)
    await model.until_outcome("cut")
    assert "message_stop" in (await raw(model, message, stream=True)).text


@pytest.mark.parametrize("where", ["start", "mid"])
async def test_a_response_waits_at_its_hold_until_released(
    model: ScriptedModel, client: AsyncAnthropic, where: str
) -> None:
    asking = asyncio.create_task(streamed(client, says({"text": "held", "hold": "gate", "hold_at": where})))
    await model.until_holding("gate")
    assert not asking.done()

    async with httpx.AsyncClient(base_url=model.base_url) as http:
        assert (await http.get("/_scripted/holding/gate")).json() == {"holding": True}
        assert (await http.get("/_scripted/stats")).json()["holding"] == {"gate": 1}
        await http.post("/_scripted/release/gate")
    assert (await asking).content[0].to_dict()["text"] == "held"


async def test_a_client_that_goes_away_is_noticed(model: ScriptedModel, client: AsyncAnthropic) -> None:
    asking = asyncio.create_task(streamed(client, says({"text": "held", "hold": "gate", "hold_at": "mid"})))
    await model.until_holding("gate")
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking

    await model.until_outcome("disconnected")
    assert model.player.holds.waiting() == {}


async def test_stopping_ends_a_held_response() -> None:
    async with ScriptedModel() as model:
        asking = asyncio.create_task(raw(model, says({"text": "held", "hold": "gate"})))
        await model.until_holding("gate")
    assert (await asking).json()["content"][0]["text"] == "held"


async def test_a_block_that_no_client_knows_is_streamed_and_taken_back(
    model: ScriptedModel, client: AsyncAnthropic
) -> None:
    first = says({"unknown_block": True, "tools": [{"name": "bash", "input": {}}]}, {"text": "fine"})
    turn = await streamed(client, first)
    last = await ask(client, first, given_back(turn), answered(turn, "x"))

    assert [block.type for block in turn.content] == ["scripted_novelty", "tool_use"]
    assert last.content[0].to_dict()["text"] == "fine"
    model.assert_no_refusals()


async def test_pings_come_as_many_as_asked(model: ScriptedModel) -> None:
    response = await raw(
        model, says({"text": "some words to be streamed in pieces", "pings": 3}), stream=True
    )

    assert response.text.count("event: ping") == 3


async def test_max_tokens_cuts_a_tool_call_in_the_middle_of_its_input(model: ScriptedModel) -> None:
    cut = {"tools": [{"name": "bash", "input": {"command": "ls"}}], "max_tokens_cut": True}
    response = await raw(model, says(cut), stream=True)
    events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]
    written = "".join(
        event["delta"].get("partial_json", "") for event in events if event["type"] == "content_block_delta"
    )

    with pytest.raises(json.JSONDecodeError):
        json.loads(written)
    assert events[-2]["delta"]["stop_reason"] == "max_tokens"


async def test_an_answer_longer_than_max_tokens_is_cut(client: AsyncAnthropic) -> None:
    message = await ask(client, says({"text": "word " * 100}), max_tokens=5)

    assert message.stop_reason == "max_tokens"
    assert message.content[0].to_dict()["text"] == "word " * 4


async def test_a_stop_sequence_ends_the_answer(client: AsyncAnthropic) -> None:
    message = await ask(client, says({"text": "one STOP two"}), stop_sequences=["STOP"])

    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "STOP")
    assert message.content[0].to_dict()["text"] == "one "


async def test_a_refusal_carries_its_details(client: AsyncAnthropic) -> None:
    step = {"text": "I cannot.", "refusal": {"category": "cyber", "explanation": "no"}}
    for message in (await ask(client, says(step)), await streamed(client, says(step))):
        assert message.stop_reason == "refusal"
        assert message.stop_details is not None
        assert message.stop_details.category == "cyber"


async def test_withheld_thinking_of_an_open_loop_is_refused_and_counted(
    model: ScriptedModel, client: AsyncAnthropic
) -> None:
    turn = await ask(client, says(ROUND), thinking={"type": "adaptive"})
    bare: MessageParam = {"role": "assistant", "content": given_back(turn)["content"][1:]}  # type: ignore[typeddict-item]

    with pytest.raises(anthropic.BadRequestError, match=r"messages\.1\.content\.0: the thinking blocks"):
        await ask(client, says(ROUND), bare, answered(turn, "a", "b"), thinking={"type": "adaptive"})
    assert model.stats["refused"][0]["path"] == "messages.1.content.0"
    assert model.stats["by_status"] == {"200": 1, "400": 1}
    with pytest.raises(AssertionError, match="refused 1 requests"):
        model.assert_no_refusals()
    model.reset()
    model.assert_no_refusals()


async def test_a_request_without_credential_is_refused(model: ScriptedModel) -> None:
    async with httpx.AsyncClient(base_url=model.base_url) as http:
        missing = await http.post("/v1/messages", json={})
        bearer = await http.post("/v1/messages", json={}, headers={"authorization": "Bearer x"})

    assert (missing.status_code, missing.json()["error"]["type"]) == (401, "authentication_error")
    assert bearer.status_code == 400
    assert bearer.json()["request_id"] == bearer.headers["request-id"]


@pytest.mark.parametrize("content", [b"{", b'{"model": NaN}', b'{"model": "\\ud800"}', b"\xff"])
async def test_a_body_that_is_not_json_is_refused(model: ScriptedModel, content: bytes) -> None:
    async with httpx.AsyncClient(base_url=model.base_url, headers={"x-api-key": "k"}) as http:
        response = await http.post("/v1/messages", content=content)

    assert response.status_code == 400
    assert "not valid JSON" in response.json()["error"]["message"]


async def test_a_body_over_32_megabytes_is_refused(model: ScriptedModel) -> None:
    async with httpx.AsyncClient(base_url=model.base_url, headers={"x-api-key": "k"}) as http:
        response = await http.post("/v1/messages", content=b" " * (32 * 1024 * 1024 + 1))

    assert (response.status_code, response.json()["error"]["type"]) == (413, "request_too_large")


async def test_tokens_are_counted_as_they_are_billed(client: AsyncAnthropic) -> None:
    message = says({"text": "ok"})
    counted = await client.messages.count_tokens(model=MODEL, messages=[message], tools=TOOLS)

    assert counted.input_tokens == (await ask(client, message)).usage.input_tokens


async def test_models_are_listed_and_looked_up(client: AsyncAnthropic) -> None:
    page = await client.models.list()

    assert MODEL in [entry.id for entry in page.data]
    assert (await client.models.retrieve(MODEL)).id == MODEL
    with pytest.raises(anthropic.NotFoundError):
        await client.models.retrieve("claude-none")


async def test_requests_are_recorded_with_their_outcome(model: ScriptedModel, client: AsyncAnthropic) -> None:
    await ask(client, says({"text": "ok"}), system="be kind")
    await model.until_outcome("complete")

    assert model.requests()[0]["system"] == "be kind"
    async with httpx.AsyncClient(base_url=model.base_url) as http:
        seen = (await http.get("/_scripted/requests")).json()["requests"]
        await http.post("/_scripted/reset")
        after = (await http.get("/_scripted/requests")).json()["requests"]
    assert (seen[0]["status"], seen[0]["outcome"], seen[0]["body"]["model"]) == (200, "complete", MODEL)
    assert after == []
