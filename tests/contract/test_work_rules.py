"""Rules of the work queue: states, times, metadata, statistics, who may do what (contract section 12)."""

import json
from base64 import urlsafe_b64decode
from datetime import datetime
from typing import Any

import anthropic
import httpx

from tests.contract.conftest import Api
from tests.contract.refusals import refused, undocumented
from tests.contract.test_permissions import LS, READ, calling, output
from tests.contract.test_sessions_create import message
from tests.contract.test_work import START, Bench, bench, token_of
from tests.corral_server import Corral
from tests.moments import ends_turn

__all__ = ["bench"]
UNKNOWN = "work_01AAAAAAAAAAAAAAAAAAAAAAAA"
TIMES = ("acknowledged_at", "started_at", "latest_heartbeat_at", "stop_requested_at", "stopped_at")


def times(item: Any) -> list[str]:
    """Which of an item's times are set."""
    return [name for name in TIMES if getattr(item, name) is not None]


async def shown(bench: Bench, item: Any) -> Any:
    return await bench.api.sdk.beta.environments.work.retrieve(item.id, environment_id=bench.environment_id)


async def plain(bench: Bench, method: str, path: str, **options: Any) -> httpx.Response:
    """A request with the environment's key."""
    headers = {"x-api-key": bench.worker.api_key or ""}
    return await bench.api.http.request(
        method, f"/v1/environments/{bench.environment_id}/work{path}", headers=headers, **options
    )


async def test_a_session_of_a_self_hosted_environment_is_queued_when_it_is_made(bench: Bench) -> None:
    [item] = [item async for item in bench.work.list(bench.environment_id)]
    assert undocumented(item) == []
    assert (item.type, item.data.type, item.data.id) == ("work", "session", bench.session_id)
    assert (item.state, item.environment_id) == ("queued", bench.environment_id)
    assert (item.metadata, item.secret, times(item)) == ({}, None, [])
    assert item.id.startswith("work_")


async def test_a_session_of_a_cloud_environment_is_not_queued_until_it_needs_hands(api: Api) -> None:
    session = await api.session()
    key = await api.environment_key(session["environment_id"])
    async with api.client(key) as worker:
        listed = worker.beta.environments.work.list(session["environment_id"])
        assert [item async for item in listed] == []


async def test_each_state_sets_its_own_time(bench: Bench) -> None:
    item = await bench.claimed()
    assert (item.state, times(item)) == ("queued", [])
    acked = await bench.work.ack(item.id, environment_id=bench.environment_id)
    assert (acked.state, times(acked)) == ("starting", ["acknowledged_at"])
    beat = await bench.beat(item, START)
    active = await shown(bench, item)
    assert (active.state, times(active)) == ("active", list(TIMES[:3]))
    assert active.latest_heartbeat_at == beat.last_heartbeat
    again = await bench.beat(item, beat.last_heartbeat)
    later = await shown(bench, item)
    assert later.latest_heartbeat_at == again.last_heartbeat > beat.last_heartbeat
    assert later.started_at == active.started_at
    await bench.work.stop(item.id, environment_id=bench.environment_id)
    stopping = await shown(bench, item)
    assert (stopping.state, times(stopping)) == ("stopping", list(TIMES[:4]))
    await bench.work.stop(item.id, environment_id=bench.environment_id, force=True)
    stopped = await shown(bench, item)
    assert (stopped.state, times(stopped)) == ("stopped", list(TIMES))
    assert stopped.stop_requested_at == stopping.stop_requested_at


async def test_only_a_poll_hands_out_the_secret_which_is_urlsafe_base64_of_json(bench: Bench) -> None:
    item = await bench.claimed()
    padded = item.secret + "=" * (-len(item.secret) % 4)
    payload = json.loads(urlsafe_b64decode(padded))
    assert isinstance(payload["sessions_token"], str)
    others = [
        await bench.work.ack(item.id, environment_id=bench.environment_id),
        await shown(bench, item),
        *[listed async for listed in bench.work.list(bench.environment_id)],
        await bench.work.stop(item.id, environment_id=bench.environment_id),
    ]
    assert [other.secret for other in others] == [None] * 4
    assert all(undocumented(other) == [] for other in others)


async def test_an_item_that_does_not_exist_is_a_404_of_every_kind_of_request(bench: Bench) -> None:
    other = await bench.api.environment(config={"type": "self_hosted"})
    item = await bench.claimed()
    owner = bench.api.sdk.beta.environments.work
    for environment, work_id in ((bench.environment_id, UNKNOWN), (other["id"], item.id)):
        async with bench.api.client(await bench.api.environment_key(environment)) as worker:
            work = worker.beta.environments.work
            for call in (
                work.ack(work_id, environment_id=environment),
                work.heartbeat(work_id, environment_id=environment, expected_last_heartbeat=START),
                work.stop(work_id, environment_id=environment),
                owner.retrieve(work_id, environment_id=environment),
                owner.update(work_id, environment_id=environment, metadata={}),
            ):
                await refused(call, work_id, kind=anthropic.NotFoundError)
    assert (await shown(bench, item)).state == "queued"


