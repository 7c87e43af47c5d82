"""Creating sessions: the three agent forms, overrides, initial events, refusals (contract 8.1 to 8.3)."""

from typing import Any

import pytest
from anthropic import AsyncAnthropic, NotFoundError

from tests.contract.conftest import Api
from tests.contract.refusals import refused, undocumented
from tests.corral_server import Corral

TOOLSET: dict[str, Any] = {"type": "agent_toolset_20260401"}
CUSTOM: dict[str, Any] = {
    "type": "custom",
    "name": "lookup",
    "description": "Look something up.",
    "input_schema": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
}
MCP_SERVER: dict[str, Any] = {"type": "url", "name": "github", "url": "https://mcp.example.com/"}
MCP_TOOLSET: dict[str, Any] = {"type": "mcp_toolset", "mcp_server_name": "github"}


def message(text: str = "hello") -> dict[str, Any]:
    return {"type": "user.message", "content": [{"type": "text", "text": text}]}


async def create(api: Api, **fields: Any) -> Any:
    """A session on a fresh environment unless one is given."""
    if "environment_id" not in fields:
        fields["environment_id"] = (await api.environment())["id"]
    return await api.sdk.beta.sessions.create(**fields)


async def test_a_new_session_has_exactly_the_documented_shape(api: Api) -> None:
    agent = await api.agent(system="Be brief.", description="d", tools=[TOOLSET, CUSTOM], metadata={"a": "b"})
    environment = await api.environment()
    strict = AsyncAnthropic(
        base_url=api.base_url, api_key=api.api_key, max_retries=0, _strict_response_validation=True
    )
    async with strict:
        session = await strict.beta.sessions.create(
            agent=agent["id"], environment_id=environment["id"], title="T", metadata={"ticket": "7"}
        )
        again = await strict.beta.sessions.retrieve(session.id)
    assert undocumented(session) == []
    assert session.id.startswith("sesn_")
    assert session.status == "idle"
    assert (session.title, session.metadata) == ("T", {"ticket": "7"})
    assert session.environment_id == environment["id"]
    assert (session.agent.id, session.agent.version, session.agent.system) == (agent["id"], 1, "Be brief.")
    assert session.agent.execution_identity.type == "service_account"
    assert session.agent.model.effort is not None
    assert session.created_at == session.updated_at
    assert again.to_dict() | {"stats": None} == session.to_dict() | {"stats": None}


async def test_a_new_session_has_used_nothing(api: Api) -> None:
    session = await api.session()
    assert session["usage"] == {
        "input_tokens": 0,
        "output_tokens": 0,
        "cache_read_input_tokens": 0,
        "cache_creation": None,
        "active_seconds": 0.0,
        "list_cost": {"amount": "0", "currency": "USD"},
        "server_tool_use": {"web_search_requests": 0, "web_fetch_requests": 0},
    }
    assert session["stats"]["active_seconds"] == 0.0
    nothing = ("title", "deployment_id", "budget", "archived_at")
    assert {name: session[name] for name in nothing} == dict.fromkeys(nothing)
    assert (session["metadata"], session["resources"]) == ({}, [])
    assert (session["vault_ids"], session["outcome_evaluations"]) == ([], [])


async def test_the_agent_is_pinned_by_id_to_its_latest_and_by_reference_to_any_version(api: Api) -> None:
    agent = await api.agent(name="first")
    await api.post(f"/v1/agents/{agent['id']}", {"version": 1, "name": "second"})
    by_id = await create(api, agent=agent["id"])
    by_reference = await create(api, agent={"type": "agent", "id": agent["id"]})
    by_version = await create(api, agent={"type": "agent", "id": agent["id"], "version": 1})
    pinned = [(s.agent.version, s.agent.name) for s in (by_id, by_reference, by_version)]
    assert pinned == [(2, "second"), (2, "second"), (1, "first")]
    await api.post(f"/v1/agents/{agent['id']}", {"version": 2, "name": "third"})
    assert (await api.sdk.beta.sessions.retrieve(by_id.id)).agent.name == "second"


async def test_an_absent_override_inherits_a_null_clears_and_a_value_replaces(api: Api) -> None:
    agent = await api.agent(system="Be brief.", tools=[TOOLSET])

    async def overridden(**fields: Any) -> Any:
        made = await create(api, agent={"type": "agent_with_overrides", "id": agent["id"], **fields})
        return made.agent

    inherited = await overridden()
    assert (inherited.system, [tool.type for tool in inherited.tools]) == ("Be brief.", [TOOLSET["type"]])
    assert (await overridden(system=None)).system is None
    assert (await overridden(system="Be long.")).system == "Be long."
    assert (await overridden(tools=[])).tools == []
    assert (await overridden(tools=None)).tools == []
    assert [tool.type for tool in (await overridden(tools=[CUSTOM])).tools] == ["custom"]
    assert (await overridden(skills=[])).skills == []
    assert (await overridden(version=1)).version == 1
    assert (await api.get(f"/v1/agents/{agent['id']}")).json()["system"] == "Be brief."


