"""Headers of requests and responses, and the envelopes of errors and lists (contract sections 2.1 to 2.4)."""

import re
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from anthropic.types import beta
from anthropic.types.beta.environments import BetaHeartbeatPreconditionFailedError

from tests.contract.conftest import Api
from tests.contract.refusals import refused
from tests.contract.test_sessions_create import message

ID = re.compile(r"[a-z]+_01[1-9A-HJ-NP-Za-km-z]+")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


async def bare(api: Api, method: str, path: str, **headers: str) -> httpx.Response:
    """A request with these headers and no others of ours."""
    async with httpx.AsyncClient(base_url=api.base_url) as client:
        return await client.request(method, path, headers=headers)


async def test_a_bearer_token_goes_before_an_api_key(api: Api) -> None:
    good, bad = api.api_key, "wrong"
    taken = await bare(api, "GET", "/v1/agents", **{"authorization": f"Bearer {good}", "x-api-key": bad})
    assert taken.status_code == 200
    wrong = await bare(api, "GET", "/v1/agents", **{"authorization": f"Bearer {bad}", "x-api-key": good})
    assert wrong.status_code == 401
    # What is no bearer token is no credential.
    other = await bare(api, "GET", "/v1/agents", **{"authorization": "Basic eDp5", "x-api-key": good})
    assert other.status_code == 200
    lower = await bare(api, "GET", "/v1/agents", authorization=f"bearer {good}")
    assert lower.status_code == 200


@pytest.mark.parametrize("version", ["2023-06-01", "2026-10-21", "2099-01-01", ""])
async def test_any_api_version_is_taken_and_none(api: Api, version: str) -> None:
    headers = {"anthropic-version": version} if version else {}
    assert (await api.get("/v1/sessions", headers=headers)).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"anthropic-workspace-id": "wrkspc_011CZkZaBF1tNoB5wlCeusgy"},
        {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
        {"x-stainless-retry-count": "2", "x-stainless-lang": "python"},
        {"accept": "text/event-stream"},
        {"accept": "text/html"},
        {"idempotency-key": "again"},
    ],
    ids=lambda headers: next(iter(headers)),
)
async def test_headers_of_the_sdk_that_say_nothing_here_are_taken(api: Api, headers: dict[str, str]) -> None:
    assert (await api.get("/v1/sessions?beta=true", headers=headers)).status_code == 200


async def test_a_stream_is_chosen_by_its_path_not_by_what_is_accepted(api: Api) -> None:
    session = await api.session()
    path = f"/v1/sessions/{session['id']}/events"
    for accept in ("application/json", "text/event-stream", "*/*"):
        async with api.http.stream("GET", f"{path}/stream", headers={"accept": accept}) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
        listed = await api.get(path, headers={"accept": accept})
        assert listed.headers["content-type"] == "application/json"


async def test_the_same_event_sent_again_is_another_event(api: Api) -> None:
    """No request carries a key that would make it the same: a client that repeats it says it twice."""
    session = await api.session()
    path = f"/v1/sessions/{session['id']}/events"
    for count in ("0", "1"):
        headers = {"x-stainless-retry-count": count}
        assert (await api.post(path, {"events": [message("once")]}, headers=headers)).status_code == 200
    listed = (await api.get(path)).json()["data"]
    assert len({event["id"] for event in listed}) == 2


async def test_a_wrong_credential_is_told_before_a_wrong_header_or_body(strict_api: Api) -> None:
    unknown = await bare(strict_api, "GET", "/v1/nothing", **{"anthropic-beta": "moon"})
    assert (unknown.status_code, unknown.json()["error"]["message"]) == (404, "Not found")
    wrong = await bare(strict_api, "GET", "/v1/agents", **{"anthropic-beta": "moon", "x-api-key": "no"})
    assert wrong.status_code == 401
    missing = await strict_api.http.post("/v1/agents", content=b"{")
    assert (missing.status_code, missing.json()["error"]["message"]) == (404, "not found")
    method = await bare(strict_api, "PUT", "/v1/agents", **{"x-api-key": "no"})
    assert method.status_code == 405


async def test_strict_mode_takes_several_values_in_one_header_or_in_many(strict_api: Api) -> None:
    managed, other = "managed-agents-2026-04-01", "skills-2025-10-02"
    for headers in (
        [("anthropic-beta", f"{other}, {managed}")],
        [("anthropic-beta", other), ("anthropic-beta", managed)],
    ):
        assert (await strict_api.http.get("/v1/agents", headers=headers)).status_code == 200
    both = {"anthropic-beta": f"{managed},agent-memory-2026-07-22"}
    refused = await strict_api.http.get("/v1/memory_stores", headers=both)
    assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request_error")
    for alone in (managed, "agent-memory-2026-07-22"):
        listed = await strict_api.http.get("/v1/memory_stores", headers={"anthropic-beta": alone})
        assert listed.status_code == 200


