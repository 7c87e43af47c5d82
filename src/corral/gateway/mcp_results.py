"""From what an MCP server answers to what the log and the model take. Pure."""

import binascii
from base64 import b64decode
from typing import Any, Final, assert_never

import mcp_types as types
import msgspec

from corral.wire.gateway import CallOutcome, Tool

RESULT_CHARACTERS: Final = 2_000_000
"""Most text of one result. Of more than 100,000 characters the model is shown a preview, and reads the rest
in the session's log (contract section 5.1).
"""
DESCRIPTION_CHARACTERS: Final = 10_000
"""Most text of one tool's description."""
TOOLS: Final = 1000
"""Most tools of one server that are looked at."""

_SCHEMA_BYTES: Final = 64 * 1024
_IMAGES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_IMAGE_BYTES: Final = 5 * 1024 * 1024
_TOP_LEVEL: Final = ("oneOf", "anyOf", "allOf")

Block = dict[str, Any]


def error_outcome(text: str) -> CallOutcome:
    """The outcome of a call that gave no result."""
    return CallOutcome(content=[_text(text)], is_error=True)


def described(tool: types.Tool) -> Tool | None:
    """A tool as the model can be told of it, at its full length; None if its schema is more than a model is
    given.
    """
    schema = {key: value for key, value in tool.input_schema.items() if key not in _TOP_LEVEL}
    schema["type"] = "object"
    if len(msgspec.json.encode(schema)) > _SCHEMA_BYTES:
        return None
    hints = tool.annotations
    return Tool(
        name=tool.name,
        description=clean(tool.description or tool.title or tool.name),
        input_schema=schema,
        repeatable=hints is not None and bool(hints.read_only_hint or hints.idempotent_hint),
    )


def outcome_of(result: types.CallToolResult) -> CallOutcome:
    """The outcome of a call that the server answered, at its full length."""
    is_error = bool(result.is_error)
    blocks = [_block(content, is_error=is_error) for content in result.content]
    if not blocks and result.structured_content is not None:
        blocks = [_text(msgspec.json.encode(result.structured_content).decode())]
    return CallOutcome(content=blocks, is_error=is_error)


def clean(text: str) -> str:
    """The text without what is no character: lone halves of surrogate pairs."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _block(content: types.ContentBlock, *, is_error: bool) -> Block:
    match content:
        case types.TextContent():
            return _text(content.text)
        case types.ImageContent():
            return _image(content.mime_type, content.data, is_error=is_error)
        case types.AudioContent():
            return _text(f"[A sound of type {content.mime_type} stood here. It cannot be shown.]")
        case types.ResourceLink():
            return _text(f"[A link to a resource: {content.name}, {content.uri}]")
        case types.EmbeddedResource():
            return _resource(content.resource, is_error=is_error)
        case _:
            assert_never(content)


def _resource(resource: types.TextResourceContents | types.BlobResourceContents, *, is_error: bool) -> Block:
    if isinstance(resource, types.TextResourceContents):
        return _text(resource.text)
    if resource.mime_type in _IMAGES:
        return _image(resource.mime_type, resource.blob, is_error=is_error)
    return _text(f"[A resource of type {resource.mime_type or 'unknown'} stood here: {resource.uri}]")


def _image(mime: str, data: str, *, is_error: bool) -> Block:
    try:
        size = len(b64decode(data, validate=True))
    except (binascii.Error, ValueError):
        size = 0
    if is_error or mime not in _IMAGES or not 0 < size <= _IMAGE_BYTES:
        return _text(f"[An image of type {mime} and {size} bytes stood here. It cannot be shown.]")
    return {"type": "image", "source": {"type": "base64", "media_type": mime, "data": data}}


def _text(text: str) -> Block:
    return {"type": "text", "text": clean(text)}


def shortened(blocks: list[Block]) -> list[Block]:
    """The blocks with at most `RESULT_CHARACTERS` of text. To be cut after secrets are taken out: a secret
    that is cut in two is not found any more.
    """
    total = sum(len(block["text"]) for block in blocks if block["type"] == "text")
    if total <= RESULT_CHARACTERS:
        return blocks
    left = RESULT_CHARACTERS
    kept = list[Block]()
    for block in blocks:
        if block["type"] != "text":
            kept.append(block)
        elif left > 0:
            kept.append(_text(block["text"][:left]))
            left -= len(block["text"])
    notice = (
        f"[The result was cut off here: it has {total:,} characters, of which {RESULT_CHARACTERS:,} are "
        "shown. Ask for less at a time.]"
    )
    return [*kept, _text(notice)]
