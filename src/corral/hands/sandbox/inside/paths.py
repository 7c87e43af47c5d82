"""Which paths the file tools may touch.

The sandbox is the boundary. These checks are the documented behaviour of the file tools on top of it: a
path resolves against the working directory and must end up in it, or in another directory that the recipe
mounted, with every symbolic link followed first.
"""

from __future__ import annotations

import errno
import os
import stat

from .failure import ToolFailure, reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_MAX_LINKS = 40  # the kernel's own limit
_ABSENT = (errno.ENOENT, errno.ENOTDIR)
# Where there is O_PATH a folder need not be readable to be passed.
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

#: Directory in the working directory that belongs to Corral: large outputs and the home directory.
PRIVATE_DIRECTORY = ".corral"


def canonical(path: str) -> str:
    """Return absolute `path` with every symbolic link followed, also dangling ones.

    `.` and `..` are collapsed before links are followed. Components that do not exist are kept as spelled.
    Raises `OSError` for a loop of links or a component that may not be looked at.
    """
    from collections import deque  # costs time, as does `pathlib`, and a shell has no use for either

    waiting = deque(os.path.normpath(path).split("/"))
    done = "/"
    links = 0
    while waiting:
        name = waiting.popleft()
        if name in ("", "."):
            continue
        if name == "..":
            done = os.path.dirname(done)
            continue
        here = os.path.join(done, name)
        try:
            mode = os.lstat(here).st_mode
        except OSError as error:
            if error.errno not in _ABSENT:
                raise
            rest = os.path.normpath(os.path.join(here, *waiting))
            if ".." not in waiting:
                return rest
            # Collapsing `..` behind a missing component can land on a link again: start over.
            waiting, done = deque(rest.split("/")), "/"
            links += 1
        else:
            if not stat.S_ISLNK(mode):
                done = here
                continue
            target = os.readlink(here)
            waiting.extendleft(reversed(target.split("/")))
            if target.startswith("/"):
                done = "/"
            links += 1
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return done


def within(path: str, root: str) -> bool:
    """Tell whether `path` is `root` or lies below it; both canonical."""
    return path == root or path.startswith(root.rstrip("/") + "/")


def _enter(folder: int, name: str, make: bool, last: bool) -> int:
    if not make:
        return os.open(name, _FOLDER, dir_fd=folder)
    try:
        os.mkdir(name, dir_fd=folder)
    except FileExistsError as there:
        try:
            return os.open(name, _FOLDER, dir_fd=folder)
        except NotADirectoryError:
            if last:
                raise there from None  # as the toolset words it
            raise
    return os.open(name, _FOLDER, dir_fd=folder)


class Roots:
    """The directories that the file tools may reach, and those of them that they must not change."""

    def __init__(self, workdir: str, others: Sequence[str] = (), read_only: Sequence[str] = ()) -> None:
        self.workdir = os.path.realpath(workdir)
        self._others: list[str] = [os.path.realpath(other) for other in others]
        self._read_only: list[str] = list(read_only)

    @property
    def private(self) -> str:
        """Corral's own directory in the workspace, which searches leave out unless asked for by name."""
        return os.path.join(self.workdir, PRIVATE_DIRECTORY)

    def resolve(self, tool: str, path: str) -> Path:
        """Return the canonical form of `path`. Raises `ToolFailure` if `tool` may not reach it."""
        from pathlib import Path

        try:
            full = canonical(os.path.join(self.workdir, path))
        except OSError as error:
            raise ToolFailure(f"{tool}: path {path!r}: {reason(error)}") from error
        except ValueError as error:  # a NUL in the path
            raise ToolFailure(f"{tool}: {error}") from error
        if within(full, self.workdir) or any(within(full, other) for other in self._others):
            return Path(full)
        suffix = " and its other permitted directories" if self._others else ""
        raise ToolFailure(f"{tool}: path {path!r} is outside the session's working directory{suffix}")

    def open(self, target: Path, flags: int, make_folders: bool = False) -> int:
        """Return a descriptor of `target`, which `resolve` returned. Raises `OSError`.

        No link is followed, so what has become one since is refused, and no pipe or device holds this up.
        make_folders: make the folders above it.
        """
        path = str(target)
        root = next(root for root in (self.workdir, *self._others) if within(path, root))
        *folders, name = ("", *path[len(root) :].strip("/").split("/"))
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        if not name:
            return os.open(root, flags, 0o666)
        here = os.open(root, _FOLDER)
        try:
            for depth, folder in enumerate(folders[1:], 2):
                there = _enter(here, folder, make_folders, last=depth == len(folders))
                os.close(here)
                here = there
            return os.open(name, flags, 0o666, dir_fd=here)
        finally:
            os.close(here)

    def refuse_read_only(self, tool: str, path: str, target: Path) -> None:
        """Raise `ToolFailure` if `target` lies in a directory that was mounted read-only."""
        for root in self._read_only:
            if within(str(target), os.path.realpath(root)):
                raise ToolFailure(f"{tool}: {path} is inside read-only directory {root}")

    def reachable(self, path: str) -> bool:
        """Tell whether the agent's file tools could have written `path`, or it cannot be resolved."""
        try:
            full = canonical(path)
        except (OSError, ValueError):
            return True
        return within(full, self.workdir) or any(within(full, other) for other in self._others)
