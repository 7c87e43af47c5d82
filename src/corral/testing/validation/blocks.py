"""The content blocks of a request: which types each role may send, and each block's fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from corral.testing.refusal import Refused
from corral.testing.validation.caching import cache_control
from corral.testing.validation.fields import (
    Check,
    a_list,
    an_object,
    anything,
    as_list,
    as_object,
    as_string,
    boolean,
    check_fields,
    filled_string,
    join,
    list_of,
    nullable,
    string,
)
from corral.testing.validation.media import image_source, pdf_source
from corral.testing.validation.naming import tool_name

NOVEL_BLOCK = "scripted_novelty"
"""Type of the block that no client knows (`"unknown_block": true` in a step); clients give it back."""


class Shape(NamedTuple):
    """The fields of a block type besides `type`."""

    required: Mapping[str, Check]
    optional: Mapping[str, Check]


def text_block(value: Any, path: str) -> None:
    """A text block: never empty or only white space."""
    block = as_object(value, path)
    if block.get("type") != "text":
        raise Refused(join(path, "type"), "must be text")
    _check(block, path, _TEXT)


def filled_text(value: Any, path: str) -> None:
    """A string with something to read in it."""
    if not as_string(value, path).strip():
        reason = "text content blocks must contain non-whitespace text" if value else "must not be empty"
        raise Refused(path, reason)


def _result_content(value: Any, path: str) -> None:
    if isinstance(value, str):
        return
    for index, item in enumerate(as_list(value, path)):
        check_block(item, join(path, index), _RESULT_BLOCKS, "a tool_result")


def _document_source(value: Any, path: str) -> None:
    source = as_object(value, path)
    match source.get("type"):
        case "base64":
            pdf_source(source, path)
        case "text":
            check_fields(source, path, required={"type": string, "media_type": string, "data": filled_string})
        case "url":
            check_fields(source, path, required={"type": string, "url": filled_string})
        case "file":
            check_fields(source, path, required={"type": string, "file_id": filled_string})
        case "content":
            check_fields(source, path, required={"type": string, "content": _document_content})
        case _:
            raise Refused(join(path, "type"), "must be one of base64, text, url, file, content")


def _document_content(value: Any, path: str) -> None:
    if not isinstance(value, str):
        for index, item in enumerate(as_list(value, path)):
            check_block(item, join(path, index), {"text": _TEXT, "image": _IMAGE}, "a document")


_CACHE: dict[str, Check] = {"cache_control": nullable(cache_control)}
_TEXT = Shape({"text": filled_text}, {**_CACHE, "citations": nullable(a_list)})
_IMAGE = Shape({"source": image_source}, {**_CACHE, "transformations": nullable(an_object)})
_DOCUMENT = Shape(
    {"source": _document_source},
    {**_CACHE, "citations": nullable(an_object), "context": nullable(string), "title": nullable(string)},
)
_SEARCH_RESULT = Shape(
    {"content": list_of(text_block), "source": string, "title": string}, {**_CACHE, "citations": an_object}
)
_TOOL_REFERENCE = Shape({"tool_name": tool_name}, _CACHE)
_RESULT_BLOCKS = {
    "text": _TEXT,
    "image": _IMAGE,
    "document": _DOCUMENT,
    "search_result": _SEARCH_RESULT,
    "tool_reference": _TOOL_REFERENCE,
}
_TOOL_RESULT = Shape(
    {"tool_use_id": filled_string},
    {**_CACHE, "content": _result_content, "is_error": nullable(boolean), "toolset_name": nullable(string)},
)
_CALLER: dict[str, Check] = {**_CACHE, "caller": nullable(an_object)}
_TOOL_USE = Shape(
    {"id": filled_string, "name": tool_name, "input": an_object},
    {**_CALLER, "toolset_name": nullable(string)},
)
_SERVER_RESULT = Shape({"tool_use_id": filled_string, "content": anything}, _CALLER)
_ANYWHERE = {
    "text": _TEXT,
    "compaction": Shape(
        {},
        {**_CACHE, **dict.fromkeys(("content", "encrypted_content", "signature", "tool_changes"), anything)},
    ),
}
USER_BLOCKS: dict[str, Shape] = {
    **_ANYWHERE,
    "image": _IMAGE,
    "document": _DOCUMENT,
    "search_result": _SEARCH_RESULT,
    "tool_result": _TOOL_RESULT,
    "container_upload": Shape({"file_id": filled_string}, _CACHE),
}
"""Block types that a user message may hold."""
ASSISTANT_BLOCKS: dict[str, Shape] = {
    **_ANYWHERE,
    "thinking": Shape({"thinking": string, "signature": string}, {}),
    "redacted_thinking": Shape({"data": filled_string}, {}),
    "tool_use": _TOOL_USE,
    "server_tool_use": Shape({"id": filled_string, "name": string, "input": an_object}, _CALLER),
    "mcp_tool_use": Shape(
        {"id": filled_string, "name": string, "input": an_object, "server_name": string}, _CACHE
    ),
    "mcp_tool_result": Shape(
        {"tool_use_id": filled_string}, {**_CACHE, "content": anything, "is_error": boolean}
    ),
    "mcp_tool_listing": Shape({"mcp_server_name": string, "tools": a_list}, {}),
    "fallback": Shape({"from": anything, "to": anything}, {"trigger": anything}),
    NOVEL_BLOCK: Shape({"payload": string, "signature": string}, {}),
    **{
        f"{name}_tool_result": _SERVER_RESULT
        for name in (
            "web_search",
            "web_fetch",
            "code_execution",
            "bash_code_execution",
            "text_editor_code_execution",
            "tool_search",
            "advisor",
        )
    },
}
"""Block types that an assistant message may hold."""


def check_block(value: Any, path: str, shapes: Mapping[str, Shape], holder: str) -> None:
    """A block of one of the types in `shapes`, with that type's fields. `holder` names where it stands."""
    block = as_object(value, path)
    if "type" not in block:
        raise Refused(join(path, "type"), "field required")
    shape = shapes.get(block["type"]) if isinstance(block["type"], str) else None
    if shape is None:
        raise Refused(
            join(path, "type"),
            f"{block['type']!r} is not a block type of {holder}; expected one of {', '.join(sorted(shapes))}",
        )
    _check(block, path, shape)


def _check(block: dict[str, Any], path: str, shape: Shape) -> None:
    thinking = block["type"] in ("thinking", "redacted_thinking")
    if thinking and "cache_control" in block:
        raise Refused(join(path, "cache_control"), "a thinking block cannot have cache_control")
    if block["type"] == "text" and block.get("cache_control") and not str(block.get("text", "")).strip():
        raise Refused(join(path, "cache_control"), "cannot be set for empty text blocks")
    check_fields(block, path, required={"type": string, **shape.required}, optional=shape.optional)
    if block["type"] == "tool_result" and block.get("is_error"):
        _refuse_media_in_error(block.get("content"), path)


def _refuse_media_in_error(content: Any, path: str) -> None:
    if isinstance(content, list):
        for index, item in enumerate(as_list(content, path)):
            if item["type"] != "text":
                raise Refused(
                    join(path, f"content.{index}"), "when is_error is true all content must be text"
                )
