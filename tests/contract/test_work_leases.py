"""Polls, leases and stops of work items, at each of their bounds (contract section 12.3)."""

import asyncio
from typing import Any

import anthropic
import pytest

from tests.contract.refusals import refused, undocumented
from tests.contract.test_work import START, Bench, bench, token_of
from tests.contract.test_work_rules import plain, shown

__all__ = ["bench"]


async def test_items_are_handed_out_oldest_first(bench: Bench) -> None:
    sessions = [await bench.api.session(environment_id=bench.environment_id) for _ in range(3)]
    handed = [(await bench.claimed()).data.id for _ in range(4)]
    assert handed == [bench.session_id, *(session["id"] for session in sessions)]


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("block_ms=1", 200),
        ("block_ms=999", 200),
        ("block_ms=1000", 400),
        ("reclaim_older_than_ms=0", 200),
        ("reclaim_older_than_ms=3600000", 200),
        ("reclaim_older_than_ms=3600001", 400),
        ("reclaim_older_than_ms=-1", 400),
        ("reclaim_older_than_ms=soon", 400),
    ],
)
async def test_a_polls_parameters_at_their_bounds(bench: Bench, query: str, status: int) -> None:
    response = await plain(bench, "GET", f"/poll?{query}")
    assert response.status_code == status
    if status == 400:
        assert response.json()["error"]["message"].startswith(query.split("=")[0] + ":")


async def test_a_polled_item_is_kept_for_five_seconds_unless_the_poll_says_otherwise(bench: Bench) -> None:
    item = await bench.claimed()

    async def polled_ago(milliseconds: int) -> None:
        await bench.api.database.execute(
            "update work set polled_at = clock_timestamp() - %s * interval '1 millisecond' where id = %s",
            (milliseconds, item.id),
        )

    await polled_ago(4000)
    assert await bench.work.poll(bench.environment_id) is None
    assert await bench.work.poll(bench.environment_id, reclaim_older_than_ms=60_000) is None
    await polled_ago(5001)
    assert (await bench.work.poll(bench.environment_id)).id == item.id


async def test_an_acknowledged_item_is_not_offered_however_short_the_reclaim(bench: Bench) -> None:
    item = await bench.claimed()
    await bench.work.ack(item.id, environment_id=bench.environment_id)
    assert await bench.work.poll(bench.environment_id, reclaim_older_than_ms=0) is None
    await bench.beat(item, START)
    assert await bench.work.poll(bench.environment_id, reclaim_older_than_ms=0) is None


@pytest.mark.parametrize(
    ("wish", "given"), [(None, 90), (1, 10), (10, 10), (60, 60), (3600, 3600), (3601, 3600)]
)
async def test_a_lease_is_as_long_as_wished_within_bounds(bench: Bench, wish: int | None, given: int) -> None:
    item = await bench.claimed()
    await bench.work.ack(item.id, environment_id=bench.environment_id)
    options = {} if wish is None else {"desired_ttl_seconds": wish}
    beat = await bench.beat(item, START, **options)
    assert undocumented(beat) == []
    assert (beat.type, beat.state, beat.lease_extended) == ("work_heartbeat", "active", True)
    assert beat.ttl_seconds == given
    row = await bench.api.database.fetch_one(
        "select extract(epoch from lease_until - latest_heartbeat_at)::float as held from work where id = %s",
        (item.id,),
    )
    assert row is not None
    assert row["held"] == pytest.approx(given, abs=1)


@pytest.mark.parametrize("query", ["desired_ttl_seconds=0", "desired_ttl_seconds=x"])
async def test_a_lease_of_nothing_is_refused_by_name(bench: Bench, query: str) -> None:
    item = await bench.claimed()
    response = await plain(bench, "POST", f"/{item.id}/heartbeat?{query}")
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith("desired_ttl_seconds:")
    response = await plain(bench, "POST", f"/{item.id}/heartbeat", json={"desired_ttl_seconds": 0})
    assert response.json()["error"]["message"].startswith("desired_ttl_seconds:")


async def test_a_refused_heartbeat_tells_the_lease_as_it_stands(bench: Bench) -> None:
    item, _ = await bench.running()
    last = (await shown(bench, item)).latest_heartbeat_at
    beat = await bench.beat(item, last, desired_ttl_seconds=600)
    with pytest.raises(anthropic.APIStatusError) as caught:
        await bench.beat(item, START, desired_ttl_seconds=30)
    error: Any = caught.value
    assert error.response.headers["x-should-retry"] == "false"
    assert error.body["error"]["details"] == {
        "error_code": "heartbeat_precondition_failed",
        "current_state": {
            "last_heartbeat": beat.last_heartbeat,
            "lease_extended": False,
            "state": "active",
            # Of the lease that another holds, not of the one that was wished for.
            "ttl_seconds": 600,
        },
    }


async def test_a_first_heartbeat_that_claims_an_earlier_one_is_refused_with_null(bench: Bench) -> None:
    item = await bench.claimed()
    await bench.work.ack(item.id, environment_id=bench.environment_id)
    with pytest.raises(anthropic.APIStatusError) as caught:
        await bench.beat(item, "2026-01-01T00:00:00.000000Z")
    error: Any = caught.value
    state = error.body["error"]["details"]["current_state"]
    assert (state["last_heartbeat"], state["state"]) == (None, "starting")
    assert (await bench.beat(item, START)).lease_extended


