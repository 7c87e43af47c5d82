"""What a session takes in each of its statuses (contract sections 8.2, 8.5 and 8.7)."""

import asyncio
from typing import Any

import pytest
from anthropic import NotFoundError

from corral.settings import Brain, Inference, Settings
from corral.testing import ScriptedModel
from tests.contract.conftest import Api
from tests.contract.refusals import refused
from tests.contract.test_events_send import SYSTEM, custom_result
from tests.contract.test_sessions_create import CUSTOM, message
from tests.corral_server import Corral, SessionUnderTest, running_corral

CALL: dict[str, Any] = {"tools": [{"name": "lookup", "input": {"key": "k"}}]}


async def update(session: SessionUnderTest, **fields: Any) -> Any:
    return await session.corral.client.beta.sessions.update(session.id, **fields)


async def asking(corral: Corral) -> tuple[SessionUnderTest, Any]:
    """A session that is idle since it needs a custom tool's result, and that idle event."""
    session = await corral.session(CUSTOM)
    await session.says("go", script=[CALL, {"text": "it said {result}"}])
    return session, await session.idle()


async def rescheduling(corral: Corral) -> SessionUnderTest:
    """A session that waits a long time before it asks the model again."""
    session = await corral.session()
    await session.says("go", script=[{"text": "late", "error": {"status": 529, "times": 9}}])
    await session.until("session.thread_status_rescheduled")
    return session


@pytest.fixture
def patient(model: ScriptedModel) -> Settings:
    """Settings of a server that waits an hour before it repeats a request."""
    inference = Inference(
        provider="gateway",
        base_url=model.base_url,
        retry_backoff_seconds=3600.0,
        retry_backoff_max_seconds=3600.0,
    )
    return Settings(inference=inference, brain=Brain(lease_seconds=2.0))


async def test_a_session_that_waits_for_a_retry_is_neither_archived_deleted_nor_given_tools(
    database_url: str, model: ScriptedModel, patient: Settings
) -> None:
    async with running_corral(database_url, model, settings=patient) as corral:
        session = await rescheduling(corral)
        sessions = corral.client.beta.sessions
        assert (await session.retrieve()).status == "rescheduling"
        listed = [one.id async for one in sessions.list(statuses=["rescheduling"])]
        assert listed == [session.id]
        await refused(sessions.archive(session.id), "Cannot archive session while it is running")
        await refused(sessions.delete(session.id), "Cannot delete session while it is running")
        await refused(update(session, agent={"tools": []}), "agent", "running")
        assert (await update(session, title="meanwhile", metadata={"a": "b"})).title == "meanwhile"
        await session.sends({"type": "user.interrupt"})
        assert (await session.idle()).stop_reason.type == "end_turn"
        assert (await sessions.archive(session.id)).status == "terminated"


async def test_a_session_that_waits_for_an_answer_is_idle_and_can_be_archived(corral: Corral) -> None:
    session, idle = await asking(corral)
    sessions = corral.client.beta.sessions
    assert (await session.retrieve()).status == "idle"
    archived = await sessions.archive(session.id)
    assert (archived.status, archived.archived_at is not None) == ("terminated", True)
    assert (await session.types())[-1] == "session.status_terminated"
    call = idle.stop_reason.event_ids[0]
    await refused(session.sends(custom_result(call, "late")), "archived")


async def test_a_session_that_waits_for_an_answer_can_be_deleted(corral: Corral) -> None:
    session, _ = await asking(corral)
    deleted = await corral.client.beta.sessions.delete(session.id)
    assert deleted.to_dict() == {"id": session.id, "type": "session_deleted"}
    await refused(session.retrieve(), session.id, kind=NotFoundError)


async def test_a_session_that_waits_for_an_answer_takes_other_tools_for_its_next_request(
    corral: Corral,
) -> None:
    session, idle = await asking(corral)
    other = {**CUSTOM, "name": "search"}
    changed = await update(session, agent={"tools": [CUSTOM, other]})
    assert [tool.name for tool in changed.agent.tools] == ["lookup", "search"]
    await session.sends(custom_result(idle.stop_reason.event_ids[0], "found"))
    await session.idle(after=idle.id)
    assert [tool["name"] for tool in corral.model.requests()[-1]["tools"]] == ["lookup", "search"]


