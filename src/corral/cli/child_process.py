"""A process that `corral up` keeps alive beside its own, bound to its life.

What it must know and others must not reaches it through the environment or files, never through arguments,
which every user of a machine can read.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Final

import structlog

from corral.store import launch

_log = structlog.get_logger(__name__)

_STOP_SECONDS: Final = 2.0
_FIRST_BACKOFF: Final = 0.5
_LONGEST_BACKOFF: Final = 10.0
_STEADY_SECONDS: Final = 30.0  # alive for this long, the next death counts as the first


class ChildProcess:
    """A `corral` command that is started again whenever it dies, except with a status of `hopeless`.

    `hopeless` maps a status after which starting it again cannot help to what is logged then.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        hopeless: Mapping[int, str],
        pass_fds: Sequence[int] = (),
    ) -> None:
        self._name = name
        self._arguments = tuple(arguments)
        self._environment = dict(environment)
        self._hopeless = dict(hopeless)
        self._pass_fds = tuple(pass_fds)
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The process id; None while there is none."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    def start(self) -> None:
        """Start it and keep it alive until `stop`."""
        self._task = asyncio.create_task(self._keep_alive(), name=f"{self._name} process")

    async def stop(self) -> None:
        """End it: asked first, killed after 2 seconds. Nothing of it is left afterwards."""
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
            _log.warning(f"the {self._name} does not stop; killing it", pid=process.pid)
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
            if status in self._hopeless:
                _log.error(self._hopeless[status])
                return
            if clock() - started > _STEADY_SECONDS:
                backoff = _FIRST_BACKOFF
            _log.error(f"the {self._name} ended; starting it again", status=status, seconds=backoff)
            await asyncio.sleep(backoff)
            backoff = min(_LONGEST_BACKOFF, backoff * 2)

    async def _spawn(self) -> asyncio.subprocess.Process:
        launcher = [sys.executable, "-I", "-S", str(launch.__file__), "-1", "-1", str(int(signal.SIGTERM))]
        return await asyncio.create_subprocess_exec(
            *launcher,
            sys.executable,
            "-m",
            "corral.cli",
            *self._arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            stderr=sys.stderr.fileno(),
            env=self._environment,
            pass_fds=self._pass_fds,
            start_new_session=True,  # Ctrl-C in the terminal is for `corral up`, which stops it in its turn
        )
