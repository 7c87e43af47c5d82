"""Tools that end when they are told to, and results that harm nothing (docs/robustness.md, Tools)."""

from pathlib import Path
from typing import Any

import pytest

from tests.corral_server import Corral
from tests.e2e.worker_at_work import TOOLSET, at_work, bash, pool
from tests.processes import command_line


def processes_with(mark: str) -> list[int]:
    """The living processes whose command line holds `mark`."""
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and mark.encode() in command_line(int(entry.name))
    ]


@pytest.mark.parametrize("sandbox", ["process", "bubblewrap"])
async def test_a_timed_out_command_takes_its_children_along_and_the_next_one_runs(
    corral: Corral, open_folder: Path, sandbox: str
) -> None:
    mark = f"86{abs(hash(open_folder)) % 10**6:06d}"
    command = f"(setsid sleep {mark} &) ; sleep {mark} & sleep {mark}"
    slow = {"tools": [{"name": "bash", "input": {"command": command, "timeout_ms": 300}}]}
    async with at_work(await pool(corral, open_folder, sandbox=sandbox)):
        session = await corral.session(TOOLSET)
        await session.says(
            "go", script=[slow, bash(f"pgrep -f 'sleep {mark}' ; echo next"), {"text": "done"}]
        )
        assert (await session.idle()).stop_reason.type == "end_turn"
    results = [event for event in await session.events() if event.type == "agent.tool_result"]
    assert results[0].is_error
    assert results[1].content[0].text.strip().endswith("next")
    assert processes_with(f"sleep\0{mark}") == []


async def test_an_image_too_large_for_the_model_is_a_tool_error_and_the_session_goes_on(
    corral: Corral, open_folder: Path
) -> None:
    size = r"\x00\x00\x27\x10\x00\x00\x00\x08"
    header = rf"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR{size}\x08\x00\x00\x00\x00\x00\x00\x00\x00"
    read: dict[str, Any] = {"tools": [{"name": "read", "input": {"file_path": "wide.png"}}]}
    async with at_work(await pool(corral, open_folder)):
        session = await corral.session(TOOLSET)
        script = [bash(f"printf '{header}' > wide.png"), read, {"text": "too wide"}]
        await session.says("go", script=script)
        assert (await session.idle()).stop_reason.type == "end_turn"
    results = [event for event in await session.events() if event.type == "agent.tool_result"]
    assert [block.type for block in results[1].content] == ["text"]
    assert results[1].is_error
