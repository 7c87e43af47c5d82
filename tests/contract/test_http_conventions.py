"""HTTP conventions: order of checks, credentials, errors, bodies, cursors (contract section 2)."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from .conftest import Api


def without_id(response: httpx.Response) -> dict[str, Any]:
    body = response.json()
    assert body.pop("request_id") == response.headers["request-id"]
    return body


async def test_an_unknown_path_is_not_found_even_without_credentials(api: Api) -> None:
    async with httpx.AsyncClient(base_url=api.base_url) as nobody:
        for path in ("/v1/nothing", "/", "/v1/agents/a/b/c/d", "/v1/agents/", "/v1//x"):
            response = await nobody.get(path)
            assert response.status_code == 404
            assert without_id(response) == {
                "type": "error",
                "error": {"type": "not_found_error", "message": "Not found"},
            }


async def test_a_missing_and_a_wrong_key_are_answered_alike(api: Api) -> None:
    async with httpx.AsyncClient(base_url=api.base_url) as nobody:
        missing = await nobody.get("/v1/agents")
        answers = [missing]
        for headers in (
            {"x-api-key": "wrong"},
            {"authorization": "Bearer wrong"},
            {"authorization": "Basic wrong"},
            {"x-api-key": "corral_wt_wrong"},
            {"x-api-key": "x" * 5000},
        ):
            answers.append(await nobody.get("/v1/agents", headers=headers))
        assert {r.status_code for r in answers} == {401}
        assert all(without_id(r) == without_id(missing) for r in answers)
        assert without_id(missing)["error"]["message"] == "Authentication failed"


async def test_a_revoked_key_stops_working_at_once(api: Api) -> None:
    key, text = await api.services.keys.create("api", "short-lived")
    assert (await api.get("/v1/agents", headers={"x-api-key": text})).status_code == 200
    await api.services.keys.revoke(key.id)
    assert (await api.get("/v1/agents", headers={"x-api-key": text})).status_code == 401


async def test_both_headers_carry_every_kind_of_credential(api: Api) -> None:
    environment = await api.environment(config={"type": "self_hosted"})
    poll = f"/v1/environments/{environment['id']}/work/poll"
    environment_key, pool_key = await api.environment_key(environment["id"]), await api.pool_key()
    async with httpx.AsyncClient(base_url=api.base_url) as client:
        for path, key in (
            ("/v1/agents", api.api_key),
            (poll, environment_key),
            ("/corral/v1/work/poll", pool_key),
        ):
            assert (await client.get(path, headers={"x-api-key": key})).status_code == 200
            assert (await client.get(path, headers={"authorization": f"Bearer {key}"})).status_code == 200


async def test_a_wrong_method_on_a_known_path_is_405(api: Api) -> None:
    response = await api.http.put("/v1/agents")
    assert response.status_code == 405
    assert without_id(response)["error"] == {
        "type": "invalid_request_error",
        "message": "Method Not Allowed",
    }


async def test_every_response_names_its_request_and_the_version(api: Api) -> None:
    for response in (await api.get("/healthz"), await api.get("/v1/agents"), await api.get("/v1/none")):
        assert response.headers["request-id"].startswith("req_01")
        assert response.headers["corral-version"]


async def test_liveness_needs_no_credential(api: Api) -> None:
    async with httpx.AsyncClient(base_url=api.base_url) as nobody:
        assert (await nobody.get("/healthz")).json() == {"status": "ok"}


async def test_beta_and_version_headers_are_indifferent_by_default(api: Api) -> None:
    headers = {"anthropic-beta": "whatever-2030-01-01", "anthropic-version": "none"}
    assert (await api.get("/v1/agents?beta=true&unknown=1", headers=headers)).status_code == 200


async def test_strict_mode_wants_the_documented_beta_header(strict_api: Api) -> None:
    api = strict_api
    missing = await api.get("/v1/agents")
    assert (missing.status_code, without_id(missing)["error"]["message"]) == (404, "not found")
    wrong = await api.get("/v1/agents", headers={"anthropic-beta": "managed-agents-2026-04-01,moon"})
    assert wrong.status_code == 400
    assert "`moon`" in wrong.json()["error"]["message"]
    assert [agent async for agent in api.sdk.beta.agents.list()] == []


async def test_posts_without_a_body_are_not_parsed(api: Api) -> None:
    agent = await api.agent()
    headers = {"content-type": "application/json"}
    empty = await api.http.post(f"/v1/agents/{agent['id']}/archive", headers=headers, content=b"")
    odd = await api.http.post(f"/v1/agents/{agent['id']}/archive", headers=headers, content=b"{not json")
    assert (empty.status_code, odd.status_code) == (200, 200)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"nul",
        b"\xff\xfe",
        b'{"name": NaN}',
        b'{"name": 1e999}',
        b'{"name":"a","name":"b"}',
        b'{"name":' + b"9" * 5000 + b"}",
        b"[" * 200_000,
        b'{"name":' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"name":"a\\u0000b","model":"m"}',
        b'{"name":"a\\ud800b","model":"m"}',
        b'{"a\\u0000":"b"}',
        b'{"name":"a","model":"m","metadata":{"k\\u0000":"v"}}',
        b'{"name":"a","model":"m","metadata":{"k":"\\udfff"}}',
    ],
)
async def test_a_body_that_is_no_request_is_a_clear_400(api: Api, body: bytes) -> None:
    response = await api.http.post("/v1/agents", content=body)
    assert response.status_code == 400
    assert without_id(response)["error"]["type"] == "invalid_request_error"
    assert response.headers["x-should-retry"] == "false"


async def test_nul_and_lone_surrogates_in_free_text_become_replacement_characters(api: Api) -> None:
    body = b'{"name":"a","model":"m","system":"x\\u0000y\\ud83dz \\ud83d\\ude00"}'
    response = await api.http.post("/v1/agents", content=body)
    assert response.json()["system"] == "x\N{REPLACEMENT CHARACTER}y\N{REPLACEMENT CHARACTER}z \U0001f600"


async def test_a_body_over_32_mb_is_too_large(api: Api) -> None:
    response = await api.http.post("/v1/agents", content=b'{"name":"' + b"x" * (32 << 20) + b'"}')
    assert response.status_code == 413
    assert response.json()["error"]["type"] == "request_too_large"


@pytest.mark.parametrize(
    "path",
    [
        "/v1/agents/%00",
        "/v1/agents/a%00b",
        "/v1/agents/%ff",
        "/v1/agents/" + "a" * 129,
        "/v1/sessions/%2e%2e",
    ],
)
async def test_what_cannot_be_an_id_is_not_found(api: Api, path: str) -> None:
    assert (await api.get(path)).status_code == 404


@pytest.mark.parametrize(
    ("path", "parameter"),
    [
        ("/v1/agents?limit=101", "limit"),
        ("/v1/agents?limit=-1", "limit"),
        ("/v1/agents?limit=x", "limit"),
        ("/v1/agents?include_archived=maybe", "include_archived"),
        ("/v1/agents?created_at[gte]=yesterday", "created_at[gte]"),
        ("/v1/agents/agent_1?version=0", "version"),
        ("/v1/sessions?order=up", "order"),
        ("/v1/sessions?statuses[]=happy", "statuses"),
    ],
)
async def test_a_bad_query_parameter_is_named(api: Api, path: str, parameter: str) -> None:
    response = await api.get(path)
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(f"{parameter}:")


@pytest.mark.parametrize(
    "page", ["page", "!!!", "e30", "W10", "A" * 4000, "WzEsImFnZW50cyIsIiIsImRlc2MiLFsxXV0"]
)
async def test_a_cursor_that_is_none_of_ours_is_refused(api: Api, page: str) -> None:
    response = await api.get("/v1/agents", params={"page": page})
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "invalid page cursor"


async def test_a_cursor_of_one_list_is_not_good_in_another(api: Api) -> None:
    for _ in range(2):
        await api.agent()
        await api.environment()
    page = (await api.get("/v1/agents?limit=1")).json()["next_page"]
    assert (await api.get("/v1/environments", params={"page": page})).status_code == 400


async def test_the_last_page_has_next_page_null(api: Api) -> None:
    await api.agent()
    assert (await api.get("/v1/agents?limit=1")).json()["next_page"] is None


async def test_sessions_page_both_ways_and_keep_the_order(api: Api) -> None:
    agent, environment = await api.agent(), await api.environment()
    ids = [(await api.session(agent=agent["id"], environment_id=environment["id"]))["id"] for _ in range(5)]

    async def page(**params: Any) -> dict[str, Any]:
        response = await api.get("/v1/sessions", params={"limit": 2, **params})
        assert response.status_code == 200, response.text
        body = response.json()
        assert set(body) == {"data", "next_page", "prev_page"}
        return {**body, "ids": [s["id"] for s in body["data"]]}

    for order, expected in (("desc", ids[::-1]), ("asc", ids)):
        first = await page(order=order)
        assert (first["ids"], first["prev_page"]) == (expected[:2], None)
        second = await page(order=order, page=first["next_page"])
        third = await page(order=order, page=second["next_page"])
        assert (second["ids"], third["ids"], third["next_page"]) == (expected[2:4], expected[4:], None)
        back = await page(order=order, page=third["prev_page"])
        assert back["ids"] == expected[2:4]
        start = await page(order=order, page=back["prev_page"])
        assert (start["ids"], start["prev_page"]) == (expected[:2], None)
        assert (await page(order=order, page=start["next_page"]))["ids"] == expected[2:4]


async def test_a_session_cursor_is_bound_to_its_order_and_to_times_that_hold_it(api: Api) -> None:
    made = [await api.session() for _ in range(3)]
    page = (await api.get("/v1/sessions?limit=1")).json()["next_page"]
    other = await api.get("/v1/sessions", params={"page": page, "order": "asc"})
    assert other.json()["error"]["message"] == "page token order does not match request"
    params = {"page": page, "created_at[lt]": made[1]["created_at"]}
    assert (await api.get("/v1/sessions", params=params)).status_code == 400
    params = {"page": page, "created_at[gte]": made[1]["created_at"], "limit": "5", "statuses[]": "idle"}
    listed = (await api.get("/v1/sessions", params=params)).json()["data"]
    assert [s["id"] for s in listed] == [made[1]["id"]]


async def test_sessions_filter_by_agent_version_and_status(api: Api) -> None:
    agent = await api.agent()
    first = await api.session(agent={"type": "agent", "id": agent["id"], "version": 1})
    await api.post(f"/v1/agents/{agent['id']}", {"name": "next"})
    second = await api.session(agent=agent["id"])
    await api.session()

    async def ids(query: str) -> list[str]:
        return [s["id"] for s in (await api.get(f"/v1/sessions?{query}")).json()["data"]]

    assert await ids(f"agent_id={agent['id']}") == [second["id"], first["id"]]
    assert await ids(f"agent_id={agent['id']}&agent_version=1") == [first["id"]]
    assert await ids("statuses[]=running&statuses[]=terminated") == []
    assert await ids("deployment_id=depl_x") == []
    await api.post(f"/v1/sessions/{second['id']}/archive")
    assert await ids(f"agent_id={agent['id']}") == [first["id"]]
    assert len(await ids(f"agent_id={agent['id']}&include_archived=true")) == 2


async def test_a_stream_of_an_unknown_session_is_a_json_404(api: Api) -> None:
    for path in ("/v1/sessions/sesn_x/events/stream", "/v1/sessions/sesn_x/threads/sthr_x/stream"):
        response = await api.get(path)
        assert response.status_code == 404
        assert response.headers["content-type"] == "application/json"


async def test_a_stream_sends_its_headers_before_any_event_and_ends_when_the_server_closes(api: Api) -> None:
    session = await api.session()
    async with api.http.stream("GET", f"/v1/sessions/{session['id']}/events/stream") as response:
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["x-accel-buffering"] == "no"
        assert response.headers["request-id"]
        api.services.closing.set()
        async with asyncio.timeout(3):
            assert await response.aread() == b""


async def test_a_deleted_session_ends_its_streams_with_the_event(api: Api) -> None:
    session = await api.session()
    async with await api.sdk.beta.sessions.events.stream(session["id"]) as stream:
        await api.sdk.beta.sessions.delete(session["id"])
        async with asyncio.timeout(5):
            assert [event.type async for event in stream] == ["session.deleted"]


async def test_streams_hold_no_database_connection_and_leave_none_behind(api: Api) -> None:
    session = await api.session()
    path = f"/v1/sessions/{session['id']}/events/stream"
    responses = [await api.http.send(api.http.build_request("GET", path), stream=True) for _ in range(25)]
    assert (await api.get("/v1/agents")).status_code == 200
    statistics = api.database.statistics
    assert statistics["pool_available"] == statistics["pool_size"]
    for response in responses:
        await response.aclose()


@pytest.mark.parametrize("value", ["agent.tool_use", "session.error"])
async def test_only_messages_and_thinking_can_be_previewed(api: Api, value: str) -> None:
    session = await api.session()
    response = await api.get(f"/v1/sessions/{session['id']}/events/stream", params={"event_deltas[]": value})
    assert response.status_code == 400


async def test_a_waiting_poll_ends_when_the_server_closes(api: Api) -> None:
    headers = {"x-api-key": await api.pool_key(), "anthropic-worker-id": "w"}
    polling = asyncio.create_task(
        api.get("/corral/v1/work/poll", params={"block_ms": 30000}, headers=headers)
    )
    while not await api.database.fetch("select 1 from workers"):
        assert not polling.done()
    api.services.closing.set()
    async with asyncio.timeout(3):
        assert (await polling).json() is None


async def test_events_are_sent_and_listed_with_types_and_cursor(api: Api) -> None:
    session = await api.session()
    path = f"/v1/sessions/{session['id']}/events"
    events = [{"type": "user.message", "content": [{"type": "text", "text": str(i)}]} for i in range(3)]
    sent = (await api.post(path, {"events": events})).json()
    assert [e["processed_at"] for e in sent["data"]] == [None, None, None]
    listed = [e.to_dict() async for e in api.sdk.beta.sessions.events.list(session["id"], limit=1)]
    assert [e["id"] for e in listed] == [e["id"] for e in sent["data"]]
    assert (await api.get(path, params={"types[]": "agent.message"})).json() == {
        "data": [],
        "next_page": None,
    }
    assert (await api.get(path, params={"types[]": "session.deleted"})).status_code == 400
    refused = await api.post(path, {"events": [{"type": "tool_confirmation"}]})
    assert refused.json()["error"]["message"] == 'events[0].type: "tool_confirmation" is not a valid value'
    assert json.loads(refused.content)["request_id"]


async def test_the_primary_thread_is_listed_read_and_never_archived(api: Api) -> None:
    session = await api.session()
    threads = [t async for t in api.sdk.beta.sessions.threads.list(session["id"])]
    assert [t.parent_thread_id for t in threads] == [None]
    thread = threads[0]
    assert await api.sdk.beta.sessions.threads.retrieve(thread.id, session_id=session["id"]) == thread
    events = api.sdk.beta.sessions.threads.events.list(thread.id, session_id=session["id"])
    assert [e async for e in events] == []
    response = await api.post(f"/v1/sessions/{session['id']}/threads/{thread.id}/archive")
    assert response.status_code == 400
    response = await api.get(f"/v1/sessions/{session['id']}/threads/sthr_other")
    assert response.status_code == 404
