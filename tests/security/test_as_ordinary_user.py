"""The same walls, raised by a worker that is an ordinary user: no root, no control groups, no other user."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from anthropic import AsyncAnthropic

from tests.ordinary_user import UID, as_ordinary_user, surroundings
from tests.processes import command_line, descendants

OURS = UID if os.geteuid() == 0 else os.geteuid()
ATTACKS = ["test_sandbox", "test_walls_kernel", "test_walls_files", "test_walls_program"]
ROOT = Path(__file__).parents[2]
CORRAL = [sys.executable, "-m", "corral.cli"]
SECRET = "what only the user may read"


@pytest.fixture
def home(open_folder: Path) -> Path:
    folder = open_folder / "home"
    folder.mkdir()
    return folder


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="who is an ordinary user runs these attacks as they are")
@pytest.mark.parametrize("name", ATTACKS)
async def test_the_attacks_get_nothing_from_an_ordinary_users_sandbox_either(name: str, home: Path) -> None:
    suite = f"tests/security/{name}.py"
    command = as_ordinary_user(
        home, sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", suite
    )
    process = await asyncio.create_subprocess_exec(
        *command,
        env=surroundings(home),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()[-5000:]
    assert b" passed" in said
    assert b" skipped" not in said


async def test_everything_runs_as_an_ordinary_user_and_says_what_nothing_bounds(home: Path) -> None:
    (home / "secret").write_text(SECRET)
    up = [*CORRAL, "up", "--data", str(home / "data"), "--port", "0", "--json"]
    process = await asyncio.create_subprocess_exec(
        *as_ordinary_user(home, *up),
        env=surroundings(home),
        cwd=home,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        line = await process.stdout.readline()
        assert line, (await process.stderr.read()).decode()
        told = json.loads(line)
        lines: list[str] = []
        while '"event": "ready"' not in (lines or [""])[-1]:
            lines.append((await process.stderr.readline()).decode())
            assert lines[-1], lines
        shown = await shown_by_a_session(told, home)
        below = {pid: command_line(pid) for pid in descendants(process.pid)}
        outer = {Path(f"/proc/{pid}").stat().st_uid for pid, command in below.items() if command}
    finally:
        process.terminate()
        await process.communicate()
    assert outer == {OURS}
    assert any(b"inside.pyz" in command for command in below.values()), "the sandbox is among them"
    assert "CapEff: 0000000000000000" in shown
    assert "NoNewPrivs: 1" in shown
    assert "Seccomp: 2" in shown
    assert SECRET not in shown
    assert "unreachable" in shown
    assert told["api_key"] not in shown
    warnings = [one for one in lines if '"level": "warning"' in one and "bounded" in one]
    assert len(warnings) == 1, lines
    assert "rlimits" in warnings[0]
    assert "Delegate=yes" in warnings[0]


async def shown_by_a_session(told: dict[str, Any], home: Path) -> str:
    """What a session's bash shows of its walls."""
    port = httpx.URL(told["base_url"]).port
    connect = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"
    command = "; ".join(
        (
            "grep -E '^(CapEff|NoNewPrivs|Seccomp):' /proc/self/status | tr '\\t' ' '",
            f"cat {home}/secret {home}/data/credentials.json",
            "env",
            f'python3 -c "{connect}" || echo unreachable',
        )
    )
    script = json.dumps([{"tools": [{"name": "bash", "input": {"command": command}}]}, {"text": "done"}])
    async with AsyncAnthropic(base_url=told["base_url"], api_key=told["api_key"]) as client:
        tools: Any = [{"type": "agent_toolset_20260401"}]
        agent = await client.beta.agents.create(name="a", model="claude-sonnet-4-5", tools=tools)
        session = await client.beta.sessions.create(agent=agent.id, environment_id=told["environment_id"])
        message: Any = {
            "type": "user.message",
            "content": [{"type": "text", "text": f"look\nscript: {script}"}],
        }
        async with await client.beta.sessions.events.stream(session.id) as stream:
            await client.beta.sessions.events.send(session.id, events=[message])
            async for event in stream:
                if event.type == "agent.tool_result":
                    return str(event.content[0].text) if event.content else ""  # pyright: ignore
    raise AssertionError("the stream ended")


async def test_the_doctor_tells_what_nothing_bounds_and_what_to_do(home: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *as_ordinary_user(home, *CORRAL, "doctor", "--json", "--data", str(home / "data")),
        env=surroundings(home),
        cwd=home,
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await process.communicate()
    found = {one["check"]: one for one in json.loads(said)}
    assert found["sandbox"]["state"] == "ok"
    assert found["limits"]["state"] == "warning"
    assert "memory of all its processes together" in found["limits"]["detail"]
    assert "Delegate=yes" in found["limits"]["advice"]