async def test_an_archived_session_takes_no_change_of_any_field(api: Api) -> None:
    budget: Any = {"type": "limit", "max_list_cost": {"amount": "100", "currency": "USD"}}
    session = await api.session(title="t", metadata={"a": "b"}, budget=budget)
    await api.sdk.beta.sessions.archive(session["id"])
    before = (await api.get(f"/v1/sessions/{session['id']}")).json()
    changes: list[dict[str, Any]] = [
        {"title": "x"},
        {"title": "t"},
        {"metadata": {"a": None}},
        {"agent": {"tools": []}},
        {"budget": None},
    ]
    for fields in changes:
        update: Any = api.sdk.beta.sessions.update(session["id"], **fields)
        await refused(update, "Cannot modify archived session")
    for event in (message(), SYSTEM, {"type": "user.interrupt"}):
        events: Any = [event]
        await refused(api.sdk.beta.sessions.events.send(session["id"], events=events), "archived")
    after = (await api.get(f"/v1/sessions/{session['id']}")).json()
    assert after == before


async def test_archiving_tells_the_log_what_still_waited_and_then_that_it_ended(api: Api) -> None:
    session = await api.session()
    sent = await api.sdk.beta.sessions.events.send(
        session["id"], events=[{"type": "user.message", "content": [{"type": "text", "text": "hello"}]}]
    )
    await api.sdk.beta.sessions.archive(session["id"])
    listed: list[Any] = [event async for event in api.sdk.beta.sessions.events.list(session["id"])]
    assert [event.type for event in listed] == ["user.message", "session.status_terminated"]
    assert listed[0].id == (sent.data or [])[0].id
    assert all(event.processed_at is not None for event in listed)


async def test_deleting_needs_no_archiving_and_what_was_referred_to_stays(api: Api) -> None:
    vault = await api.sdk.beta.vaults.create(display_name="v")
    session = await api.session(vault_ids=[vault.id])
    assert (await api.http.delete(f"/v1/sessions/{session['id']}")).json() == {
        "id": session["id"],
        "type": "session_deleted",
    }
    assert (await api.sdk.beta.vaults.retrieve(vault.id)).archived_at is None
    again = await api.http.delete(f"/v1/sessions/{session['id']}")
    assert (again.status_code, again.json()["error"]["type"]) == (404, "not_found_error")
    assert again.headers["x-should-retry"] == "false"


async def test_archiving_at_once_from_two_sides_ends_a_session_once(api: Api) -> None:
    session = await api.session()
    archived = await asyncio.gather(*(api.sdk.beta.sessions.archive(session["id"]) for _ in range(6)))
    assert len({one.archived_at for one in archived}) == 1
    types = [event.type async for event in api.sdk.beta.sessions.events.list(session["id"])]
    assert types == ["session.status_terminated"]


async def test_an_environment_that_goes_while_a_session_is_made_is_not_found(api: Api) -> None:
    agent, environment = (await api.agent())["id"], (await api.environment())["id"]
    body = {"agent": agent, "environment_id": environment}
    waits = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and query like '%%into sessions%%'"
    async with api.database.transaction() as connection:
        # From here on the environment is being deleted, and whoever refers to it waits for the outcome.
        await connection.execute("delete from environments where id = %s", (environment,))
        making = asyncio.create_task(api.post("/v1/sessions", body))
        while not await api.database.fetch(waits):
            assert not making.done()
    response = await making
    assert response.status_code == 404, response.text
    assert response.json()["error"]["details"]["error_code"] == "environment_not_found"
    assert (await api.sdk.beta.sessions.list()).data == []


async def test_the_status_is_idle_before_the_idle_event_can_be_seen(corral: Corral) -> None:
    session = await corral.session()
    async with await corral.client.beta.sessions.events.stream(session.id) as stream:
        await session.says("go", script=[{"text": "one"}])
        async for event in stream:
            if event.type == "session.status_running":
                assert (await session.retrieve()).status in ("running", "idle")
            if event.type == "session.status_idle":
                break
        assert (await session.retrieve()).status == "idle"
    assert (await corral.client.beta.sessions.archive(session.id)).status == "terminated"


async def test_running_idle_and_archived_sessions_are_found_by_their_status(corral: Corral) -> None:
    busy, rested, ended = [await corral.session() for _ in range(3)]
    await busy.says("go", script=[{"text": "done", "hold": "here"}])
    await corral.model.until_holding("here")
    sessions = corral.client.beta.sessions
    await sessions.archive(ended.id)

    async def found(*statuses: Any, **more: Any) -> set[str]:
        return {one.id async for one in sessions.list(statuses=list(statuses), **more)}

    assert await found("running") == {busy.id}
    assert await found("idle") == {rested.id}
    assert await found("terminated") == set()
    assert await found("terminated", include_archived=True) == {ended.id}
    assert await found("running", "idle", "rescheduling") == {busy.id, rested.id}
    corral.model.release("here")
    await busy.idle()
    assert await found("running") == set()
