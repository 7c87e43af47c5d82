"""Endpoints of webhooks by `/corral/v1/webhooks`: their rules, and secrets that are shown once."""

import base64
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from corral.resources.webhook_services import open_webhooks
from corral.settings import Webhooks as WebhookSettings
from corral.settings.background import DeclaredWebhook
from corral.store.database import Database
from corral.wire.errors import InvalidRequest
from corral.wire.pagination import Page
from corral.wire.secret import Secret
from corral.wire.webhook_signing import new_secret
from corral.wire.webhooks import TOLD, CreateWebhook
from tests.contract.conftest import Api, running
from tests.webhook_receiver import receiving

URL = "https://hooks.example.com/corral"
ROOT = "/corral/v1/webhooks"


async def made(api: Api, **fields: Any) -> dict[str, Any]:
    response = await api.post(ROOT, {"url": URL, "events": ["agent.created"], **fields})
    assert response.status_code == 200, response.text
    return response.json()


async def test_an_endpoint_is_made_with_a_secret_that_is_shown_this_once(api: Api) -> None:
    endpoint = await made(api, description="Builds")
    assert endpoint["id"].startswith("whep_")
    assert endpoint["type"] == "webhook"
    secret = endpoint.pop("secret")
    assert secret.startswith("whsec_")
    assert len(base64.b64decode(secret.removeprefix("whsec_"))) == 32
    assert (endpoint["status"], endpoint["description"]) == ("enabled", "Builds")
    for path in (f"{ROOT}/{endpoint['id']}", ROOT):
        answer = await api.get(path)
        assert answer.status_code == 200
        assert secret not in answer.text
    assert (await api.get(f"{ROOT}/{endpoint['id']}")).json() == endpoint


async def test_events_are_kept_in_the_documented_order_and_all_stands_for_the_documented_ones(
    api: Api,
) -> None:
    endpoint = await made(api, events=["session.archived", "vault.created", "agent.created", "vault.created"])
    assert endpoint["events"] == ["vault.created", "agent.created", "session.archived"]
    assert (await made(api, events=["all"]))["events"] == list(TOLD)
    assert (await made(api, events=["all", "session.running"]))["events"] == [*TOLD, "session.running"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"events": ["agent.exploded"]}, "events[0]: there is no event 'agent.exploded'"),
        ({"events": ["agent.created", "*"]}, "events[1]: "),
        ({"events": []}, "events: "),
        ({"url": "http://hooks.example.com/"}, "url: must be https on port 443"),
        ({"url": "https://hooks.example.com:8443/"}, "url: must be https on port 443"),
        ({"url": "https://10.0.0.1/"}, "url: it is a private or reserved address"),
        ({"url": "https://" + "a" * 2048}, "url: "),
        ({"url": ""}, "url: "),
        ({"description": "a" * 256}, "description: "),
        ({"secret": "whsec_mine"}, "secret: "),
    ],
)
async def test_what_is_wrong_with_an_endpoint_is_told_by_its_field(
    api: Api, fields: dict[str, Any], message: str
) -> None:
    response = await api.post(ROOT, {"url": URL, "events": ["agent.created"], **fields})
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(message)
    assert (await api.get(ROOT)).json()["data"] == []


async def test_an_endpoint_is_changed_in_what_is_given(api: Api) -> None:
    endpoint = await made(api, description="Builds")
    path = f"{ROOT}/{endpoint['id']}"
    changed = (await api.post(path, {"events": ["agent.deleted"]})).json()
    assert (changed["url"], changed["events"], changed["description"]) == (URL, ["agent.deleted"], "Builds")
    changed = (await api.post(path, {"url": URL + "/2", "description": None})).json()
    assert (changed["url"], changed["events"], changed["description"]) == (
        URL + "/2",
        ["agent.deleted"],
        None,
    )
    same = (await api.post(path, {"url": URL + "/2"})).json()
    assert same["updated_at"] == changed["updated_at"]
    response = await api.post(path, {"url": "https://127.0.0.1/"})
    assert response.status_code == 400
    assert (await api.get(path)).json() == changed


async def test_disabling_and_enabling_twice_changes_nothing_more(api: Api) -> None:
    path = f"{ROOT}/{(await made(api))['id']}"
    disabled = (await api.post(path + "/disable")).json()
    assert (disabled["status"], disabled["disabled_reason"]) == ("disabled", "disabled by request")
    assert (await api.post(path + "/disable")).json() == disabled
    enabled = (await api.post(path + "/enable")).json()
    assert (enabled["status"], enabled["disabled_reason"]) == ("enabled", None)
    assert (await api.post(path + "/enable")).json() == enabled


