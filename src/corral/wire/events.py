"""Events on the wire: what a client sends, the form in which it is kept, and the filters on lists.

(contract sections 10.2, 10.3 and 10.9)
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, get_args

import msgspec
from msgspec import Meta

from corral.wire.content import DocumentBlock, FileSource, MessageBlock, ResultBlock, TextBlock
from corral.wire.errors import InvalidRequest
from corral.wire.fields import Id, Request
from corral.wire.ids import new_id
from corral.wire.media import check_all_media

RUBRIC_CHARACTERS: Final = 262_144
"""Most characters of a rubric, and of an outcome's description."""
_ITERATIONS: Final = 3
"""How often work is judged where the outcome does not say."""

DenyMessage = Annotated[str, Meta(max_length=10_000)]


class UserMessage(Request, tag="user.message"):
    """Starts work, or steers the work that is going on."""

    content: Annotated[list[MessageBlock], Meta(min_length=1)]


class UserInterrupt(Request, tag="user.interrupt"):
    """Stops the work of one thread, or of all where no thread is named."""

    session_thread_id: Id | None = None


class UserToolConfirmation(Request, tag="user.tool_confirmation"):
    """Allows or denies a tool call that waits for approval."""

    tool_use_id: Id
    result: Literal["allow", "deny"]
    deny_message: DenyMessage | None = None
    # The name that early documentation gave to `deny_message`.
    message: DenyMessage | None = None
    # Early documentation asked for an echo; the server routes by the call's id alone.
    session_thread_id: Id | None = None


class UserCustomToolResult(Request, tag="user.custom_tool_result"):
    """The result of a custom tool that the client has run."""

    custom_tool_use_id: Id
    content: list[ResultBlock] = msgspec.field(default_factory=list[ResultBlock])
    is_error: bool | None = None
    session_thread_id: Id | None = None


class UserToolResult(Request, tag="user.tool_result"):
    """The result of a sandbox tool that a worker has run."""

    tool_use_id: Id
    content: list[ResultBlock] = msgspec.field(default_factory=list[ResultBlock])
    is_error: bool | None = None
    session_thread_id: Id | None = None


class SystemMessage(Request, tag="system.message"):
    """A system turn in the middle of the conversation: text only, 1 to 1000 blocks."""

    content: Annotated[list[TextBlock], Meta(min_length=1, max_length=1000)]


class TextRubric(Request, tag="text"):
    """What the work is judged by."""

    content: Annotated[str, Meta(min_length=1, max_length=RUBRIC_CHARACTERS)]


class FileRubric(Request, tag="file"):
    """What the work is judged by, in a file; it is replaced by the file's text."""

    file_id: Id


class DefineOutcome(Request, tag="user.define_outcome"):
    """Says what the work must come to; the agent begins at once (contract section 14)."""

    description: Annotated[str, Meta(min_length=1, max_length=RUBRIC_CHARACTERS)]
    rubric: TextRubric | FileRubric
    max_iterations: Annotated[int, Meta(ge=1, le=20)] | None = None


ClientEvent = (
    UserMessage
    | UserInterrupt
    | UserToolConfirmation
    | UserCustomToolResult
    | UserToolResult
    | SystemMessage
    | DefineOutcome
)

ClientEventType = Literal[
    "user.message",
    "user.interrupt",
    "user.tool_confirmation",
    "user.custom_tool_result",
    "user.tool_result",
    "system.message",
    "user.define_outcome",
]

EVENTS_PER_REQUEST: Final = 1000
FILE_DOCUMENTS_PER_REQUEST: Final = 100


class SendEvents(Request):
    """The body of ``POST /v1/sessions/{id}/events``: all are taken, or none."""

    events: Annotated[list[ClientEvent], Meta(min_length=1, max_length=EVENTS_PER_REQUEST)]

    def check(self) -> None:
        """Check each event by itself and the order among them."""
        check_events(self.events, "events")


def check_events(events: Sequence[ClientEvent], path: str) -> None:
    """The rules that need nothing but the events of one request (contract sections 10.2 and 10.3).

    Raises:
        InvalidRequest: with the path of the field at fault, which begins with ``path``.
    """
    files = 0
    for index, event in enumerate(events):
        where = f"{path}[{index}]"
        check_event(event, where)
        if isinstance(event, UserMessage):
            files += sum(
                isinstance(b, DocumentBlock) and isinstance(b.source, FileSource) for b in event.content
            )
        if isinstance(event, SystemMessage):
            _check_system_place(events, index, where)
    outcomes = [index for index, event in enumerate(events) if isinstance(event, DefineOutcome)]
    if len(outcomes) > 1:
        raise InvalidRequest(f"{path}[{outcomes[1]}]: at most one user.define_outcome in one request")
    if files > FILE_DOCUMENTS_PER_REQUEST:
        raise InvalidRequest(
            f"{path}: at most {FILE_DOCUMENTS_PER_REQUEST} documents by file id in one request"
        )


