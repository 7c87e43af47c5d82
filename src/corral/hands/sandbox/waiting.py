"""A bwrap that has been started before anybody knows what for, and waits to be told what it is to show.

It has its control group, has given up the worker's rights, holds the filter, and reads the rest of its
arguments from a pipe: nothing in it is of any session until then. Every sandbox begins so; one that was begun
ahead of time only saves the wait. Should the worker die first, the pipe ends without what has to come last in
it, and bwrap refuses to begin anything.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import select
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from corral.hands.sandbox import access, mounts
from corral.hands.sandbox.belongings import Belongings, entering
from corral.hands.sandbox.cgroups import Cgroups
from corral.hands.sandbox.provider import Limits, Recipe, SandboxUnavailable

_DEATH_SECONDS: Final = 5.0
_FILES: Final = 12  # files that a sandbox may be given as data; `mounts.view` names fewer
_PIPE_BYTES: Final = 64 * 1024  # what a pipe takes at once
_TELLING_MS: Final = 1000
# The last of what is told, and asked for by the command line (a host name of its own needs it): bwrap ends
# before it has made any process if it was told nothing, or not all.
_UNSHARED: Final = ("--unshare-user", "--unshare-all")


@dataclass(frozen=True, slots=True)
class Probed:
    """What probing found out: the binary to run, as whom, with which Python, and what this bwrap can do."""

    binary: Path
    identity: access.Identity
    interpreter: Path
    interpreter_root: Path | None
    options: frozenset[str]
    filter: bytes
    cgroups: Cgroups | None


class Waiting:
    """A bwrap that waits for its arguments. limits: of its control group, which stand already.

    Made in the thread of the event loop, as asyncio's own subprocesses: --die-with-parent means the thread
    that started it, and one of a pool may end. command: what runs inside, after the interpreter's name.
    Raises `SandboxUnavailable`.
    """

    def __init__(self, probed: Probed, limits: Limits, command: Sequence[str]) -> None:
        self._probed = probed
        self.limits = limits
        self._own = Belongings()
        self._files: list[int] = []
        ours: list[int] = []
        theirs: list[int] = []
        user, group, groups = probed.identity.drop_to
        try:
            for _ in range(_FILES):
                self._files.append(os.memfd_create("corral", 0))
            theirs.append(in_memory(probed.filter))
            for _ in range(2):
                ends = os.pipe()
                ours.append(ends[0])
                theirs.append(ends[1])
            # Of the arguments' pipe the worker writes; of the other, where bwrap tells of itself, it reads.
            ours[0], theirs[1] = theirs[1], ours[0]
            self._arguments, self._info = ours
            passing, arguments, info = theirs
            with self._own.taken(limits, probed.binary, probed.identity, probed.cgroups) as (binary, doors):
                self.process = subprocess.Popen(
                    [
                        *entering(doors),
                        *(str(binary), *_isolation(probed.options)),
                        *("--info-fd", str(info), "--seccomp", str(passing), "--args", str(arguments), "--"),
                        *(str(probed.interpreter), "-I", "-S", *command),
                    ],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env={},
                    cwd="/",
                    pass_fds=(*self._files, *theirs, *doors),
                    start_new_session=True,
                    user=user,
                    group=group,
                    extra_groups=groups,
                )
        except BaseException as error:
            for descriptor in (*self._files, *ours):
                os.close(descriptor)
            self._own.give_back()
            if isinstance(error, OSError):
                raise SandboxUnavailable(f"cannot start {probed.binary}: {error}") from error
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        self._told = False

    def suits(self, recipe: Recipe) -> bool:
        """Whether it can become the sandbox of `recipe`."""
        return self.limits == recipe.limits

    def tell(self, recipe: Recipe, program: bytes) -> None:
        """Say what it is to show. Raises `SandboxUnavailable`; it is of no use then, and to be ended."""
        arguments = self._named(recipe, program)
        try:
            self._say(arguments)
        except BrokenPipeError:
            pass  # it has ended, and says why on its standard error
        except OSError as error:
            raise SandboxUnavailable(f"bubblewrap cannot be told what to show: {error}") from error
        finally:
            self._close()

    def _named(self, recipe: Recipe, program: bytes) -> bytes:
        """The arguments for what the sandbox sees; the files that they name are filled.

        Not on the command line: that can be read inside, and they name host paths. The environment is among
        them and not bwrap's own: an LD_PRELOAD in it would act outside the sandbox.
        """
        root, sized = self._probed.interpreter_root, "--size" in self._probed.options
        view = mounts.view(recipe, interpreter_root=root, program=program, sized=sized)
        arguments = [*view.arguments]
        for name, value in mounts.environment(recipe, root).items():
            arguments += ["--setenv", name, value]
        for descriptor, (path, content) in zip(self._files, view.files.items(), strict=False):
            _fill(descriptor, content)
            arguments += ["--perms", "0444", "--ro-bind-data", str(descriptor), path]
        assert len(view.files) <= len(self._files)
        arguments += ["--remount-ro", "/", "--chdir", recipe.workdir, *_UNSHARED]
        if recipe.network:
            arguments.append("--share-net")
        if any("\0" in argument for argument in arguments):
            raise SandboxUnavailable(
                "a path or an environment variable of the recipe holds a NUL: take it out"
            )
        return b"".join(os.fsencode(argument) + b"\0" for argument in arguments)

    def _say(self, arguments: bytes) -> None:
        if len(arguments) > _PIPE_BYTES:
            fcntl.fcntl(self._arguments, fcntl.F_SETPIPE_SZ, len(arguments))
        os.set_blocking(self._arguments, False)
        taken = select.poll()
        taken.register(self._arguments, select.POLLOUT)
        while arguments:
            try:
                arguments = arguments[os.write(self._arguments, arguments) :]
            except BlockingIOError:
                # A user with very many pipes gets small ones: bwrap has to read in between.
                if not taken.poll(_TELLING_MS):
                    raise

    def _close(self) -> None:
        if not self._told:
            self._told = True
            for descriptor in (*self._files, self._arguments):
                os.close(descriptor)

    async def kill(self) -> None:
        """Kill it, or what has become of it, and wait until nothing is left."""
        await asyncio.to_thread(self._kill)

    def give_back(self) -> None:
        """Give back what it has on the host, once nothing of it lives. Blocking."""
        self._own.give_back()

    def end(self) -> None:
        """End one that nobody has been given. Blocking."""
        self._kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
        self.give_back()

    def _kill(self) -> None:
        # Killing process 1 of its namespace has the kernel end all the others first.
        first = self._first_process()
        if first is None:
            self.process.kill()
        else:
            _kill_and_wait(first)
        self._close()
        try:
            self.process.wait(_DEATH_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def _first_process(self) -> int | None:
        """Return a pidfd of process 1, or None if bwrap did not get that far."""
        # bwrap wrote it before it started the program. Its end without a word closes the pipe.
        os.set_blocking(self._info, False)
        try:
            said = os.read(self._info, 4096)
        except BlockingIOError:
            said = b""
        os.close(self._info)
        if not said or self.process.poll() is not None:
            return None
        try:
            return os.pidfd_open(int(json.loads(said)["child-pid"]))
        except (ProcessLookupError, ValueError, KeyError):
            return None


def in_memory(content: bytes) -> int:
    """Return the descriptor of a file in memory."""
    descriptor = os.memfd_create("corral", 0)
    _fill(descriptor, content)
    return descriptor


def _fill(descriptor: int, content: bytes) -> None:
    os.write(descriptor, content)
    # Who has inherited the descriptor reads from where it stands here.
    os.lseek(descriptor, 0, os.SEEK_SET)


def _kill_and_wait(first: int) -> None:
    try:
        signal.pidfd_send_signal(first, signal.SIGKILL)
        os.waitid(os.P_PIDFD, first, os.WEXITED | os.WNOWAIT)
    except (ProcessLookupError, ChildProcessError):
        pass  # dead already, or not our child: bwrap, its parent, ends after it
    finally:
        os.close(first)


def _isolation(options: frozenset[str]) -> list[str]:
    arguments = ["--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    arguments += ["--uid", str(mounts.INNER_UID), "--gid", str(mounts.INNER_GID), "--hostname", "sandbox"]
    if "--disable-userns" in options:
        arguments.append("--disable-userns")
    return arguments