async def test_strict_mode_names_a_value_that_nobody_knows(strict_api: Api) -> None:
    headers = {"anthropic-beta": "managed-agents-2026-04-01,moon-2030-01-01"}
    refused = await strict_api.http.get("/v1/agents", headers=headers)
    assert refused.json()["error"] == {
        "type": "invalid_request_error",
        "message": "Unexpected value(s) `moon-2030-01-01` for the `anthropic-beta` header",
    }


async def test_strict_mode_hides_streams_from_whoever_sends_no_header(strict_api: Api) -> None:
    session = await strict_api.http.get("/v1/sessions/sesn_x/events/stream")
    assert (session.status_code, session.json()["error"]["message"]) == (404, "not found")


ERRORS = [
    ("GET", "/v1/nothing", None, 404, "not_found_error"),
    ("GET", "/v1/sessions/sesn_none", None, 404, "not_found_error"),
    ("PATCH", "/v1/sessions/sesn_none", None, 405, "invalid_request_error"),
    ("POST", "/v1/sessions", b"{}", 400, "invalid_request_error"),
    ("GET", "/v1/sessions?limit=x", None, 400, "invalid_request_error"),
    ("POST", "/v1/sessions", b'{"title":"' + b"x" * (33 << 20) + b'"}', 413, "request_too_large"),
]


@pytest.mark.parametrize(("method", "path", "body", "status", "kind"), ERRORS, ids=range(len(ERRORS)))
async def test_every_error_has_the_one_envelope_and_says_whether_to_retry(
    api: Api, method: str, path: str, body: bytes | None, status: int, kind: str
) -> None:
    response = await api.http.request(method, path, content=body)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-should-retry"] == "false"
    answer = response.json()
    assert set(answer) == {"type", "error", "request_id"}
    assert (answer["type"], answer["error"]["type"]) == ("error", kind)
    assert set(answer["error"]) == {"type", "message"}
    assert answer["request_id"] == response.headers["request-id"]
    assert ID.fullmatch(answer["request_id"])


async def test_a_credential_for_something_else_is_a_403(api: Api) -> None:
    environment = await api.environment(config={"type": "self_hosted"})
    key = await api.environment_key(environment["id"])
    response = await api.get("/v1/agents", headers={"x-api-key": key})
    assert (response.status_code, response.json()["error"]["type"]) == (403, "permission_error")
    assert response.headers["x-should-retry"] == "false"


async def test_the_sdk_raises_the_class_of_an_error_by_its_code(api: Api) -> None:
    agent, gone = (await api.agent())["id"], (await api.environment())["id"]
    await api.sdk.beta.environments.archive(gone)
    environment = (await api.environment(config={"type": "self_hosted"}))["id"]
    session = await api.session(environment_id=environment)
    sessions: Any = api.sdk.beta.sessions
    create = sessions.create(agent=agent, environment_id=gone)
    await refused(create, "is archived", kind=beta.BetaEnvironmentArchivedError)
    create = sessions.create(agent=agent, environment_id="env_none")
    await refused(create, "env_none", kind=beta.BetaEnvironmentNotFoundError)
    update = sessions.update(session["id"], metadata={"k" * 65: "v"})
    await refused(update, "metadata", kind=beta.BetaInvalidMetadataError)
    async with api.client(await api.environment_key(environment)) as worker:
        work = worker.beta.environments.work
        item = await work.poll(environment)
        assert item is not None
        await work.ack(item.id, environment_id=environment)
        beat = work.heartbeat(item.id, environment_id=environment, expected_last_heartbeat="x")
        await refused(beat, kind=BetaHeartbeatPreconditionFailedError)


async def lists(api: Api) -> dict[str, dict[str, Any]]:
    """The answer of each list of sessions, events, threads and work, with something in it."""
    environment = await api.environment(config={"type": "self_hosted"})
    session = await api.session(environment_id=environment["id"])
    path = f"/v1/sessions/{session['id']}"
    await api.post(f"{path}/events", {"events": [message()]})
    thread = (await api.get(f"{path}/threads")).json()["data"][0]["id"]
    key = {"x-api-key": await api.environment_key(environment["id"])}
    found: dict[str, dict[str, Any]] = {}
    for name, headers in {
        "/v1/sessions": {},
        f"{path}/events": {},
        f"{path}/threads": {},
        f"{path}/threads/{thread}/events": {},
        f"{path}/resources": {},
        f"/v1/environments/{environment['id']}/work": key,
    }.items():
        response = await api.get(name, headers=headers)
        assert response.status_code == 200, response.text
        found[name] = response.json()
    return found


