"""How the outbox reaches the endpoints: attempts, repetitions, and when an endpoint is disabled."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from standardwebhooks import Webhook as Verifier
from standardwebhooks import WebhookVerificationError

from corral.resources.webhook_delivery import FAILING, REDIRECTED, REFUSED, DeliveryPolicy
from corral.resources.webhook_services import WebhookServices, open_webhooks
from corral.settings import Webhooks as WebhookSettings
from corral.store.database import Database
from corral.wire.pagination import Page
from corral.wire.webhooks import CreateWebhook, Delivery, UpdateWebhook
from tests.webhook_receiver import Message, Receiver, receiving

NEWEST = Page(limit=100, order="desc")


@dataclass(frozen=True)
class Outside:
    """A receiver that is registered, and the services that tell it."""

    webhooks: WebhookServices
    receiver: Receiver
    database: Database
    id: str
    secret: str

    async def happens(self, count: int = 1) -> None:
        """Something that the endpoint asked for."""
        await self.database.execute(
            "insert into agents (id, version) select 'agent_' || gen_random_uuid(), 1"
            " from generate_series(1, %s)",
            (count,),
        )

    async def time_passes(self) -> None:
        """What waits to be sent again, or whose server died, is due."""
        await self.database.execute(
            "update webhook_deliveries set due_at = now(), leased_until = null where state = 'waiting'"
        )

    async def delivers(self, *answers: int | tuple[int, dict[str, str]]) -> list[Message]:
        """What arrives when everything due is delivered and answered like this."""
        before = len(self.receiver.messages)
        self.receiver.answers[:] = [one if isinstance(one, tuple) else (one, {}) for one in answers]
        await self.webhooks.deliveries.deliver_due()
        return self.receiver.messages[before:]

    async def deliveries(self) -> list[Delivery]:
        return (await self.webhooks.recent(self.id, NEWEST)).data

    async def state(self) -> tuple[str, str | None]:
        one = await self.webhooks.endpoints.retrieve(self.id)
        return one.status, one.disabled_reason


def settings(**fields: Any) -> WebhookSettings:
    given: dict[str, Any] = {"internal": ["127.0.0.0/8", "::1"], "timeout_seconds": 5.0, **fields}
    return WebhookSettings(**given)


@asynccontextmanager
async def registered(
    database: Database, *, host: str = "127.0.0.1", **fields: Any
) -> AsyncGenerator[Outside]:
    async with receiving(host=host) as receiver, open_webhooks(database, settings(**fields)) as webhooks:
        made, secret = await webhooks.endpoints.create(
            CreateWebhook(url=receiver.base_url + "/hook", events=["agent.created"])
        )
        yield Outside(webhooks, receiver, database, made.id, secret.reveal())


async def test_a_taken_event_is_sent_once(database: Database) -> None:
    async with registered(database) as outside:
        await outside.happens()
        assert len(await outside.delivers(200)) == 1
        await outside.time_passes()
        assert await outside.delivers() == []
        (one,) = await outside.deliveries()
        assert (one.state, one.attempts, one.last_status, one.last_error) == ("delivered", 1, 200, None)
        assert one.settled_at is not None
        assert one.next_attempt_at is None


async def test_every_2xx_is_an_acknowledgement(database: Database) -> None:
    async with registered(database) as outside:
        for status in (200, 201, 202, 204, 299):
            await outside.happens()
            assert len(await outside.delivers(status)) == 1
        assert {one.state for one in await outside.deliveries()} == {"delivered"}


async def test_an_event_is_sent_three_times_with_the_same_id_and_body_and_then_dropped(
    database: Database,
) -> None:
    async with registered(database) as outside:
        await outside.happens()
        messages: list[Message] = []
        for status in (500, 503, 429):
            messages += await outside.delivers(status)
            await outside.time_passes()
        assert await outside.delivers() == []
        assert len(messages) == 3
        assert len({message.headers["webhook-id"] for message in messages}) == 1
        assert len({message.body for message in messages}) == 1
        (one,) = await outside.deliveries()
        assert (one.state, one.attempts, one.last_status) == ("failed", 3, 429)
        assert one.last_error == "answered 429"
        assert await outside.state() == ("enabled", None)


async def test_an_event_that_failed_waits_before_it_is_sent_again(database: Database) -> None:
    async with registered(database) as outside:
        await outside.happens()
        assert len(await outside.delivers(500)) == 1
        assert await outside.delivers() == []
        row = await database.fetch_one(
            "select extract(epoch from due_at - now())::float8 as wait from webhook_deliveries"
        )
        assert row is not None
        assert 10 < row["wait"] <= 30


@pytest.mark.parametrize(("attempt", "least", "most"), [(1, 15, 30), (2, 60, 120), (9, 60, 120)])
def test_waits_grow_within_the_documented_bounds(attempt: int, least: float, most: float) -> None:
    waits = [DeliveryPolicy().delay(attempt) for _ in range(200)]
    assert least <= min(waits) < max(waits) <= most
    assert len(set(waits)) > 1


async def test_each_attempt_is_signed_anew(database: Database) -> None:
    async with registered(database) as outside:
        await outside.happens()
        (first,) = await outside.delivers(500)
        verifier = Verifier(outside.secret)
        verifier.verify(first.body, first.headers)
        altered = first.body.replace("agent.created", "agent.deleted")
        with pytest.raises(WebhookVerificationError):
            verifier.verify(altered, first.headers)
        stale = {**first.headers, "webhook-timestamp": str(int(first.headers["webhook-timestamp"]) - 1)}
        with pytest.raises(WebhookVerificationError):
            verifier.verify(first.body, stale)


async def test_a_redirect_disables_at_once_and_is_not_followed(database: Database) -> None:
    async with registered(database) as outside, receiving() as elsewhere:
        await outside.happens(3)
        outside.receiver.answers[:] = [(302, {"location": elsewhere.base_url + "/there"})] * 3
        await outside.webhooks.deliveries.deliver_due()
        assert await outside.state() == ("disabled", REDIRECTED)
        assert elsewhere.messages == []
        assert {one.state for one in await outside.deliveries()} <= {"failed", "dropped"}
        await outside.happens()
        assert len(await outside.deliveries()) == 3
        await outside.webhooks.endpoints.enable(outside.id)
        assert await outside.delivers() == []


@pytest.mark.parametrize("status", [300, 301, 304, 307, 308])
async def test_any_3xx_disables(database: Database, status: int) -> None:
    async with registered(database) as outside:
        await outside.happens()
        await outside.delivers(status)
        assert await outside.state() == ("disabled", REDIRECTED)


async def test_an_address_that_is_no_longer_allowed_disables_at_once(database: Database) -> None:
    async with registered(database) as outside:
        await outside.happens()
        async with open_webhooks(database, WebhookSettings()) as strict:
            await strict.deliveries.deliver_due()
        assert await outside.state() == ("disabled", REFUSED)
        assert outside.receiver.messages == []


async def test_a_long_failure_disables_and_one_success_ends_it(database: Database) -> None:
    async with registered(database, disable_after_seconds=3600.0) as outside:
        await outside.happens()
        await outside.delivers(500)
        assert (await outside.webhooks.endpoints.retrieve(outside.id)).failing_since is not None
        await outside.happens()
        await outside.delivers(200)
        assert (await outside.webhooks.endpoints.retrieve(outside.id)).failing_since is None
        await outside.happens()
        await outside.delivers(500)
        await database.execute("update webhook_endpoints set failing_since = now() - interval '59 minutes'")
        await outside.time_passes()
        await outside.delivers(500, 500)
        assert await outside.state() == ("enabled", None)
        await database.execute("update webhook_endpoints set failing_since = now() - interval '61 minutes'")
        await outside.time_passes()
        await outside.delivers(500, 500)
        assert await outside.state() == ("disabled", FAILING)
        assert {one.state for one in await outside.deliveries()} <= {"delivered", "failed", "dropped"}


async def test_a_receiver_that_does_not_answer_in_time_has_failed(database: Database) -> None:
    async with registered(database, timeout_seconds=0.3) as outside:
        outside.receiver.held = asyncio.Event()
        await outside.happens()
        await outside.webhooks.deliveries.deliver_due()
        (one,) = await outside.deliveries()
        assert (one.state, one.last_status, one.last_error) == (
            "waiting",
            None,
            "no answer within 0.3 seconds",
        )


async def test_a_receiver_that_is_not_there_has_failed(database: Database) -> None:
    async with registered(database) as outside:
        port = int(outside.receiver.base_url.rpartition(":")[2])
        await outside.happens()
    async with open_webhooks(database, settings()) as webhooks:
        await webhooks.deliveries.deliver_due()
        (one,) = (await webhooks.recent(outside.id, NEWEST)).data
    assert port
    assert (one.state, one.last_error) == ("waiting", "the connection was refused")


async def test_a_slow_endpoint_does_not_hold_up_another(database: Database) -> None:
    async with registered(database) as slow, receiving() as quick:
        slow.receiver.held = asyncio.Event()
        await slow.webhooks.endpoints.create(
            CreateWebhook(url=quick.base_url + "/hook", events=["agent.created"])
        )
        await slow.happens(20)
        working = asyncio.create_task(slow.webhooks.deliveries.deliver_due())
        assert len(await quick.until(20)) == 20
        await slow.happens()
        await slow.webhooks.deliveries.deliver_due()  # returns at once: it is at work already
        assert len(await quick.until(21)) == 21
        slow.receiver.held.set()
        await working
        assert len(slow.receiver.messages) == 21


async def test_so_many_are_under_way_to_one_endpoint_and_no_more_whoever_sends_them(
    database: Database,
) -> None:
    async with (
        registered(database, concurrency_per_endpoint=3) as outside,
        open_webhooks(database, settings(concurrency_per_endpoint=3)) as other,
    ):
        await outside.happens(24)
        await asyncio.gather(outside.webhooks.deliveries.deliver_due(), other.deliveries.deliver_due())
        assert len(outside.receiver.messages) == 24
        assert len({message.headers["webhook-id"] for message in outside.receiver.messages}) == 24
        assert outside.receiver.most_at_once <= 3


async def test_several_servers_share_the_outbox_without_sending_anything_twice(database: Database) -> None:
    async with registered(database) as outside:
        await outside.happens(100)
        async with (
            open_webhooks(database, settings()) as second,
            open_webhooks(database, settings()) as third,
        ):
            servers = (outside.webhooks, second, third)
            await asyncio.gather(*(one.deliveries.deliver_due() for one in servers))
        ids = [message.headers["webhook-id"] for message in outside.receiver.messages]
        assert len(ids) == len(set(ids)) == 100


async def test_what_a_dead_server_had_under_way_is_sent_again_with_the_same_id(database: Database) -> None:
    async with registered(database) as outside:
        outside.receiver.held = asyncio.Event()
        await outside.happens()
        working = asyncio.create_task(outside.webhooks.deliveries.deliver_due())
        await outside.receiver.until(1)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        outside.receiver.held.set()
        outside.receiver.held = None
        assert await outside.delivers() == []  # its lease is not over
        await outside.time_passes()
        (again,) = await outside.delivers(200)
        assert again.headers["webhook-id"] == outside.receiver.messages[0].headers["webhook-id"]
        (one,) = await outside.deliveries()
        assert (one.state, one.attempts) == ("delivered", 2)


async def test_a_server_that_dies_in_the_last_attempt_leaves_the_event_failed(database: Database) -> None:
    async with registered(database) as outside:
        await outside.happens()
        await database.execute("update webhook_deliveries set attempts = 3")
        assert await outside.delivers() == []
        (one,) = await outside.deliveries()
        assert (one.state, one.attempts) == ("failed", 3)
        assert one.last_error == "the server stopped during the last attempt"


async def test_what_waits_goes_to_the_new_url(database: Database) -> None:
    async with registered(database) as outside, receiving() as moved:
        await outside.happens()
        await outside.delivers(500)
        await outside.webhooks.endpoints.update(outside.id, UpdateWebhook(url=moved.base_url + "/new"))
        await outside.time_passes()
        await outside.webhooks.deliveries.deliver_due()
        assert [message.path for message in moved.messages] == ["/new"]


async def test_after_a_rotation_both_secrets_are_good_until_the_overlap_ends(database: Database) -> None:
    async with registered(database) as outside:
        _, fresh = await outside.webhooks.endpoints.rotate_secret(outside.id, 3600)
        await outside.happens()
        (message,) = await outside.delivers(200)
        for secret in (outside.secret, fresh.reveal()):
            assert message.unwrapped(secret).data.type == "agent.created"
        await database.execute("update webhook_endpoints set former_until = now() - interval '1 second'")
        await outside.happens()
        (message,) = await outside.delivers(200)
        assert message.unwrapped(fresh.reveal()).data.type == "agent.created"
        with pytest.raises(WebhookVerificationError):
            message.unwrapped(outside.secret)


async def test_without_an_overlap_the_former_secret_is_no_good_at_once(database: Database) -> None:
    async with registered(database) as outside:
        await outside.webhooks.endpoints.rotate_secret(outside.id, 0)
        await outside.happens()
        (message,) = await outside.delivers(200)
        with pytest.raises(WebhookVerificationError):
            message.unwrapped(outside.secret)


async def test_what_was_settled_is_forgotten_after_a_while_and_what_waits_is_not(database: Database) -> None:
    async with registered(database, keep_seconds=3600.0) as outside:
        await outside.happens(2)
        await outside.delivers(200, 500)
        await database.execute(
            "update webhook_deliveries set settled_at = now() - interval '59 minutes'"
            " where settled_at is not null"
        )
        await outside.webhooks.deliveries.prune()
        assert len(await outside.deliveries()) == 2
        await database.execute(
            "update webhook_deliveries set settled_at = now() - interval '61 minutes',"
            " occurred_at = now() - interval '61 minutes' where settled_at is not null"
        )
        await outside.webhooks.deliveries.prune()
        assert [one.state for one in await outside.deliveries()] == ["waiting"]


async def test_what_was_written_for_an_endpoint_that_is_gone_is_removed(database: Database) -> None:
    async with registered(database) as outside:
        await outside.happens()
        await database.execute("delete from webhook_endpoints")
        await outside.webhooks.deliveries.deliver_due()
        assert outside.receiver.messages == []
        await outside.webhooks.deliveries.prune()
        assert await database.fetch("select 1 from webhook_deliveries") == []


async def test_a_receiver_on_ipv6_is_told(database: Database) -> None:
    async with registered(database, host="::1") as outside:
        await outside.happens()
        (message,) = await outside.delivers(200)
        assert message.headers["host"].startswith("[::1]:")


async def test_the_body_is_what_the_documentation_shows(database: Database) -> None:
    async with registered(database, organization_id="org_1", workspace_id="ws_1") as outside:
        await outside.happens()
        (message,) = await outside.delivers(200)
        (row,) = await database.fetch("select id from agents")
        event = message.unwrapped(outside.secret).to_dict(mode="json")
        assert set(event) == {"type", "id", "created_at", "data"}
        assert event["type"] == "event"
        assert event["data"] == {
            "type": "agent.created",
            "id": row["id"],
            "organization_id": "org_1",
            "workspace_id": "ws_1",
        }
