"""Deployments: bounds at both edges, what an update clears and sets again, each status (contract 19.1)."""

from typing import Any

import pytest

from .conftest import Api
from .kinds import EVENTS, ok

NOON: dict[str, Any] = {"type": "cron", "expression": "0 12 * * *", "timezone": "Europe/Berlin"}
HOURLY: dict[str, Any] = {"type": "cron", "expression": "0 * * * *", "timezone": "UTC"}
DEPLOYMENTS = "/v1/deployments"


def budget(amount: str = "500", currency: str = "USD") -> dict[str, Any]:
    return {"type": "limit", "max_list_cost": {"amount": amount, "currency": currency}}


async def body(api: Api, **fields: Any) -> dict[str, Any]:
    where = {"agent": (await api.agent())["id"], "environment_id": (await api.environment())["id"]}
    return {"name": "D", **where, "initial_events": EVENTS, **fields}


async def made(api: Api, **fields: Any) -> dict[str, Any]:
    return await ok(api.post(DEPLOYMENTS, await body(api, **fields)))


async def change(api: Api, deployment: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return await ok(api.post(f"{DEPLOYMENTS}/{deployment['id']}", fields))


def but(deployment: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in deployment.items() if key not in (*names, "updated_at")}


def outcome(**changed: Any) -> dict[str, Any]:
    rubric = {"type": "text", "content": "It works."}
    return {"type": "user.define_outcome", "description": "Done", "rubric": rubric, **changed}


EDGES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "name": ({"name": "\U0001f408" * 256}, {"name": "n" * 257}, "name: must have at most 256 characters"),
    "name at least": ({"name": "n"}, {"name": ""}, "name: must have at least 1 characters"),
    "description": (
        {"description": "d" * 2048},
        {"description": "d" * 2049},
        "description: must have at most 2048 characters",
    ),
    "50 events": (
        {"initial_events": EVENTS * 50},
        {"initial_events": EVENTS * 51},
        "initial_events: must have at most 50 items",
    ),
    "one event": ({"initial_events": EVENTS}, {"initial_events": []}, "initial_events: must have at least 1"),
    "iterations": (
        {"initial_events": [outcome(max_iterations=20)]},
        {"initial_events": [outcome(max_iterations=21)]},
        "initial_events[0].max_iterations: ",
    ),
    "vaults": ({"vault_ids": []}, {"vault_ids": ["vlt_1"] * 51}, "vault_ids: must have at most 50 items"),
    "an id of a vault": ({"vault_ids": None}, {"vault_ids": [""]}, "vault_ids[0]: must have at least 1"),
    "resources": (
        {"resources": []},
        {"resources": [{"type": "file", "file_id": "file_1"}] * 501},
        "resources: must have at most 500 items",
    ),
    "budget": ({"budget": budget("1")}, {"budget": budget("0")}, "budget.max_list_cost.amount: "),
    "schedule": (
        {"schedule": {**NOON, "expression": ",".join(["1"] * 124) + " * * * *"}},
        {"schedule": {**NOON, "expression": ",".join(["1"] * 125) + " * * * *"}},
        "schedule.expression: must have at most 256 characters",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", EDGES)
async def test_each_bound_is_taken_and_one_more_refused_whether_made_or_changed(api: Api, case: str) -> None:
    good, bad, said = EDGES[case]
    deployment = await made(api, **good)
    path = f"{DEPLOYMENTS}/{deployment['id']}"
    for request in (api.post(DEPLOYMENTS, await body(api, **bad)), api.post(path, bad)):
        response = await request
        assert response.status_code == 400
        assert response.json()["error"]["message"].startswith(said), response.text
    assert but(await ok(api.get(path))) == but(deployment)
    await change(api, await made(api, name="other"), **good)


WRONG: list[tuple[Any, ...]] = [
    ({"name": 1}, "name: Input should be a valid string"),
    ({"agent": 1}, "agent: Input should be a valid"),
    ({"agent": {"type": "agent"}}, "agent.id: Field required"),
    ({"agent": {"type": "agent", "id": "agent_1", "version": 0}}, "agent.version: must be at least 1"),
    ({"agent": {"type": "agent", "id": "agent_1", "tools": []}}, "agent.tools: Extra inputs"),
    ({"environment_id": "e" * 129}, "environment_id: must have at most 128 characters"),
    ({"initial_events": EVENTS[0]}, "initial_events: Input should be a valid list"),
    ({"initial_events": [{"type": "agent.message"}]}, 'initial_events[0].type: "agent.message" is not'),
    (
        {"initial_events": [*EVENTS, {"type": "user.message"}]},
        "initial_events[1].content: Field required",
    ),
    ({"schedule": "0 0 * * *"}, "schedule: Input should be a valid object"),
    ({"schedule": {**NOON, "jitter": 1}}, "schedule.jitter: Extra inputs are not permitted"),
    ({"schedule": {**NOON, "type": "rate"}}, 'schedule.type: "rate" is not a valid value'),
    ({"schedule": {"type": "cron", "timezone": "UTC"}}, "schedule.expression: Field required"),
    ({"schedule": {**NOON, "expression": "* * * *"}}, "schedule.expression: must have 5 fields"),
    ({"schedule": {**NOON, "expression": "0 0 0 * * *"}}, "schedule.expression: "),
    ({"schedule": {**NOON, "expression": "60 0 * * *"}}, "schedule.expression: "),
    ({"schedule": {**NOON, "expression": "0 0 L * *"}}, "schedule.expression: "),
    ({"schedule": {**NOON, "expression": "0 0 30 2 *"}}, "schedule.expression: "),
    ({"schedule": {**NOON, "timezone": "europe/berlin "}}, "schedule.timezone: "),
    ({"budget": {"type": "limit"}}, "budget.max_list_cost: Field required"),
    ({"budget": budget("1.5")}, "budget.max_list_cost.amount: "),
    ({"budget": budget("5", "EUR")}, 'budget.max_list_cost.currency: "EUR" is not a valid value'),
    ({"paused": True}, "paused: Extra inputs are not permitted"),
]


async def test_what_does_not_fit_is_refused_with_its_whole_path(api: Api) -> None:
    for fields, said in WRONG:
        response = await api.post(DEPLOYMENTS, await body(api, **fields))
        assert response.status_code == 400
        assert response.json()["error"]["message"].startswith(said), response.text


async def test_a_budget_and_a_schedule_can_be_cleared_and_set_again(api: Api) -> None:
    deployment = await made(api, budget=budget(), schedule=NOON)
    assert deployment["budget"] == budget()
    cleared = await change(api, deployment, budget=None, schedule=None)
    assert (cleared["budget"], cleared["schedule"]) == (None, None)
    assert await change(api, deployment, budget=None, schedule=None) == cleared
    again = await change(api, deployment, budget=budget("100"), schedule=HOURLY)
    assert again["budget"] == budget("100"), "less than before is no matter here: each session has its own"
    assert (again["schedule"]["expression"], again["schedule"]["timezone"]) == ("0 * * * *", "UTC")
    run = await ok(api.post(f"{DEPLOYMENTS}/{deployment['id']}/run"))
    session = await ok(api.get(f"/v1/sessions/{run['session_id']}"))
    assert session["budget"]["max_list_cost"] == {"amount": "100", "currency": "USD"}


CLEARED: list[tuple[Any, ...]] = [
    ({"description": None}, {"description": None}),
    ({"description": ""}, {"description": None}),
    ({"vault_ids": None}, {"vault_ids": []}),
    ({"vault_ids": []}, {"vault_ids": []}),
    ({"resources": None}, {"resources": []}),
    ({"resources": []}, {"resources": []}),
    ({"schedule": None}, {"schedule": None}),
    ({"budget": None}, {"budget": None}),
]


async def test_null_and_emptiness_clear_one_field_and_keep_the_others(api: Api) -> None:
    for fields, cleared in CLEARED:
        store = (await ok(api.post("/v1/memory_stores", {"name": "S"})))["id"]
        vault = (await ok(api.post("/v1/vaults", {"display_name": "V"})))["id"]
        deployment = await made(
            api,
            description="d",
            vault_ids=[vault],
            resources=[{"type": "memory_store", "memory_store_id": store}],
            schedule=NOON,
            budget=budget(),
            metadata={"a": "1"},
        )
        changed = await change(api, deployment, **fields)
        assert {name: changed[name] for name in cleared} == cleared
        assert but(changed, *cleared) == but(deployment, *cleared)
        assert changed["updated_at"] > deployment["updated_at"]


async def test_an_agent_named_with_its_version_stays_there_and_by_its_id_goes_to_the_latest(api: Api) -> None:
    agent = await api.agent()
    await ok(api.post(f"/v1/agents/{agent['id']}", {"name": "B"}))
    reference = {"type": "agent", "id": agent["id"]}
    deployment = await made(api, agent={**reference, "version": 1})
    assert deployment["agent"] == {**reference, "version": 1}
    assert (await change(api, deployment, agent={**reference, "version": 1})) == deployment
    assert (await change(api, deployment, agent=reference))["agent"]["version"] == 2
    response = await api.post(f"{DEPLOYMENTS}/{deployment['id']}", {"agent": {**reference, "version": 9}})
    assert (response.status_code, response.json()["error"]["message"]) == (404, "agent.version: 9 not found")
    other = await api.agent()
    await ok(api.post(f"/v1/agents/{other['id']}/archive"))
    response = await api.post(f"{DEPLOYMENTS}/{deployment['id']}", {"agent": other["id"]})
    assert (response.status_code, "archived" in response.text) == (400, True)
    assert (await ok(api.get(f"{DEPLOYMENTS}/{deployment['id']}")))["agent"] == {**reference, "version": 2}


async def test_an_outcome_can_be_among_the_initial_events(api: Api) -> None:
    events = [*EVENTS, outcome(max_iterations=20)]
    deployment = await made(api, initial_events=events)
    assert [one["type"] for one in deployment["initial_events"]] == ["user.message", "user.define_outcome"]
    assert deployment["initial_events"][1]["max_iterations"] == 20


async def test_a_paused_deployment_can_be_changed_and_stays_paused(api: Api) -> None:
    deployment = await made(api, schedule=NOON)
    path = f"{DEPLOYMENTS}/{deployment['id']}"
    paused = await ok(api.post(f"{path}/pause"))
    assert paused["updated_at"] > deployment["updated_at"]
    changed = await change(api, deployment, schedule=HOURLY, name="E")
    assert (changed["status"], changed["paused_reason"]) == ("paused", {"type": "manual"})
    assert len(changed["schedule"]["upcoming_runs_at"]) == 5
    row = await api.database.fetch_one("select next_run_at from deployments")
    assert row == {"next_run_at": None}, "it does not run"
    resumed = await ok(api.post(f"{path}/unpause"))
    row = await api.database.fetch_one("select next_run_at > now() as ahead from deployments")
    assert (resumed["status"], row) == ("active", {"ahead": True})


async def test_a_deployment_without_a_schedule_can_be_paused_too(api: Api) -> None:
    deployment = await made(api)
    path = f"{DEPLOYMENTS}/{deployment['id']}"
    assert (await ok(api.post(f"{path}/pause")))["status"] == "paused"
    assert (await ok(api.post(f"{path}/run")))["session_id"] is not None
    assert (await ok(api.post(f"{path}/unpause")))["status"] == "active"


async def test_an_archived_deployment_refuses_every_change_and_keeps_its_runs(api: Api) -> None:
    deployment = await made(api, schedule=NOON)
    path = f"{DEPLOYMENTS}/{deployment['id']}"
    run = await ok(api.post(f"{path}/run"))
    archived = await ok(api.post(f"{path}/archive"))
    for action, sent in (
        ("", {}),
        ("", {"metadata": {"a": "b"}}),
        ("/pause", None),
        ("/unpause", None),
        ("/run", None),
    ):
        response = await api.post(f"{path}{action}", sent)
        assert (response.status_code, "archived deployment" in response.text) == (400, True), action
    assert await ok(api.get(path)) == archived
    assert (await ok(api.get(f"/v1/deployment_runs?deployment_id={deployment['id']}")))["data"] == [run]
    assert await ok(api.get(f"/v1/deployment_runs/{run['id']}")) == run


async def test_at_most_a_thousand_deployments_have_a_schedule_whether_made_or_changed(api: Api) -> None:
    deployment = await made(api, schedule=NOON)
    await api.database.execute(
        "insert into deployments select d.* from generate_series(2, 1000) n, lateral"
        " jsonb_populate_record(null::deployments,"
        " (select to_jsonb(x) || jsonb_build_object('id', 'depl_' || n) from deployments x limit 1)) d"
    )
    plain = await made(api)
    for request in (
        api.post(DEPLOYMENTS, await body(api, schedule=NOON)),
        api.post(f"{DEPLOYMENTS}/{plain['id']}", {"schedule": NOON}),
    ):
        response = await request
        assert response.status_code == 400
        assert response.json()["error"]["message"].startswith(
            "schedule: at most 1000 deployments may have one"
        )
    assert (await change(api, deployment, schedule=HOURLY))["schedule"]["expression"] == "0 * * * *"
    await ok(api.post(f"{DEPLOYMENTS}/depl_2/archive"))
    assert (await change(api, plain, schedule=NOON))["schedule"] is not None


async def test_a_list_takes_no_status_together_with_archived_ones(api: Api) -> None:
    deployment = await made(api)
    for query, status in (
        ({"status": "active", "include_archived": "true"}, 400),
        ({"status": "paused", "include_archived": "true"}, 400),
        ({"status": "active"}, 200),
        ({"include_archived": "true"}, 200),
        ({"status": "archived"}, 400),
        ({"agent_id": deployment["agent"]["id"]}, 200),
    ):
        assert (await api.get(DEPLOYMENTS, params=query)).status_code == status, query
    assert (await ok(api.get(f"{DEPLOYMENTS}?agent_id=agent_unknown")))["data"] == []
