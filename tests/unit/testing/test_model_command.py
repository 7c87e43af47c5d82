"""`corral model serve` as a process."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
from pathlib import Path

import httpx
from click.testing import CliRunner

from corral.cli.model import model

RUN = "from corral.cli.model import model; model()"


async def started(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", RUN, "serve", *arguments, stdout=asyncio.subprocess.PIPE
    )


async def test_it_serves_until_it_is_told_to_stop(tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    process = await started("--json", "--ready-file", str(ready))
    assert process.stdout is not None
    base_url = json.loads(await process.stdout.readline())["base_url"]

    assert json.loads(ready.read_text()) == {"base_url": base_url}
    async with httpx.AsyncClient(base_url=base_url) as http:
        assert (await http.get("/_scripted/scripts")).json() == {"scripts": ["converse", "dream", "repair"]}
    process.send_signal(signal.SIGTERM)
    assert await process.wait() == 0


async def test_it_stops_while_a_response_is_held(tmp_path: Path) -> None:
    process = await started("--json")
    assert process.stdout is not None
    base_url = json.loads(await process.stdout.readline())["base_url"]
    body = {
        "model": "m",
        "max_tokens": 10,
        "messages": [{"role": "user", "content": 'script: {"text": "x", "hold": "gate"}'}],
    }
    async with httpx.AsyncClient(base_url=base_url, headers={"x-api-key": "k"}) as http:
        held = asyncio.create_task(http.post("/v1/messages", json=body))
        assert (await http.get("/_scripted/holding/gate")).json() == {"holding": True}
        process.send_signal(signal.SIGTERM)
        assert (await held).status_code == 200
    assert await process.wait() == 0


def test_a_taken_port_is_explained() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = CliRunner().invoke(model, ["serve", "--port", str(port)])

    assert result.exit_code == 1
    assert f"port {port}" in result.output
    assert "Choose another --port" in result.output


def test_help_shows_an_example() -> None:
    assert "corral model serve --port 9000" in CliRunner().invoke(model, ["serve", "--help"]).output
