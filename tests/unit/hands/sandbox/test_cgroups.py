"""Where groups can be made: on hierarchies of version 2 as systemd, containers and people leave them.

A machine has one set of hierarchies, so most of these are folders that have the files of the real ones; what
the kernel does there of its own accord is done by hand. `tests/security/test_cgroups.py` runs on what this
machine really has.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from corral.hands.sandbox.belongings import bounded, unbounded
from corral.hands.sandbox.cgroups import Hierarchy, bury_the_dead, find_cgroups, settings
from corral.hands.sandbox.provider import MIB, Limits

ROOT = os.geteuid() == 0
DEFAULT = {"memory.max": "4294967296", "memory.swap.max": "0", "pids.max": "1032", "cpu.weight": "50"}
LIMITS = Limits(memory_bytes=256 * MIB, processes=100, cpus=1.5)


@dataclass
class Machine:
    """Folders that stand for hierarchies, and what the kernel would say of a process in them."""

    folder: Path
    mounts: list[str] = field(default_factory=list[str])
    groups: list[str] = field(default_factory=list[str])

    def unified(self, own: str = "/", controllers: str = "cpu memory pids", *, passed_on: str = "") -> Path:
        """A hierarchy of version 2, with this process in the group `own`; the folder of the group."""
        top = self.folder / "unified"
        top.mkdir(exist_ok=True)
        self.mounts.append(f"30 20 0:26 / {escaped(top)} rw - cgroup2 cgroup2 rw")
        self.groups.append(f"0::{own}")
        return self.group(top, top / own.lstrip("/"), controllers, passed_on)

    def group(self, top: Path, group: Path, controllers: str, passed_on: str = "") -> Path:
        group.mkdir(parents=True, exist_ok=True)
        (group / "cgroup.controllers").write_text(controllers + "\n")
        (group / "cgroup.subtree_control").write_text(passed_on + "\n")
        (group / "cgroup.procs").write_text(f"{os.getpid()}\n")
        if group != top:
            (group / "cgroup.type").write_text("domain\n")
        return group

    def legacy(self, controllers: str, own: str = "/") -> Path:
        """A hierarchy of version 1; the folder of this process's group."""
        top = self.folder / controllers
        self.mounts.append(f"31 20 0:27 / {escaped(top)} rw - cgroup cgroup rw,{controllers}")
        self.groups.append(f"{len(self.groups) + 1}:{controllers}:{own}")
        group = top / own.lstrip("/")
        group.mkdir(parents=True)
        return group

    def found(self) -> str | None:
        """What `find_cgroups` finds on it, as the operator reads it."""
        process = self.folder / "process"
        process.mkdir(exist_ok=True)
        other = "21 20 8:1 / / rw,relatime - ext4 /dev/root rw"
        (process / "mountinfo").write_text("\n".join([other, *self.mounts]) + "\n")
        (process / "cgroup").write_text("\n".join(self.groups) + "\n")
        found = find_cgroups(process)
        return None if found is None else str(found)


def escaped(path: Path) -> str:
    return str(path).replace(" ", "\\040")


@pytest.fixture
def machine(open_folder: Path) -> Machine:
    folder = open_folder / "with a blank"
    folder.mkdir()
    return Machine(folder)


def delegated(group: Path) -> Path:
    """Mark a group as systemd does with Delegate=yes."""
    if ROOT:
        os.setxattr(group, "trusted.delegate", b"1")
    return group


