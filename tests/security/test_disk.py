"""An agent fills the disk, in every way that there is. What it takes is bounded; others go on."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from corral.hands.sandbox.bubblewrap import BubblewrapProvider
from corral.hands.sandbox.provider import MIB, DiskFull
from corral.hands.worker.disk import DiskLimits, DiskWatch, Usage, measure
from corral.hands.worker.sandboxes import Sandboxes
from corral.hands.worker.workspaces import Owner, Workspaces
from tests.unit.hands.sandbox.given import said
from tests.unit.hands.sandbox.watched import running, seconds

SMALL = DiskLimits(session_bytes=30 * MIB, session_entries=500, free_bytes=0, watch_seconds=0.02)
MANY = Usage(1 << 50, 1 << 30)


class Place:
    """Sandboxes of several sessions whose disk is watched."""

    def __init__(self, sandboxes: Sandboxes, folder: Path) -> None:
        self._sandboxes = sandboxes
        self._folder = folder

    async def bash(self, command: str, session: str = "greedy") -> str:
        """What the command says; the same text as the model gets where the disk is full."""
        try:
            return said(await self._sandboxes.execute(session, "bash", {"command": command})).text
        except DiskFull as error:
            return f"DISK FULL: {error}"

    def workspace(self, session: str = "greedy") -> Path:
        return self._folder / session


@asynccontextmanager
async def watched(folder: Path, limits: DiskLimits = SMALL) -> AsyncGenerator[Place]:
    workspaces = Workspaces(folder, Owner("http://server", None))
    await workspaces.open()
    provider = BubblewrapProvider()
    sandboxes = Sandboxes(provider, workspaces, idle_seconds=600, most=4, shows_files=True, disk=limits)
    watching = asyncio.create_task(sandboxes.watch_disk())
    try:
        yield Place(sandboxes, folder)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await provider.close()


async def ended(marker: str) -> None:
    """The sandbox's processes are told to end before the call is answered, and have ended soon after."""
    while running(f"sleep\0{marker}"):
        await asyncio.sleep(0.01)


async def test_a_session_that_fills_its_workspace_is_stopped_told_and_may_clean_up(open_folder: Path) -> None:
    async with watched(open_folder / "w") as at:
        assert await at.bash("echo mine", "other") == "mine"
        told = await at.bash(f"head -c {60 * MIB} /dev/zero > big; sleep {seconds(91234)}")
        assert told.startswith("DISK FULL: The session's files hold ")
        assert "no more than 30 MiB in 500 are allowed" in told
        assert "The sandbox was stopped; running processes are gone, files are kept." in told
        assert "Remove files before anything else" in told
        await ended(seconds(91234))
        assert (at.workspace() / "big").stat().st_size > 30 * MIB
        assert await at.bash("pwd; rm big; ls", "greedy") == "/workspace"
        assert await at.bash("echo still mine", "other") == "still mine"


async def test_who_does_it_again_and_again_gets_no_more_sandbox_until_there_is_room(
    open_folder: Path,
) -> None:
    async with watched(open_folder / "w") as at:
        for number in range(1, 4):
            told = await at.bash(f"head -c {40 * MIB} /dev/zero > big-{number}; sleep {seconds(91235)}")
            assert told.startswith("DISK FULL: The session's files hold"), told
        refused = await at.bash("rm -rf big-*")
        assert "The call was not run. Somebody with access to the worker must make room." in refused
        assert (at.workspace() / "big-1").exists()
        for number in range(1, 4):
            # The later ones may have been stopped before they wrote anything.
            (at.workspace() / f"big-{number}").unlink(missing_ok=True)
        assert await at.bash("echo again") == "again"


async def test_files_without_content_are_counted(open_folder: Path) -> None:
    async with watched(open_folder / "w") as at:
        told = await at.bash(
            f"mkdir -p many; cd many; for n in $(seq 1500); do : > $n; done; sleep {seconds(91236)}"
        )
        assert told.startswith("DISK FULL: The session's files hold 0 MiB in "), told


async def test_outputs_count_as_the_workspace_does(open_folder: Path) -> None:
    async with watched(open_folder / "w") as at:
        told = await at.bash(
            f"head -c {60 * MIB} /dev/zero > /mnt/session/outputs/big; sleep {seconds(91237)}"
        )
        assert told.startswith("DISK FULL")


