"""The requests of `ant beta:worker poll` and `run`, replayed (see `ant.py` for where they come from)."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import httpx
import msgspec
import pytest_asyncio

from tests.conformance.ant import Ant
from tests.conformance.premises import (
    TOOLSET,
    Premises,
    asks,
    bash,
    ends_turn,
    results_of,
    text_of,
    token_of,
    until_done,
)


@pytest_asyncio.fixture
async def ant(premises: Premises, open_folder: Path) -> AsyncIterator[Ant]:
    async with httpx.AsyncClient(base_url=premises.corral.base_url, timeout=20) as http:
        yield Ant(http, premises.environment_id, premises.key, open_folder)


async def test_a_script_on_each_item_serves_message_after_message(premises: Premises, ant: Ant) -> None:
    session = await premises.session(TOOLSET)
    await session.says("go", script=[bash("echo one > f"), bash("cat f"), {"text": "done"}])
    stdin: list[bytes] = []

    async def script(given: Mapping[str, str], item: bytes) -> None:
        stdin.append(item)
        await ant.run(given)

    async with until_done(ant.poll(script, items=2)):
        first = await session.until("session.status_idle", where=ends_turn)
        await ant.until("/stop", 409)
        await session.says("more", script=[bash("echo two"), {"text": "done"}])
        await session.until("session.status_idle", where=ends_turn, after=first.id)
    assert [text_of(result) for result in await results_of(session)] == ["(no output)", "one", "two"]
    # What the script hands on to a container that must not have the key.
    items = [msgspec.json.decode(item) for item in stdin]
    assert [set(item) for item in items] == [
        {
            *("type", "id", "environment_id", "data", "state", "metadata", "secret", "created_at"),
            *("acknowledged_at", "started_at", "latest_heartbeat_at", "stop_requested_at", "stopped_at"),
        }
    ] * 2
    assert len({item["secret"] for item in items}) == 2
    # `run` has stopped each item by force; that the poller stops it too is refused, as it expects.
    assert ant.statuses("/stop") == [200, 409, 200, 409]
    assert [item.state for item in await premises.items()] == ["stopped", "stopped"]


async def test_the_poller_serves_items_by_itself_where_it_has_no_script(premises: Premises, ant: Ant) -> None:
    sessions = [await premises.session(TOOLSET) for _ in range(2)]
    for number, session in enumerate(sessions):
        await session.says("go", script=[bash(f"echo {number}"), {"text": "done"}])
    async with asyncio.timeout(20):
        await ant.poll(None, items=2)
    assert [text_of((await results_of(session))[0]) for session in sessions] == ["0", "1"]
    assert {status for _, _, status in ant.answers} == {200, 409}


async def test_what_a_failing_script_left_undone_is_offered_again(premises: Premises, ant: Ant) -> None:
    session = await premises.session(TOOLSET)
    await session.says("go", script=[bash("echo hello"), {"text": "done"}])
    await session.until("session.status_idle", where=asks)

    async def fails(given: Mapping[str, str], item: bytes) -> None:
        """Ends without having run anything."""

    async with asyncio.timeout(20):
        await ant.poll(fails, items=1)
    first, _ = await premises.items()
    assert (first.state, ant.statuses("/stop")) == ("stopped", [200])
    following = await premises.work.poll(premises.environment_id, reclaim_older_than_ms=0)
    assert (following.id != first.id, following.data.id) == (True, session.id)


async def test_every_heartbeat_echoes_the_last_one_and_a_stop_ends_the_run(
    premises: Premises, ant: Ant
) -> None:
    session = await premises.session(TOOLSET)
    item = await premises.claimed()
    given = {
        "ANTHROPIC_WORK_ID": item.id,
        "ANTHROPIC_ENVIRONMENT_ID": item.environment_id,
        "ANTHROPIC_SESSION_ID": session.id,
    }
    async with until_done(ant.run(given)):
        await ant.until("/events/stream", 200)
        await premises.owner.stop(item.id, environment_id=item.environment_id)
        # Anything that is answered lets the next heartbeat out.
        await ant.asks("GET", f"/v1/sessions/{session.id}?beta=true", helper="environments-worker")
    assert set(ant.statuses("/heartbeat")) == {200}
    assert len(ant.statuses("/heartbeat")) >= 2
    assert ant.statuses("/stop") == [200]


async def test_a_run_whose_lease_another_has_is_told_so(premises: Premises, ant: Ant) -> None:
    session = await premises.session(TOOLSET)
    item = await premises.claimed()
    await premises.work.heartbeat(
        item.id, environment_id=item.environment_id, expected_last_heartbeat="NO_HEARTBEAT"
    )
    given = {
        "ANTHROPIC_WORK_ID": item.id,
        "ANTHROPIC_ENVIRONMENT_ID": item.environment_id,
        "ANTHROPIC_SESSION_ID": session.id,
    }
    # This version stops what it has lost as well, and the key does not tell who it is; the token does.
    holder = Ant(ant.http, ant.environment_id, token_of(item), ant.workdir)
    await premises.expire(item.id)
    taken = await premises.claimed()
    async with asyncio.timeout(20):
        await holder.run(given)
    assert holder.statuses("/heartbeat") == [412]
    assert holder.statuses("/stop") == [409]
    assert (taken.id, [known.state for known in await premises.items()]) == (item.id, ["starting"])