def test_a_delegated_group_is_vacated_before_it_passes_controllers_on(machine: Machine) -> None:
    """A group of version 2 with processes of its own cannot: the kernel answers EBUSY."""
    group = delegated(machine.unified("/system.slice/corral.service"))
    leaf = group / "corral-worker"
    machine.found()
    assert (group / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"
    assert (leaf / "cgroup.procs").read_text() == str(os.getpid())
    moved, passed_on = leaf / "cgroup.procs", group / "cgroup.subtree_control"
    assert moved.stat().st_mtime_ns <= passed_on.stat().st_mtime_ns


@pytest.mark.skipif(not ROOT, reason="root alone is refused what it could write to")
def test_a_group_that_is_not_delegated_is_left_as_it_is(machine: Machine) -> None:
    group = machine.unified("/user.slice/session-1.scope")
    assert machine.found() is None
    assert (group / "cgroup.subtree_control").read_text() == "\n"
    assert not (group / "corral-worker").exists()


def test_the_top_of_a_container_is_the_containers_own(machine: Machine) -> None:
    """The path may be the host's, of which only the last part is mounted, at the top."""
    top = machine.unified("/")
    (top / "cgroup.type").write_text("domain\n")
    machine.groups = ["0::/docker/0123456789abcdef"]
    machine.found()
    assert (top / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"
    assert (top / "corral-worker" / "cgroup.procs").read_text() == str(os.getpid())


def test_the_top_of_the_machine_may_hold_processes_too(machine: Machine) -> None:
    top = machine.unified("/")
    machine.found()
    assert (top / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"
    assert not (top / "corral-worker").exists()


def test_what_is_passed_on_already_is_not_asked_for_again(machine: Machine) -> None:
    group = machine.unified("/a", passed_on="cpu memory pids")
    machine.found()
    assert (group / "cgroup.subtree_control").read_text() == "cpu memory pids\n"
    assert not (group / "corral-worker").exists()


def test_a_worker_that_is_in_the_leaf_already_takes_the_group_above(machine: Machine) -> None:
    leaf = machine.unified("/a/corral-worker")
    group = delegated(machine.group(machine.folder / "unified", leaf.parent, "cpu memory pids"))
    machine.found()
    assert (group / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"
    assert not (leaf / "corral-worker").exists()


def test_controllers_that_a_group_was_not_given_are_looked_for_in_version_1(machine: Machine) -> None:
    """A hybrid machine: what version 1 has, version 2 has not."""
    group = delegated(machine.unified("/a", "cpu"))
    machine.legacy("memory", "/a")
    machine.legacy("cpu,cpuacct", "/a")
    machine.legacy("pids", "/a")
    machine.found()
    assert (group / "cgroup.subtree_control").read_text() == "+cpu"


def test_hierarchies_that_cannot_be_written_to_are_none(machine: Machine) -> None:
    machine.legacy("freezer")
    assert machine.found() is None
    assert bounded(None).endswith("(rlimits)")
    told = unbounded(None)
    assert told is not None
    assert told.startswith("memory of all its processes together")
    assert "Delegate=yes" in told


@pytest.mark.parametrize(
    ("version", "limits", "expected"),
    [
        (
            1,
            LIMITS,
            {
                "memory.limit_in_bytes": "268435456",
                "memory.memsw.limit_in_bytes": "268435456",
                "pids.max": "108",
                "cpu.shares": "512",
                "cpu.cfs_period_us": "100000",
                "cpu.cfs_quota_us": "150000",
            },
        ),
        (
            2,
            LIMITS,
            {
                "memory.max": "268435456",
                "memory.swap.max": "0",
                "pids.max": "108",
                "cpu.weight": "50",
                "cpu.max": "150000 100000",
            },
        ),
        (2, Limits(), DEFAULT),
        (2, Limits(cpus=0.001), {**DEFAULT, "cpu.max": "1000 100000"}),
    ],
)
def test_limits_in_the_words_of_each_version(version: int, limits: Limits, expected: dict[str, str]) -> None:
    hierarchy = Hierarchy(Path("/"), 1 if version == 1 else 2, ("memory", "pids", "cpu"))
    assert settings(hierarchy, limits) == expected
    assert settings(Hierarchy(Path("/"), 2, ()), limits) == {}


def test_the_groups_of_the_dead_are_known_by_their_names(open_folder: Path) -> None:
    namespace = os.stat("/proc/self/ns/pid").st_ino
    began = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    dead = [f"corral-{namespace}-{os.getpid()}-{int(began) + 1}-ab", f"corral-{namespace}-4194305-1-cd"]
    kept = [
        f"corral-{namespace}-{os.getpid()}-{began}-ef",  # ours
        f"corral-{namespace + 1}-1-1-01",  # another container's, made just now
        "corral-worker",
        "corral-of-somebody-else",
        "corral-1-2-3",
        "other",
    ]
    above = open_folder / "a" / "b"
    for name in (*dead, *kept):
        (above / name).mkdir(parents=True)
    old = above / f"corral-{namespace + 1}-1-1-02"
    old.mkdir()
    os.utime(old, (0, 0))
    bury_the_dead(open_folder)
    assert sorted(one.name for one in above.iterdir()) == sorted(kept)