async def test_metadata_of_an_item_is_patched_within_the_usual_bounds(bench: Bench) -> None:
    item = await bench.claimed()
    owner: Any = bench.api.sdk.beta.environments.work

    async def patch(metadata: Any) -> dict[str, str]:
        changed = await owner.update(item.id, environment_id=bench.environment_id, metadata=metadata)
        return changed.metadata

    full = {f"{n:064}": "v" * 512 for n in range(16)}
    assert await patch({"a": "1", "b": "2"}) == {"a": "1", "b": "2"}
    assert await patch({"a": None, "c": ""}) == {"b": "2", "c": ""}
    assert await patch({}) == {"b": "2", "c": ""}
    await refused(patch(full), "metadata: at most 16 pairs")
    assert await patch({**full, "b": None, "c": None}) == full
    for bad, named in (
        ({"": "v"}, "metadata: key ''"),
        ({"k" * 65: "v"}, "metadata: key"),
        ({"k": "v" * 513}, "metadata.k: must have at most 512"),
        ({"k": 1}, "metadata.k: Input should be a valid string"),
    ):
        error = await refused(patch(bad), named)
        assert error["details"]["error_code"] == "invalid_metadata"
    assert (await shown(bench, item)).metadata == full


async def test_an_update_without_metadata_is_refused_by_name(bench: Bench) -> None:
    item = await bench.claimed()
    path = f"/v1/environments/{bench.environment_id}/work/{item.id}"
    bodies: list[dict[str, Any]] = [{}, {"metadata": {}, "state": "stopped"}]
    for body, named in zip(bodies, ("metadata: Field required", "state: Extra inputs"), strict=True):
        response = await bench.api.post(path, body)
        assert response.status_code == 400
        assert response.json()["error"]["message"].startswith(named)


async def test_stats_of_an_empty_queue_are_zeros_and_null(api: Api) -> None:
    environment = await api.environment(config={"type": "self_hosted"})
    response = await api.get(f"/v1/environments/{environment['id']}/work/stats")
    assert response.json() == {
        "type": "work_queue_stats",
        "depth": 0,
        "pending": 0,
        "oldest_queued_at": None,
        "workers_polling": 0,
    }


async def test_stats_follow_an_item_through_its_states(bench: Bench) -> None:
    async def counts() -> tuple[int, int]:
        stats = await bench.work.stats(bench.environment_id)
        assert undocumented(stats) == []
        return stats.depth, stats.pending

    assert await counts() == (1, 0)
    item = await bench.claimed()
    assert await counts() == (0, 1)
    await bench.work.ack(item.id, environment_id=bench.environment_id)
    assert await counts() == (0, 0)
    assert (await bench.work.stats(bench.environment_id)).oldest_queued_at is None


async def test_a_worker_counts_once_by_its_name_and_not_for_longer_than_thirty_seconds(bench: Bench) -> None:
    for name in ("w1", "w1", "w2"):
        await bench.work.poll(bench.environment_id, anthropic_worker_id=name)
    await bench.work.poll(bench.environment_id)
    assert (await bench.work.stats(bench.environment_id)).workers_polling == 2
    await bench.api.database.execute(
        "update workers set seen_at = now() - interval '31 seconds' where worker_id = 'w1'"
    )
    assert (await bench.work.stats(bench.environment_id)).workers_polling == 1


async def test_the_oldest_that_waits_is_the_one_that_stats_name(bench: Bench) -> None:
    await bench.api.session(environment_id=bench.environment_id)
    items = [item async for item in bench.work.list(bench.environment_id)]
    stats = await bench.work.stats(bench.environment_id)
    assert stats.oldest_queued_at == items[-1].created_at
    assert datetime.fromisoformat(stats.oldest_queued_at).tzinfo is not None


async def test_the_list_of_work_pages_within_its_own_environment(bench: Bench) -> None:
    for _ in range(3):
        await bench.api.session(environment_id=bench.environment_id)
    first = (await plain(bench, "GET", "?limit=3")).json()
    assert set(first) == {"data", "next_page"}
    await bench.api.session(environment_id=bench.environment_id)
    second = (await plain(bench, "GET", f"?limit=3&page={first['next_page']}")).json()
    ids = [item["id"] for item in [*first["data"], *second["data"]]]
    assert (len(set(ids)), second["next_page"]) == (4, None)
    other = await bench.api.environment(config={"type": "self_hosted"})
    headers = {"x-api-key": await bench.api.environment_key(other["id"])}
    path = f"/v1/environments/{other['id']}/work"
    foreign = await bench.api.get(path, params={"page": first["next_page"]}, headers=headers)
    assert foreign.json()["error"]["message"] == "invalid page cursor"
    assert (await plain(bench, "GET", "?limit=101")).status_code == 400
    assert (await plain(bench, "GET", "?limit=100")).status_code == 200


