"""A brain that is new to a session begins with a snapshot; whether there is one shows nowhere else."""

import itertools
from typing import Any

import pytest
from structlog.testing import capture_logs

from benchmarks.history import history
from corral.store.database import Database
from corral.testing import ScriptedModel
from tests.corral_server import MODEL, Corral, SessionUnderTest, running_corral
from tests.e2e.coordinating import CUSTOM, asks, coordinated, ended, starts
from tests.e2e.test_replicas import gone
from tests.unit.brain.test_any_session import unmarked

TURNS = """
update events set body = replace(body::text, %s, %s)::json where session_id = %s and type = 'user.message'
"""


async def with_a_past(corral: Corral, events: int = 1000) -> SessionUnderTest:
    """A session that has come to some length, and whose brain knows nothing of it."""
    session = await corral.session({"type": "agent_toolset_20260401"})
    row = await corral.services.sessions.records.retrieve(session.id)
    past = history(row["primary_thread_id"], MODEL, events)
    while batch := list(itertools.islice(past, 500)):
        await corral.services.sessions.log.append(session.id, batch, fence=None)
    return session


async def asked(corral: Corral, session_id: str, text: str) -> list[dict[str, Any]]:
    """Says something in a session; the conversation that the model was sent for it."""
    session = SessionUnderTest(corral, session_id)
    sent = await session.says(text)
    await session.idle(after=sent.data[0].id)
    await gone(session)
    return unmarked(corral.model.requests()[-1]["messages"])


def said(messages: list[dict[str, Any]], text: str) -> int:
    return sum(block.get("text", "").startswith(text) for message in messages for block in message["content"])


async def snapshots(database: Database) -> int:
    row = await database.fetch_one("select count(*) as rows from session_snapshots")
    assert row is not None
    return row["rows"]


async def test_a_turn_begins_with_a_snapshot_and_as_well_without(
    database_url: str, model: ScriptedModel
) -> None:
    async with running_corral(database_url, model) as corral:
        session = await with_a_past(corral)
        first = await asked(corral, session.id, "go")
        assert said(first, "turn 0:") == 1
    async with Database(database_url) as database:
        assert await snapshots(database) == 1
        # Nobody rewrites a log. It shows here who has read it.
        assert await database.execute(TURNS, ("turn 0:", "turn nought:", session.id)) > 10
    async with running_corral(database_url, model) as corral:
        second = await asked(corral, session.id, "go on")
        assert second[: len(first)] == first
        assert said(second, "turn 0:") == 1
    async with Database(database_url) as database:
        assert await database.execute("delete from session_snapshots") == 1
    async with running_corral(database_url, model) as corral:
        third = await asked(corral, session.id, "and on")
        assert said(third, "turn 0:") == 0
        assert said(third, "turn nought:") == 1
    async with Database(database_url) as database:
        await database.execute(TURNS, ("turn nought:", "turn 0:", session.id))
        await database.execute("delete from session_snapshots")
    async with running_corral(database_url, model) as corral:
        fourth = await asked(corral, session.id, "and on again")
    assert fourth[: len(second)] == second
    assert len(fourth) == len(second) + 4


async def test_a_damaged_snapshot_is_told_of_and_ignored(database_url: str, model: ScriptedModel) -> None:
    async with running_corral(database_url, model) as corral:
        session = await with_a_past(corral)
        first = await asked(corral, session.id, "go")
    async with Database(database_url) as database:
        assert await database.execute("update session_snapshots set head = set_byte(head, 40, 0)") == 1
    with capture_logs() as logs:
        async with running_corral(database_url, model) as corral:
            second = await asked(corral, session.id, "go on")
    assert second[: len(first)] == first
    assert "a snapshot is not used; the log is replayed" in [line["event"] for line in logs]
    async with Database(database_url) as database:  # and has been replaced
        row = await database.fetch_one("select seq > 1000 as good from session_snapshots")
    assert row == {"good": True}


async def test_the_next_turn_on_the_same_server_reads_only_what_is_new(corral: Corral) -> None:
    session = await with_a_past(corral, 100)
    first = await asked(corral, session.id, "go")
    assert await corral.database.execute(TURNS, ("turn 0:", "turn nought:", session.id)) > 1
    second = await asked(corral, session.id, "go on")
    assert second[: len(first)] == first
    assert said(second, "turn 0:") == 1


async def test_a_changed_budget_is_known_to_a_brain_that_remembers(corral: Corral) -> None:
    budget: Any = {"type": "limit", "max_list_cost": {"amount": "100000", "currency": "USD"}}
    session = await corral.session(budget=budget)
    await asked(corral, session.id, "go")
    changed: Any = {"type": "limit", "max_list_cost": {"amount": "200000", "currency": "USD"}}
    await corral.client.beta.sessions.update(session.id, budget=changed)
    await asked(corral, session.id, "go on")
    usage = [event for event in await session.events() if event.type == "session.usage"][-1]
    assert usage.budget.max_list_cost.amount == "200000"


async def test_each_thread_begins_with_what_was_kept_of_it(
    database_url: str, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corral.brain.snapshots.EVERY", 10)
    looks = {"tools": [{"name": "look_up", "input": {"what": "x"}}]}
    lead: list[dict[str, Any]] = [
        {"tools": [starts("one", looks, {"text": "found it"}, say="look into it")]},
        {"text": "I wait"},
        {"text": "all done"},
    ]
    async with running_corral(database_url, model) as corral:
        session = await coordinated(corral, "one", tools=[CUSTOM])
        await session.says("begin", script=lead)
        waiting = await session.until("session.status_idle", where=asks)
        await gone(session)
    async with Database(database_url) as database:
        assert await snapshots(database) == 1
        changed = "update events set body = replace(body::text, 'look into it', 'look away')::json"
        assert await database.execute(f"{changed} where type = 'agent.thread_message_received'") > 0  # pyright: ignore
    async with running_corral(database_url, model) as corral:
        session = SessionUnderTest(corral, session.id)
        [call] = waiting.stop_reason.event_ids
        content = [{"type": "text", "text": "17 C"}]
        result = {"type": "user.custom_tool_result", "custom_tool_use_id": call, "content": content}
        await session.sends(result)
        await session.until("session.status_idle", where=ended, after=waiting.id)
    child, lead_again = (unmarked(request["messages"]) for request in model.requests()[-2:])
    assert said(child, "look into it") == 1
    assert said(child, "look away") == 0
    assert child[-1]["content"][0]["content"] == content
    assert said(lead_again, "begin") == 1
    assert said(lead_again, "found it") == 1


@pytest.mark.parametrize("ending", ["archived", "deleted"])
async def test_a_session_that_ends_leaves_no_snapshot(corral: Corral, ending: str) -> None:
    session = await with_a_past(corral)
    await asked(corral, session.id, "go")
    while await snapshots(corral.database) == 0:  # it is written after the turn
        pass
    if ending == "archived":
        await corral.client.beta.sessions.archive(session.id)
    else:
        await corral.client.beta.sessions.delete(session.id)
    assert await snapshots(corral.database) == 0
