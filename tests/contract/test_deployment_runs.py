"""Runs of deployments: by hand, why one makes no session, and their list (contract section 19.3)."""

from typing import Any

import pytest

from .conftest import Api
from .due import make_due, runs_of
from .test_deployments import MISSING, NOON, deployment, message, refusal


async def texts_of(api: Api, session_id: str) -> list[str]:
    events = [event.to_dict() async for event in api.sdk.beta.sessions.events.list(session_id)]
    contents: list[Any] = [event["content"] for event in events]
    return [content[0]["text"] for content in contents]


async def test_a_run_by_hand_makes_a_session_on_the_initial_events(api: Api) -> None:
    store = (await api.post("/v1/memory_stores", {"name": "Notes"})).json()["id"]
    events = [
        message("one"),
        message("two"),
        {"type": "system.message", "content": [{"type": "text", "text": "s"}]},
    ]
    made = await deployment(
        api, initial_events=events, resources=[{"type": "memory_store", "memory_store_id": store}]
    )
    run = await api.sdk.beta.deployments.run(made.id)
    assert run.to_dict() | {"id": "", "session_id": "", "created_at": ""} == {
        "type": "deployment_run", "id": "", "deployment_id": made.id, "agent": made.agent.to_dict(),
        "trigger_context": {"type": "manual"}, "session_id": "", "error": None, "created_at": "",
    }  # fmt: skip
    assert run.id.startswith("drun_01")
    assert run.session_id is not None
    session = await api.sdk.beta.sessions.retrieve(run.session_id)
    assert (session.deployment_id, session.status, session.title) == (made.id, "running", "Scan")
    assert (session.agent.id, session.agent.version) == (made.agent.id, 1)
    assert session.resources[0].to_dict()["memory_store_id"] == store
    assert await texts_of(api, run.session_id) == ["one", "two", "s"]
    assert await api.sdk.beta.deployment_runs.retrieve(run.id) == run


async def test_a_run_by_hand_does_not_touch_the_schedule_and_works_while_it_is_paused(api: Api) -> None:
    made = await deployment(api, schedule=NOON)
    paused = await api.sdk.beta.deployments.pause(made.id)
    run = await api.sdk.beta.deployments.run(made.id)
    assert run.session_id is not None
    assert await api.sdk.beta.deployments.retrieve(made.id) == paused


async def test_sessions_can_be_listed_by_their_deployment(api: Api) -> None:
    made = await deployment(api)
    runs = [await api.sdk.beta.deployments.run(made.id) for _ in range(3)]
    await api.session()
    listed = [session.id async for session in api.sdk.beta.sessions.list(deployment_id=made.id, limit=2)]
    assert listed == [run.session_id for run in reversed(runs)]
    assert [s async for s in api.sdk.beta.sessions.list(deployment_id=f"depl_{MISSING}")] == []


async def test_a_run_keeps_to_the_version_that_the_deployment_was_pinned_to(api: Api) -> None:
    made = await deployment(api)
    await api.post(f"/v1/agents/{made.agent.id}", {"version": 1, "system": "new"})
    run = await api.sdk.beta.deployments.run(made.id)
    session = await api.sdk.beta.sessions.retrieve(run.session_id or "")
    assert (run.agent.version, session.agent.version, session.agent.system) == (1, 1, None)


async def test_a_run_that_makes_no_session_is_recorded_with_the_reason(api: Api) -> None:
    made = await deployment(api, schedule=NOON)
    await api.sdk.beta.environments.archive(made.environment_id)
    run = await api.sdk.beta.deployments.run(made.id)
    assert run.session_id is None
    assert run.error is not None
    assert run.error.type == "environment_archived_error"
    assert made.environment_id in run.error.message
    assert (await api.get("/v1/sessions")).json()["data"] == []
    # Whoever runs it by hand sees the reason; the schedule finds out for itself.
    assert (await api.sdk.beta.deployments.retrieve(made.id)).status == "active"


async def a_lost_environment(api: Api) -> dict[str, Any]:
    environment = (await api.environment())["id"]
    return {"fields": {"environment_id": environment}, "lose": ("DELETE", f"/v1/environments/{environment}")}


