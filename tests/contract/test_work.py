"""The work queue through the official SDK (contract section 12)."""

import asyncio
import json
from base64 import urlsafe_b64decode
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import anthropic
import httpx
import msgspec
import pytest
import pytest_asyncio
from anthropic import AsyncAnthropic

from corral.api.work import while_wanted

from .conftest import Api

START = "NO_HEARTBEAT"


@dataclass(frozen=True)
class Bench:
    """A self-hosted environment with one session whose work is queued, and its worker's client."""

    api: Api
    environment_id: str
    session_id: str
    worker: AsyncAnthropic

    @property
    def work(self) -> Any:
        return self.worker.beta.environments.work

    async def claimed(self) -> Any:
        item = await self.work.poll(self.environment_id)
        assert item is not None
        return item

    async def running(self) -> Any:
        item = await self.claimed()
        await self.work.ack(item.id, environment_id=self.environment_id)
        return item, await self.beat(item, START)

    async def beat(self, item: Any, expected: str, **options: Any) -> Any:
        return await self.work.heartbeat(
            item.id, environment_id=self.environment_id, expected_last_heartbeat=expected, **options
        )

    async def expire(self, item: Any) -> None:
        await self.api.database.execute(
            "update work set lease_until = now() - interval '1 second' where id = %s", (item.id,)
        )

    async def needs_hands(self) -> None:
        await self.api.database.execute(
            "update sessions set status = 'running' where id = %s", (self.session_id,)
        )


def token_of(item: Any) -> str:
    padded = item.secret + "=" * (-len(item.secret) % 4)
    return json.loads(urlsafe_b64decode(padded))["sessions_token"]


@pytest_asyncio.fixture
async def bench(api: Api) -> AsyncIterator[Bench]:
    environment = await api.environment(config={"type": "self_hosted"})
    session = await api.session(environment_id=environment["id"])
    async with api.client(await api.environment_key(environment["id"])) as worker:
        yield Bench(api, environment["id"], session["id"], worker)


async def test_an_empty_queue_answers_null(api: Api) -> None:
    environment = await api.environment(config={"type": "self_hosted"})
    async with api.client(await api.environment_key(environment["id"])) as worker:
        assert await worker.beta.environments.work.poll(environment["id"], block_ms=1) is None


async def test_an_item_goes_from_queued_over_starting_to_active_to_stopped(bench: Bench) -> None:
    item = await bench.claimed()
    assert (item.state, item.data.id, item.data.type) == ("queued", bench.session_id, "session")
    assert (await bench.work.ack(item.id, environment_id=bench.environment_id)).state == "starting"
    beat = await bench.beat(item, START, desired_ttl_seconds=60)
    assert (beat.state, beat.lease_extended, beat.ttl_seconds) == ("active", True, 60)
    stopped = await bench.work.stop(item.id, environment_id=bench.environment_id, force=True)
    assert stopped.state == "stopped"
    assert stopped.secret is None
    assert await bench.work.poll(bench.environment_id) is None


async def test_a_session_has_at_most_one_item(bench: Bench) -> None:
    ensured = await asyncio.gather(
        *(bench.api.services.work.ensure(bench.session_id, bench.environment_id) for _ in range(5))
    )
    assert ensured == [False] * 5


async def test_two_polls_at_once_never_get_the_same_item(bench: Bench) -> None:
    items = await asyncio.gather(*(bench.work.poll(bench.environment_id) for _ in range(5)))
    assert sum(item is not None for item in items) == 1


async def test_a_waiting_poll_is_woken_by_new_work(api: Api) -> None:
    environment = await api.environment()
    session = await api.session(environment_id=environment["id"])
    key = await api.pool_key()
    async with httpx.AsyncClient(base_url=api.base_url, headers={"x-api-key": key}, timeout=30) as pool:
        polling = asyncio.create_task(pool.get("/corral/v1/work/poll", params={"block_ms": 30_000}))
        seen = "select count(*) as n from pg_stat_activity where query like '%%for update of w skip locked%%'"
        while (await api.database.fetch_one(seen) or {"n": 0})["n"] == 0:
            pass
        assert await api.services.work.ensure(session["id"], environment["id"])
        async with asyncio.timeout(4):
            response = await polling
    assert response.json()["data"]["id"] == session["id"]


