"""Processes that are killed and come back: `corral serve` and `corral worker`, as an operator runs them."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import IO

import msgspec


class Death(msgspec.Struct):
    """One kill: when, of what, and when it was back; seconds of the monotonic clock."""

    victim: str
    killed_at: float
    ready_at: float = 0.0


class KeptProcess:
    """A process that is started again as soon as it is gone.

    `ready` is asked whether the process that was started at a given Unix time answers yet; `launcher` is a
    command that runs it.
    """

    def __init__(
        self,
        name: str,
        arguments: list[str],
        environment: Mapping[str, str],
        log: IO[bytes],
        ready: Callable[[float], Awaitable[bool]],
        launcher: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.deaths: list[Death] = []
        self._arguments = [*launcher, sys.executable, "-m", "corral.cli", *arguments]
        self._environment = {**os.environ, **environment}
        self._log = log
        self._ready = ready
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self.up = asyncio.Event()

    async def start(self) -> None:
        """Start, and return once it is ready."""
        self._task = asyncio.create_task(self._keep())
        await self.up.wait()

    def kill(self) -> Death | None:
        """SIGKILL, if it is up."""
        if self._process is None or self._process.returncode is not None or not self.up.is_set():
            return None
        self.up.clear()
        os.killpg(self._process.pid, signal.SIGKILL)
        self.deaths.append(Death(self.name, time.monotonic()))
        return self.deaths[-1]

    async def stop(self) -> int | None:
        """SIGTERM; its exit status, or None if it had to be killed after 8 seconds."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._process is None or self._process.returncode is not None:
            return None
        self._process.terminate()
        try:
            async with asyncio.timeout(8):
                return await self._process.wait()
        except TimeoutError:
            os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
            return None

    async def _keep(self) -> None:
        while True:
            self._process = await asyncio.create_subprocess_exec(
                *self._arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env=self._environment,
                start_new_session=True,
            )
            started = time.time()
            ended = asyncio.create_task(self._process.wait())
            while not ended.done() and not await self._ready(started):
                await asyncio.wait({ended}, timeout=0.02)
            if not ended.done():
                if self.deaths:
                    self.deaths[-1].ready_at = time.monotonic()
                self.up.set()
            await ended
            self.up.clear()