async def an_archived_environment(api: Api) -> dict[str, Any]:
    environment = (await api.environment())["id"]
    path = f"/v1/environments/{environment}/archive"
    return {"fields": {"environment_id": environment}, "lose": ("POST", path)}


async def a_lost_file(api: Api) -> dict[str, Any]:
    file = await api.sdk.beta.files.upload(file=("a.txt", b"text", "text/plain"))
    resources = [{"type": "file", "file_id": file.id}]
    return {"fields": {"resources": resources}, "lose": ("DELETE", f"/v1/files/{file.id}")}


async def a_lost_document(api: Api) -> dict[str, Any]:
    file = await api.sdk.beta.files.upload(file=("a.txt", b"text", "text/plain"))
    block = {"type": "document", "source": {"type": "file", "file_id": file.id}}
    events = [{"type": "user.message", "content": [block]}]
    return {"fields": {"initial_events": events}, "lose": ("DELETE", f"/v1/files/{file.id}")}


async def an_archived_store(api: Api) -> dict[str, Any]:
    store = (await api.post("/v1/memory_stores", {"name": "S"})).json()["id"]
    resources = [{"type": "memory_store", "memory_store_id": store}]
    return {"fields": {"resources": resources}, "lose": ("POST", f"/v1/memory_stores/{store}/archive")}


async def a_lost_store(api: Api) -> dict[str, Any]:
    store = (await api.post("/v1/memory_stores", {"name": "S"})).json()["id"]
    resources = [{"type": "memory_store", "memory_store_id": store}]
    return {"fields": {"resources": resources}, "lose": ("DELETE", f"/v1/memory_stores/{store}")}


async def an_archived_vault(api: Api) -> dict[str, Any]:
    vault = (await api.post("/v1/vaults", {"display_name": "V"})).json()["id"]
    return {"fields": {"vault_ids": [vault]}, "lose": ("POST", f"/v1/vaults/{vault}/archive")}


async def a_lost_vault(api: Api) -> dict[str, Any]:
    vault = (await api.post("/v1/vaults", {"display_name": "V"})).json()["id"]
    return {"fields": {"vault_ids": [vault]}, "lose": ("DELETE", f"/v1/vaults/{vault}")}


async def a_closed_network(api: Api) -> dict[str, Any]:
    servers = [{"type": "url", "name": "gh", "url": "https://mcp.example/x"}]
    tools = [{"type": "mcp_toolset", "mcp_server_name": "gh"}]
    agent = await api.agent(mcp_servers=servers, tools=tools)
    environment = (await api.environment())["id"]
    closed: dict[str, Any] = {
        "config": {"type": "cloud", "networking": {"type": "limited", "allowed_hosts": []}}
    }
    path = f"/v1/environments/{environment}"
    return {"fields": {"agent": agent["id"], "environment_id": environment}, "lose": ("POST", path, closed)}


@pytest.mark.parametrize(
    ("premise", "expected"),
    [
        (an_archived_environment, "environment_archived_error"),
        (a_lost_environment, "environment_not_found_error"),
        (a_lost_file, "file_not_found_error"),
        (a_lost_document, "file_not_found_error"),
        (an_archived_store, "memory_store_archived_error"),
        (a_lost_store, "session_resource_not_found_error"),
        (an_archived_vault, "vault_archived_error"),
        (a_lost_vault, "vault_not_found_error"),
        (a_closed_network, "mcp_egress_blocked_error"),
    ],
)
async def test_a_scheduled_run_that_would_fail_each_time_is_recorded_and_pauses_the_deployment(
    api: Api, premise: Any, expected: str
) -> None:
    given = await premise(api)
    made = await deployment(api, schedule=NOON, **given["fields"])
    method, path, *body = given["lose"]
    response = await api.http.request(method, path, json=body[0] if body else None)
    assert response.status_code == 200, response.text
    await make_due(api, made.id)
    await api.services.deployment_runs.start_due()
    (run,) = await runs_of(api, made.id)
    assert run.error is not None
    assert (run.error.type, run.session_id, run.trigger_context.type) == (expected, None, "schedule")
    paused = (await api.get(f"/v1/deployments/{made.id}")).json()
    assert paused["status"] == "paused"
    assert paused["paused_reason"] == {"type": "error", "error": {"type": expected}}
    await api.services.deployment_runs.start_due()
    assert len(await runs_of(api, made.id)) == 1
    resumed = await api.sdk.beta.deployments.unpause(made.id)
    assert (resumed.status, resumed.paused_reason) == ("active", None)