async def test_the_pool_serves_cloud_environments_and_no_self_hosted_one(bench: Bench) -> None:
    key = await bench.api.pool_key()
    response = await bench.api.http.get("/corral/v1/work/poll", headers={"x-api-key": key})
    assert (response.status_code, response.json()) == (200, None)


async def test_a_polled_item_is_offered_again_when_it_is_not_acknowledged_in_time(bench: Bench) -> None:
    first = await bench.claimed()
    assert await bench.work.poll(bench.environment_id) is None
    again = await bench.work.poll(bench.environment_id, reclaim_older_than_ms=0)
    assert again.id == first.id
    assert again.secret != first.secret
    assert await bench.api.services.work.verify_token(token_of(first)) is None
    assert await bench.api.services.work.verify_token(token_of(again)) is not None


async def test_an_item_whose_lease_ran_out_is_offered_again_and_its_old_holder_loses_it(bench: Bench) -> None:
    item, beat = await bench.running()
    assert await bench.work.poll(bench.environment_id) is None
    await bench.expire(item)
    again = await bench.claimed()
    assert again.id == item.id
    assert (again.state, again.acknowledged_at, again.latest_heartbeat_at) == ("queued", None, None)
    with pytest.raises(anthropic.APIStatusError) as lost:
        await bench.beat(item, beat.last_heartbeat)
    assert lost.value.status_code == 412


async def test_a_heartbeat_must_echo_the_last_one_exactly(bench: Bench) -> None:
    item, beat = await bench.running()
    again = await bench.beat(item, beat.last_heartbeat)
    assert again.last_heartbeat != beat.last_heartbeat
    for wrong in (START, beat.last_heartbeat):
        with pytest.raises(anthropic.APIStatusError) as refused:
            await bench.beat(item, wrong)
        error: Any = refused.value
        assert (error.status_code, error.response.headers["x-should-retry"]) == (412, "false")
        assert error.details.error_code == "heartbeat_precondition_failed"
        assert error.details.current_state.to_dict() == {
            "last_heartbeat": again.last_heartbeat,
            "lease_extended": False,
            "state": "active",
            "ttl_seconds": 90,
        }


async def test_a_heartbeat_may_carry_its_values_in_the_body(bench: Bench) -> None:
    item = await bench.claimed()
    await bench.work.ack(item.id, environment_id=bench.environment_id)
    response = await bench.api.http.post(
        f"/v1/environments/{bench.environment_id}/work/{item.id}/heartbeat",
        json={"expected_last_heartbeat": START, "desired_ttl_seconds": 99999},
        headers={"x-api-key": bench.worker.api_key or ""},
    )
    assert response.json()["ttl_seconds"] == 3600


async def test_a_stopping_item_says_so_at_the_next_heartbeat_whatever_it_echoes(bench: Bench) -> None:
    item, _ = await bench.running()
    stopping = await bench.work.stop(item.id, environment_id=bench.environment_id)
    assert (stopping.state, stopping.stopped_at) == ("stopping", None)
    beat = await bench.beat(item, "anything")
    assert (beat.state, beat.lease_extended) == ("stopping", False)
    await bench.work.stop(item.id, environment_id=bench.environment_id, force=True)
    assert (await bench.beat(item, "anything")).state == "stopped"


async def test_stopping_twice_is_a_conflict(bench: Bench) -> None:
    item = await bench.claimed()
    assert (await bench.work.stop(item.id, environment_id=bench.environment_id)).state == "stopped"
    with pytest.raises(anthropic.ConflictError):
        await bench.work.stop(item.id, environment_id=bench.environment_id)


async def test_acknowledging_again_changes_nothing_and_never_takes_a_running_item(bench: Bench) -> None:
    item, beat = await bench.running()
    again = await bench.work.ack(item.id, environment_id=bench.environment_id)
    assert again.state == "active"
    assert (await bench.beat(item, beat.last_heartbeat)).lease_extended


