"""All that serves webhooks, put together from the settings: one place for servers, commands and tests."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import msgspec

from corral.resources.webhook_delivery import DeliveryPolicy, WebhookDeliveries
from corral.resources.webhook_outbox import LIST, Outbox
from corral.resources.webhook_sender import Resolver, Sender
from corral.resources.webhooks import Webhooks
from corral.settings import Webhooks as WebhookSettings
from corral.store.database import Database
from corral.wire.addresses import Internal
from corral.wire.errors import InvalidRequest
from corral.wire.ids import new_id
from corral.wire.pagination import Listing, Page
from corral.wire.webhook_signing import signed_headers
from corral.wire.webhooks import TEST, message

DELIVERIES: Final = LIST
"""The kind of the cursors in lists of deliveries."""


class Trial(msgspec.Struct, tag="webhook_trial", kw_only=True, frozen=True):
    """What came of a test message."""

    webhook_id: str
    event_id: str
    delivered: bool
    status: int | None
    """The HTTP status of the answer, if there was one."""
    error: str | None
    seconds: float


@dataclass(frozen=True, slots=True)
class WebhookServices:
    """The services of webhooks on one database."""

    endpoints: Webhooks
    deliveries: WebhookDeliveries
    outbox: Outbox
    sender: Sender
    policy: DeliveryPolicy

    async def recent(self, webhook_id: str, page: Page) -> Listing:
        """What was to be delivered to an endpoint, newest first; raises `NotFound`."""
        await self.endpoints.retrieve(webhook_id)
        return await self.outbox.recent(webhook_id, page)

    async def test(self, webhook_id: str) -> Trial:
        """Send a message of type ``webhook.test`` now, once, from this process. It changes nothing.

        Raises:
            NotFound: there is no such endpoint.
            InvalidRequest: its secret is not known here.
        """
        webhook, signing = await self.endpoints.signing(webhook_id)
        event_id, now = new_id("whe"), datetime.now(UTC)
        body = message(
            event_id,
            TEST,
            now,
            {"id": webhook_id},
            organization_id=self.policy.organization_id,
            workspace_id=self.policy.workspace_id,
        )
        headers = signed_headers(event_id, int(now.timestamp()), body, signing)
        outcome = await self.sender.send(webhook.url, body, headers)
        return Trial(
            webhook_id=webhook_id,
            event_id=event_id,
            delivered=outcome.kind == "taken",
            status=outcome.status,
            error=outcome.error,
            seconds=outcome.seconds,
        )

    async def declare(self, settings: WebhookSettings) -> None:
        """Make the endpoints that the settings declare what they say.

        Raises:
            InvalidRequest: an event does not exist, or a URL is none that may be told; names the setting.
        """
        declared = {one.name: (one.url, one.events) for one in settings.endpoints}
        try:
            await self.endpoints.declare(declared)
        except InvalidRequest as error:
            raise InvalidRequest(f"webhooks.endpoints: {error.message}") from None


@asynccontextmanager
async def open_webhooks(
    database: Database, settings: WebhookSettings, *, resolver: Resolver | None = None
) -> AsyncGenerator[WebhookServices]:
    """The services that the settings ask for.

    Raises:
        BadHost: an entry of ``webhooks.internal`` is not understood.
    """
    internal = Internal(settings.internal)
    secrets = settings.secrets_by_name()
    policy = DeliveryPolicy(
        attempts=settings.max_attempts,
        timeout=settings.timeout_seconds,
        backoff=settings.retry_backoff_seconds,
        backoff_max=settings.retry_backoff_max_seconds,
        disable_after=settings.disable_after_seconds,
        at_once=settings.concurrency,
        at_once_each=min(settings.concurrency, settings.concurrency_per_endpoint),
        keep=settings.keep_seconds,
        organization_id=settings.organization_id,
        workspace_id=settings.workspace_id,
    )
    sender = Sender(internal, timeout=settings.timeout_seconds, ca_file=settings.ca_file, resolver=resolver)
    outbox = Outbox(database)
    async with sender:
        yield WebhookServices(
            endpoints=Webhooks(database, internal, secrets),
            deliveries=WebhookDeliveries(outbox, sender, policy, secrets),
            outbox=outbox,
            sender=sender,
            policy=policy,
        )
