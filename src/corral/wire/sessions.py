"""Sessions and threads on the wire (contract sections 8 and 11.2)."""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from corral.wire.errors import InvalidRequest
from corral.wire.events import DefineOutcome, UserMessage, check_events
from corral.wire.fields import Id, Metadata, MetadataPatch, Request
from corral.wire.overrides import AgentParam, AgentRef, AgentWithOverrides, SessionAgentUpdate
from corral.wire.session_resources import ResourceParams
from corral.wire.vaults import SESSION_VAULTS

__all__ = [
    "AgentParam",
    "AgentRef",
    "AgentWithOverrides",
    "CacheCreation",
    "CreateSession",
    "Money",
    "ServerToolUse",
    "Session",
    "SessionAgentUpdate",
    "SessionStatus",
    "Stats",
    "Thread",
    "ThreadStats",
    "UpdateSession",
    "Usage",
]

Title = Annotated[str, Meta(max_length=500)]
SessionStatus = Literal["idle", "running", "rescheduling", "terminated"]
INITIAL_EVENTS: Final = 50


class ListCost(Request):
    """An amount in whole cents, as a string."""

    amount: Annotated[str, Meta(pattern=r"^[1-9][0-9]{0,17}\Z")]
    currency: Literal["USD"]


class BudgetLimit(Request):
    """A ceiling on a session's list cost."""

    type: Literal["limit"]
    max_list_cost: ListCost

    @property
    def cents(self) -> int:
        """The ceiling in whole cents."""
        return int(self.max_list_cost.amount)


class CreateSession(Request):
    """The body of ``POST /v1/sessions``."""

    agent: AgentParam
    environment_id: Id
    title: Title | None = None
    metadata: Metadata | None = None
    initial_events: Annotated[list[UserMessage | DefineOutcome], Meta(max_length=INITIAL_EVENTS)] | None = (
        None
    )
    resources: list[ResourceParams] | None = None
    vault_ids: Annotated[list[Id], Meta(max_length=SESSION_VAULTS)] | None = None
    budget: BudgetLimit | None = None

    def check(self) -> None:
        """Check the initial events by themselves and their order."""
        check_events(self.initial_events or [], "initial_events")


class UpdateSession(Request):
    """The body of ``POST /v1/sessions/{id}``: an absent field stays."""

    title: Title | UnsetType | None = UNSET
    metadata: MetadataPatch | UnsetType | None = UNSET
    agent: SessionAgentUpdate | UnsetType = UNSET
    budget: BudgetLimit | UnsetType | None = UNSET
    vault_ids: list[Id] | UnsetType | None = UNSET

    def check(self) -> None:
        """Refuse what a session cannot change."""
        if self.vault_ids is not UNSET:
            raise InvalidRequest("vault_ids: cannot be changed after the session was created")


class CacheCreation(msgspec.Struct, kw_only=True):
    """Tokens written to the prompt cache, by lifetime."""

    ephemeral_5m_input_tokens: int = 0
    ephemeral_1h_input_tokens: int = 0


class Money(msgspec.Struct, kw_only=True):
    """An amount in whole cents, as a string."""

    amount: str = "0"
    currency: Literal["USD"] = "USD"


class ServerToolUse(msgspec.Struct, kw_only=True):
    """Calls of the tools that the server itself runs."""

    web_search_requests: int = 0
    web_fetch_requests: int = 0


class Usage(msgspec.Struct, kw_only=True):
    """What a session, or a thread, has consumed. ``input_tokens`` are the uncached ones."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_input_tokens: int = 0
    cache_creation: CacheCreation | None = None
    active_seconds: float = 0.0
    list_cost: Money = msgspec.field(default_factory=Money)
    server_tool_use: ServerToolUse = msgspec.field(default_factory=ServerToolUse)


class Stats(msgspec.Struct, kw_only=True):
    """A session's times in seconds: running, and since creation (frozen once terminated)."""

    active_seconds: float = 0.0
    duration_seconds: float = 0.0


class ThreadStats(Stats, kw_only=True):
    """A thread's times in seconds."""

    startup_seconds: float = 0.0


class Session(msgspec.Struct, tag="session", kw_only=True):
    """The session as the API shows it. ``agent`` is the snapshot of `corral.wire.agents.SessionAgent`."""

    id: str
    status: SessionStatus
    title: str | None
    metadata: dict[str, str]
    environment_id: str
    deployment_id: str | None = None
    agent: dict[str, Any]
    resources: list[dict[str, Any]] = []
    vault_ids: list[str] = []
    outcome_evaluations: list[dict[str, Any]] = []
    budget: dict[str, Any] | None = None
    stats: Stats
    usage: Usage
    created_at: str
    updated_at: str
    archived_at: str | None


class Thread(msgspec.Struct, tag="session_thread", kw_only=True):
    """A thread of a session as the API shows it; the primary one has no parent."""

    id: str
    session_id: str
    parent_thread_id: str | None = None
    agent: dict[str, Any]
    status: SessionStatus
    workflow_run_id: str | None = None
    stats: ThreadStats | None
    usage: Usage | None
    created_at: str
    updated_at: str
    archived_at: str | None