async def test_a_heartbeat_of_an_item_that_nobody_acknowledged_is_a_conflict(bench: Bench) -> None:
    item = await bench.claimed()
    error = await refused(bench.beat(item, START), "acknowledge", kind=anthropic.ConflictError)
    assert error["type"] == "conflict_error"
    assert (await shown(bench, item)).state == "queued"


async def test_a_heartbeat_without_an_expectation_is_not_compared(bench: Bench) -> None:
    item, _ = await bench.running()
    beat = await bench.work.heartbeat(item.id, environment_id=bench.environment_id)
    assert beat.lease_extended


async def test_a_stopping_items_heartbeats_extend_nothing_and_keep_the_last_one(bench: Bench) -> None:
    item, beat = await bench.running()
    await bench.work.stop(item.id, environment_id=bench.environment_id)
    for expected in (START, beat.last_heartbeat, "x"):
        answer = await bench.beat(item, expected, desired_ttl_seconds=3600)
        assert answer.to_dict() == {
            "type": "work_heartbeat",
            "last_heartbeat": beat.last_heartbeat,
            "lease_extended": False,
            "state": "stopping",
            "ttl_seconds": 90,
        }


async def test_of_two_first_heartbeats_at_once_one_holds_the_lease(bench: Bench) -> None:
    item = await bench.claimed()
    await bench.work.ack(item.id, environment_id=bench.environment_id)
    outcomes = await asyncio.gather(*(bench.beat(item, START) for _ in range(5)), return_exceptions=True)
    assert sum(not isinstance(outcome, BaseException) for outcome in outcomes) == 1
    statuses = {o.status_code for o in outcomes if isinstance(o, anthropic.APIStatusError)}
    assert statuses == {412}


async def test_a_stop_of_what_no_worker_beats_for_ends_it_at_once(bench: Bench) -> None:
    for acknowledged in (False, True):
        await bench.api.session(environment_id=bench.environment_id)
        item = await bench.claimed()
        if acknowledged:
            await bench.work.ack(item.id, environment_id=bench.environment_id)
        stopped = await bench.work.stop(item.id, environment_id=bench.environment_id)
        assert stopped.state == "stopped"
        assert stopped.stopped_at is not None


@pytest.mark.parametrize("force", [False, True])
async def test_a_second_stop_of_a_stopped_item_is_a_conflict_not_to_be_retried(
    bench: Bench, force: bool
) -> None:
    item, _ = await bench.running()
    await bench.work.stop(item.id, environment_id=bench.environment_id, force=True)
    again = bench.work.stop(item.id, environment_id=bench.environment_id, force=force)
    error = await refused(again, "already stopped", kind=anthropic.ConflictError)
    assert error["type"] == "conflict_error"
    acked = bench.work.ack(item.id, environment_id=bench.environment_id)
    await refused(acked, "stopped", kind=anthropic.ConflictError)


async def test_a_stop_of_a_stopping_item_waits_on_unless_it_is_forced(bench: Bench) -> None:
    item, _ = await bench.running()
    for _ in range(2):
        stopping = await bench.work.stop(item.id, environment_id=bench.environment_id)
        assert stopping.state == "stopping"
    stopped = await bench.work.stop(item.id, environment_id=bench.environment_id, force=True)
    assert stopped.state == "stopped"


@pytest.mark.parametrize(
    ("query", "body", "state"),
    [
        ("", b"", "stopping"),
        ("", b"{}", "stopping"),
        ("", b'{"force": null}', "stopping"),
        ("", b'{"force": true}', "stopped"),
        ("?force=true", b"", "stopped"),
        ("?force=false", b'{"force": true}', "stopping"),
    ],
)
async def test_force_comes_in_the_body_or_as_a_parameter(
    bench: Bench, query: str, body: bytes, state: str
) -> None:
    item, _ = await bench.running()
    response = await plain(bench, "POST", f"/{item.id}/stop{query}", content=body)
    assert (response.status_code, response.json()["state"]) == (200, state)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b'{"force": "yes"}', "force: Input should be a valid boolean"),
        (b'{"forced": true}', "forced: Extra inputs are not permitted"),
        (b"[]", "body: Input should be a valid object"),
    ],
)
async def test_a_stop_that_is_none_is_refused_by_name(bench: Bench, body: bytes, named: str) -> None:
    item, _ = await bench.running()
    response = await plain(bench, "POST", f"/{item.id}/stop", content=body)
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(named), response.text
    assert (await shown(bench, item)).state == "active"


async def test_an_items_token_ends_with_the_item_and_is_told_so_by_a_heartbeat(bench: Bench) -> None:
    item, _ = await bench.running()
    async with bench.api.client(token_of(item)) as holder:
        work = holder.beta.environments.work
        assert (await holder.beta.sessions.retrieve(bench.session_id)).id == bench.session_id
        await bench.work.stop(item.id, environment_id=bench.environment_id, force=True)
        await refused(holder.beta.sessions.retrieve(bench.session_id), kind=anthropic.AuthenticationError)
        beat = await work.heartbeat(
            item.id, environment_id=bench.environment_id, expected_last_heartbeat=START
        )
        assert (beat.state, beat.lease_extended) == ("stopped", False)
