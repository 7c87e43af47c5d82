"""What a provider is asked to leave out of long requests: old tool results, thinking of closed turns. Pure.

The log and the transcript keep them; an agent finds what it misses in its own log. Each clearing moves the
prompt cache's prefix once, so it is asked for in large steps (docs/context.md).
"""

from typing import Any, Final

from corral.wire.model_table import ModelCapabilities

CONTEXT_MANAGEMENT_BETA: Final = "context-management-2025-06-27"
"""The beta header under which `context_management` is understood."""

_TRIGGER: Final = 0.5
_AT_LEAST: Final = 0.1
"""Parts of the model's context: from where on to clear, and how much at a time."""
_KEPT_CALLS: Final = 10
_KEPT_TURNS: Final = 5


def context_management(can: ModelCapabilities) -> dict[str, Any]:
    """The request's `context_management` for a model. Thinking has to be named before tool results."""
    edits: list[dict[str, Any]] = []
    if can.thinking != "none":
        kept = {"type": "thinking_turns", "value": _KEPT_TURNS}
        edits.append({"type": "clear_thinking_20251015", "keep": kept})
    edits.append(
        {
            "type": "clear_tool_uses_20250919",
            "trigger": {"type": "input_tokens", "value": int(can.context * _TRIGGER)},
            "keep": {"type": "tool_uses", "value": _KEPT_CALLS},
            "clear_at_least": {"type": "input_tokens", "value": int(can.context * _AT_LEAST)},
        }
    )
    return {"edits": edits}
