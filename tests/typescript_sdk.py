"""The official TypeScript SDK: installed once for all tests, in the version that one `package.json` names."""

import asyncio
import fcntl
import os
import shutil
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

_WANTED = Path(__file__).parent / "e2e" / "typescript" / "package.json"
_BUILD = Path(__file__).parents[1] / "build" / "typescript"


async def installed(script: Path) -> Path:
    """A copy of the script, in a folder that git ignores and that has the SDK.

    Test processes that come at the same time install it once: the first does, the others wait.
    """
    _BUILD.mkdir(parents=True, exist_ok=True)
    with (_BUILD / ".lock").open("w") as lock:
        await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
        kept, wanted = _BUILD / "package.json", _WANTED.read_text()
        there = (_BUILD / "node_modules").is_dir() and kept.is_file() and kept.read_text() == wanted
        if not there:
            kept.write_text(wanted)
            await _install()
        copy = _BUILD / script.name
        shutil.copy(script, copy)
    return copy


async def _install() -> None:
    process = await asyncio.create_subprocess_exec(
        *("npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts"),
        cwd=_BUILD,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()


@asynccontextmanager
async def node(
    script: Path, *arguments: str, folder: Path, **environment: str
) -> AsyncGenerator[asyncio.subprocess.Process]:
    """A program under node in a folder, its output readable; killed at the end if it still runs."""
    process = await asyncio.create_subprocess_exec(
        "node",
        str(await installed(script)),
        *arguments,
        cwd=folder,
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        yield process
    finally:
        if process.returncode is None:
            # Not `process.kill`, which may take the exit status away from the loop.
            os.kill(process.pid, signal.SIGKILL)
        await process.wait()
        # The end of the pipe, so that nothing is left open.
        await process.stdout.read()
