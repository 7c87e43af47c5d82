"""What the user that a sandbox runs as may reach on the host, and how it is given a workspace.

A worker that runs as root never lets a sandbox keep that: outside, the sandbox is `SANDBOX_UID`, a user that
owns nothing but the workspaces.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from corral.hands.sandbox.provider import SandboxUnavailable

#: User and group of the sandboxes of a worker that runs as root. No account need exist for it.
SANDBOX_UID = 64000
SANDBOX_GID = 64000


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

    Nothing is followed: an earlier sandbox may have left links. Raises `SandboxUnavailable` if the sandbox's
    user could not get there.
    """
    workspace.mkdir(parents=True, exist_ok=True, mode=0o700)
    door = closed_door(identity, workspace.resolve())
    if door is not None:
        raise SandboxUnavailable(
            f"the workspace {workspace} lies below {door}, which the sandbox's user {identity.uid} may not "
            f"enter. Put workspaces (the data directory) elsewhere, for example below /var/lib, or allow it "
            f"with: chmod o+x {door}"
        )
    if not identity.changed or workspace.stat().st_uid == identity.uid:
        return
    for directory, name in _everything(workspace):
        os.chown(name, identity.uid, identity.gid, dir_fd=directory, follow_symlinks=False)
    os.chown(workspace, identity.uid, identity.gid)  # last: it marks the rest as done


def _everything(top: Path) -> Iterator[tuple[int, str]]:
    for _, directories, files, descriptor in os.fwalk(top, follow_symlinks=False):
        for name in (*directories, *files):
            yield descriptor, name