async def test_a_stop_while_the_session_runs_is_followed_by_another_item(bench: Bench) -> None:
    await bench.needs_hands()
    item, _ = await bench.running()
    await bench.api.database.execute(
        "update work set created_at = now() - interval '1 minute' where id = %s", (item.id,)
    )
    await bench.work.stop(item.id, environment_id=bench.environment_id, force=True)
    following = await bench.claimed()
    assert following.id != item.id
    assert following.data.id == bench.session_id


async def test_a_worker_that_fails_at_once_does_not_spin(bench: Bench) -> None:
    await bench.needs_hands()
    item = await bench.claimed()
    await bench.work.stop(item.id, environment_id=bench.environment_id, force=True)
    assert await bench.work.poll(bench.environment_id) is None
    assert await bench.work.poll(bench.environment_id, reclaim_older_than_ms=0) is not None


async def test_an_idle_session_gets_no_further_item(bench: Bench) -> None:
    item, _ = await bench.running()
    await bench.work.stop(item.id, environment_id=bench.environment_id, force=True)
    assert await bench.work.poll(bench.environment_id, reclaim_older_than_ms=0) is None


async def test_a_stop_whose_worker_vanished_ends_by_itself_and_is_followed(bench: Bench) -> None:
    await bench.needs_hands()
    item, _ = await bench.running()
    await bench.api.database.execute(
        "update work set created_at = now() - interval '1 minute' where id = %s", (item.id,)
    )
    await bench.work.stop(item.id, environment_id=bench.environment_id)
    assert not await bench.api.services.work.ensure(bench.session_id, bench.environment_id)
    assert await bench.work.poll(bench.environment_id) is None
    await bench.expire(item)
    assert (await bench.claimed()).id != item.id


async def test_the_token_reaches_its_own_session_and_item_alone(bench: Bench) -> None:
    item, beat = await bench.running()
    other = await bench.api.session(environment_id=bench.environment_id)
    async with bench.api.client(token_of(item)) as holder:
        assert (await holder.beta.sessions.retrieve(bench.session_id)).id == bench.session_id
        with pytest.raises(anthropic.NotFoundError):
            await holder.beta.sessions.retrieve(other["id"])
        with pytest.raises(anthropic.PermissionDeniedError):
            await holder.beta.sessions.create(agent="agent_x", environment_id=bench.environment_id)
        with pytest.raises(anthropic.PermissionDeniedError):
            await holder.beta.sessions.events.send(
                bench.session_id,
                events=[{"type": "user.tool_confirmation", "tool_use_id": "sevt_1", "result": "allow"}],
            )
        work = holder.beta.environments.work
        assert (
            await work.heartbeat(
                item.id,
                environment_id=bench.environment_id,
                expected_last_heartbeat=beat.last_heartbeat,
            )
        ).lease_extended
        await work.stop(item.id, environment_id=bench.environment_id, force=True)
        with pytest.raises(anthropic.AuthenticationError):
            await holder.beta.sessions.retrieve(bench.session_id)


async def test_a_foreign_environment_reads_as_if_it_did_not_exist(bench: Bench) -> None:
    other = await bench.api.environment(config={"type": "self_hosted"})
    foreign = await bench.api.session(environment_id=other["id"])
    for call in (
        bench.work.poll(other["id"]),
        bench.work.stats(other["id"]),
        bench.worker.beta.sessions.retrieve(foreign["id"]),
        bench.worker.beta.sessions.events.list(foreign["id"]),
    ):
        with pytest.raises(anthropic.NotFoundError):
            await call


async def test_stats_count_what_waits_what_is_claimed_and_who_polls(bench: Bench) -> None:
    await bench.api.session(environment_id=bench.environment_id)
    await bench.work.poll(bench.environment_id, anthropic_worker_id="w1")
    stats = await bench.work.stats(bench.environment_id)
    assert (stats.depth, stats.pending, stats.workers_polling) == (1, 1, 1)
    assert stats.oldest_queued_at is not None
    by_owner = await bench.api.sdk.beta.environments.work.stats(bench.environment_id)
    assert by_owner == stats


