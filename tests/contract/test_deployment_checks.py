"""A deployment is refused for whatever its sessions would be refused for, made or changed (contract 19.1)."""

from typing import Any

from .conftest import Api
from .kinds import EVENTS, ok
from .test_deployments_change import DEPLOYMENTS, NOON, body, budget, change, made


async def refusal(api: Api, path: str, sent: dict[str, Any], status: int = 400) -> dict[str, Any]:
    response = await api.post(path, sent)
    assert response.status_code == status, response.text
    return response.json()["error"]


async def refused_both_ways(api: Api, fields: dict[str, Any], status: int = 400) -> dict[str, Any]:
    """The error of a new deployment with these fields; one that is changed to them must be refused alike."""
    error = await refusal(api, DEPLOYMENTS, await body(api, **fields), status)
    deployment = await made(api)
    path = f"{DEPLOYMENTS}/{deployment['id']}"
    changed = await refusal(api, path, fields, status)
    assert changed["message"] == error["message"]
    assert await ok(api.get(path)) == deployment
    return error


async def test_a_budget_needs_a_model_that_has_a_price(api: Api) -> None:
    unpriced = (await api.agent(model="house-model"))["id"]
    error = await refusal(api, DEPLOYMENTS, await body(api, agent=unpriced, budget=budget()))
    assert error["details"]["error_code"] == "model_not_budgetable"
    plain = await made(api, agent=unpriced)
    error = await refusal(api, f"{DEPLOYMENTS}/{plain['id']}", {"budget": budget()})
    assert error["details"]["error_code"] == "model_not_budgetable"
    priced = await made(api, budget=budget())
    error = await refusal(api, f"{DEPLOYMENTS}/{priced['id']}", {"agent": unpriced})
    assert error["details"]["error_code"] == "model_not_budgetable"
    assert (await change(api, priced, agent=unpriced, budget=None))["budget"] is None


async def test_what_the_initial_events_name_must_be_there(api: Api) -> None:
    block = {"type": "document", "source": {"type": "file", "file_id": "file_01unknown"}}
    events = [*EVENTS, {"type": "user.message", "content": [block]}]
    error = await refused_both_ways(api, {"initial_events": events})
    said = "initial_events[1].content[0].source.file_id: file file_01unknown not found"
    assert error["message"] == said


async def test_resources_are_checked_as_those_of_a_session(api: Api) -> None:
    store = (await ok(api.post("/v1/memory_stores", {"name": "S"})))["id"]
    archived = (await ok(api.post("/v1/memory_stores", {"name": "T"})))["id"]
    await ok(api.post(f"/v1/memory_stores/{archived}/archive"))
    file_id = (await ok(api.http.post("/v1/files", files={"file": ("a.txt", b"x")})))["id"]

    def attached(id: str) -> dict[str, Any]:
        return {"type": "memory_store", "memory_store_id": id}

    def mounted(path: str) -> dict[str, Any]:
        return {"type": "file", "file_id": file_id, "mount_path": path}

    for resources, status, said in (
        ([attached(store), attached(store)], 400, f"resources[1].memory_store_id: {store} is named twice"),
        ([attached(archived)], 400, f"resources[0].memory_store_id: memory store {archived} is archived"),
        ([attached("memstore_01")], 404, "resources[0].memory_store_id: memory store memstore_01 not found"),
        ([mounted("a"), mounted("a/b")], 400, "resources[1].mount_path: "),
        ([mounted("../x")], 400, "resources[0].mount_path: "),
        ([{"type": "github_repository", "url": "https://github.com/a"}], 400, "resources[0].url: "),
    ):
        error = await refused_both_ways(api, {"resources": resources}, status)
        assert error["message"].startswith(said), error
    # A trial leaves nothing behind.
    assert (await ok(api.get("/v1/sessions")))["data"] == []
    assert len((await ok(api.get("/v1/files")))["data"]) == 1


async def test_vaults_must_be_there_and_not_archived(api: Api) -> None:
    vault = (await ok(api.post("/v1/vaults", {"display_name": "V"})))["id"]
    await ok(api.post(f"/v1/vaults/{vault}/archive"))
    error = await refused_both_ways(api, {"vault_ids": [vault]})
    assert error["message"] == f"vault_ids[0]: vault {vault} is archived"
    error = await refused_both_ways(api, {"vault_ids": ["vlt_01unknown"]}, 404)
    assert error["message"] == "vault_ids[0]: vault vlt_01unknown not found"


async def test_fifty_vaults_are_taken(api: Api) -> None:
    ids = [(await ok(api.post("/v1/vaults", {"display_name": "V"})))["id"] for _ in range(50)]
    assert (await made(api, vault_ids=ids))["vault_ids"] == ids


async def test_500_resources_are_taken_and_come_back_as_they_were_sent(api: Api) -> None:
    file_id = (await ok(api.http.post("/v1/files", files={"file": ("a.txt", b"x")})))["id"]
    resources = [{"type": "file", "file_id": file_id, "mount_path": f"/{n}"} for n in range(500)]
    assert (await made(api, resources=resources))["resources"] == resources


async def test_an_environment_that_would_not_take_the_resources_is_refused(api: Api) -> None:
    file_id = (await ok(api.http.post("/v1/files", files={"file": ("a.txt", b"x")})))["id"]
    deployment = await made(api, resources=[{"type": "file", "file_id": file_id}], schedule=NOON)
    hosted = (await api.environment(config={"type": "self_hosted"}))["id"]
    path = f"{DEPLOYMENTS}/{deployment['id']}"
    assert "self-hosted" in (await refusal(api, path, {"environment_id": hosted}))["message"]
    assert (await refusal(api, path, {"environment_id": "env_01"}, 404))["details"] == {
        "error_code": "environment_not_found"
    }
    both = await change(api, deployment, environment_id=hosted, resources=[])
    assert (both["environment_id"], both["resources"]) == (hosted, [])


async def test_what_was_lost_meanwhile_does_not_hinder_another_change(api: Api) -> None:
    deployment = await made(api)
    await ok(api.http.delete(f"/v1/environments/{deployment['environment_id']}"))
    assert (await change(api, deployment, name="Other", metadata={"a": "b"}))["name"] == "Other"
    error = await refusal(api, f"{DEPLOYMENTS}/{deployment['id']}", {"initial_events": EVENTS * 2}, 404)
    assert deployment["environment_id"] in error["message"]
