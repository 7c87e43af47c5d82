"""Runs commands as an ordinary user, who owns nothing and has no privilege, from tests that root runs too."""

import os
import pwd
import sys
from pathlib import Path

from corral.hands.sandbox.access import Identity, closed_door

UID = pwd.getpwnam("nobody").pw_uid
"""A user of every machine, who owns nothing. PostgreSQL wants one that has a name."""

# In mounts of its own, the folder that is closed to the user gets one in front that holds this Python alone.
_OPENED = """
set -e
door=$1 python=$2 keep=$3
shift 3
mount --bind "$python" "$keep"
mount -t tmpfs -o mode=755 tmpfs "$door"
mkdir -p "$python"
mount --bind "$keep" "$python"
exec "$@"
"""


def as_ordinary_user(folder: Path, *command: str) -> list[str]:
    """The command line that runs `command` as an ordinary user. folder: an empty one, which becomes theirs.

    Nothing changes where this process is no root.
    """
    if os.geteuid() != 0:
        return list(command)
    os.chown(folder, UID, UID)
    dropped = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--inh-caps=-all", *command]
    door = closed_door(Identity(UID, UID, changed=True), Path(sys.base_prefix).resolve())
    if door is None:
        return dropped
    keep = folder.with_name(f"{folder.name}-python")
    keep.mkdir()
    opened = ["sh", "-c", _OPENED, "sh", str(door), str(Path(sys.base_prefix).resolve()), str(keep)]
    return ["unshare", "--mount", "--propagation", "private", *opened, *dropped]


def surroundings(folder: Path) -> dict[str, str]:
    """The environment of an ordinary user at home in `folder`."""
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "LC_ALL")}
    return {**kept, "HOME": str(folder), "USER": "ordinary", "TMPDIR": str(folder)}
