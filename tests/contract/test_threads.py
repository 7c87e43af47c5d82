"""Threads: every session has its primary one (contract section 11.2)."""

from typing import Any

import pytest
from anthropic import NotFoundError

from tests.contract.conftest import Api
from tests.contract.refusals import refused, undocumented
from tests.contract.test_events_send import INTERRUPT
from tests.contract.test_sessions_create import CUSTOM, message
from tests.corral_server import Corral

UNKNOWN = "sthr_01AAAAAAAAAAAAAAAAAAAAAAAA"


async def test_a_session_has_one_thread_without_a_parent(api: Api) -> None:
    session = await api.session(agent=(await api.agent(tools=[CUSTOM], system="s"))["id"])
    threads = api.sdk.beta.sessions.threads
    [thread] = [thread async for thread in threads.list(session["id"])]
    assert undocumented(thread) == []
    assert thread.id.startswith("sthr_")
    assert (thread.session_id, thread.parent_thread_id) == (session["id"], None)
    assert (thread.status, thread.workflow_run_id, thread.archived_at) == ("idle", None, None)
    agent: Any = thread.agent
    assert (agent.id, agent.name, agent.version) == (session["agent"]["id"], "Agent", 1)
    # Not before it has run.
    assert (thread.stats, thread.usage) == (None, None)
    assert (await threads.retrieve(thread.id, session_id=session["id"])) == thread


async def test_a_thread_that_has_run_tells_its_times_and_usage(corral: Corral) -> None:
    session = await corral.session()
    await session.says("hi", script=[{"text": "hi"}])
    await session.idle()
    threads = corral.client.beta.sessions.threads
    [thread] = [thread async for thread in threads.list(session.id)]
    retrieved = await session.retrieve()
    assert thread.stats is not None
    assert thread.usage is not None
    assert thread.stats.startup_seconds is not None
    assert thread.usage.output_tokens == retrieved.usage.output_tokens
    assert undocumented(thread) == []


async def test_threads_are_found_by_status(api: Api) -> None:
    session = await api.session(initial_events=[message()])
    threads = api.sdk.beta.sessions.threads
    assert len((await threads.list(session["id"], statuses=["running"])).data) == 1
    assert len((await threads.list(session["id"], statuses=["idle", "running"])).data) == 1
    assert (await threads.list(session["id"], statuses=["idle"])).data == []
    assert (await threads.list(session["id"], limit=1000)).next_page is None


@pytest.mark.parametrize("query", ["statuses[]=sleeping", "limit=1001", "limit=x", "page=x"])
async def test_a_bad_parameter_of_the_list_is_a_400(api: Api, query: str) -> None:
    session = await api.session()
    assert (await api.get(f"/v1/sessions/{session['id']}/threads?{query}")).status_code == 400


async def test_the_threads_events_are_the_sessions_and_come_in_pages(api: Api) -> None:
    session = await api.session()
    await api.post(f"/v1/sessions/{session['id']}", {"title": "t"})
    await api.post(f"/v1/sessions/{session['id']}/events", {"events": [message("a"), INTERRUPT]})
    [thread] = (await api.sdk.beta.sessions.threads.list(session["id"])).data
    ofthread = api.sdk.beta.sessions.threads.events
    listed = [event async for event in ofthread.list(thread.id, session_id=session["id"], limit=1)]
    whole = [event async for event in api.sdk.beta.sessions.events.list(session["id"])]
    assert [event.id for event in listed] == [event.id for event in whole]
    assert len(listed) == 3


async def test_the_threads_stream_brings_the_turn(corral: Corral) -> None:
    session = await corral.session()
    [thread] = (await corral.client.beta.sessions.threads.list(session.id)).data
    stream = await corral.client.beta.sessions.threads.events.stream(thread.id, session_id=session.id)
    await session.says("hi", script=[{"text": "hi"}])
    seen: list[str] = []
    async for event in stream:
        seen.append(event.type)
        if event.type in ("session.thread_status_idle", "session.status_idle"):
            break
    await stream.close()
    assert "agent.message" in seen


async def test_the_primary_thread_cannot_be_archived(api: Api) -> None:
    session = await api.session()
    threads = api.sdk.beta.sessions.threads
    [thread] = (await threads.list(session["id"])).data
    await refused(threads.archive(thread.id, session_id=session["id"]), "primary thread")
    assert (await threads.retrieve(thread.id, session_id=session["id"])).archived_at is None


async def test_an_unknown_or_foreign_thread_is_not_found(api: Api) -> None:
    session, other = await api.session(), await api.session()
    threads = api.sdk.beta.sessions.threads
    [foreign] = (await threads.list(other["id"])).data
    for thread_id in (UNKNOWN, foreign.id):
        for request in (
            threads.retrieve(thread_id, session_id=session["id"]),
            threads.archive(thread_id, session_id=session["id"]),
            threads.events.list(thread_id, session_id=session["id"]),
            threads.events.stream(thread_id, session_id=session["id"]),
        ):
            await refused(request, thread_id, kind=NotFoundError)


async def test_a_thread_follows_its_session_to_the_end(api: Api) -> None:
    session = await api.session()
    await api.sdk.beta.sessions.archive(session["id"])
    [thread] = (await api.sdk.beta.sessions.threads.list(session["id"])).data
    assert thread.status == "terminated"
