"""The official TypeScript worker under node against Corral (contract section 12)."""

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.conformance.premises import (
    LONGEST,
    TOOLSET,
    WEATHER,
    Premises,
    asks,
    bash,
    calls,
    ends_turn,
    results_of,
    text_of,
)
from tests.typescript_sdk import node

SCRIPT = Path(__file__).parent / "typescript" / "worker.mjs"


@dataclass
class Told:
    """One answer that the worker got."""

    method: str
    path: str
    status: int
    body: str = ""

    @property
    def state(self) -> str:
        return str(msgspec.json.decode(self.body)["state"])


async def told(
    process: asyncio.subprocess.Process, where: Callable[[Told], bool] | None = None
) -> list[Told]:
    """What the worker tells, up to the first answer for which `where` holds, or to its end."""
    assert process.stdout is not None
    lines: list[Told] = []
    async with asyncio.timeout(2 * LONGEST):
        while line := await process.stdout.readline():
            lines.append(msgspec.json.decode(line, type=Told))
            if where is not None and where(lines[-1]):
                return lines
    assert where is None, "the worker ended before"
    return lines


def stops(answer: Told) -> bool:
    return answer.path.endswith("/stop")


def variables(premises: Premises, item: Any | None = None) -> dict[str, str]:
    """The variables of a worker's host, or those of one item without the environment's key."""
    if item is None:
        given = {"ENVIRONMENT_ID": premises.environment_id, "ENVIRONMENT_KEY": premises.key}
    else:
        given = {
            "ENVIRONMENT_ID": item.environment_id,
            "WORK_ID": item.id,
            "SESSION_ID": item.data.id,
            "WORK_SECRET": item.secret,
        }
    given["BASE_URL"] = premises.corral.base_url
    return {f"ANTHROPIC_{name}": value for name, value in given.items()}


def by_key(premises: Premises, item: Any) -> dict[str, str]:
    """The variables of one item, with the environment's key in place of the item's secret."""
    return {**variables(premises, item), **variables(premises), "ANTHROPIC_WORK_SECRET": ""}


async def test_a_worker_serves_message_after_message_with_built_in_tools_and_its_own(
    premises: Premises, open_folder: Path
) -> None:
    session = await premises.session(TOOLSET, WEATHER)
    both = calls(("bash", {"command": "cat a"}), ("get_weather", {"city": "Oslo"}))
    await session.says(
        "go", script=[calls(("write", {"file_path": "a", "content": "hi"})), both, {"text": "ok"}]
    )
    async with node(SCRIPT, "run", folder=open_folder, **variables(premises)) as worker:
        first = await session.until("session.status_idle", where=ends_turn)
        # Idle for as long as it waits, it gives the item back.
        answers = await told(worker, stops)
        await session.says("more", script=[bash("echo again"), {"text": "done"}])
        await session.until("session.status_idle", where=ends_turn, after=first.id)
        answers += await told(worker, stops)
        worker.send_signal(signal.SIGTERM)
        await told(worker)
        assert await worker.wait() == 0
    texts = [text_of(result) for result in await results_of(session)]
    assert texts[1:] == ["hi", "Oslo: 17 C", "again"]
    assert {answer.status for answer in answers} == {200}
    assert [item.state for item in await premises.items()] == ["stopped", "stopped"]


async def test_one_item_is_served_with_its_secret_alone_and_gated_calls_wait_for_their_verdict(
    premises: Premises, open_folder: Path
) -> None:
    session = await premises.session(
        {**TOOLSET, "default_config": {"permission_policy": {"type": "always_ask"}}}
    )
    await session.says("go", script=[bash("echo $((6*7))"), bash("echo no > no"), {"text": "done"}])
    item = await premises.claimed()
    async with node(SCRIPT, "handle", folder=open_folder, **variables(premises, item)) as worker:
        seen: str | None = None
        for verdict in ("allow", "deny"):
            idle = await session.until("session.status_idle", where=asks, after=seen)
            [call], seen = idle.stop_reason.event_ids, idle.id
            await session.sends({"type": "user.tool_confirmation", "tool_use_id": call, "result": verdict})
        answers = await told(worker)
        assert await worker.wait() == 0
    allowed, denied = await results_of(session)
    assert (text_of(allowed), denied.type, denied.is_error) == ("42", "agent.tool_result", True)
    assert not (open_folder / "no").exists()
    assert {answer.status for answer in answers} == {200}
    assert answers[-1].state == "stopped"


@pytest.mark.parametrize("credential", ["key", "secret"])
async def test_a_worker_that_comes_after_its_lease_was_lost_leaves_the_item_alone(
    premises: Premises, open_folder: Path, credential: str
) -> None:
    await premises.session(TOOLSET)
    item = await premises.claimed()
    await premises.expire(item.id)
    taken = await premises.claimed()
    assert taken.id == item.id
    await premises.work.heartbeat(
        item.id, environment_id=item.environment_id, expected_last_heartbeat="NO_HEARTBEAT"
    )
    given = by_key(premises, item) if credential == "key" else variables(premises, item)
    async with node(SCRIPT, "handle", folder=open_folder, **given) as worker:
        answers = await told(worker)
        ended = await worker.wait()
    if credential == "key":
        [beat] = [answer for answer in answers if answer.path.endswith("/heartbeat")]
        assert (beat.status, "heartbeat_precondition_failed" in beat.body) == (412, True)
        assert not any(map(stops, answers))
    else:
        # It asks for its session at the same time, and gives up on whichever answer comes first.
        assert ended == 1 or 412 in {answer.status for answer in answers}
        assert 200 not in {answer.status for answer in answers}
    assert [known.state for known in await premises.items()] == ["active"]


async def test_a_worker_that_comes_after_a_forced_stop_ends_without_a_word(
    premises: Premises, open_folder: Path
) -> None:
    await premises.session(TOOLSET)
    item = await premises.claimed()
    await premises.owner.stop(item.id, environment_id=item.environment_id, force=True)
    async with node(SCRIPT, "handle", folder=open_folder, **by_key(premises, item)) as worker:
        answers = await told(worker)
        await worker.wait()
    [beat] = [answer for answer in answers if answer.path.endswith("/heartbeat")]
    assert (beat.status, beat.state) == (200, "stopped")
    assert [answer.status for answer in answers if stops(answer)] == [409]


async def test_a_drained_queue_is_served_and_the_program_ends(premises: Premises, open_folder: Path) -> None:
    sessions = [await premises.session(TOOLSET) for _ in range(2)]
    for number, session in enumerate(sessions):
        await session.says("go", script=[bash(f"echo {number}"), {"text": "done"}])
    async with node(SCRIPT, "drain", folder=open_folder, **variables(premises)) as worker:
        answers = await told(worker)
        assert await worker.wait() == 0
    assert [text_of((await results_of(session))[0]) for session in sessions] == ["0", "1"]
    assert {answer.status for answer in answers} == {200}