async def test_a_rotation_shows_the_new_secret_once_and_until_when_the_former_is_good(api: Api) -> None:
    endpoint = await made(api)
    path = f"{ROOT}/{endpoint['id']}"
    rotated = (await api.post(path + "/rotate_secret")).json()
    assert rotated["secret"] != endpoint["secret"]
    assert rotated["former_secret_until"] is not None
    assert "secret" not in (await api.get(path)).json()
    at_once = (await api.post(path + "/rotate_secret", {"overlap_seconds": 0})).json()
    assert at_once["former_secret_until"] is None
    response = await api.post(path + "/rotate_secret", {"overlap_seconds": -1})
    assert response.status_code == 400


async def test_a_deleted_endpoint_is_gone_with_its_deliveries(api: Api) -> None:
    endpoint = await made(api)
    await api.agent()
    path = f"{ROOT}/{endpoint['id']}"
    assert len((await api.get(path + "/deliveries")).json()["data"]) == 1
    response = await api.http.delete(path)
    assert response.json() == {"id": endpoint["id"], "type": "webhook_deleted"}
    assert await api.database.fetch("select 1 from webhook_deliveries") == []
    for method, rest in (
        ("GET", ""),
        ("POST", ""),
        ("DELETE", ""),
        ("POST", "/enable"),
        ("POST", "/disable"),
        ("POST", "/rotate_secret"),
        ("POST", "/test"),
        ("GET", "/deliveries"),
    ):
        answer = await api.http.request(method, path + rest, json={} if method == "POST" else None)
        assert answer.status_code == 404, (method, rest)


async def test_deliveries_are_listed_page_by_page_newest_first(api: Api) -> None:
    endpoint = await made(api)
    agents = [(await api.agent())["id"] for _ in range(5)]
    path = f"{ROOT}/{endpoint['id']}/deliveries"
    seen: list[dict[str, Any]] = []
    page = None
    while True:
        query = {"limit": 2} | ({"page": page} if page else {})
        answer = (await api.get(path, params=query)).json()
        seen += answer["data"]
        page = answer["next_page"]
        if page is None:
            break
    assert [one["subject_id"] for one in seen] == agents[::-1]
    assert {one["state"] for one in seen} == {"waiting"}
    assert {one["event_type"] for one in seen} == {"agent.created"}
    other = await made(api)
    first = (await api.get(path, params={"limit": 2})).json()["next_page"]
    response = await api.get(f"{ROOT}/{other['id']}/deliveries", params={"page": first})
    assert response.status_code == 400


async def test_endpoints_are_listed_newest_first(api: Api) -> None:
    ids = [(await made(api))["id"] for _ in range(3)]
    first = (await api.get(ROOT, params={"limit": 2})).json()
    rest = (await api.get(ROOT, params={"limit": 2, "page": first["next_page"]})).json()
    assert [one["id"] for one in first["data"] + rest["data"]] == ids[::-1]
    assert rest["next_page"] is None


async def test_there_are_at_most_a_hundred_endpoints(api: Api) -> None:
    await api.database.execute(
        "insert into webhook_endpoints (id, url, events, secret)"
        " select 'whep_' || n, 'https://a.example.com/', '{agent.created}', 'x' from generate_series(1, 99) n"
    )
    await made(api)
    response = await api.post(ROOT, {"url": URL, "events": ["agent.created"]})
    assert response.status_code == 400
    assert "100 webhooks" in response.json()["error"]["message"]


async def test_no_worker_reaches_the_endpoints(api: Api) -> None:
    environment = await api.environment(config={"type": "self_hosted"})
    for key in (await api.environment_key(environment["id"]), await api.pool_key()):
        async with httpx.AsyncClient(base_url=api.base_url, headers={"x-api-key": key}) as http:
            for response in (
                await http.get(ROOT),
                await http.post(ROOT, json={"url": URL, "events": ["agent.created"]}),
            ):
                assert response.status_code == 403


async def test_a_test_message_says_what_came_of_it_and_changes_nothing(database: Database) -> None:
    async with receiving() as receiver, open_webhooks(database, loopback()) as webhooks:
        async with running(database) as api:
            response = await api.post(ROOT, {"url": receiver.base_url + "/", "events": ["agent.created"]})
            assert response.status_code == 400  # these settings name no internal host
        endpoint, secret = await webhooks.endpoints.create(
            CreateWebhook(url=receiver.base_url + "/", events=["agent.created"])
        )
        await webhooks.endpoints.disable(endpoint.id)
        trial = await webhooks.test(endpoint.id)
        assert (trial.delivered, trial.status, trial.error) == (True, 204, None)
        (message,) = receiver.messages
        event = message.unwrapped(secret.reveal())
        assert (event.id, str(event.data.type), event.data.id) == (
            trial.event_id,
            "webhook.test",
            endpoint.id,
        )
        receiver.answers[:] = [(302, {"location": "/"}), (500, {})]
        for status in (302, 500):
            trial = await webhooks.test(endpoint.id)
            assert (trial.delivered, trial.status) == (False, status)
        assert (await webhooks.endpoints.retrieve(endpoint.id)).disabled_reason == "disabled by request"
        assert await database.fetch("select 1 from webhook_deliveries") == []


