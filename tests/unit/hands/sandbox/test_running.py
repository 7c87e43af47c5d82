"""The outer end of a sandbox against programs that do not keep to the protocol."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from corral.hands.sandbox.provider import SandboxLost, SandboxUnavailable
from corral.hands.sandbox.running import RunningSandbox

READY = 'print(\'{"ready": true, "version": 1, "python": "3"}\', flush=True); import sys\n'


@asynccontextmanager
async def sandbox_of(program: str) -> AsyncGenerator[RunningSandbox]:
    """A sandbox whose program is the given Python text."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", program], stdin=pipe, stdout=pipe, stderr=pipe
    )
    sandbox = RunningSandbox("test", process, b"", lambda: asyncio.to_thread(process.kill))
    try:
        yield sandbox
    finally:
        await sandbox.stop()
        assert process.returncode is not None


async def test_a_program_that_ends_at_the_start_is_unavailable_and_says_what_it_wrote() -> None:
    async with sandbox_of("import sys; sys.exit('no such thing here')") as sandbox:
        with pytest.raises(SandboxUnavailable, match="ended while it started: no such thing here"):
            await sandbox.start()
        assert sandbox.ended


async def test_a_program_of_another_version_is_unavailable() -> None:
    async with sandbox_of(READY.replace("1,", "2,") + "sys.stdin.read()") as sandbox:
        with pytest.raises(SandboxUnavailable, match="version 2"):
            await sandbox.start()


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        '{"id": "one"}',
        '{"id": 1, "content": "text"}',
        '{"id": 1, "content": []}',
        '{"id": 1, "content": [{"type": "tool_use", "name": "bash"}]}',
        '{"id": 1, "content": [{"type": "image", "source": {"type": "url", "url": "http://169.254.169.254/"}}]}',
        '{"id": 1, "content": [{"type": "document", "source": {"type": "file", "file_id": "file_01"}}]}',
        '{"id": 1, "content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]}',
        '{"id": 1, "content": [{"type": "text", "text": "\\ud800"}]}',
    ],
)
async def test_a_line_that_breaks_the_protocol_costs_the_sandbox(line: str) -> None:
    async with sandbox_of(
        f"{READY}sys.stdin.readline(); print({line!r}, flush=True); sys.stdin.read()"
    ) as sandbox:
        await sandbox.start()
        with pytest.raises(SandboxLost, match="broke the protocol"):
            await sandbox.execute("bash", {"command": "true"})
        assert not sandbox.alive


async def test_a_line_without_end_costs_the_sandbox() -> None:
    program = READY + "sys.stdin.readline()\nwhile True: sys.stdout.write('x' * 1000000)"
    async with sandbox_of(program) as sandbox:
        await sandbox.start()
        with pytest.raises(SandboxLost, match="broke the protocol"):
            await sandbox.execute("bash", {"command": "true"})


@pytest.mark.parametrize(
    "line",
    [
        '{"id": 77, "content": [{"type": "text", "text": "forged"}]}',
        '{"ready": true, "version": 1}',
        '{"pong": 1}',
        "{}",
    ],
)
async def test_a_line_that_nobody_waits_for_costs_the_sandbox(line: str) -> None:
    program = f"{READY}sys.stdin.readline(); print({line!r}, flush=True); sys.stdin.read()"
    async with sandbox_of(program) as sandbox:
        await sandbox.start()
        with pytest.raises(SandboxLost, match="broke the protocol"):
            await sandbox.execute("bash", {"command": "true"})


async def test_a_lone_surrogate_in_the_input_arrives_as_an_escape() -> None:
    program = (
        READY + "line = sys.stdin.readline()\n"
        "text = 'escaped' if r'\\ud800' in line else line\n"
        'print(\'{"id": 1, "content": [{"type": "text", "text": "%s"}]}\' % text, flush=True)\n'
        "sys.stdin.read()"
    )
    async with sandbox_of(program) as sandbox:
        await sandbox.start()
        output = await sandbox.execute("write", {"file_path": "a", "content": "x\ud800y"})
        assert output.content[0]["text"] == "escaped"


async def test_calls_that_wait_when_the_program_dies_are_all_lost() -> None:
    async with sandbox_of(f"{READY}[sys.stdin.readline() for _ in range(3)]") as sandbox:
        await sandbox.start()
        calls = [sandbox.execute("bash", {"command": "true"}) for _ in range(3)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(result) for result in results] == [SandboxLost] * 3
        with pytest.raises(SandboxLost):
            await sandbox.execute("bash", {"command": "true"})
