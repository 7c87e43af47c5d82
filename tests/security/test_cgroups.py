"""What bounds a whole sandbox: its control group, by the version that this machine has. Nothing gets over it.

The attacker in the group is an ordinary user, and root as well: rlimits hold neither all processes together
nor root, so that what is seen here is the group's doing.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.hands.sandbox.access import SANDBOX_UID
from corral.hands.sandbox.belongings import entering
from corral.hands.sandbox.cgroups import BOUNDS, Cgroups, Controller, Group, find_cgroups
from corral.hands.sandbox.provider import MIB, Limits, SandboxLost
from tests.unit.hands.sandbox.given import hands
from tests.unit.hands.sandbox.watched import running, seconds, until_running

USERS = [pytest.param(0, id="root"), pytest.param(SANDBOX_UID, id="an ordinary user")]
PYTHON = "/usr/bin/python3"


@pytest.fixture
def cgroups() -> Cgroups:
    found = find_cgroups() if os.geteuid() == 0 else None
    if found is None or len(found.controllers) < len(BOUNDS):
        pytest.skip("this process cannot make control groups with all controllers")
    return found


class Bounded:
    """A group with limits, and a place to run things in it."""

    def __init__(self, cgroups: Cgroups, limits: Limits) -> None:
        self.group: Group = cgroups.make(limits)
        self._folders = {
            name: folder
            for hierarchy, folder in zip(cgroups.hierarchies, self.group.folders, strict=True)
            for name in hierarchy.controllers
        }
        self._version = {
            name: hierarchy.version for hierarchy in cgroups.hierarchies for name in hierarchy.controllers
        }

    def run(self, script: str, user: int) -> subprocess.CompletedProcess[str]:
        """Run Python code in the group, as this user; it enters the group as a sandbox does."""
        doors = self.group.open_doors()
        try:
            return subprocess.run(
                [*entering(doors), PYTHON, "-I", "-c", script],
                capture_output=True,
                text=True,
                check=False,
                pass_fds=doors,
                user=user,
                group=user,
                extra_groups=[],
                cwd="/",
            )
        finally:
            for door in doors:
                os.close(door)

    def read(self, controller: Controller, file: str) -> str:
        return (self._folders[controller] / file).read_text()

    def count(self, controller: Controller, v1: tuple[str, str], v2: tuple[str, str]) -> int:
        """A figure of the kernel's: a file and a word in it, by version."""
        file, word = v1 if self._version[controller] == 1 else v2
        found = dict(line.rsplit(" ", 1) for line in self.read(controller, file).splitlines())
        return int(found[word])

    @property
    def killed(self) -> int:
        """How many processes were killed for the memory of the group."""
        return self.count("memory", ("memory.oom_control", "oom_kill"), ("memory.events", "oom_kill"))


@pytest.fixture
def bounded(cgroups: Cgroups) -> Iterator[Bounded]:
    made = Bounded(cgroups, Limits(memory_bytes=96 * MIB, processes=24, cpus=0.25))
    yield made
    made.group.remove()
    assert not any(folder.exists() for folder in made.group.folders)


SHARED = "import mmap; held = mmap.mmap(-1, 400 << 20); held.write(bytes(400 << 20)); print('got it')"
SEVERAL = """
import os, time
made = []
for _ in range(8):
    pid = os.fork()
    if pid == 0:
        held = bytearray(40 << 20)
        for page in range(0, len(held), 4096):
            held[page] = 1
        time.sleep(10)
        os._exit(0)
    made.append(pid)
print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
for pid in made:
    os.kill(pid, 9)
"""


@pytest.mark.parametrize("user", USERS)
def test_memory_that_no_rlimit_counts_is_bounded(bounded: Bounded, user: int) -> None:
    """Shared memory is no process's own."""
    done = bounded.run(SHARED, user)
    assert (done.returncode, done.stdout) == (-9, ""), done.stderr
    assert bounded.killed >= 1


@pytest.mark.parametrize("user", USERS)
def test_the_memory_of_all_processes_together_is_bounded(bounded: Bounded, user: int) -> None:
    done = bounded.run(SEVERAL, user)
    # Either one of the many was killed, or the one that waits for them.
    assert "-9" in done.stdout or done.returncode == -9, (done.stdout, done.stderr)
    assert bounded.killed >= 1


@pytest.mark.parametrize("user", USERS)
def test_processes_are_bounded_for_root_too(bounded: Bounded, user: int) -> None:
    done = bounded.run(
        "import os, time\n"
        "made = []\n"
        "try:\n"
        "    for _ in range(200):\n"
        "        pid = os.fork()\n"
        "        if pid == 0:\n"
        "            time.sleep(60)\n"
        "        made.append(pid)\n"
        "except BlockingIOError:\n"
        "    print(len(made))\n"
        "for pid in made:\n"
        "    os.kill(pid, 9)\n",
        user,
    )
    # With itself: the limit, and what a sandbox needs for its own processes.
    assert int(done.stdout) + 1 == 24 + 8
    assert int(bounded.read("pids", "pids.max")) == 24 + 8
    assert bounded.count("pids", ("pids.events", "max"), ("pids.events", "max")) >= 1


@pytest.mark.parametrize("user", USERS)
def test_threads_count_as_processes(bounded: Bounded, user: int) -> None:
    done = bounded.run(
        "import threading, time, os\n"
        "made = 0\n"
        "try:\n"
        "    for _ in range(200):\n"
        "        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "        made += 1\n"
        "except RuntimeError:\n"
        "    print(made, flush=True)\n"
        "os._exit(0)\n",
        user,
    )
    assert int(done.stdout) + 1 == 24 + 8


