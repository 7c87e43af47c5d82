"""Updating, archiving and deleting sessions (contract sections 8.5 to 8.7)."""

from typing import Any

import pytest
from anthropic import NotFoundError

from tests.contract.conftest import Api
from tests.contract.refusals import refused
from tests.contract.test_sessions_create import CUSTOM, MCP_SERVER, MCP_TOOLSET, TOOLSET, message
from tests.corral_server import Corral

UNKNOWN = "sesn_01AAAAAAAAAAAAAAAAAAAAAAAA"


async def updates(api: Api, session_id: str) -> list[dict[str, Any]]:
    """What the ``session.updated`` events say, without id, type and time."""
    found = await api.get(f"/v1/sessions/{session_id}/events", params={"types[]": "session.updated"})
    always = ("id", "type", "processed_at")
    return [{k: v for k, v in event.items() if k not in always} for event in found.json()["data"]]


async def update(api: Api, session: dict[str, Any], **fields: Any) -> Any:
    return await api.sdk.beta.sessions.update(session["id"], **fields)


async def test_title_and_metadata_change_and_the_event_holds_only_what_changed(api: Api) -> None:
    session = await api.session(title="old", metadata={"a": "1", "b": "2"})
    changed = await update(api, session, title="new", metadata={"b": None, "c": "3"})
    assert (changed.title, changed.metadata) == ("new", {"a": "1", "c": "3"})
    assert (await update(api, session, title=None)).title is None
    assert (await update(api, session, metadata={"a": None, "c": None})).metadata == {}
    assert await updates(api, session["id"]) == [
        {"title": "new", "metadata": {"a": "1", "c": "3"}},
        {"title": None},
        {},
    ]


async def test_an_update_that_changes_nothing_writes_nothing(api: Api) -> None:
    session = await api.session(
        title="same", metadata={"a": "1"}, agent=(await api.agent(tools=[CUSTOM]))["id"]
    )
    agent = {"tools": [CUSTOM], "mcp_servers": []}
    body = {"title": "same", "metadata": {"a": "1", "zz": None}, "agent": agent}
    after = (await api.post(f"/v1/sessions/{session['id']}", body)).json()
    assert after["updated_at"] == session["updated_at"]
    assert (await api.post(f"/v1/sessions/{session['id']}", {})).status_code == 200
    assert await updates(api, session["id"]) == []


async def test_the_agents_tools_are_replaced_for_this_session_alone(api: Api) -> None:
    agent = await api.agent(tools=[TOOLSET])
    session = await api.session(agent=agent["id"])
    changed = await update(api, session, agent={"tools": [CUSTOM, MCP_TOOLSET], "mcp_servers": [MCP_SERVER]})
    assert [tool.type for tool in changed.agent.tools] == ["custom", "mcp_toolset"]
    [event] = await updates(api, session["id"])
    assert list(event) == ["agent"]
    assert event["agent"] == (await api.get(f"/v1/sessions/{session['id']}")).json()["agent"]
    assert [tool["type"] for tool in (await api.get(f"/v1/agents/{agent['id']}")).json()["tools"]] == [
        TOOLSET["type"]
    ]


@pytest.mark.parametrize(
    ("agent", "named"),
    [
        ({"tools": [MCP_TOOLSET]}, 'agent.tools[0].mcp_server_name: "github" is not in mcp_servers'),
        ({"mcp_servers": [MCP_SERVER]}, "agent.mcp_servers[0].name: no mcp_toolset in tools refers to"),
        (
            {"mcp_servers": [MCP_SERVER, MCP_SERVER], "tools": [MCP_TOOLSET]},
            'agent.mcp_servers[1].name: "github" is used more than once',
        ),
        (
            {"mcp_servers": [{**MCP_SERVER, "url": "ftp://x"}], "tools": [MCP_TOOLSET]},
            "agent.mcp_servers[0].url",
        ),
        ({"tools": [CUSTOM, CUSTOM]}, 'agent.tools[1]: tool name "lookup" is used more than once'),
        ({"tools": [TOOLSET, TOOLSET]}, "agent.tools[1]"),
        ({"tools": [{**CUSTOM, "name": "bash"}]}, "agent.tools[0].name"),
        ({"tools": {}}, "agent.tools: Input should be a valid list"),
        ({"system": "x"}, "agent.system: Extra inputs are not permitted"),
        ({"model": "claude-opus-5-5"}, "agent.model: Extra inputs are not permitted"),
    ],
)
async def test_an_agent_update_that_breaks_a_rule_changes_nothing(
    api: Api, agent: dict[str, Any], named: str
) -> None:
    session = await api.session()
    error = await refused(update(api, session, title="new", agent=agent))
    assert error["message"].startswith(named), error
    assert (await api.get(f"/v1/sessions/{session['id']}")).json()["title"] is None
    assert await updates(api, session["id"]) == []


