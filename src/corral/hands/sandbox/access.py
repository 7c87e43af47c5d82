"""What the user that a sandbox runs as may reach on the host, and how it is given a workspace.

A worker that runs as root never lets a sandbox keep that: outside, the sandbox is `SANDBOX_UID`, a user that
owns nothing but the workspaces.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

import structlog

from corral.hands.sandbox.provider import SandboxUnavailable

#: User and group of the sandboxes of a worker that runs as root. No account need exist for it.
SANDBOX_UID = 64000
SANDBOX_GID = 64000

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Identity:
    """The outer user of a sandbox. `changed` tells whether it differs from the worker's own."""

    uid: int
    gid: int
    changed: bool

    @staticmethod
    def for_sandboxes() -> Identity:
        """Return the unprivileged user if this process is root, else the user it is."""
        if os.geteuid() == 0:
            return Identity(SANDBOX_UID, SANDBOX_GID, changed=True)
        return Identity(os.geteuid(), os.getegid(), changed=False)

    @property
    def drop_to(self) -> tuple[int | None, int | None, list[int] | None]:
        """User, group and further groups to start a process with; None each where they stay."""
        return (self.uid, self.gid, []) if self.changed else (None, None, None)

    def may(self, found: os.stat_result, wanted: int) -> bool:
        """Tell whether the mode bits grant `wanted` (bits of 4 read, 2 write, 1 execute or search)."""
        if found.st_uid == self.uid:
            granted = found.st_mode >> 6
        elif found.st_gid == self.gid or (not self.changed and found.st_gid in os.getgroups()):
            granted = found.st_mode >> 3
        else:
            granted = found.st_mode
        return granted & wanted == wanted


def closed_door(identity: Identity, path: Path) -> Path | None:
    """Return the first directory on the way to `path` that `identity` may not pass, or None."""
    for directory in reversed(path.parents):
        if not identity.may(directory.stat(), 1):
            return directory
    return None


def usable(identity: Identity, path: Path, wanted: int) -> bool:
    """Tell whether `identity` can get to `path` and has `wanted` there. False if it does not exist."""
    try:
        real = path.resolve(strict=True)
        return closed_door(identity, real) is None and identity.may(real.stat(), wanted)
    except OSError:
        return False


def find_interpreter(identity: Identity) -> tuple[Path, Path | None]:
    """Return the Python for the inside, and the directory to show for it if that is not below /usr.

    Raises `SandboxUnavailable` if there is none that the sandbox's user can run.
    """
    base = Path(sys.base_prefix).resolve()
    own = base / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    if usable(identity, own, 5) and usable(identity, base, 5):
        return own, None if base.is_relative_to("/usr") else base
    for candidate in (Path("/usr/bin/python3"), Path("/usr/local/bin/python3")):
        if usable(identity, candidate, 5) and candidate.resolve().is_relative_to("/usr"):
            return candidate, None
    raise SandboxUnavailable(
        f"the sandbox needs a Python that user {identity.uid} can run, and {own} is not one. Install the "
        "distribution's python3 (it must be /usr/bin/python3, version 3.8 or later), or install Corral with "
        "a Python outside of a private home directory"
    )


def hand_over(workspace: Path, identity: Identity) -> None:
    """Make `workspace` exist and belong to `identity`, with all that is in it. Blocking.

    Nothing is followed: an earlier sandbox may have left links, or a present one may be making them. A file
    that has a further link keeps its owner. Raises `SandboxUnavailable` if the sandbox's user could not get
    there, or the workspace is a link.
    """
    workspace.mkdir(parents=True, exist_ok=True, mode=0o700)
    door = closed_door(identity, workspace.resolve())
    if door is not None:
        raise SandboxUnavailable(
            f"the workspace {workspace} lies below {door}, which the sandbox's user {identity.uid} may not "
            f"enter. Put workspaces (the data directory) elsewhere, for example below /var/lib, or allow it "
            f"with: chmod o+x {door}"
        )
    if not identity.changed:
        return
    try:
        top = os.open(workspace, _FOLDER)
    except OSError as error:
        raise SandboxUnavailable(
            f"the workspace {workspace} cannot be given to the sandbox: {error.strerror}"
        ) from None
    if os.fstat(top).st_uid == identity.uid:
        os.close(top)
        return
    left = _give(top, identity)  # the workspace itself is given last: that marks the rest as done
    if left:
        _log.warning(
            "files with further links are left to their owners", workspace=str(workspace), files=left
        )


def make_place(place: Path, identity: Identity) -> None:
    """Make `place` an empty or older directory of the workspace that something can be mounted on. Blocking.

    What an earlier sandbox has left there, a link say, is put aside under another name: a mount must never
    follow it. Call this while no sandbox of the workspace runs.
    """
    try:
        is_directory = stat.S_ISDIR(place.lstat().st_mode)
    except FileNotFoundError:
        is_directory = False
    else:
        if not is_directory:
            place.rename(place.with_name(f"{place.name}-{uuid4().hex[:8]}"))
    if not is_directory:
        place.mkdir()
        if identity.changed:
            os.chown(place, identity.uid, identity.gid, follow_symlinks=False)


def _give(folder: int, identity: Identity) -> int:
    """Give a folder and all below it, by descriptors alone; returns how many files were left out.

    One folder is open at a time, so that no depth is too much, and each is given after what is in it. Takes
    the descriptor over. Raises `SandboxUnavailable` if a folder is moved meanwhile.
    """
    above: list[tuple[tuple[int, int], list[str]]] = []
    left = 0
    try:
        names, left = _give_files(folder, identity)
        while True:
            if names:
                inner = _entered(names.pop(), folder)
                if inner is not None:
                    above.append((_identity(folder), names))
                    os.close(folder)
                    folder = inner
                    names, more = _give_files(folder, identity)
                    left += more
                continue
            os.fchown(folder, identity.uid, identity.gid)
            if not above:
                return left
            expected, names = above.pop()
            upper = os.open("..", _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = upper
            if _identity(folder) != expected:
                raise SandboxUnavailable(
                    "a folder of the workspace was moved while the workspace was given to the sandbox"
                )
    finally:
        os.close(folder)


def _give_files(folder: int, identity: Identity) -> tuple[list[str], int]:
    """Give the files of a folder; returns the names of its folders, and how many files were left out.

    What is checked is what is given, whatever takes its name meanwhile. A file with a further link may be
    somebody else's; of links and devices there is no need to be the owner.
    """
    folders: list[str] = []
    left = 0
    for name in os.listdir(folder):
        try:
            held = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        except FileNotFoundError:
            continue  # gone meanwhile
        try:
            found = os.fstat(held)
            if stat.S_ISDIR(found.st_mode):
                folders.append(name)
            elif not stat.S_ISREG(found.st_mode) or found.st_uid == identity.uid:
                continue
            elif found.st_nlink > 1:
                left += 1
            else:
                os.chown(f"/proc/self/fd/{held}", identity.uid, identity.gid)
        finally:
            os.close(held)
    return folders, left


def _entered(name: str, folder: int) -> int | None:
    try:
        return os.open(name, _FOLDER, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None  # no longer a folder
        raise


def _identity(folder: int) -> tuple[int, int]:
    found = os.fstat(folder)
    return found.st_dev, found.st_ino