@pytest.mark.parametrize("user", USERS)
def test_processors_time_is_bounded(bounded: Bounded, user: int) -> None:
    """By what the kernel counts: a quarter of a processor is 25 of each 100 milliseconds."""
    done = bounded.run(
        "import os, time\n"
        "children = [os.fork() for _ in range(2)]\n"
        "begun = time.process_time()\n"
        "while time.process_time() - begun < 0.25:\n"
        "    pass\n"
        "if all(children):\n"
        "    for child in children: os.waitpid(child, 0)\n",
        user,
    )
    assert done.returncode == 0, done.stderr
    used = 4 * 0.25  # four processes
    periods = bounded.count("cpu", ("cpu.stat", "nr_periods"), ("cpu.stat", "nr_periods"))
    assert bounded.count("cpu", ("cpu.stat", "nr_throttled"), ("cpu.stat", "nr_throttled")) >= 1
    assert used <= (periods + 2) * 0.025


@pytest.mark.parametrize("user", USERS)
def test_who_is_in_the_group_does_not_get_out(bounded: Bounded, user: int) -> None:
    """The door that leads in is closed behind it, and it leads in only."""
    done = bounded.run(
        "import os; print(os.listdir('/proc/self/fd'), open('/proc/self/cgroup').read())", user
    )
    descriptors, _, groups = done.stdout.partition("] ")
    assert len(descriptors.split(",")) == 4  # the three, and that of the listing
    for folder in bounded.group.folders:
        assert folder.name in groups


def groups_of(cgroups: Cgroups, pid: int | None = None) -> set[Path]:
    """The groups of a worker, of this process unless another is named; other tests have workers beside it."""
    name = f"-{pid or os.getpid()}-"
    return {folder for one in cgroups.hierarchies for folder in one.folder.iterdir() if name in folder.name}


async def test_a_sandbox_is_in_its_group_with_everything_it_starts_and_leaves_none(
    cgroups: Cgroups, open_folder: Path
) -> None:
    before = groups_of(cgroups)
    async with hands(open_folder) as ours:
        await ours.bash(f"setsid sleep {seconds(85678)} & (setsid sleep {seconds(85678)} &); echo")
        made = groups_of(cgroups) - before
        assert len(made) == len(cgroups.hierarchies)
        for pid in await until_running(f"sleep\0{seconds(85678)}", 2):
            inside = await asyncio.to_thread(Path(f"/proc/{pid}/cgroup").read_text)
            assert all(folder.name in inside for folder in made)
        assert (await ours.bash("ls /sys/fs/cgroup 2>&1; grep cgroup /proc/self/mounts")).is_error
    assert groups_of(cgroups) == before
    assert running(f"sleep\0{seconds(85678)}") == []


async def test_a_sandbox_that_takes_too_much_memory_is_killed_and_the_next_one_works(
    cgroups: Cgroups, open_folder: Path
) -> None:
    """Its processes hold less than the limit each, and hide it from rlimits in shared memory."""
    before = groups_of(cgroups)
    script = "import mmap\nheld = mmap.mmap(-1, 600 << 20)\nheld.write(bytes(600 << 20))\nprint('got it')\n"
    async with hands(open_folder, limits=Limits(memory_bytes=256 * MIB)) as ours:
        await ours.call("write", file_path="take.py", content=script)
        try:
            result = await ours.bash("python3 take.py")
            assert result.is_error
            assert "got it" not in result.text
        except SandboxLost:
            assert not ours.sandbox.alive
    assert groups_of(cgroups) == before
    async with hands(open_folder, limits=Limits(memory_bytes=256 * MIB)) as again:
        assert (await again.bash("echo usable")).text == "usable"


async def test_one_sandbox_at_its_bounds_does_not_disturb_another(
    cgroups: Cgroups, open_folder: Path
) -> None:
    small = Limits(memory_bytes=192 * MIB, processes=32, cpus=0.5)
    greedy = "b() { sleep TIME & b & b; }; b".replace("TIME", seconds(86789))
    async with hands(open_folder / "a", limits=small) as first, hands(open_folder / "b") as second:
        bomb = asyncio.create_task(first.bash(greedy + " 2>/dev/null", timeout_ms=3000))
        await until_running(f"sleep\0{seconds(86789)}", 8)
        counted = await second.bash("for n in $(seq 40); do sleep 0.01 & done; wait; echo all ran")
        assert counted.text == "all ran"
        assert (await bomb).is_error


WORKER = """
import asyncio, sys
from pathlib import Path
from corral.hands.sandbox.provider import Recipe
from corral.hands.sandbox.bubblewrap import BubblewrapProvider

async def work():
    sandbox = await BubblewrapProvider().provision(Recipe("s", Path(sys.argv[1])))
    await sandbox.execute("bash", {"command": "setsid sleep TIME & echo".replace("TIME", sys.argv[2])})
    print("begun", flush=True)
    await asyncio.sleep(600)

asyncio.run(work())
"""


async def test_what_a_killed_worker_leaves_is_removed_by_the_next_and_what_a_living_one_uses_is_not(
    cgroups: Cgroups, open_folder: Path
) -> None:
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", WORKER, str(open_folder / "workspace"), seconds(87890)),
        stdout=asyncio.subprocess.PIPE,
    )
    assert worker.stdout is not None
    while (line := await worker.stdout.readline()) != b"begun\n":
        assert line, "the worker ended too early"
    assert groups_of(cgroups, worker.pid)
    find_cgroups()
    assert groups_of(cgroups, worker.pid), "the worker lives, and its groups are its own"
    worker.kill()
    await worker.wait()
    while running(f"sleep\0{seconds(87890)}"):
        await asyncio.sleep(0.01)
    # The kernel keeps a group for as long as a process of it is on its way out.
    while groups_of(cgroups, worker.pid):
        await asyncio.sleep(0.01)
        find_cgroups()
