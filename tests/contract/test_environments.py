"""Environments through the official SDK (contract section 7)."""

import asyncio
from typing import Any

import anthropic
import pytest

from .conftest import Api

LIMITED: Any = {"type": "cloud", "networking": {"type": "limited", "allowed_hosts": ["api.example.com"]}}


async def test_an_environment_without_config_is_an_unrestricted_cloud(api: Api) -> None:
    environment = await api.sdk.beta.environments.create(name="E")
    assert environment.config.to_dict() == {
        "type": "cloud",
        "networking": {"type": "unrestricted"},
        "packages": {
            "type": "packages", "apt": [], "cargo": [], "gem": [], "go": [], "npm": [], "pip": []
        },
    }  # fmt: skip
    assert (environment.scope, environment.metadata, environment.description) == ("organization", {}, None)
    assert await api.sdk.beta.environments.retrieve(environment.id) == environment


async def test_an_update_merges_inside_the_config(api: Api) -> None:
    environment = await api.sdk.beta.environments.create(
        name="E",
        config={
            "type": "cloud",
            "networking": {"type": "limited", "allowed_hosts": ["a.example"], "allow_package_managers": True},
            "packages": {"pip": ["pandas==2"]},
        },
    )
    updated = await api.sdk.beta.environments.update(
        environment.id,
        config={
            "type": "cloud",
            "networking": {"type": "limited", "allow_mcp_servers": True},
            "packages": {"npm": ["x"]},
        },
    )
    config: Any = updated.config.to_dict()
    assert config["networking"] == {
        "type": "limited",
        "allowed_hosts": ["a.example"],
        "allow_mcp_servers": True,
        "allow_package_managers": True,
    }
    assert (config["packages"]["pip"], config["packages"]["npm"]) == (["pandas==2"], ["x"])


async def test_an_update_keeps_what_is_absent_and_clears_what_is_null(api: Api) -> None:
    made = await api.environment(description="d", metadata={"a": "1", "b": "2", "c": "3"})
    path = f"/v1/environments/{made['id']}"
    kept = (await api.post(path, {"metadata": {"a": None, "b": ""}})).json()
    assert (kept["description"], kept["metadata"], kept["name"]) == ("d", {"c": "3"}, "Environment")
    assert (await api.post(path, {"description": ""})).json()["description"] == ""
    assert (await api.post(path, {"description": None})).json()["description"] is None


async def test_an_update_that_changes_nothing_leaves_updated_at(api: Api) -> None:
    made = await api.environment()
    same = (await api.post(f"/v1/environments/{made['id']}", {"name": "Environment"})).json()
    assert same == made


async def test_the_config_type_cannot_change(api: Api) -> None:
    made = await api.environment(config={"type": "self_hosted"})
    response = await api.post(f"/v1/environments/{made['id']}", {"config": {"type": "cloud"}})
    assert response.status_code == 400
    assert response.json()["error"]["details"]["error_code"] == "invalid_config_type_change"


async def test_an_archived_environment_takes_no_update_and_no_session(api: Api) -> None:
    made = await api.environment()
    archived = await api.sdk.beta.environments.archive(made["id"])
    assert archived.archived_at is not None
    assert await api.sdk.beta.environments.archive(made["id"]) == archived
    for response in (
        await api.post(f"/v1/environments/{made['id']}", {"name": "x"}),
        await api.post("/v1/sessions", {"agent": (await api.agent())["id"], "environment_id": made["id"]}),
    ):
        assert response.status_code == 400
        assert response.json()["error"]["details"]["error_code"] == "environment_archived"
        assert made["id"] in response.json()["error"]["message"]


async def test_the_list_hides_archived_environments_unless_asked(api: Api) -> None:
    ids = [(await api.environment())["id"] for _ in range(4)]
    await api.sdk.beta.environments.archive(ids[1])
    assert [e.id async for e in api.sdk.beta.environments.list(limit=1)] == [ids[3], ids[2], ids[0]]
    everything = [e.id async for e in api.sdk.beta.environments.list(limit=3, include_archived=True)]
    assert everything == ids[::-1]


async def test_an_environment_is_deleted_only_when_no_session_refers_to_it(api: Api) -> None:
    session = await api.session()
    environment_id = session["environment_id"]
    key = await api.environment_key(environment_id)
    with pytest.raises(anthropic.BadRequestError, match="has sessions"):
        await api.sdk.beta.environments.delete(environment_id)
    assert await api.services.keys.verify(key) is not None
    await api.sdk.beta.sessions.delete(session["id"])
    deleted = await api.sdk.beta.environments.delete(environment_id)
    assert deleted.to_dict() == {"id": environment_id, "type": "environment_deleted"}
    with pytest.raises(anthropic.NotFoundError):
        await api.sdk.beta.environments.retrieve(environment_id)
    assert await api.services.keys.verify(key) is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": ""}, "name"),
        ({"scope": "account"}, "scope"),
        ({"description": "d" * 1025}, "description"),
        ({"config": {"type": "moon"}}, 'config.type: "moon" is not a valid value'),
        ({"config": {"type": "self_hosted", "networking": {}}}, "config.networking: Extra inputs"),
        (
            {"config": {"type": "cloud", "networking": {"type": "limited", "allowed_hosts": ["https://x"]}}},
            "config.networking.allowed_hosts[0]",
        ),
        (
            {"config": {"type": "cloud", "networking": {"type": "limited", "allowed_hosts": ["x:443"]}}},
            "config.networking.allowed_hosts[0]",
        ),
        (
            {"config": {"type": "cloud", "networking": {"type": "limited", "allowed_hosts": ["a.*.com"]}}},
            "config.networking.allowed_hosts[0]",
        ),
        ({"config": {**LIMITED, "packages": {"pip": ["x"]}}}, "allow_package_managers"),
    ],
)
async def test_a_bad_environment_is_refused_with_the_path_of_the_field(
    api: Api, fields: dict[str, Any], message: str
) -> None:
    response = await api.post("/v1/environments", {"name": "E", **fields})
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]


async def test_a_session_whose_agent_reaches_beyond_a_limited_network_is_refused(api: Api) -> None:
    environment = await api.environment(config=LIMITED)
    agent = await api.agent(
        mcp_servers=[{"type": "url", "name": "gh", "url": "https://mcp.elsewhere.example/x"}],
        tools=[{"type": "mcp_toolset", "mcp_server_name": "gh"}],
    )
    body = {"agent": agent["id"], "environment_id": environment["id"]}
    response = await api.post("/v1/sessions", body)
    assert response.status_code == 400
    assert "allowed_hosts" in response.json()["error"]["message"]
    opened = {"config": {"type": "cloud", "networking": {"type": "limited", "allow_mcp_servers": True}}}
    await api.post(f"/v1/environments/{environment['id']}", opened)
    assert (await api.post("/v1/sessions", body)).status_code == 200


async def test_the_named_environment_is_made_once_however_many_ask_at_once(api: Api) -> None:
    made = await asyncio.gather(*(api.services.environments.ensure_named("default") for _ in range(5)))
    assert len({environment.id for environment in made}) == 1