async def test_a_deployment_on_an_environment_that_takes_no_files_any_more_is_paused(api: Api) -> None:
    file = await api.sdk.beta.files.upload(file=("a.txt", b"text", "text/plain"))
    made = await deployment(api, schedule=NOON, resources=[{"type": "file", "file_id": file.id}])
    hosted = await api.environment(config={"type": "self_hosted"})
    await api.database.execute(
        "update deployments set environment_id = %s where id = %s", (hosted["id"], made.id)
    )
    await make_due(api, made.id)
    await api.services.deployment_runs.start_due()
    (run,) = await runs_of(api, made.id)
    assert run.error is not None
    assert run.error.type == "self_hosted_resources_unsupported_error"


async def test_runs_are_listed_newest_first_paged_and_narrowed(api: Api) -> None:
    made = await deployment(api, schedule=NOON)
    by_hand = [await api.sdk.beta.deployments.run(made.id) for _ in range(2)]
    await make_due(api, made.id)
    await api.services.deployment_runs.start_due()
    await api.sdk.beta.environments.archive(made.environment_id)
    failed = await api.sdk.beta.deployments.run(made.id)
    other = await api.sdk.beta.deployments.run((await deployment(api)).id)

    async def listed(**query: Any) -> list[str]:
        return [run.id async for run in api.sdk.beta.deployment_runs.list(limit=1, **query)]

    everything = await listed()
    assert (everything[0], everything[1]) == (other.id, failed.id)
    assert everything[3:] == [by_hand[1].id, by_hand[0].id]
    scheduled = everything[2]
    assert await listed(deployment_id=made.id) == everything[1:]
    assert await listed(has_error=True) == [failed.id]
    assert failed.id not in await listed(has_error=False)
    assert await listed(trigger_type="schedule") == [scheduled]
    assert scheduled not in await listed(trigger_type="manual")
    assert await listed(created_at_gt=by_hand[1].created_at) == everything[:3]
    assert await listed(created_at_lt=by_hand[1].created_at) == [by_hand[0].id]
    assert await listed(created_at_gte=other.created_at, created_at_lte=other.created_at) == [other.id]
    assert await listed(deployment_id=f"depl_{MISSING}") == []


async def test_a_list_of_runs_that_cannot_be_is_refused(api: Api) -> None:
    for query in ({"limit": "1001"}, {"trigger_type": "webhook"}, {"has_error": "maybe"}, {"page": "x"}):
        response = await api.get("/v1/deployment_runs", params=query)
        assert response.status_code == 400
        assert next(iter(query)) in response.json()["error"]["message"]


async def test_an_unknown_run_is_404(api: Api) -> None:
    assert (await api.get(f"/v1/deployment_runs/drun_{MISSING}")).status_code == 404


async def test_the_record_of_a_run_outlives_its_session(api: Api) -> None:
    made = await deployment(api)
    run = await api.sdk.beta.deployments.run(made.id)
    await api.database.execute("delete from sessions where id = %s", (run.session_id,))
    assert await api.sdk.beta.deployment_runs.retrieve(run.id) == run


async def test_a_run_on_a_self_hosted_environment_queues_its_work_at_once(api: Api) -> None:
    environment = await api.environment(config={"type": "self_hosted"})
    made = await deployment(api, environment_id=environment["id"])
    run = await api.sdk.beta.deployments.run(made.id)
    queued = await api.database.fetch("select session_id, environment_id from work")
    assert queued == [{"session_id": run.session_id, "environment_id": environment["id"]}]


async def test_a_deployment_can_be_repaired_by_an_update_and_then_runs(api: Api) -> None:
    made = await deployment(api, schedule=NOON)
    await api.sdk.beta.environments.archive(made.environment_id)
    status, _ = await refusal(api, f"/v1/deployments/{made.id}", {"initial_events": [message("x")]})
    assert status == 400
    other = await api.environment()
    await api.sdk.beta.deployments.update(made.id, environment_id=other["id"])
    assert (await api.sdk.beta.deployments.run(made.id)).session_id is not None
