"""Control groups: what bounds a whole sandbox, and not only each of its processes.

Each sandbox gets a group of its own below the worker's: in the unified hierarchy (v2) where that is delegated
to the worker, in those of v1 where they can be written to, in both where a machine has both. Where neither is
so, `find_cgroups` returns None and rlimits are all there is.

A group is named after the worker that made it, so that whoever comes later can tell the groups of the dead
from those in use. The kernel removes no group that still has a process.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from corral.hands.sandbox.provider import Limits

Controller = Literal["memory", "pids", "cpu"]

#: What is bounded where there is a controller for it, in the words that an operator reads.
BOUNDS: Final[dict[Controller, str]] = {"memory": "memory", "pids": "processes", "cpu": "processors"}

_CONTROLLERS: Final[tuple[Controller, ...]] = ("memory", "pids", "cpu")
_PREFIX: Final = "corral-"
_WORKER_LEAF: Final = "corral-worker"
_OWN_PROCESSES: Final = 8  # bwrap twice, and the threads of the program inside
_PERIOD_US: Final = 100_000
_SHARES: Final = 512  # v1; a process outside of all groups has 1024
_WEIGHT: Final = 50  # v2; the default is 100
_REMOVAL_SECONDS: Final = 2.0
_STRANGE_SECONDS: Final = 600.0
_DEPTH: Final = 12
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")  # blanks and the like, in names of mounts
# Not there without accounting of swap, and then there is nothing to limit.
_OPTIONAL: Final = frozenset({"memory.memsw.limit_in_bytes", "memory.swap.max"})


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """A folder in which a group can be made for each sandbox, and what it then bounds."""

    folder: Path
    version: Literal[1, 2]
    controllers: tuple[Controller, ...]


@dataclass(frozen=True, slots=True)
class Cgroups:
    """Makes groups for sandboxes. Made by `find_cgroups`."""

    hierarchies: tuple[Hierarchy, ...]

    @property
    def controllers(self) -> frozenset[Controller]:
        """All that it bounds."""
        return frozenset(name for hierarchy in self.hierarchies for name in hierarchy.controllers)

    def __str__(self) -> str:
        """What is bounded and how, such as `memory, processes, processors (cgroup v2)`."""
        bounded = ", ".join(words for name, words in BOUNDS.items() if name in self.controllers)
        versions = " and ".join(
            f"v{version}" for version in sorted({one.version for one in self.hierarchies})
        )
        return f"{bounded} (cgroup {versions})"

    def make(self, limits: Limits) -> Group:
        """Make a group with `limits`. Raises `OSError` if that fails; then nothing is left of it."""
        name = f"{_own_prefix()}{secrets.token_hex(4)}"
        group = Group(tuple(hierarchy.folder / name for hierarchy in self.hierarchies))
        try:
            for hierarchy, folder in zip(self.hierarchies, group.folders, strict=True):
                folder.mkdir()
                for file, value in settings(hierarchy, limits).items():
                    if file not in _OPTIONAL or (folder / file).exists():
                        (folder / file).write_text(value)
        except OSError:
            group.remove()
            raise
        return group


@dataclass(frozen=True, slots=True)
class Group:
    """The group of one sandbox: a folder in each hierarchy."""

    folders: tuple[Path, ...]

    def open_doors(self) -> list[int]:
        """Return descriptors; a process that writes "0" to each of them is then in the group.

        They keep the rights of who opened them, so that a process which has given up its own can go in. To
        be closed by the caller.
        """
        doors: list[int] = []
        try:
            for folder in self.folders:
                doors.append(os.open(folder / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC))
        except OSError:
            for door in doors:
                os.close(door)
            raise
        return doors

    def remove(self) -> None:
        """Remove it; its processes must be dead, or about to be. Blocking, for two seconds at most.

        What the kernel holds on to for longer, the next worker removes.
        """
        deadline = time.monotonic() + _REMOVAL_SECONDS
        for folder in self.folders:
            while not _removed(folder) and time.monotonic() < deadline:
                time.sleep(0.005)


def settings(hierarchy: Hierarchy, limits: Limits) -> dict[str, str]:
    """Return file -> content, in the order in which they are to be written.

    The memory limit counts everything: private and shared memory, files in memory, the page cache.
    """
    memory, processes = str(limits.memory_bytes), str(limits.processes + _OWN_PROCESSES)
    quota = None if limits.cpus is None else str(max(1000, round(limits.cpus * _PERIOD_US)))
    wanted: dict[str, str] = {}
    if "memory" in hierarchy.controllers and hierarchy.version == 1:
        wanted |= {"memory.limit_in_bytes": memory, "memory.memsw.limit_in_bytes": memory}
    elif "memory" in hierarchy.controllers:
        wanted |= {"memory.max": memory, "memory.swap.max": "0"}
    if "pids" in hierarchy.controllers:
        wanted |= {"pids.max": processes}
    if "cpu" in hierarchy.controllers and hierarchy.version == 1:
        wanted |= {"cpu.shares": str(_SHARES)}
        wanted |= {} if quota is None else {"cpu.cfs_period_us": str(_PERIOD_US), "cpu.cfs_quota_us": quota}
    elif "cpu" in hierarchy.controllers:
        wanted |= {"cpu.weight": str(_WEIGHT)}
        wanted |= {} if quota is None else {"cpu.max": f"{quota} {_PERIOD_US}"}
    return wanted


def find_cgroups(process: Path = Path("/proc/self")) -> Cgroups | None:
    """Return where groups can be made on this machine by this process, or None. Blocking.

    Removes what workers that were killed have left. In a v2 group that is delegated to it, the worker moves
    itself one level down: a group with processes cannot pass controllers on. process: what the kernel says of
    this process, its mounts and its groups.
    """
    hierarchies: list[Hierarchy] = []
    missing: set[Controller] = {"memory", "pids", "cpu"}
    for mount, version, offered in _mounts(process / "mountinfo"):
        own = _own_folder(process / "cgroup", mount, version, offered)
        if own is None:
            continue
        bury_the_dead(mount)
        held = _among(offered, missing)
        if version == 2:
            held = _take_over(own, mount, missing)
        if held and _may_make(own):
            hierarchies.append(Hierarchy(own, version, held))
            missing.difference_update(held)
    return Cgroups(tuple(hierarchies)) if hierarchies else None


def bury_the_dead(top: Path) -> None:
    """Remove the groups below `top` whose workers are gone. Blocking."""
    for folder in _below(top, _DEPTH):
        if folder.name.startswith(_PREFIX) and folder.name != _WORKER_LEAF and _is_ownerless(folder):
            _removed(folder)


def _below(top: Path, depth: int) -> Iterator[Path]:
    try:
        with os.scandir(top) as entries:
            folders = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return  # gone meanwhile, or closed to us: then nothing there is ours
    for folder in folders:
        if depth > 0:
            yield from _below(folder, depth - 1)
        yield folder


def _own_prefix() -> str:
    """The beginning of the names of this worker's groups: pid namespace, pid, and when it began."""
    return f"{_PREFIX}{_pid_namespace()}-{os.getpid()}-{_began(os.getpid())}-"


