"""A Corral of our own to judge, as `corral up` starts it: its own database, worker and scripted model."""

import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from tests.conformance.sdk.keys import KeysByCommand

_CORRAL: Final = (sys.executable, "-m", "corral.cli")
_START_SECONDS: Final = 120.0
_STOP_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.05


class NotStarted(Exception):
    """Corral ended, or was not ready in time."""


@dataclass(frozen=True)
class Place:
    """Where it listens, its API key, and how to make keys for its environments."""

    base_url: str
    api_key: str
    keys: KeysByCommand


@asynccontextmanager
async def private_corral(log: Path) -> AsyncGenerator[Place]:
    """A running Corral whose messages go to ``log``; nothing of it is left behind."""
    folder = await asyncio.to_thread(_new_folder)
    try:
        async with _running(folder, log) as place:
            yield place
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


def _new_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="corral-conformance-"))
    # PostgreSQL's user and the sandbox's must be able to pass through; what is inside is closed by itself.
    folder.chmod(0o711)
    return folder


@asynccontextmanager
async def _running(folder: Path, log: Path) -> AsyncGenerator[Place]:
    data, ready = folder / "data", folder / "ready.json"
    arguments = ("up", "--data", str(data), "--host", "127.0.0.1", "--port", "0", "--ready-file", str(ready))
    with log.open("wb") as messages:
        process = await asyncio.create_subprocess_exec(
            *_CORRAL,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=messages,
            stderr=messages,
            env=_without_settings(),
            start_new_session=True,
        )
    try:
        told = await _when_ready(ready, process, log)
        command = (*_CORRAL, "admin", "environment-key", "create", "{environment}", "--data", str(data))
        yield Place(told["base_url"], told["api_key"], KeysByCommand(command))
    finally:
        await _stop(process)


def _without_settings() -> dict[str, str]:
    """This process's environment without what would change the server: a credential would cost money."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith(("CORRAL_", "ANTHROPIC_"))
    }


async def _when_ready(ready: Path, process: asyncio.subprocess.Process, log: Path) -> dict[str, str]:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.returncode is None:
        if await asyncio.to_thread(ready.exists):
            return msgspec.json.decode(await asyncio.to_thread(ready.read_bytes))
        await asyncio.sleep(_LOOK_SECONDS)
    raise NotStarted(f"Corral did not get ready; {log} says why")


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(_STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