def loopback(**fields: Any) -> WebhookSettings:
    return WebhookSettings(internal=["127.0.0.1"], **fields)


@asynccontextmanager
async def declared(
    database: Database, secrets: dict[str, Secret], *endpoints: DeclaredWebhook
) -> AsyncGenerator[Any]:
    text = ",".join(f"{name}={secret.reveal()}" for name, secret in secrets.items())
    settings = loopback(endpoints=list(endpoints), secrets=Secret(text))
    async with open_webhooks(database, settings) as webhooks:
        await webhooks.declare(settings)
        yield webhooks


def endpoint_of(name: str, url: str = URL, *events: str) -> DeclaredWebhook:
    return DeclaredWebhook(name=name, url=url, events=list(events or ("agent.created",)))


async def listed(webhooks: Any) -> dict[str, Any]:
    found = (await webhooks.endpoints.list(Page(limit=100, order="desc"))).data
    return {one.declared: one for one in found}


async def test_the_settings_declare_endpoints_whose_secrets_stay_out_of_the_database(
    database: Database,
) -> None:
    secrets = {"ci": new_secret()}
    async with receiving() as receiver:
        async with declared(database, secrets, endpoint_of("ci", receiver.base_url + "/")) as webhooks:
            found = (await listed(webhooks))["ci"]
            await database.execute("insert into agents (id, version) values ('agent_1', 1)")
            await webhooks.deliveries.deliver_due()
            (message,) = receiver.messages
            assert message.unwrapped(secrets["ci"].reveal()).data.id == "agent_1"
            rows = await database.fetch("select to_jsonb(e)::text as row from webhook_endpoints e")
            assert secrets["ci"].reveal() not in rows[0]["row"]
            for change in (
                webhooks.endpoints.delete(found.id),
                webhooks.endpoints.rotate_secret(found.id, 0),
            ):
                with pytest.raises(InvalidRequest, match="declared by the settings, as 'ci'"):
                    await change


async def test_a_declared_endpoint_follows_the_settings_and_stays_disabled_until_its_url_changes(
    database: Database,
) -> None:
    secrets = {"ci": new_secret(), "audit": new_secret()}
    async with declared(database, secrets, endpoint_of("ci"), endpoint_of("audit")) as webhooks:
        before = await listed(webhooks)
        await webhooks.endpoints.disable(before["ci"].id)
    async with declared(database, secrets, endpoint_of("ci", URL, "agent.deleted")) as webhooks:
        after = await listed(webhooks)
        assert set(after) == {"ci"}
        assert after["ci"].id == before["ci"].id
        assert (after["ci"].status, after["ci"].events) == ("disabled", ["agent.deleted"])
    async with declared(database, secrets, endpoint_of("ci", URL + "/new")) as webhooks:
        assert (await listed(webhooks))["ci"].status == "enabled"
    async with declared(database, {}) as webhooks:
        assert await listed(webhooks) == {}


async def test_a_declared_endpoint_without_a_secret_or_with_a_bad_url_is_refused(database: Database) -> None:
    with pytest.raises(InvalidRequest, match=r"webhooks\.endpoints: ci has no signing secret"):
        async with declared(database, {}, endpoint_of("ci")):
            pass
    with pytest.raises(InvalidRequest, match=r"webhooks\.endpoints: url: "):
        async with declared(database, {"ci": new_secret()}, endpoint_of("ci", "http://10.0.0.1/")):
            pass
    with pytest.raises(InvalidRequest, match=r"webhooks\.endpoints: events\[0\]: "):
        async with declared(database, {"ci": new_secret()}, endpoint_of("ci", URL, "nothing")):
            pass


async def test_two_secrets_of_one_declared_name_both_sign(database: Database) -> None:
    old, new = new_secret(), new_secret()
    async with receiving() as receiver:
        settings = loopback(
            endpoints=[endpoint_of("ci", receiver.base_url + "/")],
            secrets=Secret(f"ci={new.reveal()}, ci={old.reveal()}"),
        )
        async with open_webhooks(database, settings) as webhooks:
            await webhooks.declare(settings)
            await database.execute("insert into agents (id, version) values ('agent_1', 1)")
            await webhooks.deliveries.deliver_due()
        (message,) = receiver.messages
        for secret in (old, new):
            assert message.unwrapped(secret.reveal()).data.id == "agent_1"