async def test_a_running_session_takes_a_title_but_no_other_tools(corral: Corral) -> None:
    session = await corral.session()
    await session.says("go", script=[{"text": "done", "hold": "here"}])
    await corral.model.until_holding("here")
    sessions = corral.client.beta.sessions
    tools: Any = {"tools": [CUSTOM]}
    await refused(sessions.update(session.id, agent=tools), "agent", "running")
    assert (await sessions.update(session.id, title="meanwhile")).title == "meanwhile"
    corral.model.release("here")
    idle = await session.idle()
    assert (await sessions.update(session.id, agent=tools)).agent.tools[0].type == "custom"
    # From the next turn on the model knows the new tool.
    await session.says("again", script=[{"text": "seen"}])
    await session.idle(after=idle.id)
    assert [tool["name"] for tool in corral.model.requests()[-1]["tools"]] == ["lookup"]


async def test_vaults_and_budgets_cannot_be_added_later(api: Api) -> None:
    session = await api.session()
    await refused(update(api, session, vault_ids=["vlt_1"]), "vault_ids")
    await refused(update(api, session, vault_ids=[]), "vault_ids")
    budget = {"type": "limit", "max_list_cost": {"amount": "100", "currency": "USD"}}
    error = await refused(update(api, session, budget=budget), "budget")
    assert error["details"]["error_code"] == "budget_create_only"
    assert (await update(api, session, budget=None)).budget is None
    assert await updates(api, session["id"]) == []


async def test_archiving_ends_a_session_and_leaves_it_readable(api: Api) -> None:
    session = await api.session()
    archived = await api.sdk.beta.sessions.archive(session["id"])
    assert archived.status == "terminated"
    assert archived.archived_at is not None
    listed = [event.type async for event in api.sdk.beta.sessions.events.list(session["id"])]
    assert listed == ["session.status_terminated"]
    again = await api.sdk.beta.sessions.archive(session["id"])
    assert again.archived_at == archived.archived_at
    assert again.stats.duration_seconds == archived.stats.duration_seconds
    assert (await api.sdk.beta.sessions.retrieve(session["id"])).status == "terminated"
    assert len([e async for e in api.sdk.beta.sessions.events.list(session["id"])]) == 1


async def test_an_archived_session_takes_nothing_more(api: Api) -> None:
    session = await api.session()
    await api.sdk.beta.sessions.archive(session["id"])
    await refused(update(api, session, title="x"), "archived")
    events: Any = [message()]
    await refused(api.sdk.beta.sessions.events.send(session["id"], events=events), "archived")
    interrupt: Any = [{"type": "user.interrupt"}]
    await refused(api.sdk.beta.sessions.events.send(session["id"], events=interrupt), "archived")


async def test_a_running_session_is_neither_archived_nor_deleted(corral: Corral) -> None:
    session = await corral.session()
    await session.says("go", script=[{"text": "done", "hold": "here"}])
    await corral.model.until_holding("here")
    rest = "session while it is running. Send an interrupt event or wait for the session to complete."
    sessions = corral.client.beta.sessions
    assert (await refused(sessions.archive(session.id)))["message"] == f"Cannot archive {rest}"
    assert (await refused(sessions.delete(session.id)))["message"] == f"Cannot delete {rest}"
    await session.sends({"type": "user.interrupt"})
    await session.idle()
    assert (await sessions.delete(session.id)).type == "session_deleted"


async def test_a_deleted_session_is_gone_with_all_that_was_its_own(api: Api) -> None:
    session = await api.session()
    await api.post(f"/v1/sessions/{session['id']}/events", {"events": [message()]})
    deleted = await api.sdk.beta.sessions.delete(session["id"])
    assert deleted.to_dict() == {"id": session["id"], "type": "session_deleted"}
    gone = f"/v1/sessions/{session['id']}"
    for path in (gone, f"{gone}/events", f"{gone}/threads", f"{gone}/events/stream"):
        assert (await api.get(path)).status_code == 404
    assert (await api.http.delete(gone)).status_code == 404
    assert (await api.get(f"/v1/agents/{session['agent']['id']}")).status_code == 200
    assert (await api.get(f"/v1/environments/{session['environment_id']}")).status_code == 200


async def test_an_archived_session_can_be_deleted(api: Api) -> None:
    session = await api.session()
    await api.sdk.beta.sessions.archive(session["id"])
    assert (await api.sdk.beta.sessions.delete(session["id"])).type == "session_deleted"


async def test_an_unknown_session_is_not_found_whatever_is_asked(api: Api) -> None:
    sessions = api.sdk.beta.sessions
    events: Any = [message()]
    for request in (
        sessions.retrieve(UNKNOWN),
        sessions.update(UNKNOWN, title="x"),
        sessions.archive(UNKNOWN),
        sessions.delete(UNKNOWN),
        sessions.events.send(UNKNOWN, events=events),
        sessions.events.stream(UNKNOWN),
        sessions.threads.retrieve("sthr_1", session_id=UNKNOWN),
    ):
        await refused(request, UNKNOWN, kind=NotFoundError)
