"""The proxy between the SDK's tests and the server: what it puts in, what it sends on, what it hands back."""

import asyncio
import sys
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio
from starlette.responses import Response, StreamingResponse

from tests.conformance.sdk.keys import ApiKeyInstead, EnvironmentKeys, KeysByCommand
from tests.conformance.sdk.proxy import proxy_app
from tests.conformance.sdk.recording_server import RecordingServer, json_answer
from tests.conformance.sdk.serving import served

AGENT = "/v1/agents/agent_of_the_test"
ENVIRONMENT = "/v1/environments/env_of_the_test"


@pytest.fixture
def server() -> RecordingServer:
    return RecordingServer()


@pytest.fixture
def keys() -> EnvironmentKeys:
    return ApiKeyInstead()


@pytest_asyncio.fixture
async def client(server: RecordingServer, keys: EnvironmentKeys) -> AsyncIterator[httpx.AsyncClient]:
    """What a test of the SDK's would use."""
    async with served(server.app) as target:
        async with proxy_app(target, "real_key", keys, "claude-haiku-4-5") as app, served(app) as url:
            headers = {"authorization": "Bearer key_of_the_test"}
            async with httpx.AsyncClient(base_url=url, headers=headers, trust_env=False) as http:
                yield http


async def test_a_named_resource_is_made_fresh_for_each_request(
    client: httpx.AsyncClient, server: RecordingServer
) -> None:
    for _ in range(2):
        await client.get(AGENT)

    made_and_asked = [
        "POST /v1/agents",
        "GET /v1/agents/agents_1",
        "POST /v1/agents",
        "GET /v1/agents/agents_3",
    ]
    assert server.names == made_and_asked


async def test_the_server_gets_its_own_key_and_not_the_tests(
    client: httpx.AsyncClient, server: RecordingServer
) -> None:
    await client.get(AGENT)

    assert {one.key for one in server.heard} == {"real_key"}


async def test_headers_that_mean_something_are_sent_on(
    client: httpx.AsyncClient, server: RecordingServer
) -> None:
    await client.get(AGENT, headers={"anthropic-beta": "one,two", "anthropic-workspace-id": "wrkspc_made_up"})

    assert server.last.headers["anthropic-beta"] == "one,two"
    assert "anthropic-workspace-id" not in server.last.headers


async def test_an_answer_comes_back_byte_for_byte(client: httpx.AsyncClient, server: RecordingServer) -> None:
    body = b'{ "odd" :  "spacing", "half": tru'
    server.answers["GET /v1/agents/agents_1"] = Response(body, 418, {"request-id": "req_1", "x-odd": "yes"})

    answer = await client.get(AGENT)

    assert (answer.status_code, answer.content) == (418, body)
    assert (answer.headers["request-id"], answer.headers["x-odd"]) == ("req_1", "yes")


async def test_a_refusal_while_preparing_is_told_with_its_reason(
    client: httpx.AsyncClient, server: RecordingServer
) -> None:
    server.answers["POST /v1/agents"] = json_answer({"error": {"message": "no more agents"}}, 403)

    answer = await client.get(AGENT)

    assert answer.status_code == 424
    assert "POST /v1/agents answered 403" in answer.json()["error"]["message"]
    assert "no more agents" in answer.json()["error"]["message"]
    assert server.names == ["POST /v1/agents"]


async def test_a_route_without_a_rule_is_told(client: httpx.AsyncClient, server: RecordingServer) -> None:
    answer = await client.post("/v1/unheard_of")

    assert answer.status_code == 424
    assert "no rule for POST /v1/unheard_of" in answer.json()["error"]["message"]
    assert server.heard == []


async def test_a_server_that_is_gone_is_told(server: RecordingServer) -> None:
    async with served(server.app) as target:
        pass

    async with proxy_app(target, "real_key", ApiKeyInstead(), "claude-haiku-4-5") as app:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://proxy") as client:
            unprepared = await client.get(AGENT)
            unsent = await client.post("/v1/environments", json={"name": "x"})

    assert (unprepared.status_code, unsent.status_code) == (424, 502)
    assert "broke off" in unsent.json()["error"]["message"]