def _is_ownerless(folder: Path) -> bool:
    parts = folder.name.removeprefix(_PREFIX).split("-")
    if len(parts) != 4 or not all(part.isdigit() for part in parts[:3]):
        return False
    namespace, pid, began = map(int, parts[:3])
    if namespace == _pid_namespace():
        return _began(pid) != began
    # Another container's: whether its worker lives cannot be seen, but a group is entered as it is made.
    try:
        return time.time() - folder.stat().st_mtime > _STRANGE_SECONDS
    except OSError:
        return False


def _pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _began(pid: int) -> int | None:
    """When a process began, in clock ticks since the start of the machine; None if there is none."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(after_name[19])


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _mounts(mountinfo: Path) -> Iterator[tuple[Path, Literal[1, 2], set[str]]]:
    """Yield where control groups are mounted: v2 first, then v1 with its controllers."""
    found: list[tuple[Path, Literal[1, 2], set[str]]] = []
    for line in mountinfo.read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        mount = Path(_ESCAPED.sub(lambda found: chr(int(found[1], 8)), before.split(" ")[4]))
        if kind == "cgroup2":
            found.insert(0, (mount, 2, set()))
        elif kind == "cgroup":
            found.append((mount, 1, set(options.split(","))))
    yield from found


def _own_folder(groups: Path, mount: Path, version: int, offered: set[str]) -> Path | None:
    """The folder of the group that this process is in."""
    for line in groups.read_text().splitlines():
        _, names, path = line.split(":", 2)
        if (names == "") if version == 2 else set(names.split(",")) & offered & set(BOUNDS):
            own = mount / path.lstrip("/")
            if own.name == _WORKER_LEAF:
                own = own.parent
            # In a container the path may be the host's, of which only the last part is mounted, at the top.
            return own if own.is_dir() else mount
    return None


def _among(names: Collection[str], wanted: set[Controller]) -> tuple[Controller, ...]:
    return tuple(
        controller for controller in _CONTROLLERS if controller in wanted and str(controller) in names
    )


def _take_over(own: Path, mount: Path, wanted: set[Controller]) -> tuple[Controller, ...]:
    """Make `own` (v2) pass on what it has of `wanted`; returns what it then passes on."""
    try:
        held = frozenset((own / "cgroup.controllers").read_text().split())
        take = _among(held, wanted)
        passed_on = (own / "cgroup.subtree_control").read_text().split()
        if any(name not in passed_on for name in take):
            is_top = not (own / "cgroup.type").exists()  # of the machine: it alone may also hold processes
            if not is_top and not _is_delegated(own, mount):
                return ()
            if not is_top:
                _vacate(own)
            (own / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in take))
        return take
    except OSError:
        return ()


def _vacate(own: Path) -> None:
    leaf = own / _WORKER_LEAF
    leaf.mkdir(exist_ok=True)
    for pid in (own / "cgroup.procs").read_text().split():
        try:
            (leaf / "cgroup.procs").write_text(pid)
        except ProcessLookupError:
            continue  # it has ended


def _is_delegated(own: Path, mount: Path) -> bool:
    """Whether `own` is the worker's to rule: what can be written to, is, if not to root, who can all."""
    if os.geteuid() != 0:
        return os.access(own / "cgroup.subtree_control", os.W_OK)
    marks = os.listxattr(own)
    return "trusted.delegate" in marks or "user.delegate" in marks or own == mount  # a container's


def _may_make(own: Path) -> bool:
    trial = own / f"{_own_prefix()}{secrets.token_hex(4)}"
    try:
        trial.mkdir()
        os.close(os.open(trial / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC))
    except OSError:
        return False
    finally:
        _removed(trial)
    return True
