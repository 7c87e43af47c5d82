"""When a conversation has grown too long for its model, and what a request may hold. Pure."""

import msgspec

from corral.session.thread_state import ThreadState
from corral.wire.model_table import PACKAGED, CapabilityTable, ModelCapabilities


def _packaged() -> CapabilityTable:
    return PACKAGED


class ContextSettings(msgspec.Struct, frozen=True):
    """How brains deal with context, from the settings."""

    capabilities: CapabilityTable = msgspec.field(default_factory=_packaged)
    compact_at: float = 0.8
    """The part of a model's context that a conversation may fill."""
    images_kept: int = 40
    max_tokens: int = 32_000
    """What an answer may take of the context."""


class ContextRules(msgspec.Struct, frozen=True):
    """When the threads of one session are compacted."""

    model: str = ""
    """The model of the session's own agent."""
    settings: ContextSettings = ContextSettings()
    most_in_a_row: int = 2
    """Compactions without an answer of the model's between them, before the turn is given up."""

    def model_of(self, thread: ThreadState) -> ModelCapabilities:
        """What the model of a thread's agent can do."""
        model = self.model if thread.agent is None else str(thread.agent["model"]["id"])
        return self.settings.capabilities.of(model)

    def threshold(self, thread: ThreadState) -> int:
        """Tokens from which on a thread is compacted before its next request; room for an answer is left."""
        can = self.model_of(thread)
        answer = min(self.settings.max_tokens, can.max_output or self.settings.max_tokens)
        return min(int(can.context * self.settings.compact_at), max(can.context // 2, can.context - answer))

    def is_due(self, thread: ThreadState) -> bool:
        """Whether a thread is to be compacted before its next request."""
        return thread.overflowed or thread.context >= self.threshold(thread)
