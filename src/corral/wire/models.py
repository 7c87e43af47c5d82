"""What the API must know about models by their id: the effort that an agent gets when it names none.

Any id is accepted; the inference provider maps and judges it (contract section 4.5).
"""

from typing import Final, Literal

Effort = Literal["low", "medium", "high", "xhigh", "max"]

# Models whose default is another than "high", by id.
_DEFAULTS: Final[dict[str, Effort]] = {}


def default_effort(model_id: str) -> Effort:
    """The effort of an agent that names none for this model."""
    return _DEFAULTS.get(model_id, "high")


# Families that take a system turn between messages (contract section 10.3).
_SYSTEM_MESSAGES: Final = (
    "claude-fable-5",
    "claude-mythos-5",
    "claude-opus-5",
    "claude-opus-4-8",
    "claude-sonnet-5-5",
    "claude-haiku-5-5",
)


def supports_system_messages(model_id: str) -> bool:
    """Whether the model accepts ``system.message`` events."""
    return any(model_id == family or model_id.startswith(f"{family}-") for family in _SYSTEM_MESSAGES)
