"""Which events are told, when, and with what in them (contract section 23): from changes to the outbox."""

from collections.abc import Iterator
from typing import Any

import msgspec
from psycopg import Rollback

from corral.wire.webhooks import FURTHER, TOLD, UNTOLD
from tests.contract.conftest import Api

ENDPOINT = "https://hooks.example.com/corral"
SDK_TOKEN = {"type": "static_bearer", "mcp_server_url": "https://mcp.example.com/mcp", "token": "a-token"}


async def subscribed(api: Api, *events: str, url: str = ENDPOINT) -> str:
    response = await api.post("/corral/v1/webhooks", {"url": url, "events": list(events) or ["all"]})
    assert response.status_code == 200, response.text
    return response.json()["id"]


async def told(api: Api, about: str | None = None) -> list[str]:
    """The types of what is in the outbox, in order, about one thing or all."""
    rows = await api.database.fetch(
        "select type from webhook_deliveries where %(about)s::text is null or subject = %(about)s"
        " order by occurred_at, type",
        {"about": about},
    )
    return [row["type"] for row in rows]


async def ok(response: Any) -> Any:
    assert response.status_code == 200, response.text
    return response.json()


async def test_an_agent_is_told_of_by_its_versions(api: Api) -> None:
    await subscribed(api)
    agent = await api.agent()
    path = f"/v1/agents/{agent['id']}"
    await ok(await api.post(path, {"version": 1, "name": "Other"}))
    await ok(await api.post(path, {"version": 2, "name": "Other"}))
    await ok(await api.post(path + "/archive"))
    await ok(await api.post(path + "/archive"))
    assert await told(api, agent["id"]) == ["agent.created", "agent.updated", "agent.archived"]
    await api.database.execute("delete from agents where id = %s", (agent["id"],))
    assert (await told(api, agent["id"]))[-1] == "agent.deleted"


async def test_an_environment_is_told_of_when_a_field_has_changed(api: Api) -> None:
    await subscribed(api)
    environment = await api.environment()
    path = f"/v1/environments/{environment['id']}"
    await ok(await api.post(path, {"name": "Environment"}))
    assert await told(api, environment["id"]) == ["environment.created"]
    await ok(await api.post(path, {"metadata": {"a": "b"}}))
    await ok(await api.post(path, {"description": "What it is for"}))
    await ok(await api.post(path + "/archive"))
    await ok(await api.post(path + "/archive"))
    await ok(await api.http.delete(path))
    assert await told(api, environment["id"]) == [
        "environment.created",
        "environment.updated",
        "environment.updated",
        "environment.archived",
        "environment.deleted",
    ]


async def test_keys_workers_and_work_items_of_an_environment_tell_nothing(api: Api) -> None:
    environment = await api.environment(config={"type": "self_hosted"})
    session = await api.session(environment_id=environment["id"])
    await subscribed(api)
    key = await api.environment_key(environment["id"])
    polled = await api.http.get(
        f"/v1/environments/{environment['id']}/work/poll",
        params={"block_ms": 1},
        headers={"authorization": f"Bearer {key}", "x-api-key": ""},
    )
    assert polled.status_code == 200, polled.text
    assert session["id"]
    assert await told(api) == []


async def test_a_memory_store_is_told_of_and_its_memories_are_not(api: Api) -> None:
    await subscribed(api)
    store = await ok(await api.post("/v1/memory_stores", {"name": "Notes"}))
    path = f"/v1/memory_stores/{store['id']}"
    await ok(await api.post(path + "/memories", {"path": "/a.md", "content": "text"}))
    await ok(await api.post(path, {"name": "Other notes"}))
    await ok(await api.post(path + "/archive"))
    await ok(await api.post(path + "/archive"))
    await ok(await api.http.delete(path))
    assert await told(api) == ["memory_store.created", "memory_store.archived", "memory_store.deleted"]