async def test_an_environments_key_works_its_sessions_and_nothing_else(bench: Bench) -> None:
    worker, session_id = bench.worker.beta, bench.session_id
    assert (await worker.sessions.retrieve(session_id)).id == session_id
    assert [event async for event in worker.sessions.events.list(session_id)] == []
    assert len((await worker.sessions.threads.list(session_id)).data) == 1
    for call in (
        worker.sessions.list(),
        worker.sessions.update(session_id, title="x"),
        worker.sessions.archive(session_id),
        worker.sessions.delete(session_id),
        worker.agents.list(),
        worker.memory_stores.list(),
        worker.vaults.list(),
    ):
        await refused(call, kind=anthropic.PermissionDeniedError)


async def test_a_self_hosted_session_asks_for_the_results_of_its_calls_and_goes_on_in_parts(
    corral: Corral,
) -> None:
    session, idle, ids = await calling(corral, LS, READ)
    assert idle.stop_reason.event_ids == [ids["bash"], ids["read"]]
    await session.sends(output(ids["read"], "words"))
    rest = await session.idle(after=idle.id)
    assert rest.stop_reason.event_ids == [ids["bash"]]
    assert (await session.types()).count("session.status_running") == 1
    await session.sends(output(ids["bash"], "a.txt"))
    await session.until("session.status_idle", where=ends_turn, after=rest.id)
    types = await session.types()
    assert types.count("user.tool_result") == 2
    assert "agent.tool_result" not in types


async def test_a_session_with_open_calls_has_work_on_offer_and_a_message_brings_it_back(
    corral: Corral,
) -> None:
    session, idle, ids = await calling(corral, LS)
    shown = await session.retrieve()
    _, key = await corral.services.keys.create("environment", "worker", shown.environment_id)
    async with anthropic.AsyncAnthropic(base_url=corral.base_url, api_key=key, max_retries=0) as worker:
        work = worker.beta.environments.work
        item = await work.poll(shown.environment_id)
        assert item is not None
        assert item.data.id == session.id
        events: Any = [output(ids["bash"])]
        await worker.beta.sessions.events.send(session.id, events=events)
        await session.until("session.status_idle", where=ends_turn, after=idle.id)
        await work.stop(item.id, environment_id=shown.environment_id, force=True)
        assert await work.poll(shown.environment_id) is None
        sent = await session.sends(message("and more"))
        await session.until("agent.message", after=sent.data[0].id)
        following = await work.poll(shown.environment_id, reclaim_older_than_ms=0)
        assert following is not None
        assert (following.data.id, following.id != item.id) == (session.id, True)


async def test_a_deleted_session_takes_its_work_along(bench: Bench) -> None:
    item, beat = await bench.running()
    await bench.api.sdk.beta.sessions.delete(bench.session_id)
    await refused(bench.beat(item, beat.last_heartbeat), item.id, kind=anthropic.NotFoundError)
    async with bench.api.client(token_of(item)) as holder:
        request = holder.beta.sessions.retrieve(bench.session_id)
        await refused(request, kind=anthropic.AuthenticationError)
    assert [listed async for listed in bench.work.list(bench.environment_id)] == []


async def test_an_archived_sessions_work_is_given_back_and_nothing_follows(bench: Bench) -> None:
    item, _ = await bench.running()
    await bench.api.sdk.beta.sessions.archive(bench.session_id)
    async with bench.api.client(token_of(item)) as holder:
        assert (await holder.beta.sessions.retrieve(bench.session_id)).status == "terminated"
    await bench.work.stop(item.id, environment_id=bench.environment_id, force=True)
    assert await bench.work.poll(bench.environment_id, reclaim_older_than_ms=0) is None


async def test_after_a_worker_failed_its_work_is_offered_again_and_an_interrupt_ends_the_turn(
    corral: Corral,
) -> None:
    session, idle, ids = await calling(corral, LS)
    environment = (await session.retrieve()).environment_id
    _, key = await corral.services.keys.create("environment", "worker", environment)
    async with anthropic.AsyncAnthropic(base_url=corral.base_url, api_key=key, max_retries=0) as worker:
        work = worker.beta.environments.work
        first = await work.poll(environment)
        assert first is not None
        await work.stop(first.id, environment_id=environment, force=True)
        again = await work.poll(environment, reclaim_older_than_ms=0)
        assert again is not None
        assert (again.data.id, again.id != first.id) == (session.id, True)
    await session.sends({"type": "user.interrupt"})
    await session.until("session.status_idle", where=ends_turn, after=idle.id)
    [result] = await session.events(types=["agent.tool_result"])
    assert (result.tool_use_id, result.is_error) == (ids["bash"], True)
