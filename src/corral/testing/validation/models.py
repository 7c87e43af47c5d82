"""Which model can do what, where the Messages API refuses by model."""

from __future__ import annotations

MODEL_IDS: tuple[str, ...] = (
    "claude-fable-5-2",
    "claude-mythos-5-2",
    "claude-haiku-5-5",
    "claude-sonnet-5-5",
    "claude-fable-5-1",
    "claude-opus-5-5",
    "claude-mythos-5-1",
    "claude-sonnet-5",
    "claude-fable-5",
    "claude-mythos-5",
    "claude-opus-5",
    "claude-opus-4-8",
    "claude-opus-4-7",
    "claude-opus-4-6",
    "claude-sonnet-4-6",
    "claude-haiku-4-5",
    "claude-opus-4-5",
    "claude-sonnet-4-5",
)
"""The ids that `GET /v1/models` lists, newest first. Requests may name any other model too: gateways do."""

_SYSTEM_TURNS = (
    "claude-fable-5-1",
    "claude-fable-5",
    "claude-mythos-5-1",
    "claude-mythos-5",
    "claude-opus-5-5",
    "claude-opus-5",
    "claude-opus-4-8",
    "claude-sonnet-5-5",
    "claude-haiku-5-5",
)
_PREFILL_FAMILIES = ("claude-haiku-4-5", "claude-sonnet-4-5", "claude-opus-4-5")


def takes_system_turns(model: str) -> bool:
    """Whether `role: "system"` may stand inside `messages` (behaviour.md, section 10.3)."""
    return model in _SYSTEM_TURNS


def takes_prefill(model: str) -> bool:
    """Whether the last message may be the assistant's. Models that this server does not know take it."""
    return model not in MODEL_IDS or model.startswith(_PREFILL_FAMILIES)
