"""Results that are too long for a conversation: a preview, and where the rest is to be found. Pure.

The sandbox program puts its own tools' long outputs into files there (`corral.hands.sandbox.inside.output`).
What comes from elsewhere, of MCP servers, web pages and clients, is not in a sandbox, and a session may have
none: the log keeps it whole, and the agent reads it there (contract section 5.1).
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

LIMIT: Final = 100_000
"""Characters of text in one result."""
PREVIEW: Final = 10_000
"""Characters that the model is shown of a longer one."""
WHOLE: Final = "whole"
"""Where a result's private part keeps its content, of which the event itself shows a preview."""
READ: Final = "ant__history"
"""The tool that reads what is left out."""

_TAIL: Final = "[output truncated]"
_TAIL_LIMIT: Final = 110_000
"""A shell's last part is 100 KiB, and begins with a line or two that say where the rest is."""

Block = dict[str, Any]


def text_of(block: Mapping[str, Any]) -> str:
    """The text of a block: a text's, or a text document's. Of a search result, which is short, none."""
    match block:
        case {"type": "text", "text": text} | {"source": {"type": "text", "data": text}}:
            return str(text)
        case _:
            return ""


def preview(content: Iterable[Block], event_id: str) -> list[Block] | None:
    """What is shown of a result that is too long; None if it is not. `event_id` is the result's event."""
    blocks = list(content)
    size = sum(len(text_of(block)) for block in blocks)
    if size <= LIMIT or (size <= _TAIL_LIMIT and blocks and text_of(blocks[0]).startswith(_TAIL)):
        return None
    left = PREVIEW
    shown: list[Block] = []
    for block in blocks:
        text = text_of(block)
        if not text:
            shown.append(block)
        elif left > 0:
            shown.append(_cut(block, text[:left]))
            left -= len(text)
    notice = (
        f"[This result has {size:,} characters, of which the first {PREVIEW:,} are shown. All of it is kept: "
        f'read it in parts, or search it, with {READ} and "entry": "{event_id}".]'
    )
    return [{"type": "text", "text": notice}, *shown]


def _cut(block: Block, text: str) -> Block:
    if block["type"] == "text":
        return {**block, "text": text}
    return {**block, "source": {**block["source"], "data": text}}
