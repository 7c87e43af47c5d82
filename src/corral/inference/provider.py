"""The interface to whatever answers model requests (DESIGN section 3)."""

import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Final, Literal, Protocol

import msgspec


class ModelRequest(msgspec.Struct, frozen=True):
    """One request to a model, in the Messages API's own terms. ``model`` is the Claude API id.

    Several messages in a row may stand in one `Raw`: JSON objects with commas between them.

    The three ids name who asks, for providers that are told (DESIGN section 8).
    """

    model: str
    messages: Sequence[dict[str, Any] | msgspec.Raw]
    system: list[dict[str, Any]] = []
    tools: list[dict[str, Any]] = []
    effort: str = "high"
    speed: str = "standard"
    session_id: str = ""
    tool_choice: dict[str, Any] | None = None
    """Which tool must be called, in a request that is made for its structured answer."""
    max_tokens: int | None = None
    """The most that the answer may have; None leaves it to the provider's settings."""
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

_OVERFLOWS: Final = re.compile(
    r"prompt is too long|exceed(?:s|ed)? (?:the )?context (?:limit|window|length)|maximum context length"
    r"|context_length_exceeded|exceed_context_size|(?:exceeds|larger than) the available context"
    r"|ContextWindowExceeded|model_context_window_exceeded",
    re.IGNORECASE,
)


def is_overflow(message: str) -> bool:
    """Whether an error's message says, in the words of one of many servers, that a request was too long."""
    return _OVERFLOWS.search(message) is not None


FailureKind = Literal["overloaded", "rate_limited", "failed", "billing"]


class ModelFailed(Exception):
    """A model request that brought no answer.

    ``retryable`` says whether the same request may succeed later; ``retry_after`` is the provider's own wish
    in seconds. ``refused`` says that the request itself was found at fault, so that only another one can
    succeed. ``overflow`` says that the request was too long for the model, which is read from the message
    unless it is given. The message is for the session's log and holds no secret.
    """

    def __init__(
        self,
        kind: FailureKind,
        message: str,
        *,
        retryable: bool,
        retry_after: float | None = None,
        refused: bool = False,
        overflow: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind
        self.message = message
        self.retryable = retryable
        self.retry_after = retry_after
        self.refused = refused
        self.overflow = is_overflow(message) if overflow is None else overflow


class InferenceProvider(Protocol):
    """Answers model requests as a stream."""

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        """Stream one answer; the last event is the `ModelResponse`.

        Raises:
            ModelFailed: there is no answer, wherever in the stream it went wrong.
        """
        ...


async def answer_of(provider: InferenceProvider, request: ModelRequest) -> ModelResponse:
    """The whole answer to one request. Raises `ModelFailed` if there is none."""
    async with aclosing(provider.stream(request)) as events:
        async for event in events:
            if isinstance(event, ModelResponse):
                return event
    raise ModelFailed("failed", "the provider's stream ended without an answer", retryable=True)
