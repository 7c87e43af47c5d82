"""A Corral on this machine for a while: the one that runs, or a private one that is gone afterwards."""

import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import httpx
import msgspec
from rich.console import Console
from rich.text import Text

from corral.cli.failure import Failure

_START_SECONDS: Final = 180.0
_STOP_SECONDS: Final = 8.0


class Place(msgspec.Struct):
    """A running Corral on this machine: its address and keys, and where its worker keeps workspaces."""

    base_url: str
    api_key: str
    environment_id: str
    scripted: bool
    workspaces: Path


@asynccontextmanager
async def corral_at_hand(data: Path, console: Console) -> AsyncGenerator[Place]:
    """The Corral that `corral up` runs with the data folder `data`, or else a private one."""
    place = await _that_runs(data)
    if place is not None:
        console.print(Text(f"Using the Corral that runs at {place.base_url}."))
        yield place
        return
    console.print(Text("Starting a private Corral."))
    async with private_corral() as place:
        yield place


@asynccontextmanager
async def private_corral(settings: Mapping[str, str] | None = None) -> AsyncGenerator[Place]:
    """A `corral up` of our own in a new folder, with its progress on our standard error.

    `settings` are environment variables over those of this process. Process and folder are gone afterwards.

    Raises:
        Failure: it does not start.
    """
    folder = await asyncio.to_thread(_new_folder)
    try:
        async with _running(folder, settings or {}) as place:
            yield place
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


def _new_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="corral-demo-"))
    # PostgreSQL's user and the sandbox's must be able to pass through; what is inside is closed by itself.
    folder.chmod(0o711)
    return folder


async def _that_runs(data: Path) -> Place | None:
    place = _read_place(data)
    if place is None:
        return None
    try:
        async with httpx.AsyncClient(timeout=2.0, trust_env=False) as http:
            answer = await http.get(f"{place.base_url}/healthz")
    except httpx.HTTPError:
        return None
    return place if answer.is_success else None


def _read_place(data: Path) -> Place | None:
    """What `corral up` leaves in its data folder while it runs."""
    try:
        told = msgspec.json.decode((data / "running.json").read_bytes())
    except (OSError, msgspec.DecodeError):
        return None
    return Place(
        told["base_url"],
        told["api_key"],
        told["environment_id"],
        bool(told["scripted_model"]),
        data / "workspaces",
    )


@asynccontextmanager
async def _running(folder: Path, settings: Mapping[str, str]) -> AsyncGenerator[Place]:
    arguments = ["up", "--data", str(folder), "--host", "127.0.0.1", "--port", "0"]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "corral.cli",
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        env={"CORRAL_LOG__LEVEL": "warning", **os.environ, **settings},
        start_new_session=True,
    )
    try:
        yield await _when_ready(folder, process)
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                async with asyncio.timeout(_STOP_SECONDS):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()


async def _when_ready(folder: Path, process: asyncio.subprocess.Process) -> Place:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if process.returncode is not None:
            raise Failure("Corral did not start.", "its messages above say why; `corral doctor` checks more.")
        place = await asyncio.to_thread(_read_place, folder)
        if place is not None:
            return place
        await asyncio.sleep(0.05)
    raise Failure(f"Corral was not ready after {_START_SECONDS:.0f} s.", "run `corral doctor`.")
