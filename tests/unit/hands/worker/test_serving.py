"""A worker at a server that has the documented endpoints only: leases, streams, results, ends."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from corral.hands.sandbox.process import ProcessProvider
from corral.hands.sandbox.provider import SandboxUnavailable
from corral.hands.worker import CredentialRefused, WorkerMisconfigured
from corral.settings import Worker as WorkerSettings
from corral.wire.secret import Secret
from tests.e2e.worker_at_work import QUICK, WatchedProvider, at_work
from tests.unit.hands.worker.documented_server import (
    ENVIRONMENT,
    KEY,
    SESSION,
    TOKEN,
    DocumentedServer,
    settings_for,
)


class BrokenProvider(ProcessProvider):
    """No sandbox can be started."""

    async def probe(self) -> None:
        raise SandboxUnavailable("no namespaces here: do this")


def text_of(result: dict[str, object]) -> str:
    content = result["content"]
    assert isinstance(content, list)
    return str(content[0]["text"])  # pyright: ignore[reportUnknownArgumentType]


async def test_a_call_is_run_and_its_result_posted_with_the_items_token(
    server: DocumentedServer, open_folder: Path
) -> None:
    call = server.calls("bash", command="echo hello")
    server.offers()
    async with at_work(settings_for(server, open_folder)):
        result = await server.result_of(call)
    assert result["type"] == "user.tool_result"
    assert text_of(result) == "hello"
    assert result["is_error"] is False
    kinds = {asked.path.rsplit("/", 1)[-1]: asked.authorization for asked in server.asked}
    assert kinds["poll"] == kinds["ack"] == f"Bearer {KEY}"
    assert kinds["heartbeat"] == kinds["stop"] == kinds["events"] == kinds["stream"] == f"Bearer {TOKEN}"


async def test_a_server_that_does_not_say_it_is_corral_gets_only_documented_requests(
    server: DocumentedServer, open_folder: Path
) -> None:
    call = server.calls("bash", command="true")
    server.offers()
    async with at_work(settings_for(server, open_folder)):
        await server.result_of(call)
    assert not [asked for asked in server.asked if asked.path.startswith("/corral")]
    assert all("desired_ttl_seconds" not in asked.query for asked in server.requests("/heartbeat"))
    assert all(1 <= int(asked.query["block_ms"]) <= 999 for asked in server.requests("/poll"))


async def test_the_stream_is_opened_before_the_history_is_read(
    server: DocumentedServer, open_folder: Path
) -> None:
    server.offers()
    async with at_work(settings_for(server, open_folder)):
        await server.asked_for("/events")
    paths = [asked.path for asked in server.asked]
    assert paths.index(f"/v1/sessions/{SESSION}/events/stream") < paths.index(
        f"/v1/sessions/{SESSION}/events"
    )


async def test_a_history_of_many_pages_is_read_to_its_end(
    server: DocumentedServer, open_folder: Path
) -> None:
    answered = [server.calls("bash", command="echo no") for _ in range(3)]
    for call in answered:
        server.emits("user.tool_result", tool_use_id=call)
    last = server.calls("bash", command="echo yes")
    server.offers()
    async with at_work(settings_for(server, open_folder)):
        await server.result_of(last)
    assert [result["tool_use_id"] for result in server.results] == [last]


async def test_heartbeats_echo_the_last_one_and_wait_for_nothing_else(
    server: DocumentedServer, open_folder: Path
) -> None:
    server.session_answers.clear()  # the work itself does not even begin
    server.beats.extend([{}, 503, {}])
    server.offers()
    async with at_work(settings_for(server, open_folder)):
        await server.asked_for("/heartbeat", times=4)
        server.session_answers.set()
    sent = [asked.query["expected_last_heartbeat"] for asked in server.requests("/heartbeat")]
    assert sent[:4] == ["NO_HEARTBEAT", "beat 1", "beat 1", "beat 2"]


async def test_a_lost_lease_ends_everything_and_posts_neither_stop_nor_result(
    server: DocumentedServer, open_folder: Path
) -> None:
    provider = WatchedProvider()
    server.beats.extend([{}, 412])
    server.calls("bash", command="sleep 600")
    server.offers()
    async with at_work(settings_for(server, open_folder), provider=provider):
        await provider.stopped.wait()
    assert server.results == []
    assert server.requests("/stop") == []


async def test_on_corral_a_beat_whose_answer_was_lost_does_not_lose_the_lease(
    server: DocumentedServer, open_folder: Path
) -> None:
    server.says_it_is_corral = True
    server.beats.extend([{}, 503, 412, {}])
    server.offers()
    async with at_work(settings_for(server, open_folder)):
        last = await server.asked_for("/heartbeat", times=4)
    assert last.query == {"expected_last_heartbeat": "another's", "desired_ttl_seconds": "15"}


async def test_an_item_that_the_server_wants_back_is_wound_up_and_stopped(
    server: DocumentedServer, open_folder: Path
) -> None:
    server.beats.extend([{}, {"state": "stopping", "lease_extended": False}])
    call = server.calls("bash", command="sleep 600")
    server.offers()
    async with at_work(settings_for(server, open_folder)):
        stop = await server.asked_for("/stop")
    assert stop.body == b'{"force":true}'
    assert "was stopped" in text_of(await server.result_of(call))


async def test_a_result_is_repeated_with_the_same_body_until_it_is_there(
    server: DocumentedServer, open_folder: Path
) -> None:
    server.posts.extend([503, 429, 500])
    server.calls("bash", command="echo once >> runs; cat runs")
    server.offers()
    async with at_work(settings_for(server, open_folder)):
        await server.until(lambda: len(server.results) == 4)
    bodies = {asked.body for asked in server.requests("/events") if asked.method == "POST"}
    assert len(bodies) == 1
    assert text_of(server.results[0]) == "once"


async def test_a_result_that_a_lost_lease_kept_back_is_posted_under_the_next_claim(
    server: DocumentedServer, open_folder: Path
) -> None:
    provider = WatchedProvider()
    server.posts.append(503)
    call = server.calls("bash", command="echo once >> runs; cat runs")
    server.offers()
    patient = replace(
        QUICK, backoff_first=60.0, backoff_most=60.0
    )  # the lease is lost before the next attempt
    async with at_work(settings_for(server, open_folder), provider=provider, pace=patient):
        await server.result_of(call)
        server.beats.append(412)
        await provider.stopped.wait()
        server.offers("work_2")
        await server.until(lambda: len(server.results) == 2)
    assert server.results[0] == server.results[1]
    assert text_of(server.results[1]) == "once"


async def test_a_call_that_a_dead_worker_of_this_machine_had_begun_is_not_run_again(
    server: DocumentedServer, open_folder: Path
) -> None:
    server.posts.extend([503] * 100)
    call = server.calls("bash", command="echo once >> runs")
    server.offers()
    async with at_work(settings_for(server, open_folder)):
        await server.result_of(call)
    server.posts.clear()
    posted = len(server.results)
    server.offers("work_2")
    async with at_work(settings_for(server, open_folder)):
        await server.until(lambda: len(server.results) > posted)
    assert "outcome of this call is unknown" in text_of(server.results[-1])
    assert (open_folder / "workspaces" / SESSION / "runs").read_text() == "once\n"


async def test_a_result_that_is_refused_is_replaced_by_an_error_and_the_next_call_goes_on(
    server: DocumentedServer, open_folder: Path
) -> None:
    server.posts.extend([400])
    refused = server.calls("bash", command="echo a")
    following = server.calls("bash", command="echo b")
    server.offers()
    async with at_work(settings_for(server, open_folder)):
        await server.until(lambda: len(server.results) == 3)
    by_call = {str(result["tool_use_id"]): result for result in server.results}
    assert set(by_call) == {refused, following}
    assert sum(bool(result["is_error"]) for result in server.results) == 1


async def test_nothing_is_lost_or_run_twice_when_the_stream_breaks(
    server: DocumentedServer, open_folder: Path
) -> None:
    first = server.calls("bash", command="echo 1 >> runs; cat runs")
    server.offers()
    async with at_work(settings_for(server, open_folder)):
        await server.result_of(first)
        server.drops_streams()
        # Nobody listens at this moment.
        second = server.calls("bash", command="echo 2 >> runs; cat runs")
        result = await server.result_of(second)
    assert text_of(result) == "1\n2"
    assert [result["tool_use_id"] for result in server.results] == [first, second]


async def test_a_call_that_is_held_runs_once_allowed_and_a_denied_one_is_never_answered(
    server: DocumentedServer, open_folder: Path
) -> None:
    held = server.calls("bash", "ask", command="echo held")
    denied = server.calls("bash", "ask", command="echo denied")
    refused = server.calls("bash", "deny", command="echo refused")
    foreign = server.calls("web_search", query="x")
    last = server.calls("bash", command="echo last")
    server.offers()
    async with at_work(settings_for(server, open_folder)):
        assert text_of(await server.result_of(last)) == "last"
        server.emits("user.tool_confirmation", tool_use_id=denied, result="deny")
        server.emits("user.tool_confirmation", tool_use_id=held, result="allow")
        assert text_of(await server.result_of(held)) == "held"
    answered = {result["tool_use_id"] for result in server.results}
    assert answered.isdisjoint({denied, refused, foreign})


async def test_an_interrupt_cuts_the_running_call_and_answers_it(
    server: DocumentedServer, open_folder: Path
) -> None:
    provider = WatchedProvider()
    call = server.calls("bash", command="sleep 600")
    server.offers()
    async with at_work(settings_for(server, open_folder), provider=provider):
        await server.asked_for("/events")
        server.emits("user.interrupt", processed_at=None)
        result = await server.result_of(call)
    assert result["is_error"] is True
    assert "interrupted" in text_of(result)


async def test_an_item_is_given_back_once_its_session_has_been_idle(
    server: DocumentedServer, open_folder: Path
) -> None:
    call = server.calls("bash", command="true")
    server.offers()
    async with at_work(settings_for(server, open_folder, session_idle_seconds=0.05)):
        await server.result_of(call)
        server.goes_idle("requires_action")
        server.goes_idle("end_turn")
        stop = await server.asked_for("/stop")
    assert stop.body == b'{"force":true}'


async def test_a_sandbox_outlives_the_work_item_that_started_it(
    server: DocumentedServer, open_folder: Path
) -> None:
    provider = WatchedProvider()
    settings = settings_for(server, open_folder, session_idle_seconds=0.01)
    async with at_work(settings, provider=provider):
        for number in (1, 2, 3):
            call = server.calls("bash", command="true")
            server.offers(f"work_{number}")
            await server.result_of(call)
            server.goes_idle()
            await server.asked_for("/stop", times=number)
    assert provider.made == 1


async def test_a_session_that_is_terminated_takes_its_workspace_along(
    server: DocumentedServer, open_folder: Path
) -> None:
    call = server.calls("bash", command="echo a > a")
    server.offers()
    async with at_work(settings_for(server, open_folder)):
        await server.result_of(call)
        workspace = open_folder / "workspaces" / SESSION
        assert (workspace / "a").exists()
        server.emits("session.status_terminated")
        await server.asked_for("/stop")
        assert not workspace.exists()


async def test_a_key_that_is_refused_ends_the_worker_with_advice(
    server: DocumentedServer, open_folder: Path
) -> None:
    server.key_is_good = False
    with pytest.raises(CredentialRefused, match="ANTHROPIC_ENVIRONMENT_KEY") as refused:
        async with at_work(settings_for(server, open_folder)):
            pass
    assert KEY not in str(refused.value)


async def test_no_credential_stands_in_what_the_worker_logs(
    server: DocumentedServer, open_folder: Path
) -> None:
    server.posts.extend([503, 400])
    server.beats.extend([500, {}])
    call = server.calls("bash", command="true")
    server.offers()
    with capture_logs() as records:
        async with at_work(settings_for(server, open_folder)):
            await server.result_of(call)
            await server.asked_for("/heartbeat", times=2)
    assert records
    assert KEY not in str(records)
    assert TOKEN not in str(records)


async def test_without_a_working_sandbox_a_worker_takes_no_work(
    server: DocumentedServer, open_folder: Path
) -> None:
    server.offers()
    with pytest.raises(SandboxUnavailable, match="do this"):
        async with at_work(settings_for(server, open_folder), provider=BrokenProvider()):
            pass
    assert server.asked == []


@pytest.mark.parametrize(
    ("settings", "advice"),
    [
        (WorkerSettings(), "ANTHROPIC_BASE_URL"),
        (WorkerSettings(base_url="http://x"), "CORRAL_WORKER__POOL_KEY"),
        (WorkerSettings(base_url="http://x", environment_id=ENVIRONMENT), "ANTHROPIC_ENVIRONMENT_KEY"),
        (
            WorkerSettings(base_url="http://x", environment_id=ENVIRONMENT, pool_key=Secret("k")),
            "keep CORRAL_WORKER__POOL_KEY",
        ),
    ],
)
async def test_settings_that_name_no_employer_or_two_are_refused_with_advice(
    settings: WorkerSettings, advice: str
) -> None:
    with pytest.raises(WorkerMisconfigured, match=advice):
        async with at_work(settings):
            pass


def test_the_worker_knows_nothing_of_the_servers_inside() -> None:
    program = (
        "import sys, corral.hands.worker; "
        "print([name for name in sys.modules if name.startswith(('anthropic', 'psycopg', 'uvicorn', "
        "'corral.brain', 'corral.session', 'corral.store', 'corral.api', 'corral.bus'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