async def test_an_override_of_the_model_drops_the_agents_effort_and_its_own(api: Api) -> None:
    agent = await api.agent(model={"id": "claude-opus-5-5", "effort": {"type": "low"}})
    kept = await create(api, agent={"type": "agent_with_overrides", "id": agent["id"]})
    assert kept.agent.model.effort.type == "low"
    model = {"id": "claude-sonnet-5-5", "effort": {"type": "max"}, "speed": "standard"}
    changed = await create(api, agent={"type": "agent_with_overrides", "id": agent["id"], "model": model})
    assert (changed.agent.model.id, changed.agent.model.effort.type) == ("claude-sonnet-5-5", "high")
    by_name = {"type": "agent_with_overrides", "id": agent["id"], "model": "claude-haiku-5-5"}
    assert (await create(api, agent=by_name)).agent.model.id == "claude-haiku-5-5"


async def test_a_model_override_of_null_is_refused_with_its_code(api: Api) -> None:
    agent = await api.agent()
    overrides = {"type": "agent_with_overrides", "id": agent["id"], "model": None}
    error = await refused(create(api, agent=overrides), "agent.model")
    assert error["details"]["error_code"] == "agent_model_required"


@pytest.mark.parametrize("field", ["name", "metadata", "multiagent", "description"])
async def test_what_cannot_be_overridden_is_refused_by_name(api: Api, field: str) -> None:
    agent = await api.agent()
    overrides = {"type": "agent_with_overrides", "id": agent["id"], field: None}
    await refused(create(api, agent=overrides), f"agent.{field}", "Extra inputs are not permitted")


async def test_mcp_servers_cannot_be_cleared_from_under_their_toolset(api: Api) -> None:
    agent = await api.agent(mcp_servers=[MCP_SERVER], tools=[MCP_TOOLSET])
    overrides: dict[str, Any] = {"type": "agent_with_overrides", "id": agent["id"], "mcp_servers": []}
    error = await refused(create(api, agent=overrides))
    assert error["message"].startswith('agent.tools[0].mcp_server_name: "github" is not in mcp_servers')
    made = await create(api, agent={**overrides, "tools": []})
    assert (made.agent.tools, made.agent.mcp_servers) == ([], [])


async def test_missing_and_archived_agents_make_no_session(api: Api) -> None:
    agent = await api.agent()
    unknown = "agent_01AAAAAAAAAAAAAAAAAAAAAAAA"
    await refused(create(api, agent=unknown), "agent", unknown, kind=NotFoundError)
    versioned = {"type": "agent", "id": agent["id"], "version": 999}
    await refused(create(api, agent=versioned), "agent.version: 999 not found", kind=NotFoundError)
    await api.post(f"/v1/agents/{agent['id']}/archive")
    await refused(create(api, agent=agent["id"]), "archived")
    assert (await api.sdk.beta.sessions.list()).data == []


async def test_missing_and_archived_environments_make_no_session(api: Api) -> None:
    agent, environment = await api.agent(), await api.environment()
    unknown = "env_01AAAAAAAAAAAAAAAAAAAAAAAAA"
    missing = create(api, agent=agent["id"], environment_id=unknown)
    assert (await refused(missing, unknown, kind=NotFoundError))["details"]["error_code"] == (
        "environment_not_found"
    )
    await api.post(f"/v1/environments/{environment['id']}/archive")
    error = await refused(create(api, agent=agent["id"], environment_id=environment["id"]))
    assert error["message"] == f"Environment {environment['id']} is archived."
    assert error["details"]["error_code"] == "environment_archived"
    assert (await api.sdk.beta.sessions.list()).data == []


async def test_a_vault_that_does_not_exist_makes_no_session(api: Api) -> None:
    agent = await api.agent()
    vaults = ["vlt_01AAAAAAAAAAAAAAAAAAAAAAAAA"]
    await refused(create(api, agent=agent["id"], vault_ids=vaults), vaults[0], kind=NotFoundError)
    assert (await api.sdk.beta.sessions.list()).data == []


