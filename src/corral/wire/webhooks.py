"""Webhooks on the wire: endpoints, what can be told to one, and the message that tells it (section 23)."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET, Meta, UnsetType

from corral.wire.addresses import BadHost, Internal, never, not_public, parse_host
from corral.wire.errors import InvalidRequest
from corral.wire.fields import Request
from corral.wire.server_urls import check_url
from corral.wire.times import to_wire

TOLD: Final = (
    "session.status_run_started",
    "session.status_idled",
    "session.budget_reached",
    "session.status_rescheduled",
    "session.status_terminated",
    "session.thread_created",
    "session.thread_idled",
    "session.thread_terminated",
    "session.outcome_evaluation_ended",
    "session.updated",
    "session.deleted",
    "vault.created",
    "vault.archived",
    "vault.deleted",
    "vault_credential.created",
    "vault_credential.archived",
    "vault_credential.deleted",
    "vault_credential.refresh_failed",
    "agent.created",
    "agent.updated",
    "agent.archived",
    "agent.deleted",
    "deployment.created",
    "deployment.updated",
    "deployment.paused",
    "deployment.unpaused",
    "deployment.archived",
    "deployment.deleted",
    "deployment_run.started",
    "deployment_run.succeeded",
    "deployment_run.failed",
    "environment.created",
    "environment.updated",
    "environment.archived",
    "environment.deleted",
    "memory_store.created",
    "memory_store.archived",
    "memory_store.deleted",
)
"""The events that the documentation lists, each of which is told when it occurs."""
FURTHER: Final = (
    "session.created",
    "session.running",
    "session.idled",
    "session.requires_action",
    "session.archived",
)
"""Events that the SDK alone has; told as well, to whoever asks for them by name."""
UNTOLD: Final = (
    "session.pending",
    "user_profile.enforcement_action_opened",
    "user_profile.enforcement_action_resolved",
    "user_profile.program_status_updated",
    "external_key.failed",
    "external_key.recovered",
    "external_storage.failed",
    "external_storage.recovered",
)
"""Events of the hosted service that never occur here; an endpoint may name them all the same."""
ALL: Final = "all"
"""Stands for every event of `TOLD`."""
TEST: Final = "webhook.test"
"""The type of the message that a test sends."""

_KNOWN: Final = frozenset((*TOLD, *FURTHER, *UNTOLD))
_HTTPS: Final = 443

Description = Annotated[str, Meta(max_length=255)]
Url = Annotated[str, Meta(min_length=1, max_length=2047)]
Events = Annotated[list[str], Meta(min_length=1, max_length=100)]
State: TypeAlias = Literal["waiting", "delivered", "failed", "dropped"]


class CreateWebhook(Request):
    """The body of ``POST /corral/v1/webhooks``."""

    url: Url
    events: Events
    description: Description | None = None


class UpdateWebhook(Request):
    """The body of ``POST /corral/v1/webhooks/{id}``: an absent field stays."""

    url: Url | UnsetType = UNSET
    events: Events | UnsetType = UNSET
    description: Description | UnsetType | None = UNSET


class RotateSecret(Request):
    """The body of ``POST /corral/v1/webhooks/{id}/rotate_secret``."""

    overlap_seconds: Annotated[int, Meta(ge=0, le=2_592_000)] = 86_400
    """For how long the former secret signs as well."""


class Webhook(msgspec.Struct, tag="webhook", kw_only=True, frozen=True):
    """An endpoint as it may be shown: everything but its secret."""

    id: str
    declared: str | None
    """Its name in the settings, where those declare it."""
    description: str | None
    url: str
    events: list[str]
    status: Literal["enabled", "disabled"]
    disabled_reason: str | None
    failing_since: str | None
    """Since when every attempt has failed."""
    former_secret_until: str | None
    """Until when messages bear two signatures."""
    created_at: str
    updated_at: str


class WebhookWithSecret(Webhook, tag="webhook", kw_only=True, frozen=True):
    """An endpoint as it is shown once: when its secret has been made."""

    secret: str


class Delivery(msgspec.Struct, tag="webhook_delivery", kw_only=True, frozen=True):
    """What became of one event at one endpoint."""

    event_id: str
    webhook_id: str
    event_type: str
    subject_id: str
    state: State
    attempts: int
    last_status: int | None
    """The HTTP status of the last answer."""
    last_error: str | None
    occurred_at: str
    next_attempt_at: str | None
    settled_at: str | None


def chosen(events: Sequence[str]) -> list[str]:
    """The events that an endpoint asks for, in the documented order, each once.

    Raises:
        InvalidRequest: one of them does not exist, or there is none.
    """
    for index, name in enumerate(events):
        if name != ALL and name not in _KNOWN:
            raise InvalidRequest(
                f"events[{index}]: there is no event {name[:100]!r}; docs/webhooks.md lists them"
            )
    wanted = {*events, *(TOLD if ALL in events else ())}
    found = [name for name in (*TOLD, *FURTHER, *UNTOLD) if name in wanted]
    if not found:
        raise InvalidRequest("events: name at least one event")
    return found


def check_endpoint(url: str, internal: Internal) -> None:
    """Refuse the URL of an endpoint that messages may not be sent to, as far as the URL tells.

    It must be https on port 443 and no address of a private network; a host that `internal` names may have
    any port, and plain http.

    Raises:
        InvalidRequest: it is not so.
    """
    check_url(url, "url")
    parts = urlsplit(url)
    try:
        host = parse_host(parts.hostname or "")
    except BadHost as error:
        raise InvalidRequest(f"url: {error}") from None
    if isinstance(host, str):
        if internal.names(host):
            return
    else:
        refused = never(host)
        if refused is None and internal.admits(host, host):
            return
        refused = refused or not_public(host)
        if refused is not None:
            raise InvalidRequest(f"url: {refused}; the setting webhooks.internal can name internal systems")
    if parts.scheme.lower() != "https" or (parts.port or _HTTPS) != _HTTPS:
        raise InvalidRequest(
            "url: must be https on port 443, but for hosts that the setting webhooks.internal names"
        )


def message(
    event_id: str,
    kind: str,
    occurred_at: datetime,
    data: dict[str, Any],
    *,
    organization_id: str,
    workspace_id: str,
) -> bytes:
    """The body that tells an event; the same for every attempt. `data` has the id and what goes with it."""
    body = {
        "type": "event",
        "id": event_id,
        "created_at": to_wire(occurred_at),
        "data": {
            "type": kind,
            **data,
            "organization_id": organization_id,
            "workspace_id": workspace_id,
        },
    }
    return msgspec.json.encode(body)
