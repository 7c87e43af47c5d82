"""Every event as the API shows it (contract sections 10.3 to 10.6).

These describe; nothing is built from them, since the log keeps the exact text of each event. The OpenAPI
document is made from them, and tests hold what the server really sends against it.
"""

from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from corral.wire.agents import SessionAgent
from corral.wire.content import MessageBlock, ResultBlock, TextBlock
from corral.wire.sessions import BudgetLimit, Usage

Permission: TypeAlias = Literal["allow", "ask", "deny"]


class Kept(msgspec.Struct, kw_only=True):
    """What every event has that is kept."""

    id: str
    processed_at: str


class Sent(msgspec.Struct, kw_only=True):
    """What every event has that came from a client; ``processed_at`` is null while it waits."""

    id: str
    processed_at: str | None


class ThreadNamed(Sent, kw_only=True):
    """An event of a client that may carry the thread that it belongs to."""

    session_thread_id: str | UnsetType | None = UNSET


class ShownUserMessage(Sent, tag="user.message", kw_only=True):
    """A message of the user's."""

    content: list[MessageBlock]


class ShownUserInterrupt(Sent, tag="user.interrupt", kw_only=True):
    """The user stopped the work."""

    session_thread_id: str | None


class ShownToolConfirmation(ThreadNamed, tag="user.tool_confirmation", kw_only=True):
    """The user allowed or denied a call."""

    tool_use_id: str
    result: Literal["allow", "deny"]
    deny_message: str | None


class ShownCustomToolResult(ThreadNamed, tag="user.custom_tool_result", kw_only=True):
    """What a tool of the client's came to."""

    custom_tool_use_id: str
    content: list[ResultBlock]
    is_error: bool | None


class ShownUserToolResult(ThreadNamed, tag="user.tool_result", kw_only=True):
    """What a sandbox tool came to that a client's worker ran."""

    tool_use_id: str
    content: list[ResultBlock]
    is_error: bool | None


class TextRubric(msgspec.Struct, tag="text", kw_only=True):
    """What an outcome is judged by."""

    content: str


class FileRubric(msgspec.Struct, tag="file", kw_only=True):
    """What an outcome is judged by, in a file."""

    file_id: str


class ShownDefineOutcome(Sent, tag="user.define_outcome", kw_only=True):
    """The user said what the work has to come to."""

    outcome_id: str
    description: str
    rubric: TextRubric | FileRubric
    max_iterations: int | None


class ShownSystemMessage(Sent, tag="system.message", kw_only=True):
    """A system turn in the middle of the conversation."""

    content: list[TextBlock]


class Redacted(msgspec.Struct, tag="redacted"):
    """A part of a message that is not shown."""


class AgentMessage(Kept, tag="agent.message", kw_only=True):
    """What the agent said."""

    content: list[TextBlock | Redacted]


class AgentThinking(Kept, tag="agent.thinking"):
    """The agent thought; what, is not shown."""


class JudgedAllow(msgspec.Struct, tag="allow"):
    """The server judged that the call may run."""


class JudgedAsk(msgspec.Struct, tag="ask", kw_only=True):
    """The server judged that the user should be asked."""

    reason_code: str | UnsetType | None = UNSET


class JudgedDeny(msgspec.Struct, tag="deny", kw_only=True):
    """The server judged that the call must not run."""

    reason_code: str | UnsetType | None = UNSET


class AllowEvaluation(msgspec.Struct, tag="always_allow"):
    """The policy allows every call."""


class AskEvaluation(msgspec.Struct, tag="always_ask"):
    """The policy asks at every call."""


class AutoEvaluation(msgspec.Struct, tag="auto", kw_only=True):
    """The policy leaves it to the server."""

    evaluated_permission: JudgedAllow | JudgedAsk | JudgedDeny


Evaluation: TypeAlias = AllowEvaluation | AskEvaluation | AutoEvaluation


class Use(Kept, kw_only=True):
    """A call of a tool. The primary thread's copy of a child's call says which thread it belongs to."""

    name: str
    input: dict[str, Any]
    session_thread_id: str | UnsetType | None = UNSET


class AgentToolUse(Use, tag="agent.tool_use", kw_only=True):
    """The agent calls a built-in tool."""

    evaluated_permission: Permission | None
    evaluation: Evaluation | UnsetType | None = UNSET


class AgentToolResult(Kept, tag="agent.tool_result", kw_only=True):
    """What a built-in tool came to."""

    tool_use_id: str
    content: list[ResultBlock]
    is_error: bool | None


class AgentMcpToolUse(Use, tag="agent.mcp_tool_use", kw_only=True):
    """The agent calls a tool of an MCP server."""

    mcp_server_name: str
    evaluated_permission: Permission | None
    evaluation: Evaluation | UnsetType | None = UNSET


class AgentMcpToolResult(Kept, tag="agent.mcp_tool_result", kw_only=True):
    """What a tool of an MCP server came to."""

    mcp_tool_use_id: str
    content: list[ResultBlock]
    is_error: bool | None


class AgentCustomToolUse(Use, tag="agent.custom_tool_use", kw_only=True):
    """The agent calls a tool of the client's."""


