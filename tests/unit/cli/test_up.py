"""`corral up` as a process: what it starts, what it says, what it leaves behind, what survives."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.processes import command_line, descendants, gone

STOP_SECONDS = 30.0  # a bound for the test, not a promise; it takes about one second
START_SECONDS = 60.0  # the same


class Up:
    """A running `corral up`."""

    def __init__(self, process: asyncio.subprocess.Process, told: dict[str, Any]) -> None:
        self.process = process
        self.told = told

    @property
    def base_url(self) -> str:
        return str(self.told["base_url"])

    @property
    def headers(self) -> dict[str, str]:
        return {"x-api-key": str(self.told["api_key"])}

    def children(self) -> set[int]:
        """Every process below it."""
        return descendants(self.process.pid)

    def worker(self) -> int:
        """The worker's process id."""
        return next(pid for pid in self.children() if b"corral.cli\0worker" in command_line(pid))

    async def says(self, text: str) -> str:
        """Wait for a line on standard error that contains ``text``."""
        assert self.process.stderr is not None
        async with asyncio.timeout(START_SECONDS):
            while text not in (line := (await self.process.stderr.readline()).decode()):
                assert line, f"it ended before it said {text!r}"
        return line

    async def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop it and check that it kept its word."""
        below = self.children()
        self.process.send_signal(how)
        async with asyncio.timeout(STOP_SECONDS):
            assert await self.process.wait() == 0
        assert not [command_line(pid) for pid in below if command_line(pid)]

    async def kill(self) -> None:
        """Kill it, and return when everything below it has ended."""
        below = self.children()
        self.process.kill()
        await self.process.wait()
        for pid in below:
            await gone(pid)


async def start(data_dir: Path, *arguments: str, **variables: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "corral.cli", "up", "--data", str(data_dir), "--json", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "CORRAL_WORKER__SANDBOX": "process", **variables},
    )


@asynccontextmanager
async def corral_up(data_dir: Path, *arguments: str, **variables: str) -> AsyncGenerator[Up]:
    process = await start(data_dir, "--port", "0", *arguments, **variables)
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.timeout(START_SECONDS):
            line = await process.stdout.readline()
        assert line, (await process.stderr.read()).decode()
        yield Up(process, json.loads(line))
    finally:
        below = descendants(process.pid)
        if process.returncode is None:
            process.terminate()
        async with asyncio.timeout(20):
            await process.communicate()
        for pid in below:
            await gone(pid)


@pytest.fixture
def data_dir(open_folder: Path) -> Path:
    return open_folder / "data"


async def test_it_serves_the_default_cloud_environment(data_dir: Path) -> None:
    async with (
        corral_up(data_dir) as up,
        httpx.AsyncClient(base_url=up.base_url, headers=up.headers) as client,
    ):
        (environment,) = (await client.get("/v1/environments")).json()["data"]
        assert environment["id"] == up.told["environment_id"]
        assert environment["name"] == "default"
        assert environment["config"]["type"] == "cloud"
        assert (await client.get("/v1/environments", headers={"x-api-key": "wrong"})).status_code == 401
        assert set(up.told) == {"base_url", "api_key", "environment_id", "environment_key", "console_url"}
        await up.stop()


async def test_the_ready_file_is_whole_private_and_says_the_same(data_dir: Path, tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    ready.write_text("left over")
    async with corral_up(data_dir, "--ready-file", str(ready)) as up:
        assert json.loads(ready.read_text()) == up.told
        assert ready.stat().st_mode & 0o077 == 0
        assert (data_dir / "credentials.json").stat().st_mode & 0o077 == 0


async def test_a_second_start_has_the_same_keys_and_the_same_data(data_dir: Path) -> None:
    async with corral_up(data_dir) as up:
        async with httpx.AsyncClient(base_url=up.base_url, headers=up.headers) as client:
            made = (await client.post("/v1/environments", json={"name": "mine"})).json()
        first = up.told
        await up.stop(signal.SIGTERM)
    async with corral_up(data_dir) as up:
        for name in ("api_key", "environment_id", "environment_key"):
            assert up.told[name] == first[name]
        async with httpx.AsyncClient(base_url=up.base_url, headers=up.headers) as client:
            assert (await client.get(f"/v1/environments/{made['id']}")).json() == made


async def test_a_revoked_key_is_not_brought_back_by_a_restart(data_dir: Path) -> None:
    async with corral_up(data_dir) as up:
        first = up.told["api_key"]
        arguments = ["admin", "api-key", "list", "--json", "--data", str(data_dir)]
        (key,) = json.loads(await corral(*arguments))
        await corral("admin", "api-key", "revoke", key["id"], "--data", str(data_dir))
        async with httpx.AsyncClient(base_url=up.base_url, headers=up.headers) as client:
            assert (await client.get("/v1/environments")).status_code == 401
        await up.stop()
    async with corral_up(data_dir) as up:
        assert up.told["api_key"] != first


async def corral(*arguments: str) -> bytes:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "corral.cli", *arguments), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    return output


async def test_an_operators_own_api_key_is_used(data_dir: Path) -> None:
    async with corral_up(data_dir, CORRAL_SERVER__API_KEY="an-operators-own-key") as up:
        assert up.told["api_key"] == "an-operators-own-key"
        async with httpx.AsyncClient(base_url=up.base_url, headers=up.headers) as client:
            assert (await client.get("/v1/environments")).status_code == 200
    assert "an-operators-own-key" not in (data_dir / "credentials.json").read_text()


async def test_without_a_credential_it_says_that_the_model_is_scripted(data_dir: Path) -> None:
    async with corral_up(data_dir) as up:
        assert "SCRIPTED MODEL" in await up.says("model ")
    async with corral_up(data_dir, CORRAL_INFERENCE__BASE_URL="http://127.0.0.1:1") as up:
        assert "http://127.0.0.1:1" in await up.says("model ")


async def test_a_killed_worker_is_started_again(data_dir: Path) -> None:
    async with corral_up(data_dir) as up:
        await up.says('"event": "ready"')
        first = up.worker()
        os.kill(first, signal.SIGKILL)
        await up.says("the worker ended; starting it again")
        await up.says('"event": "ready"')
        assert up.worker() != first


async def test_no_key_stands_in_any_command_line(data_dir: Path) -> None:
    async with corral_up(data_dir) as up:
        await up.says('"event": "ready"')
        for pid in up.children() | {up.process.pid}:
            assert b"corral_" not in command_line(pid)


async def test_the_servers_credentials_do_not_reach_the_worker(data_dir: Path) -> None:
    async with corral_up(data_dir, CORRAL_INFERENCE__API_KEY="inference-credential") as up:
        await up.says('"event": "ready"')
        environment = Path(f"/proc/{up.worker()}/environ").read_bytes()
        assert b"inference-credential" not in environment
        assert str(up.told["api_key"]).encode() not in environment
        assert b"CORRAL_WORKER__POOL_KEY" in environment


async def test_killing_it_leaves_no_process_behind_and_the_next_start_carries_on(data_dir: Path) -> None:
    async with corral_up(data_dir) as up:
        await up.says('"event": "ready"')
        first = up.told
        await up.kill()
    async with corral_up(data_dir) as up:
        assert up.told["api_key"] == first["api_key"]


async def test_a_killed_database_comes_back_and_the_server_with_it(data_dir: Path) -> None:
    async with corral_up(data_dir) as up:
        postmaster = int((data_dir / "postgres" / "data" / "postmaster.pid").read_text().split()[0])
        os.kill(postmaster, signal.SIGKILL)
        await up.says("PostgreSQL is back")
        transport = httpx.AsyncHTTPTransport(retries=3)
        async with httpx.AsyncClient(
            base_url=up.base_url, headers=up.headers, transport=transport, timeout=30
        ) as client:
            async with asyncio.timeout(30):
                while (await client.get("/v1/environments")).status_code >= 500:
                    pass
        await up.stop()


async def test_a_port_in_use_is_told_before_anything_is_started(data_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        process = await start(data_dir, "--port", port)
        _, errors = await process.communicate()
    assert process.returncode == 1
    assert f"Cannot listen on 127.0.0.1 port {port}" in errors.decode()
    assert "--port" in errors.decode()
    assert not data_dir.exists()


async def test_a_second_one_on_the_same_data_names_the_first(data_dir: Path) -> None:
    async with corral_up(data_dir) as up:
        process = await start(data_dir, "--port", "0")
        _, errors = await process.communicate()
        assert process.returncode == 1
        assert f"process {up.process.pid}" in errors.decode()
        assert "Traceback" not in errors.decode()


async def test_it_can_be_stopped_while_it_starts(data_dir: Path) -> None:
    process = await start(data_dir, "--port", "0")
    assert process.stderr is not None
    assert b"database" in await process.stderr.readline()
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(STOP_SECONDS):
        await process.communicate()
    assert process.returncode == 0
