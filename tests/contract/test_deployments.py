"""Deployments through the official SDK (contract section 19)."""

import asyncio
from typing import Any

import anthropic
import pytest
from anthropic.types.beta import BetaManagedAgentsDeployment

from .conftest import Api

NOON: Any = {"type": "cron", "expression": "0 12 * * *", "timezone": "Europe/Berlin"}
MISSING = "01" + "1" * 22


def message(text: str = "Run the scan.") -> Any:
    return {"type": "user.message", "content": [{"type": "text", "text": text}]}


async def deployment(api: Api, **fields: Any) -> BetaManagedAgentsDeployment:
    """A new deployment, of a new agent on a new environment unless they are given."""
    given: dict[str, Any] = {"name": "Scan", "initial_events": [message()], **fields}
    if "agent" not in given:
        given["agent"] = (await api.agent())["id"]
    if "environment_id" not in given:
        given["environment_id"] = (await api.environment())["id"]
    return await api.sdk.beta.deployments.create(**given)


async def refusal(api: Api, path: str, body: dict[str, Any] | None = None) -> tuple[int, str]:
    """The status and the message of a request that is refused."""
    response = await api.post(path, body)
    assert response.status_code >= 400, response.text
    return response.status_code, response.json()["error"]["message"]


async def create_body(api: Api, **fields: Any) -> dict[str, Any]:
    agent, environment = await api.agent(), await api.environment()
    return {
        "name": "Scan",
        "agent": agent["id"],
        "environment_id": environment["id"],
        "initial_events": [message()],
        **fields,
    }


async def test_a_deployment_shows_what_it_was_made_of_and_nothing_runs_without_a_schedule(api: Api) -> None:
    body = await create_body(api, metadata={"team": "sec"})
    made = (await api.post("/v1/deployments", body)).json()
    assert made.pop("id").startswith("depl_01")
    assert made.pop("created_at") == made.pop("updated_at")
    assert made == {
        "type": "deployment", "name": "Scan", "description": None,
        "agent": {"type": "agent", "id": body["agent"], "version": 1},
        "environment_id": body["environment_id"],
        "initial_events": [message()], "resources": [], "vault_ids": [], "budget": None,
        "metadata": {"team": "sec"}, "schedule": None, "status": "active", "paused_reason": None,
        "archived_at": None,
    }  # fmt: skip


async def test_a_schedule_shows_the_five_times_that_come_next(api: Api) -> None:
    made = await deployment(api, schedule=NOON)
    assert made.schedule is not None
    assert made.schedule.last_run_at is None
    upcoming = made.schedule.upcoming_runs_at or []
    assert len(upcoming) == 5
    assert upcoming == sorted(upcoming)
    assert all(time > made.created_at and time.hour in (10, 11) for time in upcoming)
    assert await api.sdk.beta.deployments.retrieve(made.id) == made


async def test_every_kind_of_content_comes_back_as_it_was_sent(api: Api) -> None:
    events: list[dict[str, Any]] = [
        {
            "type": "user.message",
            "content": [
                {"type": "text", "text": "read"},
                {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "d"}},
            ],
        },
        {"type": "system.message", "content": [{"type": "text", "text": "be brief"}]},
    ]
    store = (await api.post("/v1/memory_stores", {"name": "S"})).json()["id"]
    resources = [{"type": "memory_store", "memory_store_id": store, "instructions": "look", "access": None}]
    made = await deployment(api, initial_events=events, resources=resources)
    shown = (await api.get(f"/v1/deployments/{made.id}")).json()
    assert shown["initial_events"][0]["content"][1].items() >= events[0]["content"][1].items()
    assert shown["initial_events"][1] == events[1]
    assert shown["resources"] == resources


async def test_an_agent_that_is_named_by_its_id_is_pinned_to_its_latest_version(api: Api) -> None:
    agent = await api.agent()
    first = await deployment(api, agent=agent["id"])
    await api.post(f"/v1/agents/{agent['id']}", {"version": 1, "system": "new"})
    second = await deployment(api, agent=agent["id"])
    older = await deployment(api, agent={"type": "agent", "id": agent["id"], "version": 1})
    assert [made.agent.version for made in (first, second, older)] == [1, 2, 1]
    kept = await api.sdk.beta.deployments.update(first.id, name="still the old one")
    assert kept.agent.version == 1
    pinned = await api.sdk.beta.deployments.update(first.id, agent=agent["id"])
    assert pinned.agent.version == 2


