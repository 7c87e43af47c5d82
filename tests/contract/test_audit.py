"""The audit trail: every administrative request leaves a record, whatever comes of it."""

from typing import Any

import httpx

from corral.api.app import ROUTES
from corral.api.audit import NOT_ADMINISTRATIVE, is_administrative
from corral.api.principals import ApiKey

from .conftest import Api


async def records(api: Api, **query: str) -> list[dict[str, Any]]:
    response = await api.get("/corral/v1/audit", params=query)
    assert response.status_code == 200, response.text
    return response.json()["data"]


async def own_id(api: Api) -> str:
    found = [key for key in await api.services.keys.list("api") if key.name == "test"]
    return found[0].id


async def test_a_change_names_who_made_it_what_and_when(api: Api) -> None:
    response = await api.post("/v1/agents", {"name": "Agent", "model": "claude-opus-5-5"})
    agent_id = response.json()["id"]
    [record] = await records(api, object_id=agent_id)
    assert record.pop("id").startswith("audit_01")
    assert record.pop("created_at")
    assert record == {
        "type": "audit_record",
        "actor_kind": "api",
        "actor_id": await own_id(api),
        "action": "POST /v1/agents",
        "objects": [agent_id],
        "request_id": response.headers["request-id"],
        "status": 200,
    }


async def test_an_attempt_that_is_refused_is_recorded_with_its_status(api: Api) -> None:
    await api.post("/v1/agents", {"name": "", "model": "claude-opus-5-5"})
    await api.post("/v1/agents/agent_01nobody/archive")
    newest = await records(api)
    assert [(one["action"], one["status"], one["objects"]) for one in newest[:2]] == [
        ("POST /v1/agents/{agent_id}/archive", 404, ["agent_01nobody"]),
        ("POST /v1/agents", 400, []),
    ]


async def test_a_record_holds_nothing_that_was_sent(api: Api) -> None:
    vault = (await api.post("/v1/vaults", {"display_name": "Alice"})).json()["id"]
    auth = {"type": "static_bearer", "token": "hush-hush-hush", "mcp_server_url": "https://mcp.example.com"}
    made = await api.post(f"/v1/vaults/{vault}/credentials", {"auth": auth})
    assert made.status_code == 200, made.text
    kept = await api.database.fetch("select row_to_json(audit)::text as whole from audit")
    assert kept
    assert not any("hush" in row["whole"] or "Alice" in row["whole"] for row in kept)
    [record] = await records(api, object_id=made.json()["id"])
    assert record["objects"] == [vault, made.json()["id"]]


async def test_reading_and_the_daily_work_leave_no_record(api: Api) -> None:
    session = await api.session()
    before = await records(api)
    await api.get(f"/v1/sessions/{session['id']}")
    message = {"type": "user.message", "content": [{"type": "text", "text": "hi"}]}
    sent = await api.post(f"/v1/sessions/{session['id']}/events", {"events": [message]})
    assert sent.status_code == 200
    assert await records(api) == before


async def test_ending_a_session_is_recorded(api: Api) -> None:
    session = await api.session()
    await api.post(f"/v1/sessions/{session['id']}/archive")
    await api.http.delete(f"/v1/sessions/{session['id']}")
    assert [one["action"] for one in await records(api, object_id=session["id"])] == [
        "DELETE /v1/sessions/{session_id}",
        "POST /v1/sessions/{session_id}/archive",
    ]


async def test_the_list_is_paged_and_narrowed(api: Api) -> None:
    agents = [(await api.agent())["id"] for _ in range(3)]
    first = (await api.get("/corral/v1/audit", params={"limit": 2})).json()
    rest = (await api.get("/corral/v1/audit", params={"limit": 2, "page": first["next_page"]})).json()
    listed = [one["objects"][0] for one in (*first["data"], *rest["data"])]
    assert listed == agents[::-1]
    assert rest["next_page"] is None
    assert await records(api, actor_id="apikey_01nobody") == []
    middle = (await records(api, object_id=agents[1]))[0]["created_at"]
    later = await records(api, **{"created_at[gte]": middle})
    earlier = await records(api, **{"created_at[lte]": middle})
    assert [one["objects"][0] for one in later] == [agents[2], agents[1]]
    assert [one["objects"][0] for one in earlier] == [agents[1], agents[0]]


async def test_records_that_are_too_old_are_removed(api: Api) -> None:
    old, new = [(await api.agent())["id"] for _ in range(2)]
    await api.database.execute(
        "update audit set created_at = now() - interval '401 days' where objects @> array[%s]", (old,)
    )
    await api.services.audit.prune()
    assert await records(api, object_id=old) == []
    assert len(await records(api, object_id=new)) == 1


async def test_no_worker_reads_the_trail(api: Api) -> None:
    key = await api.pool_key()
    async with httpx.AsyncClient(base_url=api.base_url, headers={"x-api-key": key}) as worker:
        assert (await worker.get("/corral/v1/audit")).status_code == 403


def test_what_is_exempt_is_a_route_that_changes_something() -> None:
    changing = {(route.method, route.path) for route in ROUTES if route.method != "GET"}
    assert changing >= NOT_ADMINISTRATIVE
    for route in ROUTES:
        expected = (
            route.method != "GET"
            and ApiKey in route.callers
            and (route.method, route.path) not in NOT_ADMINISTRATIVE
        )
        assert is_administrative(route) == expected