def check_event(event: ClientEvent, path: str) -> None:
    """The rules on one event alone: its media are admissible, its fields go together."""
    match event:
        case UserMessage():
            check_all_media(event.content, f"{path}.content")
            if all(isinstance(block, TextBlock) and not block.text.strip() for block in event.content):
                raise InvalidRequest(f"{path}.content: must hold more than white space")
        case SystemMessage():
            if all(not block.text.strip() for block in event.content):
                raise InvalidRequest(f"{path}.content: must hold more than white space")
        case UserCustomToolResult() | UserToolResult():
            check_all_media(event.content, f"{path}.content")
        case UserToolConfirmation():
            given = event.deny_message is not None or event.message is not None
            if event.result == "allow" and given:
                raise InvalidRequest(f'{path}.deny_message: only allowed when result is "deny"')
        case DefineOutcome():
            if not event.description.strip():
                raise InvalidRequest(f"{path}.description: must hold more than white space")
            if isinstance(event.rubric, TextRubric) and not event.rubric.content.strip():
                raise InvalidRequest(f"{path}.rubric.content: must hold more than white space")
        case UserInterrupt():
            pass


def _check_system_place(events: Sequence[ClientEvent], index: int, path: str) -> None:
    if index != len(events) - 1:
        raise InvalidRequest(f"{path}: a system.message must be the last event of a request")
    if index and not isinstance(events[index - 1], UserMessage | UserToolResult | UserCustomToolResult):
        raise InvalidRequest(
            f"{path}: a system.message must directly follow a user.message, user.tool_result "
            "or user.custom_tool_result"
        )


def event_type(event: ClientEvent) -> ClientEventType:
    """The event's ``type`` on the wire."""
    return event.__struct_config__.tag  # type: ignore[return-value]


def persisted(event: ClientEvent, event_id: str) -> dict[str, Any]:
    """The event as the log keeps it and the API shows it, without ``processed_at``."""
    body: dict[str, Any] = {"id": event_id, "type": event_type(event)}
    match event:
        case UserMessage() | SystemMessage():
            body["content"] = msgspec.to_builtins(event.content)
        case UserInterrupt():
            body["session_thread_id"] = event.session_thread_id
        case UserToolConfirmation():
            deny = event.deny_message if event.deny_message is not None else event.message
            body |= {"tool_use_id": event.tool_use_id, "result": event.result, "deny_message": deny}
        case DefineOutcome():
            body |= {"outcome_id": new_id("outc"), "description": event.description}
            body |= {"rubric": msgspec.to_builtins(event.rubric)}
            body["max_iterations"] = event.max_iterations or _ITERATIONS
        case UserCustomToolResult():
            body["custom_tool_use_id"] = event.custom_tool_use_id
            body |= {"content": msgspec.to_builtins(event.content), "is_error": bool(event.is_error)}
        case UserToolResult():
            body["tool_use_id"] = event.tool_use_id
            body |= {"content": msgspec.to_builtins(event.content), "is_error": bool(event.is_error)}
    return body


EventType = Literal[
    "user.message",
    "user.interrupt",
    "user.tool_confirmation",
    "user.custom_tool_result",
    "user.tool_result",
    "user.define_outcome",
    "system.message",
    "agent.message",
    "agent.thinking",
    "agent.tool_use",
    "agent.tool_result",
    "agent.mcp_tool_use",
    "agent.mcp_tool_result",
    "agent.custom_tool_use",
    "agent.thread_message_received",
    "agent.thread_message_sent",
    "agent.thread_context_compacted",
    "session.error",
    "session.updated",
    "session.usage",
    "session.status_rescheduled",
    "session.status_running",
    "session.status_idle",
    "session.status_terminated",
    "session.thread_created",
    "session.thread_status_running",
    "session.thread_status_idle",
    "session.thread_status_rescheduled",
    "session.thread_status_terminated",
    "span.model_request_start",
    "span.model_request_end",
    "span.outcome_evaluation_start",
    "span.outcome_evaluation_ongoing",
    "span.outcome_evaluation_end",
    "workflow_run.created",
    "workflow_run.status_running",
    "workflow_run.status_idle",
    "workflow_run.status_ended",
    "workflow_run.error",
    "workflow_run.phase_started",
    "workflow_run.phase_ended",
]

# The 41 types that are kept, and so can be asked for in `types[]`.
PERSISTED_TYPES: Final[frozenset[str]] = frozenset(get_args(EventType))
# What `event_deltas[]` takes, and how many values at most (contract section 10.10).
DELTA_TYPES: Final[frozenset[str]] = frozenset({"agent.message", "agent.thinking"})
EVENT_DELTAS: Final = 100