async def test_an_update_keeps_what_is_absent_replaces_what_is_given_and_clears_what_is_null(
    api: Api,
) -> None:
    store = (await api.post("/v1/memory_stores", {"name": "S"})).json()["id"]
    made = await deployment(
        api,
        description="d",
        schedule=NOON,
        resources=[{"type": "memory_store", "memory_store_id": store}],
        metadata={"a": "1", "b": "2"},
    )
    path = f"/v1/deployments/{made.id}"
    renamed = (await api.post(path, {"name": "Other", "metadata": {"a": None, "c": "3"}})).json()
    assert (renamed["name"], renamed["description"], renamed["metadata"]) == (
        "Other",
        "d",
        {"b": "2", "c": "3"},
    )
    assert (renamed["schedule"]["expression"], len(renamed["resources"])) == ("0 12 * * *", 1)
    cleared = (await api.post(path, {"description": "", "schedule": None, "resources": None})).json()
    assert (cleared["description"], cleared["schedule"], cleared["resources"]) == (None, None, [])
    assert cleared["metadata"] == {"b": "2", "c": "3"}
    again = (await api.post(path, {"schedule": NOON, "initial_events": [message("more")]})).json()
    assert again["initial_events"] == [message("more")]
    assert len(again["schedule"]["upcoming_runs_at"]) == 5


async def test_an_update_that_changes_nothing_leaves_the_time_of_the_last_change(api: Api) -> None:
    made = await deployment(api, schedule=NOON, description="d")
    same = await api.sdk.beta.deployments.update(
        made.id, name="Scan", agent=made.agent.id, schedule=NOON, initial_events=[message()], description="d"
    )
    assert same == made


@pytest.mark.parametrize("field", ["name", "agent", "environment_id", "initial_events"])
async def test_what_a_deployment_needs_cannot_be_cleared(api: Api, field: str) -> None:
    made = await deployment(api)
    status, said = await refusal(api, f"/v1/deployments/{made.id}", {field: None})
    assert (status, said.split(":")[0]) == (400, field)


async def test_updates_at_the_same_moment_are_all_kept(api: Api) -> None:
    made = await deployment(api)
    await asyncio.gather(
        *(api.sdk.beta.deployments.update(made.id, metadata={str(key): "x"}) for key in range(5))
    )
    assert len((await api.sdk.beta.deployments.retrieve(made.id)).metadata) == 5


REFUSED_FIELDS: list[tuple[dict[str, Any], int, str]] = [
    ({"name": ""}, 400, "name"),
    ({"name": "n" * 257}, 400, "name"),
    ({"initial_events": []}, 400, "initial_events"),
    ({"initial_events": [message()] * 51}, 400, "initial_events"),
    ({"initial_events": [{"type": "user.interrupt"}]}, 400, "initial_events[0].type"),
    (
        {"initial_events": [{"type": "user.define_outcome", "description": "d", "rubric": {}}]},
        400,
        "initial_events[0].rubric",
    ),
    ({"initial_events": [{"type": "user.message", "content": []}]}, 400, "initial_events[0].content"),
    ({"agent": {"type": "agent_with_overrides", "id": "agent_01"}}, 400, "agent.type"),
    ({"agent": f"agent_{MISSING}"}, 404, f"agent_{MISSING}"),
    ({"environment_id": f"env_{MISSING}"}, 404, f"env_{MISSING}"),
    ({"vault_ids": [f"vlt_{MISSING}"]}, 404, "vault_ids[0]"),
    ({"vault_ids": ["vlt_1"] * 51}, 400, "vault_ids"),
    ({"resources": [{"type": "file", "file_id": f"file_{MISSING}"}]}, 404, "resources[0].file_id"),
    (
        {"resources": [{"type": "memory_store", "memory_store_id": f"memstore_{MISSING}"}]},
        404,
        "resources[0].memory_store_id",
    ),
    (
        {"resources": [{"type": "github_repository", "url": "https://x", "authorization_token": "t"}]},
        400,
        "resources[0]",
    ),
    ({"budget": {"type": "limit", "max_list_cost": {"amount": "0", "currency": "USD"}}}, 400, "budget"),
    (
        {"schedule": {"type": "cron", "expression": "@daily", "timezone": "UTC"}},
        400,
        "schedule.expression",
    ),
    ({"schedule": {"type": "cron", "expression": "0 0 * * *"}}, 400, "schedule.timezone"),
    (
        {"schedule": {"type": "cron", "expression": "0 0 * * *", "timezone": "Moon"}},
        400,
        "schedule.timezone",
    ),
    ({"metadata": {"k": "v" * 513}}, 400, "metadata.k"),
    ({"extra": 1}, 400, "extra"),
]


@pytest.mark.parametrize(
    ("fields", "status", "said"),
    REFUSED_FIELDS,
)
async def test_a_bad_deployment_is_refused_with_the_path_of_the_field(
    api: Api, fields: dict[str, Any], status: int, said: str
) -> None:
    answer = await refusal(api, "/v1/deployments", await create_body(api, **fields))
    assert answer[0] == status
    assert said in answer[1]
    assert (await api.get("/v1/deployments")).json()["data"] == []
    assert (await api.get("/v1/sessions")).json()["data"] == []


async def test_a_file_on_a_self_hosted_environment_is_refused(api: Api) -> None:
    environment = await api.environment(config={"type": "self_hosted"})
    resources = [{"type": "file", "file_id": f"file_{MISSING}"}]
    body = await create_body(api, environment_id=environment["id"], resources=resources)
    assert "self-hosted" in (await refusal(api, "/v1/deployments", body))[1]


