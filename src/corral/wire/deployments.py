"""Deployments and their runs on the wire (contract section 19)."""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from corral.wire.errors import InvalidRequest
from corral.wire.events import DefineOutcome, SystemMessage, UserMessage, check_events
from corral.wire.fields import Id, Metadata, MetadataPatch, Request
from corral.wire.overrides import AgentRef
from corral.wire.run_errors import PauseErrorType, RunErrorType
from corral.wire.session_resources import RepositoryParams, ResourceParams
from corral.wire.sessions import BudgetLimit, CreateSession

INITIAL_EVENTS: Final = 50
RESOURCES: Final = 500
VAULTS: Final = 50
EXPRESSION_LENGTH: Final = 256

Name = Annotated[str, Meta(min_length=1, max_length=256)]
Description = Annotated[str, Meta(max_length=2048)]
InitialEvent = UserMessage | DefineOutcome | SystemMessage
InitialEvents = Annotated[list[InitialEvent], Meta(min_length=1, max_length=INITIAL_EVENTS)]
Resources = Annotated[list[ResourceParams], Meta(max_length=RESOURCES)]
VaultIds = Annotated[list[Id], Meta(max_length=VAULTS)]


class CronSchedule(Request, tag="cron"):
    """When a deployment runs by itself: times of a wall clock in a zone."""

    expression: Annotated[str, Meta(min_length=1, max_length=EXPRESSION_LENGTH)]
    timezone: Annotated[str, Meta(min_length=1, max_length=255)]


class CreateDeployment(Request):
    """The body of ``POST /v1/deployments``."""

    name: Name
    agent: Id | AgentRef
    environment_id: Id
    initial_events: InitialEvents
    description: Description | None = None
    resources: Resources | None = None
    vault_ids: VaultIds | None = None
    budget: BudgetLimit | None = None
    schedule: CronSchedule | None = None
    metadata: Metadata | None = None

    def check(self) -> None:
        """Check the initial events by themselves and their order."""
        check_events(self.initial_events, "initial_events")
        _check_tokens(self.resources or [])


class UpdateDeployment(Request):
    """The body of ``POST /v1/deployments/{id}``: an absent field stays, null clears what can be cleared."""

    name: Name | UnsetType = UNSET
    agent: Id | AgentRef | UnsetType = UNSET
    environment_id: Id | UnsetType = UNSET
    initial_events: InitialEvents | UnsetType = UNSET
    description: Description | UnsetType | None = UNSET
    resources: Resources | UnsetType | None = UNSET
    vault_ids: VaultIds | UnsetType | None = UNSET
    budget: BudgetLimit | UnsetType | None = UNSET
    schedule: CronSchedule | UnsetType | None = UNSET
    metadata: MetadataPatch | UnsetType | None = UNSET

    def check(self) -> None:
        """Check the initial events by themselves and their order."""
        if self.initial_events is not UNSET:
            check_events(self.initial_events, "initial_events")
        if self.resources is not UNSET:
            _check_tokens(self.resources or [])


def _check_tokens(resources: list[ResourceParams]) -> None:
    for index, resource in enumerate(resources):
        if isinstance(resource, RepositoryParams) and resource.authorization_token is not None:
            raise InvalidRequest(
                f"resources[{index}].authorization_token: this server keeps no tokens for deployments"
            )


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """What a deployment consists of, resolved: the agent is pinned to a version."""

    name: str
    description: str | None
    agent: AgentRef
    environment_id: str
    initial_events: list[InitialEvent]
    resources: list[ResourceParams]
    vault_ids: list[str]
    budget: BudgetLimit | None
    schedule: CronSchedule | None
    metadata: dict[str, str]

    @property
    def session(self) -> CreateSession:
        """The session that a run makes, without its initial events."""
        return CreateSession(
            agent=self.agent,
            environment_id=self.environment_id,
            title=self.name,
            resources=self.resources or None,
            vault_ids=self.vault_ids or None,
            budget=self.budget,
        )


class Reference(msgspec.Struct, tag="agent", kw_only=True):
    """An agent at a version."""

    id: str
    version: int


class Schedule(msgspec.Struct, tag="cron", kw_only=True):
    """A schedule as the API shows it. ``upcoming_runs_at`` are the exact times, before jitter."""

    expression: str
    timezone: str
    last_run_at: str | None
    upcoming_runs_at: list[str]


class ManualPause(msgspec.Struct, tag="manual"):
    """Somebody paused the deployment."""


class PauseError(msgspec.Struct):
    """The kind of failure that a scheduled run ended in."""

    type: PauseErrorType


class ErrorPause(msgspec.Struct, tag="error", kw_only=True):
    """A scheduled run failed in a way that the next one would too."""

    error: PauseError


PausedReason = ManualPause | ErrorPause
DeploymentStatus = Literal["active", "paused"]


class Deployment(msgspec.Struct, tag="deployment", kw_only=True):
    """The deployment as the API shows it; resources echo what was sent, without what is write-only."""

    id: str
    name: str
    description: str | None
    agent: Reference
    environment_id: str
    initial_events: list[dict[str, Any]]
    resources: list[dict[str, Any]]
    vault_ids: list[str]
    budget: dict[str, Any] | None
    metadata: dict[str, str]
    schedule: Schedule | None
    status: DeploymentStatus
    paused_reason: PausedReason | None
    created_at: str
    updated_at: str
    archived_at: str | None


class ManualTrigger(msgspec.Struct, tag="manual"):
    """Somebody started the run."""


class ScheduleTrigger(msgspec.Struct, tag="schedule", kw_only=True):
    """The run's time had come: the exact one, before jitter."""

    scheduled_at: str


TriggerType = Literal["schedule", "manual"]


class RunError(msgspec.Struct, kw_only=True):
    """Why a run made no session."""

    type: RunErrorType
    message: str


class DeploymentRun(msgspec.Struct, tag="deployment_run", kw_only=True):
    """A run as the API shows it: either a session or an error."""

    id: str
    deployment_id: str
    agent: Reference
    trigger_context: ManualTrigger | ScheduleTrigger
    session_id: str | None
    error: RunError | None
    created_at: str


def shown_resource(resource: ResourceParams) -> dict[str, Any]:
    """A resource as a deployment echoes it."""
    body: dict[str, Any] = msgspec.to_builtins(resource)
    body.pop("authorization_token", None)
    return body
