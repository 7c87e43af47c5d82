"""The official TypeScript SDK against a real server: agent, session, stream, message, list."""

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

from tests.corral_server import Corral

_SCRIPT = Path(__file__).parent / "typescript"
_BUILD = Path(__file__).parents[2] / "build" / "typescript"


async def _run(*command: str, folder: Path, **environment: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(120):
            output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, errors.decode()
    return output.decode()


async def _installed() -> Path:
    """A folder that git ignores, with the script and the SDK that its package.json names."""
    wanted = (_SCRIPT / "package.json").read_text()
    kept = _BUILD / "package.json"
    if not (_BUILD / "node_modules").is_dir() or not kept.is_file() or kept.read_text() != wanted:
        _BUILD.mkdir(parents=True, exist_ok=True)
        kept.write_text(wanted)
        install = ("npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts")
        await _run(*install, folder=_BUILD)
    shutil.copy(_SCRIPT / "transcript.mjs", _BUILD)
    return _BUILD


async def test_a_typescript_program_streams_a_turn_with_a_tool(corral: Corral) -> None:
    script = [
        {"text": "Let me see.", "tools": [{"name": "get_weather", "input": {"city": "Oslo"}}]},
        {"text": "It is {result}."},
    ]
    text = f"weather?\nscript: {json.dumps(script)}"
    printed = await _run(
        "node",
        "transcript.mjs",
        text,
        folder=await _installed(),
        ANTHROPIC_BASE_URL=corral.base_url,
        ANTHROPIC_API_KEY=corral.api_key,
    )
    *events, listed, deleted = [json.loads(line) for line in printed.splitlines()]
    by_type: dict[str, list[Any]] = {}
    for event in events:
        by_type.setdefault(event["type"], []).append(event)
    assert [message["content"][0]["text"] for message in by_type["agent.message"]] == [
        "Let me see.",
        "It is sunny in Oslo.",
    ]
    previewed = "".join(d["delta"]["content"]["text"] for d in by_type["event_delta"])
    assert "Let me see.It is sunny in Oslo.".startswith(previewed[:11])
    assert events[-1]["type"] == "session.status_idle"
    settled = [event["id"] for event in events if event.get("processed_at")]
    assert listed["ids"] == settled
    assert deleted["type"] == "session_deleted"
