"""Workers for tests: the real one, in the test's own process or in one of its own, on real sandboxes."""

import asyncio
import os
import signal
import sys
import sysconfig
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

import corral
from corral.hands.sandbox.process import ProcessProvider
from corral.hands.sandbox.provider import Recipe, Sandbox, SandboxProvider, ToolOutput
from corral.hands.worker import run_worker
from corral.hands.worker.pace import Pace
from corral.settings import Worker as WorkerSettings
from corral.wire.secret import Secret
from tests.corral_server import Corral

TOOLSET: dict[str, Any] = {"type": "agent_toolset_20260401"}
QUICK = Pace(backoff_first=0.02, backoff_most=0.2, pause_least=0.01, pause_most=0.02, stopping_grace=0.2)


def bash(command: str) -> dict[str, Any]:
    """A model's step that calls bash."""
    return {"tools": [{"name": "bash", "input": {"command": command}}]}


def asking(*names: str) -> dict[str, Any]:
    """The toolset, with confirmations for some tools."""
    configs = [{"name": name, "permission_policy": {"type": "always_ask"}} for name in names]
    return {**TOOLSET, "configs": configs}


class WatchedSandbox:
    """A sandbox that tells when it is stopped."""

    def __init__(self, inner: Sandbox, stopped: asyncio.Event) -> None:
        self._inner = inner
        self._stopped = stopped

    @property
    def alive(self) -> bool:
        return self._inner.alive

    async def execute(self, name: str, input: Mapping[str, Any]) -> ToolOutput:
        return await self._inner.execute(name, input)

    async def stop(self) -> None:
        await self._inner.stop()
        self._stopped.set()


class WatchedProvider:
    """Makes process sandboxes, counts them, and lets a test wait for what becomes of them.

    delayed: none starts before `let_go` is set.
    """

    def __init__(self, *, delayed: bool = False) -> None:
        self._inner = ProcessProvider()
        self.made = 0
        self.asked = asyncio.Event()
        self.let_go = asyncio.Event()
        self.stopped = asyncio.Event()
        if not delayed:
            self.let_go.set()

    async def probe(self) -> None:
        await self._inner.probe()

    async def provision(self, recipe: Recipe) -> Sandbox:
        self.asked.set()
        await self.let_go.wait()
        self.made += 1
        return WatchedSandbox(await self._inner.provision(recipe), self.stopped)

    async def close(self) -> None:
        await self._inner.close()


@asynccontextmanager
async def at_work(
    settings: WorkerSettings, *, provider: SandboxProvider | None = None, pace: Pace = QUICK
) -> AsyncGenerator[asyncio.Event]:
    """A running worker; yields the event that stops it."""
    stop, ready = asyncio.Event(), asyncio.Event()
    working = asyncio.create_task(run_worker(settings, stop, ready.set, provider=provider, pace=pace))
    waiting = asyncio.create_task(ready.wait())
    try:
        await asyncio.wait([working, waiting], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            await working
        yield stop
    finally:
        waiting.cancel()
        stop.set()
        await working


async def pool(corral: Corral, folder: Path, **changes: Any) -> WorkerSettings:
    """The settings of a worker for every cloud environment."""
    _, key = await corral.services.keys.create("pool", "test")
    settings = WorkerSettings(
        base_url=corral.base_url,
        pool_key=Secret(key),
        sandbox="process",
        workspace_dir=str(folder / "workspaces"),
    )
    return msgspec.structs.replace(settings, **changes)


async def for_environment(
    corral: Corral, environment_id: str, folder: Path, **changes: Any
) -> WorkerSettings:
    """The settings of a worker for one environment."""
    _, key = await corral.services.keys.create("environment", "test", environment_id=environment_id)
    settings = WorkerSettings(
        base_url=corral.base_url,
        environment_id=environment_id,
        environment_key=Secret(key),
        sandbox="process",
        workspace_dir=str(folder / "workspaces"),
    )
    return msgspec.structs.replace(settings, **changes)


@asynccontextmanager
async def worker_process(
    settings: WorkerSettings, user: int | None = None
) -> AsyncGenerator[asyncio.subprocess.Process]:
    """`corral worker` as a process of its own, ready; killed at the end if it still lives.

    user: which one it runs as (and the group of the same number); by default the test's own.
    """
    python, environment = (sys.executable, {}) if user is None else python_for_all()
    assert settings.pool_key is not None
    given: Mapping[str, str] = {
        "CORRAL_WORKER__BASE_URL": str(settings.base_url),
        "CORRAL_WORKER__POOL_KEY": settings.pool_key.reveal(),
        "CORRAL_WORKER__SANDBOX": settings.sandbox,
        "CORRAL_WORKER__WORKSPACE_DIR": str(settings.workspace_dir),
    }
    process = await asyncio.create_subprocess_exec(
        python, "-m", "corral.cli", "worker", "--json",
        env={**os.environ, **environment, **given},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
        user=user,
        group=user,
        extra_groups=None if user is None else [],
    )  # fmt: skip
    assert process.stdout is not None
    try:
        assert await process.stdout.readline(), "the worker ended before it was ready"
        yield process
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        # The end of the pipe: nothing keeps it open any more.
        await process.stdout.read()


def python_for_all() -> tuple[str, dict[str, str]]:
    """A Python of this version that every user can run, and the variable that shows it the packages.

    The one that runs the tests may lie in a home directory.
    """
    folders = (sysconfig.get_path("purelib"), str(Path(corral.__file__).parents[1]))
    python = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    return python, {"PYTHONPATH": os.pathsep.join(folders)}
