"""One table says what models can do; the operator's lines come before it."""

from typing import Any

import pytest

from corral.inference.context_editing import context_management
from corral.inference.messages import MessagesProvider
from corral.inference.provider import ModelRequest
from corral.testing import ScriptedModel
from corral.testing.validation.models import MODEL_IDS, takes_system_turns
from corral.wire.model_table import PACKAGED, PROVIDERS, CapabilitiesError, CapabilityTable

MESSAGES = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]


def test_every_model_of_the_list_is_known_dated_or_not() -> None:
    for model in MODEL_IDS:
        known = PACKAGED.known(model)
        assert known is not None, model
        assert PACKAGED.known(f"{model}-20261101") == known
        assert known.context >= 200_000
        assert known.system_messages == (takes_system_turns(model) or known.system_messages)


def test_an_unknown_model_gets_cautious_values() -> None:
    unknown = PACKAGED.of("my-gateway/llama")
    assert PACKAGED.known("my-gateway/llama") is None
    assert (unknown.context, unknown.context_editing, unknown.system_messages) == (128_000, False, False)


def test_single_fields_are_overridden() -> None:
    table = CapabilityTable({"claude-haiku-4-5": {"context": 5_000}, "llama": {"images": False}})
    assert table.of("claude-haiku-4-5-20251001").context == 5_000
    assert table.of("claude-haiku-4-5").max_output == PACKAGED.of("claude-haiku-4-5").max_output
    assert not table.of("llama").images


@pytest.mark.parametrize("line", [{"contxt": 1}, {"context": "much"}, {"context": 0}, {"max_output": 0}])
def test_a_line_that_is_none_is_refused_by_name(line: dict[str, object]) -> None:
    with pytest.raises(CapabilitiesError, match=r"^llama: "):
        CapabilityTable({"llama": line})


async def sent(
    model: str, *, provider: str = "anthropic", editing: bool = True
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The body and the headers of a request with a tool."""
    async with ScriptedModel() as scripted:
        client = MessagesProvider(
            base_url=scripted.base_url,
            api_key="k",
            models={},
            max_tokens=100_000,
            timeout=5,
            offers=PROVIDERS[provider],
            context_editing=editing,
        )
        tool = {"name": "look", "description": "Looks.", "input_schema": {"type": "object"}}
        request = ModelRequest(model, MESSAGES, tools=[tool], effort="low", session_id="sesn_1")
        async for _ in client.stream(request):
            pass
        await client.close()
        scripted.assert_no_refusals()
        [recorded] = scripted.recorded()
        return recorded.body, recorded.headers


async def test_a_request_asks_for_what_model_and_provider_offer() -> None:
    body, headers = await sent("claude-opus-5")
    assert body["output_config"] == {"effort": "low"}
    assert body["max_tokens"] == 100_000
    edits = [edit["type"] for edit in body["context_management"]["edits"]]
    assert edits == ["clear_thinking_20251015", "clear_tool_uses_20250919"]
    assert "context-management" in headers["anthropic-beta"]


async def test_and_for_nothing_else() -> None:
    body, _ = await sent("claude-haiku-4-5")
    assert "output_config" not in body
    assert body["max_tokens"] == 64_000
    for model, provider, editing in (
        ("claude-opus-5", "gateway", True),
        ("claude-opus-5", "anthropic", False),
        ("unknown", "anthropic", True),
    ):
        body, headers = await sent(model, provider=provider, editing=editing)
        assert "context_management" not in body
        assert "anthropic-beta" not in headers


def test_a_model_that_does_not_think_has_no_thinking_to_clear() -> None:
    [edit] = context_management(CapabilityTable({"m": {"context": 1_000}}).of("m"))["edits"]
    assert edit["trigger"]["value"] == 500
