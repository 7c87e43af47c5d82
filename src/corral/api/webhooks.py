"""Routes of webhook endpoints. Corral's own: the hosted service has none, its console registers endpoints."""

from typing import Final

import msgspec
from starlette.types import ASGIApp

from corral.api.call import Call, answer
from corral.api.describe import PAGED, Deleted, Optional, PageOf
from corral.api.principals import APPLICATION
from corral.api.routing import Route
from corral.resources import webhooks
from corral.resources.webhook_services import DELIVERIES, Trial
from corral.wire.secret import Secret
from corral.wire.webhooks import (
    CreateWebhook,
    Delivery,
    RotateSecret,
    UpdateWebhook,
    Webhook,
    WebhookWithSecret,
)

_ALL: Final = "/corral/v1/webhooks"
_ONE: Final = _ALL + "/{webhook_id}"


async def create(call: Call) -> ASGIApp:
    """``POST /corral/v1/webhooks``: the only answer with the secret, but for that of a rotation."""
    made = await call.services.webhooks.endpoints.create(await call.decode(CreateWebhook))
    return answer(_with_secret(*made))


async def retrieve(call: Call) -> ASGIApp:
    """``GET /corral/v1/webhooks/{webhook_id}``."""
    return answer(await call.services.webhooks.endpoints.retrieve(call.params["webhook_id"]))


async def update(call: Call) -> ASGIApp:
    """``POST /corral/v1/webhooks/{webhook_id}``."""
    params = await call.decode(UpdateWebhook)
    return answer(await call.services.webhooks.endpoints.update(call.params["webhook_id"], params))


async def delete(call: Call) -> ASGIApp:
    """``DELETE /corral/v1/webhooks/{webhook_id}``."""
    webhook_id = call.params["webhook_id"]
    await call.services.webhooks.endpoints.delete(webhook_id)
    return answer({"id": webhook_id, "type": "webhook_deleted"})


async def list_webhooks(call: Call) -> ASGIApp:
    """``GET /corral/v1/webhooks``."""
    return answer(await call.services.webhooks.endpoints.list(call.page(webhooks.LIST, (int, str))))


async def enable(call: Call) -> ASGIApp:
    """``POST /corral/v1/webhooks/{webhook_id}/enable``."""
    return answer(await call.services.webhooks.endpoints.enable(call.params["webhook_id"]))


async def disable(call: Call) -> ASGIApp:
    """``POST /corral/v1/webhooks/{webhook_id}/disable``."""
    return answer(await call.services.webhooks.endpoints.disable(call.params["webhook_id"]))


async def rotate_secret(call: Call) -> ASGIApp:
    """``POST /corral/v1/webhooks/{webhook_id}/rotate_secret``: answers with the new secret."""
    params = await call.decode_optional(RotateSecret)
    made = await call.services.webhooks.endpoints.rotate_secret(
        call.params["webhook_id"], params.overlap_seconds
    )
    return answer(_with_secret(*made))


async def test(call: Call) -> ASGIApp:
    """``POST /corral/v1/webhooks/{webhook_id}/test``: sends a message now and says what came of it."""
    return answer(await call.services.webhooks.test(call.params["webhook_id"]))


async def list_deliveries(call: Call) -> ASGIApp:
    """``GET /corral/v1/webhooks/{webhook_id}/deliveries``."""
    webhook_id = call.params["webhook_id"]
    page = call.page(DELIVERIES, (int, str), scope=webhook_id)
    return answer(await call.services.webhooks.recent(webhook_id, page))


def _with_secret(webhook: Webhook, secret: Secret) -> WebhookWithSecret:
    return WebhookWithSecret(**msgspec.structs.asdict(webhook), secret=secret.reveal())


ROUTES = (
    Route(
        "POST",
        _ALL,
        APPLICATION,
        create,
        "Register a webhook",
        takes=CreateWebhook,
        gives=WebhookWithSecret,
    ),
    Route(
        "GET",
        _ALL,
        APPLICATION,
        list_webhooks,
        "List webhooks, newest first",
        query=PAGED,
        gives=PageOf(Webhook),
    ),
    Route("GET", _ONE, APPLICATION, retrieve, "Look at a webhook", gives=Webhook),
    Route("POST", _ONE, APPLICATION, update, "Change a webhook", takes=UpdateWebhook, gives=Webhook),
    Route("DELETE", _ONE, APPLICATION, delete, "Delete a webhook", gives=Deleted("webhook_deleted")),
    Route("POST", _ONE + "/enable", APPLICATION, enable, "Enable a webhook", gives=Webhook),
    Route("POST", _ONE + "/disable", APPLICATION, disable, "Disable a webhook", gives=Webhook),
    Route(
        "POST",
        _ONE + "/rotate_secret",
        APPLICATION,
        rotate_secret,
        "Make a new signing secret",
        takes=Optional(RotateSecret),
        gives=WebhookWithSecret,
    ),
    Route("POST", _ONE + "/test", APPLICATION, test, "Send a test message now", gives=Trial),
    Route(
        "GET",
        _ONE + "/deliveries",
        APPLICATION,
        list_deliveries,
        "List what was to be delivered lately, newest first",
        query=PAGED,
        gives=PageOf(Delivery),
    ),
)
