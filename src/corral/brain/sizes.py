"""About how much the model reads. Pure."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

_MEDIA_CHARACTERS: Final = 5_000
"""What an image or a document counts for."""


def size_of(blocks: Iterable[Mapping[str, Any]]) -> int:
    """About how many characters the model reads in blocks."""
    size = 0
    for block in blocks:
        if block.get("type") in ("image", "document"):
            size += _MEDIA_CHARACTERS
        elif block.get("type") == "tool_result":
            size += size_of(block["content"])
        else:
            size += len(json.dumps(block, ensure_ascii=False))
    return size
