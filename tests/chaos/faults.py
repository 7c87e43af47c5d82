"""What may not happen, counted from the outside when the storm is over."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from corral.store.database import Database
from corral.testing import ScriptedModel
from tests.chaos.clients import ChaosClient


class Faults(msgspec.Struct, frozen=True):
    """How often each promise was broken."""

    sends_lost: int
    sends_doubled: int
    gaps_in_sequence: int
    model_requests_refused: int
    tool_calls_run_twice: int
    tool_uses_without_one_result: int
    sessions_not_idle: int
    wakes_left: int
    inputs_left: int


async def count_faults(
    database: Database, clients: Sequence[ChaosClient], model: ScriptedModel, workspaces: Path
) -> Faults:
    """Look at everything once nothing runs any more."""
    lost = doubled = gaps = unanswered = 0
    for client in clients:
        rows = await database.fetch(
            "select seq, type, body::text as body, resolves from events where session_id = %s order by seq",
            (client.session_id,),
        )
        gaps += sum(row["seq"] != n for n, row in enumerate(rows, 1))
        texts = Counter(
            msgspec.json.decode(row["body"])["content"][0]["text"]
            for row in rows
            if row["type"] == "user.message"
        )
        lost += sum(texts[text] == 0 for text in client.acknowledged)
        doubled += sum(count > 1 for count in texts.values())
        uses = {msgspec.json.decode(row["body"])["id"] for row in rows if row["type"] == "agent.tool_use"}
        results = Counter(row["resolves"] for row in rows if row["type"] == "agent.tool_result")
        unanswered += sum(results[use] != 1 for use in uses)
    return Faults(
        sends_lost=lost,
        sends_doubled=doubled,
        gaps_in_sequence=gaps,
        model_requests_refused=len(model.stats["refused"]),
        tool_calls_run_twice=_ran_twice(workspaces),
        tool_uses_without_one_result=unanswered,
        sessions_not_idle=await _count(database, "select count(*) as n from sessions where status <> 'idle'"),
        wakes_left=await _count(database, "select count(*) as n from wakes"),
        inputs_left=await _count(database, "select count(*) as n from inputs"),
    )


def _ran_twice(workspaces: Path) -> int:
    """Each call adds one line that no other call adds."""
    twice = 0
    for log in workspaces.glob("*/ran.log"):
        lines = Counter(log.read_text("utf-8").split())
        twice += sum(count > 1 for count in lines.values())
    return twice


async def _count(database: Database, query: str) -> int:
    row = await database.fetch_one(query)  # pyright: ignore[reportArgumentType]
    assert row is not None
    return int(row["n"])