async def test_archiving_a_vault_tells_of_each_credential_that_it_archives(api: Api) -> None:
    vault = await ok(await api.post("/v1/vaults", {"display_name": "Team"}))
    path = f"/v1/vaults/{vault['id']}"
    credentials = [
        await ok(
            await api.post(
                path + "/credentials",
                {"auth": {**SDK_TOKEN, "mcp_server_url": f"https://{name}.example.com"}},
            )
        )
        for name in ("one", "two", "three")
    ]
    await ok(await api.post(f"{path}/credentials/{credentials[0]['id']}/archive"))
    await subscribed(api)
    await ok(await api.post(path + "/archive"))
    assert await told(api, vault["id"]) == ["vault.archived"]
    assert [await told(api, one["id"]) for one in credentials] == [
        [],
        ["vault_credential.archived"],
        ["vault_credential.archived"],
    ]
    await ok(await api.http.delete(path))
    assert (await told(api, vault["id"]))[-1] == "vault.deleted"
    assert [(await told(api, one["id"]))[-1] for one in credentials] == ["vault_credential.deleted"] * 3


async def test_a_credential_is_told_of_with_its_vault(api: Api) -> None:
    await subscribed(api)
    vault = await ok(await api.post("/v1/vaults", {"display_name": "Team"}))
    path = f"/v1/vaults/{vault['id']}/credentials"
    made = await ok(await api.post(path, {"auth": SDK_TOKEN}))
    await ok(await api.post(f"{path}/{made['id']}", {"display_name": "New"}))
    await ok(await api.post(f"{path}/{made['id']}/archive"))
    await ok(await api.post(f"{path}/{made['id']}/archive"))
    await ok(await api.http.delete(f"{path}/{made['id']}"))
    rows = await api.database.fetch(
        "select type, extra::text as extra from webhook_deliveries where subject = %s order by occurred_at",
        (made["id"],),
    )
    assert [(row["type"], msgspec.json.decode(row["extra"])) for row in rows] == [
        (f"vault_credential.{what}", {"vault_id": vault["id"]}) for what in ("created", "archived", "deleted")
    ]
    assert await told(api, vault["id"]) == ["vault.created"]


async def deployment(api: Api, **fields: Any) -> dict[str, Any]:
    return await ok(
        await api.post(
            "/v1/deployments",
            {
                "name": "Report",
                "agent": (await api.agent())["id"],
                "environment_id": (await api.environment())["id"],
                "initial_events": [
                    {"type": "user.message", "content": [{"type": "text", "text": "Write it."}]}
                ],
                "schedule": {"type": "cron", "expression": "0 12 * * *", "timezone": "UTC"},
                **fields,
            },
        )
    )


async def test_a_deployment_is_told_of_whatever_happens_to_it(api: Api) -> None:
    await subscribed(api)
    made = await deployment(api)
    path = f"/v1/deployments/{made['id']}"
    await ok(await api.post(path, {"name": "Report"}))
    await ok(await api.post(path, {"name": "Other report"}))
    for verb in ("pause", "pause", "unpause", "unpause", "pause", "archive", "archive"):
        await ok(await api.post(f"{path}/{verb}"))
    assert await told(api, made["id"]) == [
        "deployment.created",
        "deployment.updated",
        "deployment.paused",
        "deployment.unpaused",
        "deployment.paused",
        "deployment.archived",
    ]


async def test_archiving_an_agent_tells_of_its_deployments(api: Api) -> None:
    made, other = await deployment(api), await deployment(api)
    await subscribed(api)
    await ok(await api.post(f"/v1/agents/{made['agent']['id']}/archive"))
    assert sorted(await told(api)) == ["agent.archived", "deployment.archived"]
    assert await told(api, other["id"]) == []


async def make_due(api: Api, deployment_id: str) -> None:
    await api.database.execute(
        "update deployments set next_run_at = date_trunc('second', now()) - jitter where id = %s",
        (deployment_id,),
    )
    await api.services.deployment_runs.start_due()


async def test_a_scheduled_run_tells_of_its_start_and_its_session(api: Api) -> None:
    made = await deployment(api)
    await subscribed(api)
    await make_due(api, made["id"])
    (run,) = (await ok(await api.get("/v1/deployment_runs")))["data"]
    assert await told(api, run["id"]) == ["deployment_run.started", "deployment_run.succeeded"]
    assert await told(api, made["id"]) == []