async def test_the_queue_lists_newest_first_without_secrets(bench: Bench) -> None:
    sessions = [await bench.api.session(environment_id=bench.environment_id) for _ in range(3)]
    await bench.claimed()
    items = [item async for item in bench.work.list(bench.environment_id, limit=2)]
    assert [i.data.id for i in items] == [*(s["id"] for s in reversed(sessions)), bench.session_id]
    assert all(item.secret is None for item in items)


async def test_the_owner_reads_and_patches_an_item_that_a_worker_may_not(bench: Bench) -> None:
    item = await bench.claimed()
    owner = bench.api.sdk.beta.environments.work
    updated = await owner.update(item.id, environment_id=bench.environment_id, metadata={"a": "1"})
    assert updated.metadata == {"a": "1"}
    retrieved = await owner.retrieve(item.id, environment_id=bench.environment_id)
    assert retrieved == updated
    with pytest.raises(anthropic.PermissionDeniedError):
        await bench.work.retrieve(item.id, environment_id=bench.environment_id)
    with pytest.raises(anthropic.PermissionDeniedError):
        await owner.list(bench.environment_id)
    with pytest.raises(anthropic.PermissionDeniedError):
        await owner.poll(bench.environment_id)


@pytest.mark.parametrize("block_ms", ["0", "1000", "-1", "x"])
async def test_a_wait_out_of_bounds_is_refused(bench: Bench, block_ms: str) -> None:
    response = await bench.api.http.get(
        f"/v1/environments/{bench.environment_id}/work/poll",
        params={"block_ms": block_ms},
        headers={"x-api-key": bench.worker.api_key or ""},
    )
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith("block_ms:")


async def _tool_use(bench: Bench) -> str:
    body: dict[str, Any] = {"id": "sevt_call", "type": "agent.tool_use", "name": "bash", "input": {},
            "evaluated_permission": "allow"}  # fmt: skip
    await bench.api.database.execute(
        "insert into events (session_id, seq, id, thread_id, type, body, processed_at)"
        " values (%s, 1, 'sevt_call', 'sthr_x', 'agent.tool_use', %s::json, now())",
        (bench.session_id, msgspec.json.encode(body).decode()),
    )
    await bench.api.database.execute("update sessions set last_seq = 1 where id = %s", (bench.session_id,))
    return "sevt_call"


async def test_a_call_is_begun_by_one_claim_and_refused_to_the_next(bench: Bench) -> None:
    call = await _tool_use(bench)
    path = f"/corral/v1/sessions/{bench.session_id}/calls/{call}/begin"
    first = await bench.claimed()

    async def begin(item: Any) -> int:
        headers = {"authorization": f"Bearer {token_of(item)}"}
        return (await bench.api.http.post(path, headers=headers)).status_code

    assert [await begin(first), await begin(first)] == [200, 200]
    second = await bench.work.poll(bench.environment_id, reclaim_older_than_ms=0)
    assert await begin(first) == 401
    assert await begin(second) == 409
    unknown = path.replace(call, "sevt_other")
    headers = {"authorization": f"Bearer {token_of(second)}"}
    assert (await bench.api.http.post(unknown, headers=headers)).status_code == 404


async def test_an_unanswered_sandbox_call_keeps_work_coming(bench: Bench) -> None:
    await _tool_use(bench)
    item = await bench.claimed()
    await bench.work.stop(item.id, environment_id=bench.environment_id, force=True)
    assert await bench.work.poll(bench.environment_id, reclaim_older_than_ms=0) is not None


async def test_a_poll_ends_when_its_client_is_gone_and_claims_nothing_more() -> None:
    ended = asyncio.Event()

    async def waits_for_work() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.set()

    messages = iter([{"type": "http.request"}, {"type": "http.disconnect"}])

    async def receive() -> dict[str, Any]:
        return next(messages)

    assert await while_wanted(waits_for_work(), asyncio.Event(), receive) is None
    assert ended.is_set()
