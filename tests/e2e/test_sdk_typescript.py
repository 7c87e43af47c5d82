"""The official TypeScript SDK against a real server: agent, session, stream, message, list."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from tests.corral_server import Corral
from tests.typescript_sdk import installed

_SCRIPT = Path(__file__).parent / "typescript" / "transcript.mjs"


async def _run(script: Path, *arguments: str, **environment: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *("node", script.name, *arguments),
        cwd=script.parent,
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


async def test_a_typescript_program_streams_a_turn_with_a_tool(corral: Corral) -> None:
    script = [
        {"text": "Let me see.", "tools": [{"name": "get_weather", "input": {"city": "Oslo"}}]},
        {"text": "It is {result}."},
    ]
    text = f"weather?\nscript: {json.dumps(script)}"
    printed = await _run(
        await installed(_SCRIPT),
        text,
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
