"""Rules of `context_management`, and of how long a request may be."""

from __future__ import annotations

from typing import Any

from corral.testing.refusal import Refused
from corral.testing.validation.fields import (
    Check,
    a_list,
    as_object,
    boolean,
    check_fields,
    integer,
    join,
    list_of,
    one_of,
    string,
)

BETA = "context-management-2025-06-27"
"""The beta header that has to be sent along."""
_THINKING = "clear_thinking_20251015"
_TOOL_USES = "clear_tool_uses_20250919"


class TooLong(Refused):
    """The request has more tokens than the model's context: no fault of its shape, so not counted as one."""


def _amount(*types: str) -> Check:
    def check(value: Any, path: str) -> None:
        check_fields(as_object(value, path), path, required={"type": one_of(*types), "value": integer})
        if value["value"] < 0:
            raise Refused(join(path, "value"), "must be greater than or equal to 0")

    return check


_EDITS: dict[str, dict[str, Check]] = {
    _THINKING: {"keep": _amount("thinking_turns")},
    _TOOL_USES: {
        "trigger": _amount("input_tokens", "tool_uses"),
        "keep": _amount("tool_uses"),
        "clear_at_least": _amount("input_tokens"),
        "exclude_tools": list_of(string),
        "clear_tool_inputs": boolean,
    },
}


def check_context_management(body: dict[str, Any], betas: str) -> None:
    """The edits that a request asks for. `betas` is the `anthropic-beta` header."""
    given = body.get("context_management")
    if given is None:
        return
    if BETA not in [beta.strip() for beta in betas.split(",")]:
        raise Refused("context_management", "Extra inputs are not permitted")
    check_fields(given, "context_management", optional={"edits": a_list})
    for index, edit in enumerate(given.get("edits") or []):
        path = f"context_management.edits.{index}"
        kind = as_object(edit, path).get("type")
        if kind not in _EDITS:
            raise Refused(join(path, "type"), f"must be one of {', '.join(_EDITS)}")
        check_fields(edit, path, required={"type": string}, optional=_EDITS[kind])
        if kind == _THINKING and index:
            raise Refused(path, f"{_THINKING} must be the first of the edits")


def check_length(tokens: int, limit: int | None) -> None:
    """Refuses a request that is longer than the model's context."""
    if limit is not None and tokens > limit:
        raise TooLong("", f"prompt is too long: {tokens} tokens > {limit} maximum")