async def test_what_takes_no_room_is_not_held_against_a_session(open_folder: Path) -> None:
    """A sparse file, and one file under many names."""
    async with watched(open_folder / "w") as at:
        said = await at.bash(
            f"truncate -s 5G sparse; head -c {20 * MIB} /dev/zero > one; "
            "for n in $(seq 50); do ln one link-$n; done; sleep 0.3; stat -c %s sparse; stat -c %h one"
        )
        assert said == f"{5 << 30}\n51"


@pytest.fixture
def small_disk(open_folder: Path) -> Iterator[Path]:
    """A file system of 256 MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount")
    disk = open_folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256m,mode=711", "tmpfs", disk], check=True)
    yield disk
    subprocess.run(["umount", disk], check=True)


async def test_a_deleted_file_that_is_held_open_is_found_by_the_room_that_is_left(small_disk: Path) -> None:
    """No look at the workspace shows it. The sandbox that is at work is stopped, and the room comes back."""
    limits = DiskLimits(free_bytes=100 * MIB, watch_seconds=0.02)
    async with watched(small_disk / "w", limits) as at:
        assert await at.bash("echo mine > file; cat file", "other") == "mine"
        hold = f"exec 3> hidden; rm hidden; head -c 200000000 /dev/zero >&3; ls; sleep {seconds(91238)}"
        assert (
            await at.bash(hold)
            == "DISK FULL: The worker's disk is almost full. The sandbox was stopped; files are kept."
        )
        await ended(seconds(91238))
        while shutil.disk_usage(small_disk).free < 240 * MIB:
            await asyncio.sleep(0.01)
        assert await at.bash("cat file; echo more > file", "other") == "mine"
        assert await at.bash("echo again") == "again"


async def test_no_sandbox_is_started_on_a_disk_that_is_almost_full(small_disk: Path) -> None:
    limits = DiskLimits(free_bytes=100 * MIB, watch_seconds=0.02)
    async with watched(small_disk / "w", limits) as at:
        (small_disk / "somebody's").write_bytes(bytes(200 * MIB))
        told = await at.bash("echo")
        assert told.startswith("DISK FULL: The worker's disk has only 5")
        assert told.endswith(
            " MiB left. The call was not run. Somebody with access to the worker must make room."
        )
        (small_disk / "somebody's").unlink()
        assert await at.bash("echo again") == "again"


def test_a_folder_is_measured_by_what_it_takes(open_folder: Path) -> None:
    (open_folder / "a").mkdir()
    (open_folder / "a" / "full").write_bytes(bytes(2 * MIB))
    (open_folder / "again").hardlink_to(open_folder / "a" / "full")
    with (open_folder / "sparse").open("wb") as sparse:
        sparse.truncate(1 << 40)
    (open_folder / "out").symlink_to("/usr")
    (open_folder / "loop").symlink_to(".")
    found = measure([open_folder], MANY)
    assert found.entries == 6
    assert 2 * MIB <= found.bytes < 3 * MIB


def test_measuring_ends_where_there_is_far_too_much(open_folder: Path) -> None:
    for number in range(100):
        (open_folder / str(number)).write_text("")
    assert measure([open_folder], Usage(1 << 40, 10)).entries == 21


def test_who_shrinks_is_left_to_it_and_who_grows_is_counted() -> None:
    watch = DiskWatch(DiskLimits(session_bytes=10, session_entries=10))
    assert watch.judge("s", Usage(20, 1)) is not None
    assert watch.judge("s", Usage(15, 1)) is None
    assert watch.judge("s", Usage(16, 1)) is not None
    assert not watch.is_barred("s")
    assert watch.judge("s", Usage(10, 1)) is None
    assert [watch.judge("s", Usage(size, 1)) is not None for size in (11, 12, 13)] == [True, True, True]
    assert watch.is_barred("s")
    watch.recheck("s", Usage(11, 1))
    assert watch.is_barred("s")
    watch.recheck("s", Usage(9, 1))
    assert not watch.is_barred("s")


def test_what_was_written_until_the_sandbox_had_stopped_is_no_second_strike() -> None:
    watch = DiskWatch(DiskLimits(session_bytes=10, session_entries=10))
    assert watch.judge("one", Usage(20, 1)) is not None
    watch.stopped("one", Usage(30, 1))
    assert watch.judge("one", Usage(30, 1)) is None
    assert watch.judge("one", Usage(25, 1)) is None
    assert watch.judge("one", Usage(26, 1)) is not None