async def test_a_body_less_post_stays_without_a_body(
    client: httpx.AsyncClient, server: RecordingServer
) -> None:
    await client.post(AGENT + "/archive", headers={"content-type": "application/json"})

    assert server.last.name == "POST /v1/agents/agents_1/archive"
    assert server.last.content == b""


async def test_zero_limits_and_passed_times_become_useful(
    client: httpx.AsyncClient, server: RecordingServer
) -> None:
    moment = "2019-12-27T18:11:19.117000+00:00"
    query = {"limit": "0", "created_at[gte]": moment, "created_at[lte]": moment, "include_archived": "true"}

    await client.get("/v1/agents", params=query)

    asked = httpx.QueryParams(server.last.query)
    assert dict(asked) == {**query, "limit": "1", "created_at[lte]": "2099-12-31T23:59:59Z"}


async def test_a_made_up_cursor_becomes_the_lists_own(
    client: httpx.AsyncClient, server: RecordingServer
) -> None:
    server.answers["GET /v1/agents"] = json_answer({"data": [], "next_page": "real"})

    await client.get("/v1/agents", params={"limit": "0", "page": "page", "include_archived": "true"})

    looked, asked = (httpx.QueryParams(one.query) for one in server.heard[-2:])
    assert dict(looked) == {"include_archived": "true", "limit": "1"}
    assert dict(asked) == {"include_archived": "true", "limit": "1", "page": "real"}


async def test_without_a_second_page_the_first_is_asked_for(
    client: httpx.AsyncClient, server: RecordingServer
) -> None:
    await client.get("/v1/agents", params={"page": "page"})

    assert server.last.query == ""


async def test_a_stream_arrives_while_it_is_still_open_and_ends_with_its_reader(
    client: httpx.AsyncClient, server: RecordingServer
) -> None:
    ended = asyncio.Event()

    async def frames() -> AsyncIterator[bytes]:
        try:
            yield b"event: ping\ndata: {}\n\n"
            await asyncio.Event().wait()
        finally:
            ended.set()

    streamed = StreamingResponse(frames(), media_type="text/event-stream")
    server.answers["GET /v1/sessions/sessions_3/events/stream"] = streamed

    async with client.stream("GET", "/v1/sessions/sesn_of_the_test/events/stream") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert await anext(answer.aiter_raw()) == b"event: ping\ndata: {}\n\n"

    async with asyncio.timeout(20):
        await ended.wait()


class TestWithEnvironmentKeys:
    @pytest.fixture
    def keys(self) -> EnvironmentKeys:
        return KeysByCommand([sys.executable, "-c", "print('key_of_{environment}')"])

    async def test_a_worker_polls_with_its_environments_key(
        self, client: httpx.AsyncClient, server: RecordingServer
    ) -> None:
        await client.get(ENVIRONMENT + "/work/poll", params={"block_ms": "1"})

        assert server.last.name == "GET /v1/environments/environments_1/work/poll"
        assert (server.last.key, server.last.query) == ("key_of_environments_1", "block_ms=1")

    async def test_a_first_heartbeat_is_announced_as_one(
        self, client: httpx.AsyncClient, server: RecordingServer
    ) -> None:
        query = {"desired_ttl_seconds": "0", "expected_last_heartbeat": "expected_last_heartbeat"}

        await client.post(ENVIRONMENT + "/work/work_id/heartbeat", params=query)

        assert server.names[-2:] == [
            "POST /v1/environments/environments_1/work/poll_4/ack",
            "POST /v1/environments/environments_1/work/poll_4/heartbeat",
        ]
        assert server.last.query == "desired_ttl_seconds=60&expected_last_heartbeat=NO_HEARTBEAT"

    async def test_an_application_stops_work_with_the_api_key(
        self, client: httpx.AsyncClient, server: RecordingServer
    ) -> None:
        await client.post(ENVIRONMENT + "/work/work_id/stop", json={"force": True})

        assert (server.last.key, server.last.body) == ("real_key", {"force": True})


class TestWithACommandThatFails:
    @pytest.fixture
    def keys(self) -> EnvironmentKeys:
        return KeysByCommand([sys.executable, "-c", "import sys; sys.exit('no such environment')"])

    async def test_the_reason_is_told(self, client: httpx.AsyncClient) -> None:
        answer = await client.get(ENVIRONMENT + "/work/poll")

        assert answer.status_code == 424
        assert "no such environment" in answer.json()["error"]["message"]
