"""The worker of `corral up`: a process of its own, kept alive, bound to ours.

Its keys reach it through the environment, never through arguments, which every user of a machine can read.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from typing import Final

import structlog

from corral.cli.failure import CANNOT_SANDBOX
from corral.settings import Settings
from corral.store import launch
from corral.wire.secret import Secret

_log = structlog.stdlib.get_logger(__name__)

_STOP_SECONDS: Final = 2.0
_FIRST_BACKOFF: Final = 0.5
_LONGEST_BACKOFF: Final = 10.0
_STEADY_SECONDS: Final = 30.0  # alive for this long, the next death counts as the first


class WorkerProcess:
    """A `corral worker` that is started again whenever it dies, except for want of a sandbox."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The worker's process id; None while there is none."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    def start(self) -> None:
        """Start the worker and keep it alive until `stop`."""
        self._task = asyncio.create_task(self._keep_alive(), name="worker process")

    async def stop(self) -> None:
        """End the worker: asked first, killed after 2 seconds. Nothing of it is left afterwards."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            _log.warning("the worker does not stop; killing it", pid=process.pid)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    async def _keep_alive(self) -> None:
        backoff = _FIRST_BACKOFF
        clock = asyncio.get_running_loop().time
        while True:
            started = clock()
            self._process = await self._spawn()
            status = await self._process.wait()
            if status == CANNOT_SANDBOX:
                _log.error(
                    "the worker has no working sandbox: sessions run, but their tools do not. Follow its "
                    "advice above and start Corral again"
                )
                return
            if clock() - started > _STEADY_SECONDS:
                backoff = _FIRST_BACKOFF
            _log.error("the worker ended; starting it again", status=status, seconds=backoff)
            await asyncio.sleep(backoff)
            backoff = min(_LONGEST_BACKOFF, backoff * 2)

    async def _spawn(self) -> asyncio.subprocess.Process:
        launcher = [sys.executable, "-I", "-S", str(launch.__file__), "-1", "-1", str(int(signal.SIGTERM))]
        return await asyncio.create_subprocess_exec(
            *launcher,
            sys.executable,
            "-m",
            "corral.cli",
            "worker",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            stderr=sys.stderr.fileno(),
            env=self._environment,
            start_new_session=True,  # Ctrl-C in the terminal is for `corral up`, which stops it in its turn
        )


def worker_environment(
    environ: Mapping[str, str], settings: Settings, base_url: str, pool_key: Secret, workspace_dir: str
) -> dict[str, str]:
    """The variables of a worker for ``base_url``: ours, without the server's credentials, with its own."""
    ours = {name: value for name, value in environ.items() if not name.startswith(("CORRAL_", "ANTHROPIC_"))}
    worker = settings.worker
    return {
        **ours,
        "CORRAL_WORKER__BASE_URL": base_url,
        "CORRAL_WORKER__POOL_KEY": pool_key.reveal(),
        "CORRAL_WORKER__WORKSPACE_DIR": worker.workspace_dir or workspace_dir,
        "CORRAL_WORKER__SANDBOX": worker.sandbox,
        "CORRAL_WORKER__MAX_SESSIONS": str(worker.max_sessions),
        "CORRAL_WORKER__SANDBOX_IDLE_SECONDS": str(worker.sandbox_idle_seconds),
        "CORRAL_WORKER__SESSION_IDLE_SECONDS": str(worker.session_idle_seconds),
        "CORRAL_LOG__LEVEL": settings.log.level,
        "CORRAL_LOG__FORMAT": settings.log.format,
    }
