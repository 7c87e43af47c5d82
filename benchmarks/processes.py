"""Server processes that are measured: started, asked what they use, and ended."""

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec

_READY_SECONDS: Final = 180.0
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class NotStarted(Exception):
    """A server process did not come up; says what it wrote last."""


class Running(msgspec.Struct, frozen=True):
    """A server process that answers."""

    base_url: str
    pid: int
    process: asyncio.subprocess.Process

    async def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.process.kill()
        await self.process.wait()


@asynccontextmanager
async def server(
    command: Sequence[str],
    log: Path,
    *,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    port: int,
) -> AsyncGenerator[Running]:
    """A process that listens on `port`; killed with all that it has started when the context ends.

    It sees none of the ``CORRAL_`` and ``ANTHROPIC_`` variables of this process.
    Raises `NotStarted` if it ends, or does not listen within three minutes.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("CORRAL_", "ANTHROPIC_"))}
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**kept, **(environment or {})},
            cwd=folder,
            start_new_session=True,
        )
    try:
        await _listening(process, port, log)
        yield Running(f"http://127.0.0.1:{port}", process.pid, process)
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def _listening(process: asyncio.subprocess.Process, port: int, log: Path) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            ended = process.returncode is not None
            if ended or time.monotonic() > deadline:
                raise NotStarted(f"{'ended' if ended else 'not up in time'}: {_last_line(log)}") from None
            await asyncio.sleep(0.02)
        else:
            writer.close()
            return


def _last_line(log: Path) -> str:
    return (log.read_text(errors="replace").splitlines() or ["it said nothing"])[-1]


def module(name: str, *arguments: str) -> list[str]:
    """The command of a module in this Python."""
    return [sys.executable, "-m", name, *arguments]


def free_port() -> int:
    """A port on loopback that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def cpu_seconds(pid: int) -> float:
    """Processor time of a process and all below it, those that have ended included."""
    total = 0.0
    for each in (pid, *_below(pid)):
        try:
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += sum(int(ticks) for ticks in fields[11:15]) / _TICKS
    return total


def resident_bytes(pid: int) -> int:
    """Resident memory of a process, shared libraries included."""
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * _PAGE


def _below(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [found for child in children for found in (int(child), *_below(int(child)))]