async def test_files_on_a_self_hosted_environment_are_refused_in_the_documented_words(api: Api) -> None:
    agent = await api.agent()
    environment = await api.environment(config={"type": "self_hosted"})
    resources = [{"type": "file", "file_id": "file_01AAAA", "mount_path": "a.txt"}]
    request = create(api, agent=agent["id"], environment_id=environment["id"], resources=resources)
    assert (await refused(request))["message"] == (
        f"Environment {environment['id']} is a self-hosted environment. "
        "`resources` are not supported with self-hosted environments."
    )


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"title": "x" * 501}, "title"),
        ({"metadata": {"k": 1}}, "metadata"),
        ({"metadata": {f"k{n}": "v" for n in range(17)}}, "metadata"),
        ({"metadata": {"k": "v" * 513}}, "metadata"),
        ({"surprise": 1}, "surprise: Extra inputs are not permitted"),
        ({"budget": {"type": "limit", "max_list_cost": {"amount": "0", "currency": "USD"}}}, "budget"),
        ({"budget": {"type": "limit", "max_list_cost": {"amount": "1.5", "currency": "USD"}}}, "budget"),
        ({"budget": {"type": "limit", "max_list_cost": {"amount": "012", "currency": "USD"}}}, "budget"),
        ({"budget": {"type": "limit", "max_list_cost": {"amount": "100", "currency": "EUR"}}}, "budget"),
        ({"budget": {"type": "limit", "max_list_cost": {"amount": 100, "currency": "USD"}}}, "budget"),
        ({"agent": None}, "agent"),
        ({"agent": {"type": "agent"}}, "agent.id: Field required"),
        ({"agent": {"id": "agent_1"}}, "agent"),
        ({"agent": {"type": "agent", "id": "agent_1", "version": 0}}, "agent.version"),
        ({"environment_id": ""}, "environment_id"),
    ],
)
async def test_a_bad_field_is_named(api: Api, fields: dict[str, Any], named: str) -> None:
    body = {"agent": "agent_1", "environment_id": "env_1", **fields}
    response = await api.post("/v1/sessions", body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["message"].startswith(named), response.text


async def test_agent_and_environment_are_required(api: Api) -> None:
    for body, named in (({"environment_id": "e"}, "agent"), ({"agent": "a"}, "environment_id")):
        response = await api.post("/v1/sessions", body)
        assert response.status_code == 400
        assert response.json()["error"]["message"] == f"{named}: Field required"


async def test_initial_events_start_the_session_and_are_listed_not_echoed(api: Api) -> None:
    agent = await api.agent()
    made = await create(api, agent=agent["id"], initial_events=[message("one"), message("two")])
    assert made.status == "running"
    assert "initial_events" not in (made.model_extra or {})
    listed = [event async for event in api.sdk.beta.sessions.events.list(made.id)]
    assert [event.type for event in listed] == ["user.message"] * 2
    assert len({event.id for event in listed}) == 2
    texts: list[Any] = list(listed)
    assert [event.content[0].text for event in texts] == ["one", "two"]


async def test_initial_events_are_answered_in_one_turn(corral: Corral) -> None:
    session = await corral.session(initial_events=[message("one"), message("two")])
    idle = await session.idle()
    assert idle.stop_reason.type == "end_turn"
    types = await session.types()
    assert types[:4] == ["user.message", "user.message", "session.status_running", *types[3:4]]
    assert types.count("session.status_running") == 1
    assert (await session.retrieve()).status == "idle"


async def test_an_empty_list_of_initial_events_is_as_none(api: Api) -> None:
    agent = await api.agent()
    assert (await create(api, agent=agent["id"], initial_events=[])).status == "idle"


BAD_EVENTS: list[tuple[list[dict[str, Any]], str]] = [
    ([message()] * 51, "initial_events: must have at most 50 items"),
    ([message(), {"type": "user.interrupt"}], "initial_events[1].type"),
    ([{"type": "system.message", "content": [{"type": "text", "text": "x"}]}], "initial_events[0].type"),
    (
        [{"type": "user.tool_confirmation", "tool_use_id": "x", "result": "allow"}],
        "initial_events[0].type",
    ),
    ([message(), {"type": "user.message", "content": []}], "initial_events[1].content"),
    ([message(), {**message(), "id": "sevt_1"}], "initial_events[1].id: Extra inputs"),
    ([{"type": "user.define_outcome", "description": "x"}], "initial_events[0]"),
]


@pytest.mark.parametrize(("events", "named"), BAD_EVENTS)
async def test_one_bad_initial_event_makes_no_session(
    api: Api, events: list[dict[str, Any]], named: str
) -> None:
    agent = await api.agent()
    await refused(create(api, agent=agent["id"], initial_events=events), named)
    assert (await api.sdk.beta.sessions.list()).data == []


async def test_fifty_initial_events_are_taken(api: Api) -> None:
    agent = await api.agent()
    made = await create(api, agent=agent["id"], initial_events=[message(str(n)) for n in range(50)])
    assert len([event async for event in api.sdk.beta.sessions.events.list(made.id)]) == 50
