"""From what an MCP server answers to what the log and the model take."""

from typing import Any

import mcp_types as types

from corral.gateway.mcp_results import RESULT_CHARACTERS, described, outcome_of, shortened


def result(*content: Any, **fields: Any) -> types.CallToolResult:
    return types.CallToolResult(content=list(content), **fields)


def text(value: str) -> types.TextContent:
    return types.TextContent(type="text", text=value)


def test_a_result_that_is_structured_alone_becomes_text() -> None:
    assert outcome_of(result(structured_content={"n": 1})).content == [{"type": "text", "text": '{"n":1}'}]


def test_what_cannot_be_shown_is_named() -> None:
    sound = types.AudioContent(type="audio", data="AAAA", mime_type="audio/wav")
    odd = types.ImageContent(type="image", data="not base64!", mime_type="image/png")
    tiff = types.ImageContent(type="image", data="AAAA", mime_type="image/tiff")
    link = types.ResourceLink(type="resource_link", name="notes", uri="file:///notes")
    shown = [block["text"] for block in outcome_of(result(sound, odd, tiff, link)).content]
    assert "audio/wav" in shown[0]
    assert "image/png" in shown[1]
    assert "image/tiff" in shown[2]
    assert "notes" in shown[3]


def test_a_resource_of_text_is_shown_as_text() -> None:
    contents = types.TextResourceContents(uri="file:///a", text="inside")
    embedded = types.EmbeddedResource(type="resource", resource=contents)
    assert outcome_of(result(embedded)).content == [{"type": "text", "text": "inside"}]


def test_an_error_holds_text_alone() -> None:
    image = types.ImageContent(type="image", data="AAAA", mime_type="image/png")
    outcome = outcome_of(result(text("no"), image, is_error=True))
    assert outcome.is_error is True
    assert [block["type"] for block in outcome.content] == ["text", "text"]


def test_texts_are_cut_together_at_the_most_that_the_log_keeps() -> None:
    half = RESULT_CHARACTERS // 2
    long = result(text("a" * (half + 9)), text("b" * (half + 9)), text("c"))
    content = shortened(outcome_of(long).content)
    lengths = [len(block["text"]) for block in content]
    assert lengths[:2] == [half + 9, half - 9]
    assert f"{RESULT_CHARACTERS + 19:,} characters" in content[2]["text"]
    assert len(content) == 3


def test_half_a_surrogate_pair_is_replaced() -> None:
    block = types.TextContent.model_construct(type="text", text="a\ud800b")
    assert outcome_of(types.CallToolResult.model_construct(content=[block], is_error=False)).content == [
        {"type": "text", "text": "a\ufffdb"}
    ]


def tool(schema: dict[str, Any], **fields: Any) -> types.Tool:
    return types.Tool(name="t", input_schema=schema, **fields)


def test_a_schema_loses_what_a_model_is_not_given() -> None:
    told = described(tool({"type": "object", "anyOf": [], "properties": {"a": {"type": "string"}}}))
    assert told is not None
    assert told.input_schema == {"type": "object", "properties": {"a": {"type": "string"}}}
    assert described(tool({"type": "object", "description": "x" * 70_000})) is None


def test_a_tool_is_repeatable_if_its_server_says_that_it_reads_or_is_idempotent() -> None:
    hints = types.ToolAnnotations
    for annotations, repeatable in (
        (None, False),
        (hints(), False),
        (hints(read_only_hint=True), True),
        (hints(idempotent_hint=True), True),
        (hints(read_only_hint=False, idempotent_hint=False), False),
    ):
        told = described(tool({"type": "object"}, annotations=annotations))
        assert told is not None
        assert told.repeatable is repeatable
