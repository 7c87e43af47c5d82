"""Provider `process`: the tools run as ordinary processes of the worker's user, with no isolation at all.

For agents that you trust as you trust yourself, and for systems without another provider. It must be asked
for by name. The file tools keep to the workspace; bash reaches whatever the worker's user reaches.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import structlog

from corral.hands.sandbox.access import Identity, make_place
from corral.hands.sandbox.archive import packed_program, program_config
from corral.hands.sandbox.mounts import SKILLS_FOLDER, base_environment
from corral.hands.sandbox.provider import Recipe, SandboxUnavailable
from corral.hands.sandbox.running import RunningSandbox

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_DEATH_SECONDS = 5.0


class ProcessProvider:
    """Makes sandboxes that are no more than a process group. Warns once."""

    def __init__(self) -> None:
        self._program: Path | None = None
        self._placing = asyncio.Lock()
        self._warned = False
        self._sandboxes: set[RunningSandbox] = set()

    async def probe(self) -> None:
        """Check that there is a /bin/bash, and warn. Raises `SandboxUnavailable`."""
        if not os.access("/bin/bash", os.X_OK):
            raise SandboxUnavailable("the toolset needs /bin/bash: install bash there")
        if not self._warned:
            self._warned = True
            _log.warning(
                "sandbox.no_isolation",
                provider="process",
                meaning="agents run commands as this user, with its files and network",
            )

    async def provision(self, recipe: Recipe) -> RunningSandbox:
        """Start the tools for `recipe`; see `SandboxProvider.provision`.

        Memory, processes and files are limited by rlimits (processes: all of this user together). Binds
        must have the same path on both sides; the network is always the host's.
        """
        await self.probe()
        for bind in recipe.binds:
            if str(bind.source) != bind.target:
                raise SandboxUnavailable(
                    f"the process provider cannot show {bind.source} as {bind.target}: use bubblewrap"
                )
        program = await self._placed_program()
        await asyncio.to_thread(recipe.workspace.mkdir, mode=0o700, parents=True, exist_ok=True)
        if recipe.skills is not None:
            await asyncio.to_thread(_copy_skills, recipe.skills, recipe.workspace / SKILLS_FOLDER)
        self._sandboxes = {sandbox for sandbox in self._sandboxes if not sandbox.ended}
        sandbox = self._spawn(recipe, program)
        self._sandboxes.add(sandbox)
        await sandbox.start()
        return sandbox

    async def close(self) -> None:
        """Stop every sandbox and remove the program's file."""
        await asyncio.gather(*(sandbox.stop() for sandbox in self._sandboxes))
        self._sandboxes = set()
        program, self._program = self._program, None
        if program is not None:
            await asyncio.to_thread(shutil.rmtree, program.parent)

    async def _placed_program(self) -> Path:
        async with self._placing:
            if self._program is None:
                self._program = await asyncio.to_thread(_place_program)
            return self._program

    def _spawn(self, recipe: Recipe, program: Path) -> RunningSandbox:
        workdir = str(recipe.workspace.resolve())
        limits = recipe.limits
        config = program_config(
            workdir,
            limits,
            own_namespace=False,
            roots=[bind.target for bind in recipe.binds],
            read_only=[bind.target for bind in recipe.binds if not bind.writable],
        )
        if any("\0" in part for variable in recipe.env.items() for part in variable):
            raise SandboxUnavailable("an environment variable of the recipe holds a NUL: take it out")
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=workdir,
            env={
                **base_environment(recipe, workdir),
                "PATH": os.environ.get("PATH", os.defpath),
                **recipe.env,
            },
            start_new_session=True,
        )
        return RunningSandbox(recipe.session_id, process, config, lambda: asyncio.to_thread(_end, process))


def _place_program() -> Path:
    place = Path(tempfile.mkdtemp(prefix="corral-process-")) / "inside.pyz"
    place.write_bytes(packed_program(Path(sys.executable)))
    return place


def _copy_skills(source: Path, target: Path) -> None:
    """Copy skills, and not link them: these files are the agent's to change, and others share the source."""
    make_place(target, Identity(os.geteuid(), os.getegid(), changed=False))
    for skill in source.iterdir():
        if not os.path.lexists(target / skill.name):
            shutil.copytree(skill, target / skill.name)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let the program kill what it started, then make sure of the program itself."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(_DEATH_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
