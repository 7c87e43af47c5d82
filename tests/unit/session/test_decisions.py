"""A decision on a call is in the audit trail exactly if the call is in the log."""

import pytest

from corral.session.commit import Commit, CommitRefused, DecisionRow, Fence
from corral.session.events import NewEvent, new_event
from tests.unit.session.conftest import LogUnderTest


def call() -> NewEvent:
    return new_event("agent.tool_use", "sthr_x", name="bash", input={}, evaluated_permission="deny")


def decision(n: int, event: NewEvent) -> DecisionRow:
    record = {"tool": "bash", "permission": "deny", "agent_policy": None, "why": 'a "reason"\n, with \x1f'}
    return DecisionRow(f"audit_{n}", "sha256:0", "deny mcp/a server/a tool", ("sesn", event.id), record)


async def test_both_are_written_in_one_statement_or_neither(under_test: LogUnderTest) -> None:
    session_id = await under_test.session()
    first, second = call(), call()
    await under_test.writer.commit(
        Commit(session_id, events=(first,), decisions=(decision(1, first), decision(2, first)))
    )
    late = Commit(session_id, Fence(seq=0), events=(second,), decisions=(decision(3, second),))
    with pytest.raises(CommitRefused):
        await under_test.writer.commit(late)
    rows = await under_test.database.fetch("select * from audit order by id")
    assert [row["id"] for row in rows] == ["audit_1", "audit_2"]
    assert await under_test.ids(session_id) == [first.id]
    row = rows[0]
    assert (row["actor_kind"], row["actor_id"], row["action"]) == (
        "policy",
        "sha256:0",
        "deny mcp/a server/a tool",
    )
    assert row["objects"] == ["sesn", first.id]
    assert row["decision"] == decision(1, first).record
    [event] = await under_test.database.fetch("select processed_at from events where id = %s", (first.id,))
    assert row["created_at"] == event["processed_at"]