class ThreadContextCompacted(Kept, tag="agent.thread_context_compacted"):
    """The model now sees a summary of what came before."""


class ThreadMessageSent(Kept, tag="agent.thread_message_sent", kw_only=True):
    """The agent wrote to another thread; the name is absent for the primary one."""

    to_session_thread_id: str
    to_agent_name: str | UnsetType | None = UNSET
    content: list[MessageBlock | Redacted]


class ThreadMessageReceived(Kept, tag="agent.thread_message_received", kw_only=True):
    """Another thread wrote to the agent; the name is absent for the primary one."""

    from_session_thread_id: str
    from_agent_name: str | UnsetType | None = UNSET
    content: list[MessageBlock | Redacted]


class SessionRunning(Kept, tag="session.status_running"):
    """The session began to work."""


class EndTurn(msgspec.Struct, tag="end_turn"):
    """The agent is done, or was interrupted."""


class RequiresAction(msgspec.Struct, tag="requires_action", kw_only=True):
    """The session waits for the client: a confirmation or a result for each of these events."""

    event_ids: list[str]


class RetriesExhausted(msgspec.Struct, tag="retries_exhausted"):
    """The turn failed for good."""


class BudgetReached(msgspec.Struct, tag="budget_reached"):
    """The session's budget is used up."""


class Refusal(msgspec.Struct, tag="refusal"):
    """The model refused."""


StopReason: TypeAlias = EndTurn | RequiresAction | RetriesExhausted | BudgetReached | Refusal


class StopDetails(msgspec.Struct, tag="refusal", kw_only=True):
    """Why the model refused."""

    category: str | None
    explanation: str | None


class SessionIdle(Kept, tag="session.status_idle", kw_only=True):
    """The session stopped working, and why."""

    stop_reason: StopReason
    stop_details: StopDetails | None


class SessionRescheduled(Kept, tag="session.status_rescheduled"):
    """The session will try again."""


class SessionTerminated(Kept, tag="session.status_terminated"):
    """The session has ended for good."""


class SessionDeleted(Kept, tag="session.deleted"):
    """The session is gone: the last frame of each of its streams, and of streams alone."""


class SessionUpdated(Kept, tag="session.updated", kw_only=True):
    """The session was changed; only what changed is there."""

    title: str | UnsetType | None = UNSET
    metadata: dict[str, str] | UnsetType = UNSET
    agent: SessionAgent | UnsetType = UNSET
    budget: BudgetLimit | UnsetType | None = UNSET


class RetryStatus(msgspec.Struct, kw_only=True):
    """Whether the server tries again, the turn is dead, or the session is."""

    type: Literal["retrying", "exhausted", "terminal"]


ErrorType: TypeAlias = Literal[
    "unknown_error",
    "model_overloaded_error",
    "model_rate_limited_error",
    "model_request_failed_error",
    "mcp_connection_failed_error",
    "mcp_authentication_failed_error",
    "billing_error",
    "credential_host_unreachable_error",
    "tool_use_limit_reached_error",
    "compaction_limit_reached_error",
    "repository_authentication_error",
    "repository_forbidden_error",
    "repository_not_found_error",
    "repository_checkout_error",
    "repository_clone_error",
]


class SessionFault(msgspec.Struct, kw_only=True):
    """What went wrong in a session; the fields behind the status are there where they apply."""

    type: ErrorType
    message: str
    retry_status: RetryStatus
    mcp_server_name: str | UnsetType = UNSET
    credential_id: str | UnsetType = UNSET
    vault_id: str | UnsetType = UNSET
    repository_url: str | UnsetType | None = UNSET


class SessionError(Kept, tag="session.error", kw_only=True):
    """Something went wrong."""

    error: SessionFault


class SessionUsage(Kept, tag="session.usage", kw_only=True):
    """What the session has consumed so far; right before each idle."""

    usage: Usage
    budget: BudgetLimit | None


class ThreadCreated(Kept, tag="session.thread_created", kw_only=True):
    """A thread was made."""

    session_thread_id: str
    agent_name: str
    workflow_run_id: str | UnsetType | None = UNSET


class ThreadChange(Kept, kw_only=True):
    """A thread changed its status."""

    session_thread_id: str
    agent_name: str


class ThreadRunning(ThreadChange, tag="session.thread_status_running"):
    """A thread began to work."""


class ThreadIdle(ThreadChange, tag="session.thread_status_idle", kw_only=True):
    """A thread stopped working, and why."""

    stop_reason: StopReason
    stop_details: StopDetails | None


class ThreadRescheduled(ThreadChange, tag="session.thread_status_rescheduled"):
    """A thread will try again."""


class ThreadTerminated(ThreadChange, tag="session.thread_status_terminated"):
    """A thread has ended for good."""


class ModelRequestStart(Kept, tag="span.model_request_start"):
    """A model request begins."""


class ModelUsage(msgspec.Struct, kw_only=True):
    """The tokens of one model request."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int
    speed: Literal["standard", "fast"] | UnsetType | None = UNSET


class ModelRequestEnd(Kept, tag="span.model_request_end", kw_only=True):
    """A model request has ended, one way or another."""

    is_error: bool | None
    model_request_start_id: str
    model_usage: ModelUsage