async def test_a_system_message_needs_a_model_that_takes_it(api: Api) -> None:
    agent = await api.agent(model="claude-sonnet-4-5")
    events = [message(), {"type": "system.message", "content": [{"type": "text", "text": "be brief"}]}]
    response = await api.post(
        "/v1/deployments", await create_body(api, agent=agent["id"], initial_events=events)
    )
    assert response.status_code == 400
    code = response.json()["error"]["details"]["error_code"]
    assert code == "model_does_not_support_mid_conversation_system"


async def test_an_archived_environment_or_agent_is_refused(api: Api) -> None:
    body = await create_body(api)
    await api.post(f"/v1/environments/{body['environment_id']}/archive")
    assert (await refusal(api, "/v1/deployments", body))[0] == 400
    body = await create_body(api)
    await api.post(f"/v1/agents/{body['agent']}/archive")
    assert (await refusal(api, "/v1/deployments", body))[0] == 400


async def test_a_pause_has_a_reason_and_ends_without_one(api: Api) -> None:
    made = await deployment(api, schedule=NOON)
    paused = await api.sdk.beta.deployments.pause(made.id)
    assert paused.status == "paused"
    assert paused.paused_reason is not None
    assert paused.paused_reason.to_dict() == {"type": "manual"}
    assert paused.schedule is not None
    assert len(paused.schedule.upcoming_runs_at or []) == 5
    assert await api.sdk.beta.deployments.pause(made.id) == paused
    resumed = await api.sdk.beta.deployments.unpause(made.id)
    assert (resumed.status, resumed.paused_reason) == ("active", None)
    assert await api.sdk.beta.deployments.unpause(made.id) == resumed


async def test_an_archived_deployment_is_read_only_and_reports_active_without_coming_times(api: Api) -> None:
    made = await deployment(api, schedule=NOON)
    await api.sdk.beta.deployments.pause(made.id)
    archived = await api.sdk.beta.deployments.archive(made.id)
    assert (archived.status, archived.paused_reason) == ("active", None)
    assert archived.archived_at is not None
    assert archived.schedule is not None
    assert archived.schedule.upcoming_runs_at == []
    assert await api.sdk.beta.deployments.archive(made.id) == archived
    for action in ("", "/pause", "/unpause", "/run"):
        body = {"name": "x"} if not action else None
        status, said = await refusal(api, f"/v1/deployments/{made.id}{action}", body)
        assert (status, "archived" in said) == (400, True)


async def test_archiving_an_agent_archives_its_deployments_in_the_same_step(api: Api) -> None:
    made = await deployment(api, schedule=NOON)
    other = await deployment(api, schedule=NOON)
    await api.sdk.beta.agents.archive(made.agent.id)
    assert (await api.sdk.beta.deployments.retrieve(made.id)).archived_at is not None
    assert (await api.sdk.beta.deployments.retrieve(other.id)).archived_at is None
    assert (await api.get("/v1/deployment_runs")).json()["data"] == []


async def test_an_unknown_deployment_is_404_whatever_is_asked_of_it(api: Api) -> None:
    path = f"/v1/deployments/depl_{MISSING}"
    assert (await api.get(path)).status_code == 404
    for action in ("", "/pause", "/unpause", "/archive", "/run"):
        assert (await api.post(f"{path}{action}", {} if not action else None)).status_code == 404


async def test_a_list_is_newest_first_paged_and_narrowed(api: Api) -> None:
    agent, environment = (await api.agent())["id"], (await api.environment())["id"]
    made = [await deployment(api, agent=agent, environment_id=environment, name=str(n)) for n in range(4)]
    stranger = await deployment(api)
    await api.sdk.beta.deployments.pause(made[1].id)
    await api.sdk.beta.deployments.archive(made[2].id)

    async def listed(**query: Any) -> list[str]:
        return [each.id async for each in api.sdk.beta.deployments.list(limit=1, **query)]

    assert await listed() == [stranger.id, made[3].id, made[1].id, made[0].id]
    assert await listed(agent_id=agent) == [made[3].id, made[1].id, made[0].id]
    assert await listed(status="paused") == [made[1].id]
    assert await listed(agent_id=agent, status="active") == [made[3].id, made[0].id]
    assert await listed(agent_id=agent, include_archived=True) == [one.id for one in reversed(made)]
    assert await listed(created_at_lte=made[0].created_at) == [made[0].id]
    assert await listed(created_at_gte=made[3].created_at) == [stranger.id, made[3].id]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"status": "active", "include_archived": "true"}, "include_archived"),
        ({"status": "resting"}, "status"),
        ({"limit": "101"}, "limit"),
        ({"page": "nonsense"}, "page"),
    ],
)
async def test_a_list_that_cannot_be_is_refused(api: Api, query: dict[str, str], said: str) -> None:
    response = await api.get("/v1/deployments", params=query)
    assert response.status_code == 400
    assert said in response.json()["error"]["message"]


async def test_a_key_of_a_worker_does_not_reach_deployments(api: Api) -> None:
    environment = await api.environment()
    async with api.client(await api.environment_key(environment["id"])) as worker:
        with pytest.raises(anthropic.PermissionDeniedError):
            await worker.beta.deployments.list()