async def test_a_scheduled_run_that_fails_for_good_tells_of_the_pause_too(api: Api) -> None:
    made = await deployment(api)
    await ok(await api.post(f"/v1/environments/{made['environment_id']}/archive"))
    await subscribed(api)
    await make_due(api, made["id"])
    (run,) = (await ok(await api.get("/v1/deployment_runs")))["data"]
    assert sorted(await told(api, run["id"])) == ["deployment_run.failed", "deployment_run.started"]
    assert await told(api, made["id"]) == ["deployment.paused"]


async def test_a_run_by_hand_tells_of_its_session_alone(api: Api) -> None:
    made = await deployment(api)
    await subscribed(api, "all", *FURTHER)
    run = await ok(await api.post(f"/v1/deployments/{made['id']}/run"))
    assert await told(api, run["id"]) == []
    assert await told(api) == ["session.created"]


async def test_a_deployment_that_is_refused_tells_nothing(api: Api) -> None:
    agent, environment = await api.agent(), await api.environment()
    await subscribed(api, "all", *FURTHER)
    response = await api.post(
        "/v1/deployments",
        {
            "name": "Report",
            "agent": agent["id"],
            "environment_id": environment["id"],
            "initial_events": [{"type": "user.message", "content": [{"type": "text", "text": "x"}]}],
            "vault_ids": ["vlt_gone"],
        },
    )
    assert response.status_code == 404
    assert await told(api) == []


async def test_an_endpoint_is_told_only_what_it_asked_for_and_from_then_on(api: Api) -> None:
    before = await api.agent()
    agents = await subscribed(api, "agent.created")
    both = await subscribed(api, "agent.created", "environment.created", url=ENDPOINT + "/2")
    agent, environment = await api.agent(), await api.environment()
    rows = await api.database.fetch("select endpoint_id, subject, event_id from webhook_deliveries")
    assert {(row["endpoint_id"], row["subject"]) for row in rows} == {
        (agents, agent["id"]),
        (both, agent["id"]),
        (both, environment["id"]),
    }
    assert len({row["event_id"] for row in rows if row["subject"] == agent["id"]}) == 1
    assert await told(api, before["id"]) == []


async def test_a_disabled_endpoint_misses_what_happens_and_is_not_told_later(api: Api) -> None:
    endpoint = await subscribed(api, "agent.created")
    await ok(await api.post(f"/corral/v1/webhooks/{endpoint}/disable"))
    await api.agent()
    await ok(await api.post(f"/corral/v1/webhooks/{endpoint}/enable"))
    assert await told(api) == []
    agent = await api.agent()
    assert await told(api, agent["id"]) == ["agent.created"]


async def test_a_change_that_is_undone_tells_nothing(api: Api) -> None:
    await subscribed(api)
    async with api.database.transaction() as connection:
        await connection.execute("insert into agents (id, version) values ('agent_undone', 1)")
        cursor = await connection.execute("select count(*) as told from webhook_deliveries")
        assert (await cursor.fetchone() or {})["told"] == 1
        raise Rollback
    assert await told(api) == []


async def test_what_corral_keeps_for_itself_is_told_to_nobody(api: Api) -> None:
    await subscribed(api)
    await api.database.execute("insert into agents (id, version) values ('agent_corral_dreamer', 1)")
    await api.database.execute("update agents set version = 2")
    assert await told(api) == []


def sdk_types() -> Iterator[str]:
    """The event types of the official SDK."""
    from typing import get_args

    from anthropic.types.beta import beta_webhook_event_data

    union = get_args(beta_webhook_event_data.BetaWebhookEventData)[0]
    for member in get_args(union):
        yield str(get_args(member.model_fields["type"].annotation)[0])


def test_every_event_of_the_sdk_can_be_asked_for_and_no_other() -> None:
    assert sorted((*TOLD, *FURTHER, *UNTOLD)) == sorted(sdk_types())
