"""What the API must know about models by their id: the effort that an agent gets when it names none.

Any id is accepted; the inference provider maps and judges it (contract section 4.5).
"""

from typing import Final, Literal

from corral.wire.model_table import PACKAGED

Effort = Literal["low", "medium", "high", "xhigh", "max"]

# Models whose default is another than "high", by id.
_DEFAULTS: Final[dict[str, Effort]] = {}


def default_effort(model_id: str) -> Effort:
    """The effort of an agent that names none for this model."""
    return _DEFAULTS.get(model_id, "high")


def supports_system_messages(model_id: str) -> bool:
    """Whether the model accepts ``system.message`` events (contract section 10.3)."""
    return PACKAGED.of(model_id).system_messages
