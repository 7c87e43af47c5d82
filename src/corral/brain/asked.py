"""What a model was asked, as digests: they tell a replay whether it would be asked the same. Pure."""

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

_LENGTH: Final = 32
"""Characters of a digest that are kept: it guards against accidents, and its event is in the chain."""


def asked(
    settings: Mapping[str, Any],
    system: list[dict[str, Any]],
    tools: list[dict[str, Any]],
    messages: list[Any],
) -> dict[str, str]:
    """Digests of a request's parts. `messages` name files by their ids: their bytes are not of the log."""
    parts = {"settings": settings, "system": system, "tools": tools, "messages": messages}
    return {name: _digest(part) for name, part in parts.items()}


def _digest(part: object) -> str:
    return hashlib.sha256(msgspec.json.encode(part)).hexdigest()[:_LENGTH]
