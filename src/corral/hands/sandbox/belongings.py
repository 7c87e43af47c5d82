"""What a bubblewrap sandbox has on the host for itself alone: its control group and, maybe, its bwrap."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from corral.hands.sandbox.access import Identity
from corral.hands.sandbox.binary import is_exposed, own_copy
from corral.hands.sandbox.cgroups import Cgroups, Group
from corral.hands.sandbox.provider import Limits

# Enters control groups by their descriptors, before `--`, and becomes the command after it. Bash, because the
# process must have given up its rights before, and because other shells know no descriptor above 9.
_ENTER = (
    'while [ "$1" != -- ]; do door=$1; shift; printf 0 >&"$door" || exit 1; exec {door}>&-; done; '
    'shift; exec -c "$@"'
)
_RLIMITS = "processes and file sizes, and the memory of each process (rlimits)"


class Belongings:
    """What a sandbox has on the host for itself alone: its control group, its copy of bwrap where needed."""

    def __init__(self) -> None:
        self._group: Group | None = None
        self._copy: Path | None = None

    @contextmanager
    def taken(
        self, limits: Limits, binary: Path, identity: Identity, cgroups: Cgroups | None
    ) -> Generator[tuple[Path, list[int]]]:
        """Take it, and yield the binary to run and the group's doors. Raises `OSError`."""
        if is_exposed(identity, binary):
            self._copy = own_copy(binary)
        doors: list[int] = []
        try:
            if cgroups is not None:
                self._group = cgroups.make(limits)
                doors = self._group.open_doors()
            yield self._copy or binary, doors
        finally:
            for door in doors:
                os.close(door)

    def give_back(self) -> None:
        """Remove it, once nothing of the sandbox lives. Blocking, for two seconds at most."""
        if self._group is not None:
            self._group.remove()
        if self._copy is not None:
            self._copy.unlink(missing_ok=True)


def bounded(cgroups: Cgroups | None) -> str:
    """Tell what bounds a sandbox as a whole, and by what."""
    return _RLIMITS if cgroups is None else str(cgroups)


def unbounded(cgroups: Cgroups | None) -> str | None:
    """Tell what nothing bounds as a whole, and what to do about it; None if all is bounded."""
    held = cgroups.controllers if cgroups is not None else frozenset[str]()
    missing = [
        words
        for controller, words in (
            ("memory", "memory of all its processes together, and shared memory"),
            ("cpu", "processor time"),
        )
        if controller not in held
    ]
    if not missing:
        return None
    return (
        f"{'; '.join(missing)}: run the worker where it can make control groups (as root, or with "
        "`systemd-run --user --scope -p Delegate=yes corral worker`, or a service with Delegate=yes)"
    )


def entering(doors: Sequence[int]) -> list[str]:
    """Return the words to put before a command, so that it runs in the groups behind the doors."""
    if not doors:
        return []
    return ["/bin/bash", "--noprofile", "--norc", "-c", _ENTER, "bash", *map(str, doors), "--"]
