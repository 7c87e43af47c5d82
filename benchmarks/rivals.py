"""Other servers to measure against. Each is installed once, below ``build/``, when it is first needed.

None is a dependency: each has a virtual environment of its own, of a Python that it accepts.
"""

import asyncio
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from psycopg.conninfo import conninfo_to_dict

from benchmarks.managed_agents import ManagedAgents, managed_agents
from benchmarks.processes import free_port, server

_BUILD: Final = Path(__file__).parents[1] / "build" / "rivals"
OPEN_MANAGED_AGENTS: Final = "open-managed-agents 0.1.0"
_PYTHONS: Final = ("python3.13", "python3.12")


class NotInstalled(Exception):
    """A rival cannot be had on this machine; says why."""


def installed(name: str, *packages: str) -> Path:
    """The folder of the programs of a virtual environment with these packages. Raises `NotInstalled`."""
    folder = _BUILD / name
    folder.mkdir(parents=True, exist_ok=True)
    ready, wanted = folder / "ready", "\n".join(packages)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.exists() or ready.read_text() != wanted:
            print(f"installing {', '.join(packages)} into {folder}", file=sys.stderr, flush=True)
            environment, uv = folder / "environment", Path(sys.prefix) / "bin" / "uv"
            _run(uv, "venv", "--quiet", "--clear", "--python", _python(), environment)
            _run(uv, "pip", "install", "--quiet", "--python", environment / "bin" / "python", *packages)
            ready.write_text(wanted)
    return folder / "environment" / "bin"


def _python() -> Path:
    """A Python that the rivals accept, 3.12 or 3.13, wherever it is."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [sys.executable, *map(shutil.which, _PYTHONS)]
    candidates += sorted(versions.glob("3.1[23].*/bin/python"), reverse=True)
    for candidate in candidates:
        if candidate is None:
            continue
        check = "import sys, venv; sys.exit(not (3, 12) <= sys.version_info < (3, 14))"
        if subprocess.run([candidate, "-c", check], capture_output=True, check=False).returncode == 0:
            return Path(candidate)
    raise NotInstalled("needs Python 3.12 or 3.13, which this machine does not have")


def _run(*command: str | Path) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise NotInstalled(f"{command[0]} cannot be run: {error.strerror}") from error
    if done.returncode:
        raise NotInstalled(
            done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "cannot be installed"
        )


_TABLES: Final = """
import asyncio
from app.db import models
from app.db.engine import get_engine

async def make():
    async with get_engine().begin() as connection:
        await connection.run_sync(models.Base.metadata.create_all)
asyncio.run(make())
"""


@asynccontextmanager
async def open_managed_agents(
    database_url: str, provider_url: str, folder: Path
) -> AsyncGenerator[ManagedAgents]:
    """`open-managed-agents` on an empty database, its models at the provider. Raises `NotInstalled`.

    As it comes: one process of uvicorn, turns in that process, the stream's interval left as it is.
    """
    programs = await asyncio.to_thread(installed, "open-managed-agents", "open-managed-agents==0.1.0")
    told = conninfo_to_dict(database_url)
    port, key = free_port(), "a-key-of-the-benchmark"
    environment = {
        "DATABASE_URL": f"postgresql+asyncpg://{told['user']}@/{told['dbname']}?host={told['host']}",
        "OMA_API_KEY": key,
        "OPENAI_API_KEY": "none",
        "OPENAI_BASE_URL": f"{provider_url}/v1",
        "OPENAI_USE_RESPONSES": "false",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        "LOG_LEVEL": "WARNING",
    }
    await asyncio.to_thread(
        subprocess.run,
        [programs / "python", "-c", _TABLES],
        env={**os.environ, **environment},
        cwd=folder,
        check=True,
    )
    command = [str(programs / "uvicorn"), "app.main:app", "--port", str(port), "--log-level", "warning"]
    command.append("--no-access-log")
    async with server(
        command, folder / "open-managed-agents.log", environment=environment, folder=folder, port=port
    ) as running:
        headers = {
            "x-api-key": key,
            "anthropic-version": "2023-06-01",
            "anthropic-beta": "managed-agents-2026-04-01",
        }
        async with managed_agents(
            OPEN_MANAGED_AGENTS, running.base_url, running.pid, database_url, headers, model="gpt-benchmark"
        ) as agents:
            yield agents
