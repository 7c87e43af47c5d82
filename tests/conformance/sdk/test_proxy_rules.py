"""The rules of single families: bodies that name things, and values that must agree with what was made."""

from typing import Any

import httpx
import pytest
from starlette.requests import Request

from tests.conformance.sdk import uploads
from tests.conformance.sdk.asked import Asked
from tests.conformance.sdk.keys import ApiKeyInstead
from tests.conformance.sdk.public_api import PublicApi
from tests.conformance.sdk.recording_server import RecordingServer, json_answer
from tests.conformance.sdk.routes import ALL, Routes
from tests.conformance.sdk.workshop import Workshop


@pytest.fixture
def server() -> RecordingServer:
    return RecordingServer()


async def prepared(
    server: RecordingServer, method: str, path: str, body: dict[str, Any] | None = None, query: str = ""
) -> Asked:
    """The request as its rule leaves it."""
    found = Routes(ALL).find(method, path)
    assert found is not None
    asked = Asked.read(method, found.template, found.params, query, {}, b"")
    asked.body = body
    transport = httpx.ASGITransport(server.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as http:
        await found.rule(asked, Workshop(PublicApi(http, "key"), ApiKeyInstead(), "claude-haiku-4-5"))
    return asked


async def test_an_mcp_server_gets_the_toolset_that_it_must_have(server: RecordingServer) -> None:
    servers = [{"type": "url", "name": "example", "url": "https://example.com"}]

    asked = await prepared(server, "POST", "/v1/agents", {"name": "x", "model": "m", "mcp_servers": servers})

    assert asked.fields["tools"] == [{"type": "mcp_toolset", "mcp_server_name": "example"}]


async def test_members_of_a_roster_are_made_in_the_agents_region(server: RecordingServer) -> None:
    roster = {"type": "coordinator", "agents": ["agent_made_up", {"type": "self"}]}
    model = {"id": "m", "inference_geo": "inference_geo"}

    asked = await prepared(
        server, "POST", "/v1/agents/agent_made_up", {"model": model, "multiagent": roster, "version": 1}
    )

    assert asked.params["agent_id"] == "agents_1"
    assert asked.fields["multiagent"]["agents"] == ["agents_2", {"type": "self"}]
    assert server.last.body["model"]["inference_geo"] == asked.fields["model"]["inference_geo"] == "us"


async def test_predefined_agents_are_made_in_both_of_their_forms(server: RecordingServer) -> None:
    block = {
        "type": "multiagent_20261001",
        "subagents": {"type": "enabled", "predefined_agents": ["agent_made_up"]},
        "workflows": {"type": "enabled", "predefined_agents": [{"type": "agent", "id": "agent_made_up"}]},
    }

    asked = await prepared(server, "POST", "/v1/agents", {"name": "x", "model": "m", "multiagent": block})

    assert asked.fields["multiagent"]["subagents"]["predefined_agents"] == ["agents_1"]
    assert asked.fields["multiagent"]["workflows"]["predefined_agents"] == [
        {"type": "agent", "id": "agents_2"}
    ]


async def test_a_session_is_asked_for_on_an_agent_an_environment_and_a_vault_that_exist(
    server: RecordingServer,
) -> None:
    body = {"agent": "agent_made_up", "environment_id": "env_made_up", "vault_ids": ["string"]}

    asked = await prepared(server, "POST", "/v1/sessions", body)

    assert asked.fields == {
        "agent": "agents_1",
        "environment_id": "environments_2",
        "vault_ids": ["vaults_3"],
    }


async def test_a_budget_is_raised_on_a_session_that_has_a_smaller_one(server: RecordingServer) -> None:
    budget = {"type": "limit", "max_list_cost": {"amount": "2500", "currency": "USD"}}

    asked = await prepared(server, "POST", "/v1/sessions/sesn", {"budget": budget, "vault_ids": ["string"]})

    assert asked.fields == {"budget": budget}
    assert int(server.last.body["budget"]["max_list_cost"]["amount"]) < 2500


async def test_a_precondition_says_what_is_stored(server: RecordingServer) -> None:
    memory = {"id": "mem_1", "content_sha256": "of_what_is_stored"}
    server.answers["POST /v1/memory_stores/memory_stores_1/memories"] = json_answer(memory)
    precondition = {"type": "content_sha256", "content_sha256": "made_up"}

    asked = await prepared(
        server, "POST", "/v1/memory_stores/store/memories/memory", {"precondition": precondition}
    )

    assert asked.path == "/v1/memory_stores/memory_stores_1/memories/mem_1"
    assert asked.fields["precondition"]["content_sha256"] == "of_what_is_stored"


async def test_a_version_that_can_be_redacted_is_not_the_latest(server: RecordingServer) -> None:
    memory = {"id": "mem_1", "memory_version_id": "memver_first"}
    server.answers["POST /v1/memory_stores/memory_stores_1/memories"] = json_answer(memory)

    asked = await prepared(server, "POST", "/v1/memory_stores/store/memory_versions/version/redact")

    assert asked.params["memory_version_id"] == "memver_first"
    assert server.last.name == "POST /v1/memory_stores/memory_stores_1/memories/mem_1"


async def test_ids_of_files_are_asked_for_without_a_page(server: RecordingServer) -> None:
    query = "ids%5B%5D=string&limit=1&page=page&scope_id=scope_id"

    asked = await prepared(server, "GET", "/v1/files", query=query)

    assert asked.query == [("ids[]", "files_1"), ("scope_id", "sessions_5")]


async def test_a_form_holds_a_skill_that_is_one(server: RecordingServer) -> None:
    content, content_type = uploads.skill("receipts", display_name="Receipts")
    scope = {
        "type": "http",
        "method": "POST",
        "headers": [(b"content-type", content_type.encode())],
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": content, "more_body": False}

    request = Request(scope, receive)
    body = await request.body()
    assert content_type.startswith("multipart/form-data; boundary=")
    assert body.count(b'name="files[]"') == 2
    assert b'filename="receipts/SKILL.md"' in body
    assert b"---\nname: receipts\n" in body


def test_a_fixed_segment_wins_over_a_parameter() -> None:
    found = Routes(ALL).find("GET", "/v1/environments/env/work/poll")

    assert found is not None
    assert found.template.endswith("/work/poll")


async def test_a_test_never_gains_a_parameter() -> None:
    asked = Asked.read("GET", "/v1/agents", {}, "limit=1", {}, b"")

    with pytest.raises(KeyError, match="page"):
        asked.put("page", "x")
