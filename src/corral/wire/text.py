"""Text at the door: what PostgreSQL, JSON or a model would choke on never gets past it.

NUL and unpaired surrogates become U+FFFD in free text (messages, tool output, prompts). In names, ids and
metadata `corral.wire.decode` refuses them, since a silent change there would lose the way to the thing.
"""

import re
from typing import Any, Final, cast

_UNFIT: Final = re.compile("[\x00\ud800-\udfff]")
REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"


def is_clean(text: str) -> bool:
    """Whether the text holds neither NUL nor an unpaired surrogate."""
    return _UNFIT.search(text) is None


def clean(text: str) -> str:
    """The text with each NUL and each unpaired surrogate replaced by U+FFFD."""
    return _UNFIT.sub(REPLACEMENT, text)


def clean_json(value: Any) -> Any:
    """A JSON value with every string in it, keys too, made clean; a new value where anything changed."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [clean_json(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {clean(key): clean_json(item) for key, item in cast("dict[str, Any]", value).items()}
    return value
