"""Whatever the log holds when every process dies, the next brain carries the session on to the same end."""

import asyncio
from collections import Counter
from collections.abc import Mapping

from corral.session.events import Event
from corral.store.database import Database
from corral.testing import ScriptedModel
from tests.corral_server import Corral, running_corral
from tests.databases import CleanDatabases
from tests.e2e.recovery_scenario import (
    TOOLS,
    Client,
    Recording,
    Story,
    put_copy,
    put_environment,
    rows,
    sums_up,
)

SECONDS = 120


async def recorded(url: str, model: ScriptedModel) -> tuple[Recording, Story]:
    """The scenario played to its end without a disturbance."""
    sums_up(model)
    async with running_corral(url, model) as corral:
        session = await corral.session(*TOOLS)
        clients = await carried_on(corral, model, {session.id: 0})
        recording = await Recording.of(corral.database, session.id)
        assert "agent.thread_context_compacted" in [event["type"] for event in recording.events]
        return recording, Story.of(clients[session.id].events)


async def carried_on(corral: Corral, model: ScriptedModel, cuts: Mapping[str, int]) -> dict[str, Client]:
    """Each session brought to its end by its client and whatever brain there is."""
    clients = {name: Client(corral.services.sessions, model, name, cut) for name, cut in cuts.items()}
    runs = {asyncio.create_task(client.run()): client for client in clients.values()}
    _, stuck = await asyncio.wait(runs, timeout=SECONDS)
    for run in stuck:
        run.cancel()
    await asyncio.gather(*runs, return_exceptions=True)
    assert {runs[run].session_id: runs[run].state for run in stuck} == {}
    assert [error for run in runs if (error := run.exception()) is not None] == []
    return clients


def check_log(events: list[Event]) -> None:
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert max(Counter(event.id for event in events).values()) == 1
    times = [event.processed_at for event in events]
    assert times == sorted(times)
    starts = [event.id for event in events if event.type == "span.model_request_start"]
    ends = [
        event.body["model_request_start_id"] for event in events if event.type == "span.model_request_end"
    ]
    assert starts == ends
    assert events[-1].type == "session.status_idle"


async def check_rows(database: Database, session_id: str) -> None:
    """A session that has come to rest costs its own row and its log's, and nothing else."""
    row = await database.fetch_one(
        "select status, last_seq, (select count(*) from events e where e.session_id = s.id) as events,"
        " (select count(*) from inputs i where i.session_id = s.id) as inputs,"
        " (select count(*) from wakes w where w.session_id = s.id) as wakes from sessions s where id = %s",
        (session_id,),
    )
    assert row is not None
    assert (row["status"], row["inputs"], row["wakes"]) == ("idle", 0, 0)
    assert row["last_seq"] == row["events"]


async def test_a_session_cut_off_after_any_commit_comes_to_the_same_end(
    database_url: str, model: ScriptedModel, clean_databases: CleanDatabases
) -> None:
    recording, story = await recorded(database_url, model)
    fresh = clean_databases.take()
    async with Database(fresh) as database:
        await put_environment(database, recording)
        cuts: dict[str, int] = {}
        for cut in recording.boundaries:
            cuts[f"sesn_bare{cut:04}"] = cut
            await put_copy(database, recording, f"sesn_bare{cut:04}", cut, ())
            if cut < len(recording.events) and (inputs := recording.taken_after(cut)):
                cuts[f"sesn_told{cut:04}"] = cut
                await put_copy(database, recording, f"sesn_told{cut:04}", cut, inputs)
    assert len(cuts) > 60
    async with running_corral(fresh, model) as corral:
        clients = await carried_on(corral, model, cuts)
        model.assert_no_refusals()
        for name, client in clients.items():
            check_log(client.events)
            assert Story.of(client.events) == story, name
            await check_rows(corral.database, name)
            kept = await rows(corral.database, name)
            assert kept[: cuts[name]] == recording.events[: cuts[name]], name
    clean_databases.give_back(fresh)


async def test_a_log_cut_off_inside_a_commit_is_no_trap_either(
    database_url: str, model: ScriptedModel, clean_databases: CleanDatabases
) -> None:
    """No commit is ever torn; but a restored backup or an older version may have left such a log."""
    recording, story = await recorded(database_url, model)
    fresh = clean_databases.take()
    torn = [cut for cut in range(1, len(recording.events)) if cut not in recording.boundaries]
    cuts = {f"sesn_torn{cut:04}": cut for cut in torn[::6]}
    async with Database(fresh) as database:
        await put_environment(database, recording)
        for name, cut in cuts.items():
            await put_copy(database, recording, name, cut, ())
    async with running_corral(fresh, model) as corral:
        for name, client in (await carried_on(corral, model, cuts)).items():
            check_log(client.events)
            assert Story.of(client.events).said == story.said
            await check_rows(corral.database, name)
    clean_databases.give_back(fresh)
