"""Models on the wire, as the Messages API shows them: for ``client.models`` and ``client.beta.models``."""

from typing import Any, Final, Literal

import msgspec

Lifecycle = Literal["active", "deprecated", "retired"]
LIFECYCLES: Final[tuple[Lifecycle, ...]] = ("active", "deprecated", "retired")
Line = Literal["haiku", "sonnet", "opus", "fable", "mythos"]
LINES: Final[tuple[Line, ...]] = ("haiku", "sonnet", "opus", "fable", "mythos")
LISTED: Final[frozenset[Lifecycle]] = frozenset({"active", "deprecated"})
"""The stages that a list holds unless others are asked for."""


class ModelInfo(msgspec.Struct, tag="model", kw_only=True):
    """A model that agents can name. ``created_at`` is the start of 1970 where the release is not known."""

    id: str
    display_name: str
    created_at: str
    lifecycle: Lifecycle = "active"
    line: Line | None = None
    max_input_tokens: int | None = None
    max_tokens: int | None = None
    deprecated_at: str | None = None
    retires_at: str | None = None
    capabilities: dict[str, Any] | None = None
    allowed_fallback_models: list[str] | None = None