async def test_a_list_has_data_and_next_page_and_only_that_of_sessions_prev_page(api: Api) -> None:
    for path, answer in (await lists(api)).items():
        expected = {"data", "next_page"} | ({"prev_page"} if path == "/v1/sessions" else set[str]())
        assert set(answer) == expected, path
        assert answer["next_page"] is None, path


async def test_ids_say_what_they_name_and_times_are_utc(api: Api) -> None:
    prefixes = {"session": "sesn", "session_thread": "sthr", "work": "work", "user.message": "sevt"}
    seen: set[str] = set()
    for answer in (await lists(api)).values():
        for item in answer["data"]:
            seen.add(item["type"])
            assert ID.fullmatch(item["id"]), item["id"]
            assert item["id"].startswith(f"{prefixes[item['type']]}_01")
            for name, value in item.items():
                if name.endswith("_at") and value is not None:
                    assert TIME.fullmatch(value), (name, value)
    assert seen == set(prefixes)


@pytest.mark.parametrize(
    "moment",
    [
        "2020-01-01T00:00:00Z",
        "2020-01-01T00:00:00.000Z",
        "2020-01-01T00:00:00.123456Z",
        "2020-01-01T02:00:00+02:00",
        "2020-01-01T00:00:00-07:00",
    ],
)
async def test_times_are_taken_with_a_fraction_and_without_and_with_any_offset(api: Api, moment: str) -> None:
    session = await api.session()
    for path in ("/v1/sessions", f"/v1/sessions/{session['id']}/events"):
        for word in ("gt", "gte", "lt", "lte"):
            response = await api.get(path, params={f"created_at[{word}]": moment})
            assert response.status_code == 200
            found = len(response.json()["data"])
            assert found == (1 if word.startswith("g") and path == "/v1/sessions" else 0)


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("limit=1&limit=2", "limit: given more than once"),
        ("limit=1e2", "limit: Input should be a valid integer"),
        ("limit=99999999999999999999", "limit: must be between 0 and 1000"),
        ("order=ASC", 'order: "ASC" is not a valid value'),
        ("created_at[gt]=2020-13-01T00:00:00Z", "created_at[gt]: Input should be a valid RFC 3339"),
        ("created_at[lte]=1577836800", "created_at[lte]: Input should be a valid RFC 3339"),
        ("include_archived=yes", "include_archived: Input should be a valid boolean"),
        ("statuses[]=idle&statuses=busy", 'statuses: "busy" is not a valid value'),
        ("agent_id=a&agent_version=0", "agent_version: must be between 1 and"),
    ],
)
async def test_a_parameter_out_of_bounds_is_named(api: Api, query: str, named: str) -> None:
    response = await api.get(f"/v1/sessions?{query}")
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(named), response.text


async def test_a_limit_is_taken_up_to_its_bound_and_zero_or_nothing_is_the_default(api: Api) -> None:
    agent, environment = (await api.agent())["id"], (await api.environment())["id"]
    for _ in range(21):
        await api.session(agent=agent, environment_id=environment)
    for query, count in (("", 20), ("?limit=0", 20), ("?limit=", 20), ("?limit=1", 1), ("?limit=1000", 21)):
        listed = (await api.get(f"/v1/sessions{query}")).json()
        assert len(listed["data"]) == count
        assert (listed["next_page"] is None) == (count == 21)
    assert (await api.get("/v1/sessions?page=")).status_code == 200


async def test_a_list_goes_out_by_either_form_of_its_name(api: Api) -> None:
    session = await api.session()
    path = f"/v1/sessions/{session['id']}/events"
    await api.post(path, {"events": [message(), {"type": "user.interrupt"}]})
    for query in (
        "types[]=user.message&types[]=user.interrupt",
        "types=user.message&types=user.interrupt",
        "types%5B%5D=user.message&types=user.interrupt",
        "types[]=user.message&types[]=user.message&types[]=user.interrupt",
    ):
        assert len((await api.get(f"{path}?{query}")).json()["data"]) == 2
    too_many = "&".join(["types[]=user.message"] * 101)
    response = await api.get(f"{path}?{too_many}")
    assert response.json()["error"]["message"] == "types: at most 100 values"


async def test_the_sdks_own_spelling_of_every_filter_is_understood(api: Api) -> None:
    session = await api.session()
    long_ago = datetime(2020, 1, 1, tzinfo=UTC)
    listed = api.sdk.beta.sessions.list(
        created_at_gte=long_ago, include_archived=True, limit=3, statuses=["idle", "running"], order="asc"
    )
    assert [one.id async for one in listed] == [session["id"]]
    events = api.sdk.beta.sessions.events.list(
        session["id"], created_at_gt=long_ago, types=["agent.message", "user.message"], order="desc"
    )
    assert [event async for event in events] == []
    await refused(api.sdk.beta.sessions.events.list(session["id"], page="x"), "invalid page cursor")
