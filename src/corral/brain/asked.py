"""What a model was asked, as digests: they tell a replay whether it would be asked the same. Pure."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

_LENGTH: Final = 32
"""Characters of a digest that are kept: it guards against accidents, and its event is in the chain."""


def asked(
    settings: Mapping[str, Any],
    system: list[dict[str, Any]],
    tools: list[dict[str, Any]],
    messages: Sequence[dict[str, Any] | msgspec.Raw],
) -> dict[str, str]:
    """Digests of a request's parts. `messages` name files by their ids: their bytes are not of the log.

    How many of the messages are encoded already makes no difference.
    """
    parts = {
        "settings": msgspec.json.encode(settings),
        "system": msgspec.json.encode(system),
        "tools": msgspec.json.encode(tools),
    }
    parts["messages"] = b",".join(map(msgspec.json.encode, messages))
    return {name: hashlib.sha256(part).hexdigest()[:_LENGTH] for name, part in parts.items()}
