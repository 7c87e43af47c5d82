"""The interface to whatever answers model requests (DESIGN section 3)."""

from collections.abc import AsyncGenerator
from typing import Any, Literal, Protocol

import msgspec


class ModelRequest(msgspec.Struct, frozen=True):
    """One request to a model, in the Messages API's own terms. ``model`` is the Claude API id.

    The three ids name who asks, for providers that are told (DESIGN section 8).
    """

    model: str
    messages: list[dict[str, Any]]
    system: list[dict[str, Any]] = []
    tools: list[dict[str, Any]] = []
    effort: str = "high"
    speed: str = "standard"
    session_id: str = ""
    asked: dict[str, str] = {}
    """Digests of its parts, which the log keeps (`corral.brain.asked`); not for the provider."""


class BlockStarted(msgspec.Struct, frozen=True):
    """A content block begins: ``text``, ``thinking``, ``tool_use`` or another type."""

    index: int
    type: str


class TextDelta(msgspec.Struct, frozen=True):
    """More text of the text block `index`."""

    index: int
    text: str


class ModelResponse(msgspec.Struct, frozen=True):
    """The finished response. ``content`` holds the blocks as they came, to be given back unchanged."""

    content: list[dict[str, Any]]
    stop_reason: str
    usage: dict[str, Any]
    model: str
    stop_details: dict[str, Any] | None = None


ModelEvent = BlockStarted | TextDelta | ModelResponse

FailureKind = Literal["overloaded", "rate_limited", "failed", "billing"]


class ModelFailed(Exception):
    """A model request that brought no answer.

    ``retryable`` says whether the same request may succeed later; ``retry_after`` is the provider's own wish
    in seconds. ``refused`` says that the request itself was found at fault, so that only another one can
    succeed. The message is for the session's log and holds no secret.
    """

    def __init__(
        self,
        kind: FailureKind,
        message: str,
        *,
        retryable: bool,
        retry_after: float | None = None,
        refused: bool = False,
    ) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind
        self.message = message
        self.retryable = retryable
        self.retry_after = retry_after
        self.refused = refused


class InferenceProvider(Protocol):
    """Answers model requests as a stream."""

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        """Stream one answer; the last event is the `ModelResponse`.

        Raises:
            ModelFailed: there is no answer, wherever in the stream it went wrong.
        """
        ...
