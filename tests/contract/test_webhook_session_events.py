"""What enters a session's log is told by its webhook's name (contract 23): from the log to the outbox."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from corral.session.commit import Commit, CommitRefused, Fence
from corral.session.events import new_event
from corral.wire.webhooks import FURTHER
from tests.contract.conftest import Api
from tests.contract.test_webhook_events import ok, subscribed, told


async def commit(api: Api, session: dict[str, Any], *kinds: Any, seq: int | None = None) -> None:
    """Append events to a session's log as a brain does: a type, or a type with its fields."""
    thread = await primary_thread(api, session["id"])
    events = tuple(
        new_event(kind, thread) if isinstance(kind, str) else new_event(kind[0], thread, **kind[1])
        for kind in kinds
    )
    log = api.services.sessions.log
    await log.commit(Commit(session["id"], fence=Fence(seq=seq), events=events))


async def primary_thread(api: Api, session_id: str) -> str:
    row = await api.services.sessions.records.retrieve(session_id)
    return str(row["primary_thread_id"])


def idle(reason: str) -> tuple[str, dict[str, Any]]:
    return "session.status_idle", {"stop_reason": {"type": reason}, "stop_details": None}


LOGGED: dict[str, tuple[Any, list[str]]] = {
    "running": ("session.status_running", ["session.running", "session.status_run_started"]),
    "end of turn": (idle("end_turn"), ["session.idled", "session.status_idled"]),
    "asks": (
        idle("requires_action"),
        ["session.idled", "session.requires_action", "session.status_idled"],
    ),
    "budget": (
        idle("budget_reached"),
        ["session.budget_reached", "session.idled", "session.status_idled"],
    ),
    "rescheduled": ("session.status_rescheduled", ["session.status_rescheduled"]),
    "terminated": ("session.status_terminated", ["session.status_terminated"]),
    "outcome": (
        ("span.outcome_evaluation_end", {"outcome_id": "outc_1", "iteration": 0}),
        ["session.outcome_evaluation_ended"],
    ),
    "a message": (("agent.message", {"content": []}), []),
    "usage": (("session.usage", {"usage": {}}), []),
    "an error": (("session.error", {"error": {}}), []),
}


@pytest.mark.parametrize("case", LOGGED)
async def test_what_enters_a_sessions_log_is_told_by_its_webhook_name(api: Api, case: str) -> None:
    event, expected = LOGGED[case]
    session = await api.session()
    await subscribed(api, "all", *FURTHER)
    await commit(api, session, event)
    assert await told(api) == expected
    assert set(await told(api, session["id"])) == set(expected)


async def test_every_transition_to_running_is_told(api: Api) -> None:
    session = await api.session()
    await subscribed(api)
    for _ in range(3):
        await commit(api, session, "session.status_running", idle("end_turn"))
    assert (await told(api)).count("session.status_run_started") == 3
    assert (await told(api)).count("session.status_idled") == 3


async def test_a_commit_that_is_refused_tells_nothing(api: Api) -> None:
    session = await api.session()
    await subscribed(api)
    with pytest.raises(CommitRefused):
        await commit(api, session, "session.status_running", seq=99)
    assert await told(api) == []


async def test_a_budget_is_told_of_once_for_each_value(api: Api) -> None:
    session = await api.session()
    await subscribed(api, "session.budget_reached")
    await commit(api, session, idle("budget_reached"))
    await commit(api, session, "session.status_running", idle("budget_reached"))
    await commit(api, session, ("session.updated", {"title": "Other"}), idle("budget_reached"))
    assert await told(api) == ["session.budget_reached"]
    await commit(api, session, ("session.updated", {"budget": None}), idle("budget_reached"))
    assert await told(api) == ["session.budget_reached"] * 2


async def test_threads_are_told_of_unless_they_are_the_primary_one(api: Api) -> None:
    session = await api.session()
    primary = await primary_thread(api, session["id"])
    await subscribed(api)
    status = {"agent_name": "x", "stop_reason": {"type": "end_turn"}}
    for thread in (primary, "sthr_child"):
        fields = {"session_thread_id": thread, **status}
        await commit(
            api,
            session,
            ("session.thread_status_running", fields),
            ("session.thread_status_idle", fields),
            ("session.thread_status_terminated", fields),
        )
    await commit(api, session, ("session.thread_created", {"session_thread_id": "sthr_child"}))
    rows = await api.database.fetch(
        "select type, subject, extra::text as extra from webhook_deliveries order by type"
    )
    assert [(row["type"], row["subject"], row["extra"]) for row in rows] == [
        (f"session.thread_{what}", session["id"], '{"session_thread_id" : "sthr_child"}')
        for what in ("created", "idled", "terminated")
    ]


async def test_a_session_is_told_of_from_its_making_to_its_removal(api: Api) -> None:
    await subscribed(api, "all", *FURTHER)
    session = await api.session()
    path = f"/v1/sessions/{session['id']}"
    await ok(await api.post(path, {"title": "Title"}))
    await ok(await api.post(path, {"title": "Title"}))
    await ok(await api.post(path + "/archive"))
    await ok(await api.post(path + "/archive"))
    await ok(await api.http.delete(path))
    assert sorted(await told(api, session["id"])) == [
        "session.archived",
        "session.created",
        "session.deleted",
        "session.status_terminated",
        "session.updated",
    ]


async def test_a_message_that_waits_tells_nothing(api: Api) -> None:
    session = await api.session()
    await subscribed(api, "all", *FURTHER)
    events = [{"type": "user.message", "content": [{"type": "text", "text": "hi"}]}]
    await ok(await api.post(f"/v1/sessions/{session['id']}/events", {"events": events}))
    assert await told(api) == []


async def test_the_time_of_an_event_is_that_of_the_log(api: Api) -> None:
    session = await api.session()
    await subscribed(api)
    await commit(api, session, "session.status_running")
    row = await api.database.fetch_one("select occurred_at from webhook_deliveries")
    (event,) = (await ok(await api.get(f"/v1/sessions/{session['id']}/events")))["data"]
    assert row is not None
    assert abs(row["occurred_at"] - datetime.fromisoformat(event["processed_at"])) < timedelta(milliseconds=1)
