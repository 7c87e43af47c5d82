"""Events of outcomes and workflow runs as the API shows them, previews, and the unions of all events.

(contract sections 10.6 to 10.8) What `corral.wire.shown_events` says of itself holds here too.
"""

from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from corral.wire import shown_events as shown


class OutcomeStart(shown.Kept, tag="span.outcome_evaluation_start", kw_only=True):
    """The judging of an outcome begins."""

    outcome_id: str
    iteration: int


class OutcomeOngoing(shown.Kept, tag="span.outcome_evaluation_ongoing", kw_only=True):
    """The judging of an outcome goes on."""

    outcome_id: str
    iteration: int


class OutcomeEnd(shown.Kept, tag="span.outcome_evaluation_end", kw_only=True):
    """An outcome was judged."""

    outcome_evaluation_start_id: str
    outcome_id: str
    iteration: int
    result: str
    explanation: str
    usage: shown.ModelUsage


class Phase(msgspec.Struct, kw_only=True):
    """A phase of a workflow run."""

    id: str
    name: str
    description: str | None


class WorkflowRunOf(shown.Kept, kw_only=True):
    """What every event of a workflow run has."""

    workflow_run_id: str


class WorkflowRunCreated(WorkflowRunOf, tag="workflow_run.created", kw_only=True):
    """A workflow run was made."""

    name: str
    description: str | None
    phases: list[Phase]


class WorkflowRunRunning(WorkflowRunOf, tag="workflow_run.status_running"):
    """A workflow run began to work."""


class WorkflowRunIdle(WorkflowRunOf, tag="workflow_run.status_idle"):
    """A workflow run stopped working."""


class WorkflowRunFault(msgspec.Struct, kw_only=True):
    """What went wrong in a workflow run."""

    type: str
    message: str


class WorkflowRunCompleted(msgspec.Struct, tag="completed"):
    """The run came to its end; that does not say whether its work succeeded."""


class WorkflowRunFailed(msgspec.Struct, tag="error", kw_only=True):
    """The run failed."""

    error: WorkflowRunFault


class WorkflowRunStopped(msgspec.Struct, tag="stopped"):
    """The run was stopped."""


class WorkflowRunEnded(WorkflowRunOf, tag="workflow_run.status_ended", kw_only=True):
    """A workflow run has ended."""

    result: WorkflowRunCompleted | WorkflowRunFailed | WorkflowRunStopped


class WorkflowRunError(shown.Kept, tag="workflow_run.error", kw_only=True):
    """Something went wrong with a workflow run, or with the making of one."""

    workflow_run_id: str | None
    error: WorkflowRunFault


class WorkflowPhaseStarted(WorkflowRunOf, tag="workflow_run.phase_started", kw_only=True):
    """A phase began."""

    workflow_run_phase_id: str


class WorkflowPhaseEnded(WorkflowRunOf, tag="workflow_run.phase_ended", kw_only=True):
    """A phase has ended."""

    workflow_run_phase_id: str
    phase_started_id: str


class Previewed(msgspec.Struct, kw_only=True):
    """The event that a preview is of."""

    type: Literal["agent.message", "agent.thinking"]
    id: str


class EventStart(msgspec.Struct, tag="event_start", kw_only=True):
    """An event begins to take shape; on streams that asked for previews of its type."""

    event: Previewed


class TextPiece(msgspec.Struct, tag="text", kw_only=True):
    """A piece of text."""

    text: str


class ContentDelta(msgspec.Struct, tag="content_delta", kw_only=True):
    """More of the content at an index."""

    index: int
    content: TextPiece


class EventDelta(msgspec.Struct, tag="event_delta", kw_only=True):
    """More of an event that takes shape."""

    event_id: str
    delta: ContentDelta


class Ping(msgspec.Struct, tag="ping"):
    """Nothing happened for a while; the connection lives."""


class FaultInStream(msgspec.Struct, kw_only=True):
    """The error of a stream's last frame."""

    type: str
    message: str
    details: dict[str, Any] | UnsetType = UNSET


class StreamFault(msgspec.Struct, tag="error", kw_only=True):
    """The stream ends with an error."""

    error: FaultInStream
    request_id: str | UnsetType | None = UNSET


ShownClientEvent: TypeAlias = (
    shown.ShownUserMessage
    | shown.ShownUserInterrupt
    | shown.ShownToolConfirmation
    | shown.ShownCustomToolResult
    | shown.ShownUserToolResult
    | shown.ShownDefineOutcome
    | shown.ShownSystemMessage
)
"""The events that clients send."""

ShownAcceptedEvent: TypeAlias = ShownClientEvent | shown.AgentToolResult
"""The answer to sending them: on `cloud` a worker's ``user.tool_result`` enters the log as the agent's."""

ShownEvent: TypeAlias = (
    ShownClientEvent
    | shown.AgentMessage
    | shown.AgentThinking
    | shown.AgentToolUse
    | shown.AgentToolResult
    | shown.AgentMcpToolUse
    | shown.AgentMcpToolResult
    | shown.AgentCustomToolUse
    | shown.ThreadContextCompacted
    | shown.ThreadMessageSent
    | shown.ThreadMessageReceived
    | shown.SessionRunning
    | shown.SessionIdle
    | shown.SessionRescheduled
    | shown.SessionTerminated
    | shown.SessionUpdated
    | shown.SessionError
    | shown.SessionUsage
    | shown.ThreadCreated
    | shown.ThreadRunning
    | shown.ThreadIdle
    | shown.ThreadRescheduled
    | shown.ThreadTerminated
    | shown.ModelRequestStart
    | shown.ModelRequestEnd
    | OutcomeStart
    | OutcomeOngoing
    | OutcomeEnd
    | WorkflowRunCreated
    | WorkflowRunRunning
    | WorkflowRunIdle
    | WorkflowRunEnded
    | WorkflowRunError
    | WorkflowPhaseStarted
    | WorkflowPhaseEnded
)
"""The events of a list."""

StreamEvent: TypeAlias = ShownEvent | shown.SessionDeleted | EventStart | EventDelta | Ping | StreamFault
"""The events of a stream."""
